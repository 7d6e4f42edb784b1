"""Which failures are a process's own and which come from its peers, and which own one came first.

In: ``Story``. Out: ``Failure`` per process, in attempts. A lost connection, a watchdog's time-out or abort, a
SIGTERM by the launcher are effects. An own exception, a lack of memory, a fault of the GPU or a fatal signal
is a cause, unless its process had lost a peer before. Order is told by stamps that can be compared and by
nothing else: neither by rank nor by where a line stands among those of other processes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from clusterwatch.analysis.crash import CLOCK_ERROR_NS
from clusterwatch.analysis.log_actors import Actor, Told
from clusterwatch.analysis.model import Owner
from clusterwatch.analysis.process import SIGNALS
from collectors.formats.job_log import OWN_KINDS
from collectors.formats.job_log_prefix import UTC, Stamp

SURVIVED_LINES: Final = 50
"""Ordinary lines of a process after an error: it was caught, the process went on."""
_NEAR_ERROR_NS: Final = 5_000_000_000
"""How much later than the stamp above it a line without one may be."""

_PEER: Final = re.compile(
    r"connection (?:closed|reset|refused|aborted)|broken pipe|closed by peer|socket (?:closed|timeout)"
    r"|watchdog|nccl (?:communicator|remote|system|internal|error)|ncclremoteerror|ncclsystemerror"
    r"|remote (?:process|peer)"
    r"|communicator was aborted|op\.preamble|nbytes|gloo/|heartbeat|distbackenderror|diststoreerror"
    r"|distnetworkerror|rendezvous|timed out waiting|collective operation timeout|wait timeout|store->get",
    re.IGNORECASE,
)
"""Words of exceptions that a rank gets from its peers' trouble: gloo, NCCL, TCPStore, torchelastic."""
_PORT_TAKEN: Final = re.compile(r"\bEADDRINUSE\b|address already in use", re.IGNORECASE)
_ENDED: Final = frozenset({
    "KeyboardInterrupt", "SystemExit", "SignalException", "ChildFailedError", "GeneratorExit",
    "ProcessExitedException", "ProcessRaisedException", "RendezvousClosedError", "RendezvousTimeoutError",
    "BdbQuit",
})  # fmt: skip
_MEMORY: Final = re.compile(
    r"out ?of ?memory|cannot allocate memory|can't allocate memory|std::bad_alloc|memoryerror", re.IGNORECASE
)
_NUMERIC: Final = re.compile(
    r"\bnans?\b|loss scale already|minimum loss scale|non-?finite|not finite|infinite gradient", re.IGNORECASE
)
_CUDA: Final = (
    ("device_assert", Owner.USER, re.compile(r"device-side assert", re.IGNORECASE)),
    ("ecc_error", Owner.INFRA, re.compile(r"\becc\b", re.IGNORECASE)),
    ("nvlink_error", Owner.INFRA, re.compile(r"nvlink", re.IGNORECASE)),
    ("gpu_lost", Owner.INFRA,
     re.compile(r"gpu is lost|fallen off|no cuda-capable device|device unavailable", re.IGNORECASE)),
    ("illegal_memory_access", Owner.USER,
     re.compile(r"illegal memory access|misaligned address", re.IGNORECASE)),
    ("cuda_error", Owner.UNKNOWN, re.compile(r"CUDA error|Cuda failure|cudaError")),
)  # fmt: skip
XID_EFFECTS: Final = frozenset({43, 45})
"""43: a channel was reset after an error of its own application; 45: clean-up after a process was killed."""
XID_OF_APPLICATIONS: Final = frozenset({13, 31, 68, 69})
"""Mostly caused by the program: illegal access, fault of an engine it drives (NVIDIA's Xid catalogue)."""
_XID_WORDS: Final = {
    31: "memory page fault", 48: "double-bit ECC error", 63: "row remapping", 64: "row remapping failed",
    74: "NVLink error", 79: "GPU has fallen off the bus", 94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP time-out", 120: "GSP error", 140: "unrecovered ECC error",
}  # fmt: skip
_PORT_FAULT: Final = re.compile(r"port error|port down|port err\b|catastrophic|fatal|access", re.IGNORECASE)
"""Events of ibv_event_type that end a transfer; a port that came up, a new LID or GID do not."""
_DEADLY: Final = frozenset({4, 7, 8, 9, 11})
_ENDING: Final = frozenset({1, 2, 13, 15})
_SIGNAL_WORDS: Final = {
    "Killed": 9, "Segmentation fault": 11, "Bus error": 7, "Aborted": 6, "Terminated": 15,
    "Illegal instruction": 4, "Floating point exception": 8, "Hangup": 1, "Interrupt": 2,
}  # fmt: skip
_BY_SIGNAL: Final = frozenset({"SIGKILL", "SIGTERM", "SIGABRT", "told_to_end"})
_EFFECTS: Final = frozenset({
    "watchdog_timeout", "watchdog_stuck", "abort", "peer_closed", "peer_timeout", "told_to_end",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sign:
    """What one event says of a failure. ``strength``: 2 own and told in words, 1 only that it ended, 0
    effect."""

    told: Told
    verdict: str
    cause: str
    strength: int
    owner: Owner = Owner.UNKNOWN


@dataclass(slots=True)
class Failure:
    """The own failure of one process."""

    actor: Actor
    first: Sign
    signs: list[Sign] = field(default_factory=list)
    """all that the logs say of it, in order"""

    @property
    def strength(self) -> int:
        return max(sign.strength for sign in self.signs)

    @property
    def told_best(self) -> Sign:
        """The sign that tells most: lack of memory, then words over a bare exit, then the first."""
        own = [sign for sign in self.signs if sign.strength == self.strength]
        rank = {"out_of_memory": 0, "numeric": 1}
        return min(own, key=lambda sign: rank.get(sign.verdict, 2))

    @property
    def signature(self) -> tuple[str, str]:
        return (self.told_best.verdict, self.told_best.cause)


def signs(told: Sequence[Told], issued_ns: Mapping[int, int] = MappingProxyType({})) -> list[Sign]:
    """Every event that tells of a failed process, in order.

    Args:
        told: events of one attempt.
        issued_ns: time of the newest call by rank, from dumps: a rank that issued one after its error lived.

    srun and torchelastic end the others after the first that failed, and a scheduler ends all: what their own
    lines list after it by a signal is an effect. One process writes these lines, so their order is that of
    time.
    """
    rooted = {one.source for one in told if one.event.kind == "elastic_item" and one.event.number("root")}
    ending: dict[str, tuple[int, str]] = {}
    found = []
    for one in told:
        kind = one.event.kind
        if kind == "scheduler":
            ending.setdefault(one.source, (one.event.line, kind))
        sign = _sign(one)
        if sign is None or _issued_later(sign, issued_ns):
            continue
        begun = ending.get(one.source)
        late = kind == "task_exit" and begun is not None and begun[0] != one.event.line
        late = late or (kind == "elastic_item" and one.source in rooted and not one.event.number("root"))
        if late and sign.cause in _BY_SIGNAL:
            sign = replace(sign, strength=0)
        if kind == "task_exit":
            ending.setdefault(one.source, (one.event.line, kind))
        found.append(sign)
    return _without_survived(found)


def _issued_later(sign: Sign, issued_ns: Mapping[int, int]) -> bool:
    """Whether the rank's own dump holds a call newer than its error; only a stamp with a zone tells."""
    stamp, newest = (
        sign.told.stamp,
        issued_ns.get(-1 if sign.told.actor.rank is None else sign.told.actor.rank),
    )
    if newest is None or stamp is None or stamp.clock != UTC or sign.told.event.kind not in OWN_KINDS:
        return False
    near = _NEAR_ERROR_NS if sign.told.event.stamp_near else CLOCK_ERROR_NS
    return newest > stamp.ns + near


def _without_survived(found: Sequence[Sign]) -> list[Sign]:
    """Without errors after which their process printed steps: they were caught.

    A pipe holds lines of stdout back until the process ends, so old steps may follow its last traceback.
    Where the launcher tells that the process failed, and nothing else of it does, the error stays.
    """
    by_actor: dict[tuple[int, str, int, str], list[Sign]] = defaultdict(list)
    for sign in found:
        by_actor[sign.told.actor.key].append(sign)
    kept = {
        key
        for key, mine in by_actor.items()
        if any(s.strength and s.told.of_node for s in mine)
        and not any(s.strength == 2 and not s.told.of_node and not _stepped_on(s.told) for s in mine)
    }
    return [sign for sign in found if not _stepped_on(sign.told) or sign.told.actor.key in kept]


def own(found: Iterable[Sign]) -> list[Failure]:
    """The processes that failed by themselves. One that lost a peer before is a victim."""
    by_actor: dict[tuple[int, str, int, str], list[Sign]] = defaultdict(list)
    for sign in found:
        by_actor[sign.told.actor.key].append(sign)
    failures = []
    for _, mine in sorted(by_actor.items()):
        failure = _own(mine)
        if failure is not None:
            failures.append(failure)
    return failures


def _own(mine: list[Sign]) -> Failure | None:
    actor = _fullest(sign.told.actor for sign in mine)
    words = [sign for sign in mine if not sign.told.of_node]
    effect = next((sign for sign in words if not sign.strength), None)
    strong = [sign for sign in mine if sign.strength == 2]
    if effect is not None and not actor.anonymous:
        strong = [sign for sign in strong if not _after(sign, effect)]
    weak = [sign for sign in mine if sign.strength == 1]
    if not strong and (effect is not None or not weak):
        return None
    kept = strong + weak
    return Failure(actor, kept[0], kept)


def _after(sign: Sign, effect: Sign) -> bool:
    """Whether an own error of a process came after its peers' trouble had reached it."""
    if sign.told.event.kind in ("xid", "kernel_oom", "slurm_oom", "device_assert"):
        return False
    if sign.told.source == effect.told.source:
        return sign.told.event.line > effect.told.event.line
    before = before_by_stamps(effect.told.stamp, sign.told.stamp, 0)
    return before is True


def _fullest(actors: Iterable[Actor]) -> Actor:
    """One process by all its names."""
    every = list(actors)
    first = every[0]
    host = next((a.host for a in every if a.host), None)
    pid = next((a.pid for a in every if a.pid), None)
    return Actor(first.rank, host, pid, first.stream, all(a.anonymous for a in every))


def _sign(told: Told) -> Sign | None:
    event = told.event
    kind = event.kind
    if kind in _EFFECTS:
        return Sign(told, "rank_failed", kind, 0)
    if kind == "raised":
        sign = _traceback(told)  # its stack is not here: that the process ended of it is not told
        return None if sign is None else replace(sign, strength=min(1, sign.strength))
    if told.event.lines_after >= SURVIVED_LINES:
        return None
    if (plain := _PLAIN.get(kind)) is not None:
        return Sign(told, *plain)
    if (read := _READ.get(kind)) is not None:
        return read(told)
    return None


def _stepped_on(told: Told) -> bool:
    """Whether the process shows work after an error. Where nothing tells the lines of processes apart, the
    steps may be another's.
    """
    return told.event.steps_after > 0 and not told.actor.anonymous


def _cuda(told: Told) -> Sign:
    assertion = told.event.kind == "device_assert"
    cause, owner = _cuda_cause("device-side assert" if assertion else told.event.text)
    return Sign(told, "rank_failed", cause, 2, owner)


def _fatal(told: Told) -> Sign:
    return _signal(told, told.event.number("signal") or _signal_number(told.event.text), 2)


def _launched(told: Told) -> Sign | None:
    return _exit(told, told.event.number("exit") or 0)


def _traceback(told: Told) -> Sign | None:
    event = told.event
    kind, text = event.word("type") or "", event.text
    if event.number("launcher") or kind in _ENDED:
        return None
    if told.event.lines_after >= SURVIVED_LINES:
        return None
    if _MEMORY.search(text):
        cause = "gpu_memory" if "CUDA" in text or "HIP" in text else "host_memory"
        return Sign(told, "out_of_memory", cause, 2, Owner.USER)
    if "CUDA error" in text:
        cause, owner = _cuda_cause(text)
        return Sign(told, "rank_failed", cause, 2, owner)
    if _PORT_TAKEN.search(text):
        return Sign(told, "rank_failed", "port_in_use", 2, Owner.USER)
    if _PEER.search(text):
        return Sign(told, "rank_failed", "peer_closed", 0)
    if _NUMERIC.search(text):
        return Sign(told, "numeric", "nan", 2, Owner.USER)
    return Sign(told, "rank_failed", kind, 2, Owner.USER)


def _cuda_cause(text: str) -> tuple[str, Owner]:
    return next(
        ((cause, owner) for cause, owner, regex in _CUDA if regex.search(text)), ("cuda_error", Owner.UNKNOWN)
    )


def _xid(told: Told) -> Sign | None:
    xid = told.event.number("xid") or 0
    if xid in XID_EFFECTS:
        return None
    owner = Owner.USER if xid in XID_OF_APPLICATIONS else Owner.INFRA
    return Sign(told, "rank_failed", f"xid_{xid}", 2, owner)


def _port(told: Told) -> Sign | None:
    """An event of a network adapter; most are news, not faults."""
    what = told.event.word("what") or ""
    if not _PORT_FAULT.search(what):
        return None
    cause = "link_down" if "port" in what.lower() else "nic_error"
    return Sign(told, "rank_failed", cause, 2, Owner.INFRA)


def _signal_number(text: str) -> int | None:
    return next((number for word, number in _SIGNAL_WORDS.items() if word.lower() in text.lower()), None)


def _signal(told: Told, number: int | None, strength: int) -> Sign:
    if number in _ENDING:
        return Sign(told, "rank_failed", "told_to_end", 0)
    if number == 6:
        strength = 1  # the watchdog and a failed assertion end so too
    return Sign(told, "rank_failed", SIGNALS.get(number or 0, f"signal {number}"), strength)


def _exit(told: Told, code: int) -> Sign | None:
    if code == 0:
        return None
    number = -code if code < 0 else code - 128 if 128 < code < 160 else None
    if number is not None:
        return _signal(told, number, 2 if number in _DEADLY else 1)
    return Sign(told, "rank_failed", f"exit code {code}", 1)


def _task(told: Told) -> Sign | None:
    what = told.event.word("what") or ""
    if "out of memory" in what.lower():
        return Sign(told, "out_of_memory", "host_memory", 2, Owner.USER)
    if (match := re.search(r"[Ee]xited with exit code (\d{1,5})", what)) is not None:
        return _exit(told, int(match[1]))
    number = _signal_number(what)
    return None if number is None else _signal(told, number, 2 if number in _DEADLY else 1)


_PLAIN: Final = {
    "out_of_memory": ("out_of_memory", "gpu_memory", 2, Owner.USER),
    "kernel_oom": ("out_of_memory", "host_memory", 2, Owner.USER),
    "numeric": ("numeric", "nan", 2, Owner.USER),
}
"""Verdict, cause, strength and owner of kinds that say it all."""
_READ: Final[Mapping[str, Callable[[Told], Sign | None]]] = {
    "traceback": _traceback, "cuda_error": _cuda, "device_assert": _cuda, "xid": _xid, "fatal_signal": _fatal,
    "port_event": _port, "elastic_item": _launched, "elastic_exit": _launched, "task_exit": _task,
}  # fmt: skip


def before_by_stamps(one: Stamp | None, other: Stamp | None, error_ns: int) -> bool | None:
    """Whether ``one`` is earlier; None where the clocks do not tell."""
    if one is None or other is None or one.clock != other.clock:
        return None
    gap = other.ns - one.ns
    return None if abs(gap) <= error_ns else gap > 0


def _before(one: Failure, other: Failure) -> bool | None:
    a, b = one.first.told, other.first.told
    if "elastic_item" in (a.event.kind, b.event.kind):
        return None  # the time at which the launcher noticed
    error = 0 if one.actor.host is not None and one.actor.host == other.actor.host else CLOCK_ERROR_NS
    if a.event.stamp_near or b.event.stamp_near:
        error = _NEAR_ERROR_NS
    return before_by_stamps(a.stamp, b.stamp, error)


def first(failures: Sequence[Failure]) -> list[Failure]:
    """The earliest; several where their order cannot be told. Words tell more than a bare exit.

    Cost: O(failures x log failures), and pairs only among those near the earliest.
    """
    strongest = max((failure.strength for failure in failures), default=0)
    best = [failure for failure in failures if failure.strength == strongest]
    stamped: dict[str, Failure] = {}
    for failure in best:
        stamp = failure.first.told.stamp
        if stamp is not None and failure.first.told.event.kind != "elastic_item":
            known = stamped.get(stamp.clock)
            if known is None or stamp.ns < (known.first.told.stamp or stamp).ns:
                stamped[stamp.clock] = failure
    return [f for f in best if not any(_before(early, f) for early in stamped.values())]


def xid_word(cause: str) -> str:
    """``Xid 79 (GPU has fallen off the bus)``."""
    number = int(cause.removeprefix("xid_"))
    known = _XID_WORDS.get(number)
    return f"Xid {number} ({known})" if known else f"Xid {number}"
