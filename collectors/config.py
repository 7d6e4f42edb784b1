"""The agent's settings: environment first, then its TOML file, then what a checkout's supervisor wrote.

In: ``CLUSTERWATCH_...`` variables (secrets also as ``..._FILE``), ``CLUSTERWATCH_AGENT_CONFIG`` or
``<state>/agent.toml`` with the same names in lower case, ``<state>/endpoints.json``. Out: ``AgentConfig``.
A bad value is a ``ConfigError`` with one line that says what to do.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from collectors import sources
from collectors.hook.socket_path import short_socket_path
from collectors.sources import gpu_pause
from collectors.wire import limits

INSTALLED_STATE_DIR: Final = Path("/var/lib/clusterwatch")
ENDPOINTS: Final = "endpoints.json"
SPOOL_MAX_BYTES: Final = 256 * 1024 * 1024
_SETTINGS: Final = [
    "state_dir",
    "gateway_url",
    "gateway_ca",
    "token",
    "hook_socket",
    "cluster",
    "node",
    "rack",
    "leaf",
    "boot_id",
    "machine_id",
    "spool_max_bytes",
    "sources_off",
    "gpu_release_s",
    "pollers_file",
]


class ConfigError(Exception):
    """A setting the agent cannot start with; the text is one line for people."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Everything the agent was told. Paths are absolute."""

    state_dir: Path
    """the agent's own folder, 0700"""
    gateway_url: str
    hook_socket: Path
    cluster: str
    node: str
    machine_id: str
    boot_id: str
    token: str | None = None
    token_file: Path | None = None
    gateway_ca: Path | None = None
    rack: str | None = None
    leaf: str | None = None
    spool_max_bytes: int = SPOOL_MAX_BYTES
    sources_off: frozenset[str] = frozenset()
    """names of sources that this agent does not run"""
    gpu_release_s: float = 0.0
    """how long the agent lets go of the GPU driver when that asks for a reset; 0: it does not"""
    pollers_file: Path | None = None
    """devices that this agent polls"""

    def enrolment_token(self) -> str | None:
        """The enrolment token, read when it is needed: its file may appear after the agent started."""
        if self.token or self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text(encoding="utf-8").strip() or None
        except OSError:
            return None


def state_root(environ: Mapping[str, str], prefix: str = sys.prefix) -> Path:
    """CLUSTERWATCH_STATE_DIR, else the checkout's ``.clusterwatch``, else the installed folder.

    A checkout is where this package lies beside a ``pyproject.toml``, or whose ``.venv`` runs this Python.
    """
    if chosen := environ.get("CLUSTERWATCH_STATE_DIR"):
        return Path(chosen).absolute()
    beside = Path(__file__).resolve().parent.parent
    venv = Path(prefix)
    for checkout in [beside] + ([venv.parent] if venv.name == ".venv" else []):
        if (checkout / "pyproject.toml").is_file():
            return checkout / ".clusterwatch"
    return INSTALLED_STATE_DIR


def default_hook_socket(root: Path) -> Path:
    """Where the agent of the state folder ``root`` listens unless it was told otherwise."""
    if root == INSTALLED_STATE_DIR and os.geteuid() == 0:
        return Path("/run/clusterwatch/hook.sock")  # every user's training process must reach it
    return short_socket_path(root / "agent" / "hook.sock")


def load(environ: Mapping[str, str]) -> AgentConfig:
    """Reads all settings. Raises ``ConfigError``."""
    root = state_root(environ)
    settings = _toml(environ, root) | _from_environment(environ)
    endpoints = _endpoints(root)
    gateway_url = settings.get("gateway_url") or endpoints.get("gateway_url")
    if not gateway_url:
        raise ConfigError(
            "no gateway: set CLUSTERWATCH_GATEWAY_URL=wss://HOST:PORT, or start this checkout's server first"
        )
    hook_socket = settings.get("hook_socket") or endpoints.get("hook_socket") or default_hook_socket(root)
    token_file = settings.get("token_file") or endpoints.get("enrolment_token_file")
    ca_file = settings.get("gateway_ca")
    pollers_file = settings.get("pollers_file")
    return AgentConfig(
        state_dir=root / "agent",
        gateway_url=_checked_url(gateway_url),
        hook_socket=short_socket_path(Path(hook_socket).absolute()),
        cluster=_checked_name("CLUSTER", settings.get("cluster") or "default"),
        node=_checked_name("NODE", settings.get("node") or host_name()),
        machine_id=_checked_name("MACHINE_ID", settings.get("machine_id") or machine_id()),
        boot_id=_checked_name("BOOT_ID", settings.get("boot_id") or boot_id()),
        token=settings.get("token"),
        token_file=Path(token_file) if token_file else None,
        gateway_ca=_checked_file("GATEWAY_CA", ca_file) if ca_file else None,
        rack=_checked_name("RACK", settings["rack"]) if settings.get("rack") else None,
        leaf=_checked_name("LEAF", settings["leaf"]) if settings.get("leaf") else None,
        spool_max_bytes=_checked_bytes(settings.get("spool_max_bytes")),
        sources_off=_checked_sources(settings.get("sources_off")),
        gpu_release_s=_checked_release(settings.get("gpu_release_s")),
        pollers_file=Path(pollers_file).absolute() if pollers_file else None,
    )


