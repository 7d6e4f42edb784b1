"""Whether a network mount answers: asked by a process made for it, never by the agent, which would hang, too.

In: proc/self/mountinfo of the live machine and ``stat -f`` of each network or FUSE mount, one process a mount
at a time. Out: samples of ``mount/<mount point>``: how long the answer took, how full the file system is, for
how long a probe has had no answer; standing events ``mount_probe_stuck`` and ``mount_failed``. A process that
is stuck is killed, left behind and reaped when the kernel lets it go; until then no other is begun. A
recorded tree is not probed. Source: statfs(2); the hangs of node_exporter issues 244, 578, 868 and 1259.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import Attribute, Reading, Sample, SourceEvent
from collectors.sources.mountstats import mounts
from collectors.sources.tree import Tree, printable, reason

KINDS: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "lustre",
        "wekafs",
        "ceph",
        "gpfs",
        "beegfs",
        "cifs",
        "smb3",
        "9p",
        "afs",
        "pvfs2",
        "fuse",
    }
)
"""File systems that another machine or process answers for."""
NOT_STORAGE: Final = frozenset({"lxcfs", "gvfsd-fuse", "portal", "snapfuse", "squashfuse"})
"""FUSE of the machine's own services."""
PROBED_MAX: Final = 64
ANSWER_S: Final = 3.0
AT_ONCE: Final = 8
NO_ANSWER: Final = "no_answer"
_LOOK_EVERY_S: Final = 0.005
_SAID_MAX_BYTES: Final = 512
_NUMBERS: Final = re.compile(rb"(\d{1,20}) (\d{1,20}) (\d{1,20}) (\d{1,20})\s*")
_ERRORS: Final = (
    ("transport endpoint is not connected", "enotconn"),
    ("stale file handle", "estale"),
    ("input/output error", "eio"),
    ("permission denied", "eacces"),
    ("no such file", "enoent"),
    ("no such device", "enodev"),
    ("host is down", "ehostdown"),
    ("connection timed out", "etimedout"),
)
BROKEN: Final = frozenset({"enotconn", "estale", "eio", "ehostdown", "etimedout", "enodev"})
"""Answers of a mount that is there and does not work."""
_ENVIRONMENT: Final = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}


@dataclass(slots=True)
class _Probe:
    """One process that asks one mount."""

    process: subprocess.Popen[bytes]
    began_s: float


@dataclass(slots=True)
class _Stuck:
    """Since when a mount has given no answer."""

    since_s: float
    unix_s: int
    probe: _Probe | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a mount said. ``quality`` is the reason where it gave no numbers."""

    quality: str
    took_s: float | None = None
    used_ratio: float | None = None
    files_used_ratio: float | None = None


class MountProbeSource:
    """Each network mount of the live machine, once a minute."""

    name = "mount_probe"
    period_s = 60.0
    deadline_s = 45.0
    metrics = (
        MetricSpec("probe_s", "s", 0.0001),
        MetricSpec("probe_stuck_s", "s", 1.0),
        MetricSpec("used_ratio", "ratio", 0.0001),
        MetricSpec("files_used_ratio", "ratio", 0.0001),
    )

    def __init__(self, argv: Sequence[str] = ("stat", "-f", "-c", "%b %a %c %d", "--")) -> None:
        """``argv``: what asks a mount, given as its last word."""
        self._argv = list(argv)
        self._stuck: dict[str, _Stuck] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        if not tree.is_live:
            return Reading()
        try:
            paths = list(network_mounts(tree.read_text("proc/self/mountinfo")))
        except OSError:
            return Reading()
        samples: list[Sample] = []
        events: list[SourceEvent] = []
        answers = self._ask([path for path in paths if self._may_ask(path)], at_s)
        self._stuck = {path: s for path, s in self._stuck.items() if path in paths or s.probe is not None}
        for path in paths:
            stuck = self._stuck.get(path)
            answer = answers.get(path, Answer(NO_ANSWER))
            samples += _samples(path, answer, 0.0 if stuck is None else at_s - stuck.since_s)
            events += _events(path, answer, stuck)
        return Reading(samples, events)

    def _may_ask(self, path: str) -> bool:
        """Whether no process that asks this mount is left. One that has ended meanwhile is reaped."""
        stuck = self._stuck.get(path)
        if stuck is None or stuck.probe is None:
            return True
        if stuck.probe.process.poll() is None:
            return False
        stuck.probe = None
        return True

    def _ask(self, paths: Sequence[str], at_s: float) -> dict[str, Answer]:
        """Asks a few mounts at once; one without an answer is marked as stuck."""
        program = shutil.which(self._argv[0], path=_ENVIRONMENT["PATH"]) or shutil.which(self._argv[0])
        if program is None:
            return dict.fromkeys(paths, Answer("not_available"))
        answers: dict[str, Answer] = {}
        for first in range(0, len(paths), AT_ONCE):
            waiting: dict[str, _Probe] = {}
            for path in paths[first : first + AT_ONCE]:
                try:
                    waiting[path] = self._begun(program, path)
                except OSError as error:
                    answers[path] = Answer(reason(error))
            ends_s = time.monotonic() + ANSWER_S
            while waiting and time.monotonic() < ends_s:
                for path, probe in list(waiting.items()):
                    if probe.process.poll() is not None:
                        answers[path] = _answer(probe)
                        self._stuck.pop(path, None)
                        del waiting[path]
                time.sleep(_LOOK_EVERY_S)
            for path, probe in waiting.items():
                self._leave(path, probe, at_s)
        return answers

    def _begun(self, program: str, path: str) -> _Probe:
        process = subprocess.Popen(
            [program, *self._argv[1:], path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=_ENVIRONMENT,
        )
        return _Probe(process, time.monotonic())

    def _leave(self, path: str, probe: _Probe, at_s: float) -> None:
        """Kills a probe and does not wait for it: in the kernel's hands it ends when the mount answers."""
        probe.process.kill()
        for pipe in (probe.process.stdout, probe.process.stderr):
            if pipe is not None:
                pipe.close()
        known = self._stuck.get(path)
        if known is None:
            self._stuck[path] = _Stuck(at_s, int(time.time()), probe)
        else:
            known.probe = probe


