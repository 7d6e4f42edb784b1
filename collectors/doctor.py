"""``clusterwatch-agent doctor``: says what would keep the agent from working, one line per check.

In: the environment. Out: lines ``OK``, ``WARN`` or ``FAIL``; exit code 1 if one is ``FAIL``.
"""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TextIO
from urllib.parse import urlsplit

from collectors import config as settings
from collectors import poll, processes, sources, stacks
from collectors.pollers.device import ConfigError
from collectors.sources import gpu_pause
from collectors.sources.base import FIRST_SAMPLE, Reading, Source
from collectors.sources.needs import NEEDS
from collectors.sources.tree import Tree

Mark = Literal["OK", "WARN", "FAIL"]
Finding = tuple[Mark, str]
CONNECT_TIMEOUT_S = 3.0


def run(environ: Mapping[str, str], out: TextIO) -> int:
    """Prints all findings."""
    findings = list(check(environ))
    for mark, text in findings:
        print(f"{mark:<4} {text}", file=out)
    return 1 if any(mark == "FAIL" for mark, _ in findings) else 0


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """All checks, each on its own: one that fails does not hide the others."""
    try:
        config = settings.load(environ)
    except settings.ConfigError as error:
        yield "FAIL", str(error)
        yield from _sources(frozenset())
        return
    yield "OK", f"node {config.node} of cluster {config.cluster}, machine {config.machine_id[:8]}..."
    yield _state_folder(config.state_dir)
    yield _running(config.state_dir)
    yield _identity(config)
    yield _gateway(config)
    yield _hook_socket(config.hook_socket)
    yield from _kernel()
    yield from _gpu_pause(config.state_dir)
    if config.pollers_file is not None:
        yield _pollers(config.pollers_file)
    yield from _sources(config.sources_off)


def _state_folder(folder: Path) -> Finding:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(nearest, os.W_OK):
        return "FAIL", f"the state folder {folder} cannot be written: set CLUSTERWATCH_STATE_DIR"
    if folder.exists() and folder.stat().st_mode & 0o077:
        return (
            "WARN",
            f"the state folder {folder} can be read by others: the agent will make it 0700",
        )
    return "OK", f"state folder {folder}"