def publish_hook_socket(root: Path, hook_socket: Path) -> None:
    """Writes where the agent listens into ``endpoints.json`` unless the supervisor already did.

    Readable for all (it holds addresses and paths, no secret), so that ``clusterwatch-run`` of any user of
    this machine finds the agent. Raises ``OSError``.
    """
    endpoints = _endpoints(root)
    if "hook_socket" in endpoints:
        return
    temporary = root / f".endpoints.{os.getpid()}"
    temporary.write_text(json.dumps(endpoints | {"hook_socket": str(hook_socket)}) + "\n", encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(root / ENDPOINTS)


def host_name() -> str:
    return socket.gethostname() or "localhost"


def machine_id() -> str:
    """/etc/machine-id, else the host name: what ties a credential to a machine."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip() or host_name()
    except (OSError, UnicodeDecodeError):
        return host_name()


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _SETTINGS:
        if value := environ.get(f"CLUSTERWATCH_{name.upper()}"):
            found[name] = value
    if token_file := environ.get("CLUSTERWATCH_TOKEN_FILE"):
        found["token_file"] = token_file
        if not os.access(token_file, os.R_OK):
            raise ConfigError(f"CLUSTERWATCH_TOKEN_FILE={token_file} cannot be read")
    return found


def _toml(environ: Mapping[str, str], root: Path) -> dict[str, Any]:
    chosen = environ.get("CLUSTERWATCH_AGENT_CONFIG")
    path = Path(chosen) if chosen else root / "agent.toml"
    try:
        with path.open("rb") as file:
            settings = tomllib.load(file)
    except FileNotFoundError:
        if chosen:
            raise ConfigError(f"CLUSTERWATCH_AGENT_CONFIG={path} does not exist") from None
        return {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be used: {error}") from None
    unknown = sorted(set(settings) - set(_SETTINGS) - {"token_file"})
    if unknown:
        raise ConfigError(f"{path}: unknown setting {unknown[0]!r}; known are {', '.join(_SETTINGS)}")
    return settings


def _endpoints(root: Path) -> dict[str, str]:
    """What the supervisor wrote, strings only; nothing when it is not there or damaged."""
    try:
        value = json.loads((root / ENDPOINTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {name: text for name, text in value.items() if isinstance(text, str) and text}


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    try:
        port_is_sane = parts.port is None or parts.port > 0
    except ValueError:
        port_is_sane = False
    if parts.scheme not in ("ws", "wss") or not parts.hostname or not port_is_sane:
        raise ConfigError(f"CLUSTERWATCH_GATEWAY_URL={url!r} is no ws:// or wss:// address")
    return url


def _checked_name(setting: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > limits.NAME_MAX_CHARS:
        raise ConfigError(
            f"CLUSTERWATCH_{setting} must be printable text of at most {limits.NAME_MAX_CHARS} characters"
        )
    return value


def _checked_file(setting: str, value: str) -> Path:
    if not os.access(value, os.R_OK):
        raise ConfigError(f"CLUSTERWATCH_{setting}={value} cannot be read")
    return Path(value)


def _checked_sources(value: Any) -> frozenset[str]:
    """Names with commas between them (a list in the file)."""
    names = value.split(",") if isinstance(value, str) else value or []
    chosen = frozenset(str(name).strip() for name in names) - {""}
    unknown = sorted(chosen - set(sources.names()))
    if unknown:
        known = ", ".join(sources.names())
        raise ConfigError(f"CLUSTERWATCH_SOURCES_OFF: no source {unknown[0]!r}; there are {known}")
    return chosen


def _checked_release(value: Any) -> float:
    """A time such as ``5m``; 0 or nothing: never."""
    if value in (None, 0, "0"):
        return 0.0
    try:
        return gpu_pause.duration_s(str(value))
    except ValueError as error:
        raise ConfigError(f"CLUSTERWATCH_GPU_RELEASE_S: {error}") from None


def _checked_bytes(value: Any) -> int:
    if value is None:
        return SPOOL_MAX_BYTES
    try:
        size = int(value)
    except (TypeError, ValueError):
        size = 0
    if size < 1024 * 1024:
        raise ConfigError(f"CLUSTERWATCH_SPOOL_MAX_BYTES={value!r} must be a number of at least 1048576")
    return size