def network_mounts(text: str) -> Iterator[str]:
    """Mount points of network and FUSE file systems, each once, at most ``PROBED_MAX``."""
    seen: set[str] = set()
    for mount in mounts(text):
        kind, _, service = mount.kind.partition(".")
        if kind in KINDS and service not in NOT_STORAGE and mount.path not in seen and len(seen) < PROBED_MAX:
            seen.add(mount.path)
            yield mount.path


def _answer(probe: _Probe) -> Answer:
    """What a process that has ended said."""
    took_s = time.monotonic() - probe.began_s
    said, complaint = (
        pipe.read(_SAID_MAX_BYTES) if pipe is not None else b""
        for pipe in (probe.process.stdout, probe.process.stderr)
    )
    for pipe in (probe.process.stdout, probe.process.stderr):
        if pipe is not None:
            pipe.close()
    return answer_of(said, complaint, took_s)


def answer_of(said: bytes, complaint: bytes, took_s: float) -> Answer:
    """Of ``blocks available files free`` or a complaint."""
    match = _NUMBERS.fullmatch(said)
    if match is None:
        text = complaint.decode("utf-8", "replace").lower()
        return Answer(next((word for part, word in _ERRORS if part in text), "unreadable"))
    blocks, available, files, free = (int(number) for number in match.groups())
    return Answer("ok", took_s, _used(blocks, available), _used(files, free))


def _used(total: int, left: int) -> float | None:
    return 1 - left / total if 0 <= left <= total and total else None


def _samples(path: str, answer: Answer, stuck_s: float) -> Iterator[Sample]:
    entity = f"mount/{path}"
    yield Sample(entity, "probe_stuck_s", stuck_s)
    yield Sample(entity, "probe_s", answer.took_s, answer.quality)
    for metric in ("used_ratio", "files_used_ratio"):
        value: float | None = getattr(answer, metric)
        told = "not_available" if answer.quality == "ok" and value is None else answer.quality
        yield Sample(entity, metric, value, told)


def _events(path: str, answer: Answer, stuck: _Stuck | None) -> Iterator[SourceEvent]:
    entity = f"mount/{path}"
    if stuck is not None:
        told: dict[str, Attribute] = {"since_unix_s": stuck.unix_s}
        text = f"{printable(path)} gave no answer to a probe within {ANSWER_S:g} s"
        yield SourceEvent(entity, "mount_probe_stuck", text, "critical", attributes=told, standing=True)
    elif answer.quality in BROKEN:
        text = f"{printable(path)} is mounted and does not work: {answer.quality}"
        told = {"error": answer.quality}
        yield SourceEvent(entity, "mount_failed", text, "critical", attributes=told, standing=True)