def _running(folder: Path) -> Finding:
    try:
        with (folder / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return "WARN", "no agent has run here yet"
    except BlockingIOError:
        return "OK", "an agent runs on this state folder"
    except OSError as error:
        return "WARN", f"cannot tell whether an agent runs: {error}"
    return "WARN", "no agent runs on this state folder"


def _identity(config: settings.AgentConfig) -> Finding:
    if (config.state_dir / "credential").exists():
        return "OK", "this node is enrolled"
    if config.enrolment_token() is None:
        return (
            "FAIL",
            "not enrolled and no enrolment token: set CLUSTERWATCH_TOKEN or ..._TOKEN_FILE",
        )
    return "OK", "not enrolled yet; there is an enrolment token"


def _gateway(config: settings.AgentConfig) -> Finding:
    parts = urlsplit(config.gateway_url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "wss" else 80)
    try:
        with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as plain:
            if parts.scheme == "wss":
                _tls_hello(config, plain, host)
    except ssl.SSLError as error:
        return "FAIL", f"the gateway {config.gateway_url} is not who it says: {error}"
    except OSError as error:
        return "FAIL", f"the gateway {config.gateway_url} cannot be reached: {error}"
    if parts.scheme == "ws" and host not in ("localhost", "127.0.0.1", "::1"):
        return "WARN", f"the gateway {config.gateway_url} is reached without TLS: credentials travel readable"
    return "OK", f"the gateway {config.gateway_url} answers"


def _tls_hello(config: settings.AgentConfig, plain: socket.socket, host: str) -> None:
    context = ssl.create_default_context(cafile=str(config.gateway_ca) if config.gateway_ca else None)
    context.wrap_socket(plain, server_hostname=host).close()


def _hook_socket(path: Path) -> Finding:
    if path.parent.exists() and path.parent.stat().st_uid not in (0, os.geteuid()):
        return "FAIL", f"the socket folder {path.parent} belongs to another user"
    return "OK", f"training processes reach the agent at {path}"


def _gpu_pause(folder: Path) -> Iterator[Finding]:
    pause = gpu_pause.standing(folder)
    if pause is None:
        return
    gpu_pause.WATCH.keep_in(folder)  # the doctor does not open the driver either
    text = f"the GPU driver is released, asked by {pause.by}, for {gpu_pause.left_s(pause):.0f} s more"
    yield "WARN", f"{text}: values of GPUs are unknown; clusterwatch-agent resume-gpu ends it"
    if pids := gpu_pause.held_by(folder, pause):
        yield "WARN", f"the agent could not let go of the GPU driver: process {pids[0]} hangs in it"


def _kernel() -> Iterator[Finding]:
    if not hasattr(os, "pidfd_open"):
        yield "FAIL", "this Python or kernel has no pidfd: Linux 5.3 is needed"
    if Path("/proc/pressure/cpu").exists():
        yield "OK", "pressure stall information is there"
    else:
        yield "WARN", "no /proc/pressure: start the kernel with psi=1 to see pressure"
    if stacks.pyspy_path() is None:
        yield "WARN", "py-spy is not installed: no stacks of a process that does not answer"
    else:
        yield _ptrace()


def _ptrace() -> Finding:
    """Whether py-spy may look into a process that is not its child. Source: LSM/Yama.rst of Linux."""
    if os.geteuid() == 0:
        return "OK", "stacks from outside: allowed (root)"
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        scope = 0
    if scope:
        return "WARN", f"stacks from outside: kernel.yama.ptrace_scope is {scope}, so only root may take them"
    return "OK", f"stacks from outside: allowed for processes of {processes.user_name()}"


def _pollers(file: Path) -> Finding:
    try:
        pollers = poll.load(file)
    except ConfigError as error:
        return "FAIL", f"devices are not asked: {error}"
    return "OK", f"devices are asked by {', '.join(poller.name for poller in pollers)} of {file}"


def _sources(off: frozenset[str]) -> Iterator[Finding]:
    """What each source sees here and now, and what it needs where it sees nothing."""
    tree = Tree()
    for name in sources.names():
        if name in off:
            yield "OK", f"source {name}: switched off"
            continue
        source = sources.make(name)
        found: list[Reading | Exception] = []
        thread = threading.Thread(target=_look, args=(source, tree, found), daemon=True)
        thread.start()
        thread.join(source.deadline_s)
        yield _seen(name, found[0] if found else None, source.deadline_s)


def _look(source: Source, tree: Tree, found: list[Reading | Exception]) -> None:
    try:
        found.append(source.read(tree, 0.0))
    except Exception as error:  # noqa: BLE001  whatever a source raises is what the doctor has to say
        found.append(error)


def _seen(name: str, found: Reading | Exception | None, deadline_s: float) -> Finding:
    if found is None:
        return "WARN", f"source {name}: no answer within {deadline_s:g} s"
    if isinstance(found, Exception):
        return "WARN", f"source {name}: {type(found).__name__}: {found}"[:300]
    if not found.samples and not found.events:
        return "OK", f"source {name}: nothing of its kind here; it needs {NEEDS[name]}"
    unknown = Counter(sample.quality for sample in found.samples if sample.value is None)
    unknown.pop(FIRST_SAMPLE, None)  # changes come with the second look
    entities = len({sample.entity for sample in found.samples})
    known = sum(sample.value is not None for sample in found.samples)
    told = f"{known} values of {entities} {'part' if entities == 1 else 'parts'}"
    if not unknown:
        return "OK", f"source {name}: {told}"
    reasons = ", ".join(f"{count} {reason}" for reason, count in unknown.most_common(3))
    return "WARN" if not known else "OK", f"source {name}: {told}; unknown: {reasons}; it needs {NEEDS[name]}"
