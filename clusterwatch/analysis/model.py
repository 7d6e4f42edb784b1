"""What goes into the analysis and what comes out.

In: ``Observation`` (traces, stacks, process facts, timing). Out: ``Diagnosis``, whose ``to_dict`` is the
JSON of ``analyze --json`` and the ``diagnosis`` of the REST incident, words as fixed in DESIGN section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from clusterwatch.analysis.slow.log import CallLog
from clusterwatch.analysis.tables import Window
from collectors.formats.columns import TraceColumns
from collectors.formats.job_log import JobLog


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


class Owner(StrEnum):
    INFRA = "infra"
    USER = "user"
    SCHEDULER = "scheduler"
    UNKNOWN = "unknown"


class ProcessState(StrEnum):
    """What is known of a rank's process, from outside it."""

    RUNNING = "running"
    STOPPED = "stopped"
    """state T: SIGSTOP or a debugger"""
    BLOCKED = "blocked"
    """state D for longer than a look"""
    EXITED = "exited"
    AGENT_GONE = "agent_gone"
    """the agent's connection closed; its host answered last we knew"""
    NODE_SILENT = "node_silent"
    """the node went silent without a close: host or its network"""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ExceptionFact:
    type: str
    message: str
    traceback: str = ""
    at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Everything known of one rank beside its trace. None = not known."""

    rank: int
    host: str | None = None
    gpu: int | None = None
    gpu_uuid: str | None = None
    pid: int | None = None
    process: ProcessState = ProcessState.UNKNOWN
    process_since_s: float | None = None
    """seconds since ``process`` was entered (silence for NODE_SILENT and AGENT_GONE)"""
    exit_code: int | None = None
    exit_signal: int | None = None
    exit_ns: int | None = None
    clean_exit: bool | None = None
    exception: ExceptionFact | None = None
    phase: str | None = None
    phase_s: float | None = None
    step: int | None = None
    hook_silent_s: float | None = None
    """the process lives but its hook has said nothing for so long (GIL held, or stopped)"""


@dataclass(frozen=True, slots=True)
class StackThread:
    name: str
    frames: tuple[str, ...]
    """outermost first, each ``function (file:line)``"""
    main: bool = False


@dataclass(frozen=True, slots=True)
class RankStacks:
    rank: int
    source: str
    """``hook`` or ``py-spy``"""
    threads: tuple[StackThread, ...]
    taken_ns: int | None = None
    process_state: str = ""
    wchan: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """A process group and its true members, from the hook; beats what a dump says of itself."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    backend: str = ""


@dataclass(frozen=True, slots=True)
class InputProblem:
    """A file or capture that could not be used, named; nothing else is lost by it."""

    source: str
    reason: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class CallTimeout:
    """A call that timed out by the word of a log."""

    seq: int
    op: str
    desc: str
    """description of its group; empty when the line tells none"""
    line: str
    """the line, quoted"""


@dataclass(frozen=True, slots=True)
class Observation:
    """All evidence on one world of one job at one moment."""

    job: str | None = None
    world_size: int | None = None
    """ranks the job should have; None = largest rank or group member seen"""
    traces: tuple[TraceColumns, ...] = ()
    """whole rings; each is reduced to its window at once"""
    windows: tuple[Window, ...] = ()
    """rings that a reader has reduced already"""
    stale_ranks: frozenset[int] = frozenset()
    """ranks that left a dump of an earlier time only, which the reader has kept out"""
    stacks: tuple[RankStacks, ...] = ()
    facts: Mapping[int, RankFacts] = field(default_factory=dict)
    groups: tuple[KnownGroup, ...] = ()
    stall_s: float | None = None
    """live: seconds since the job's last progress; None offline"""
    advanced: bool | None = None
    """live: whether two looks show an advance; None offline (one look)"""
    now_ns: int | None = None
    live: bool = False
    problems: tuple[InputProblem, ...] = ()
    logs: tuple[JobLog, ...] = ()
    """job logs beside or instead of the dumps"""
    timeouts: tuple[CallTimeout, ...] = ()
    """calls that the logs' watchdogs gave up on; ``diagnose`` fills it from ``logs``"""
    call_log: CallLog | None = None
    """what every rank saw of every call, for the slow side; its open end is in ``traces``"""
    unranked: Mapping[int, str] = field(default_factory=dict)
    """file by number, where ``windows`` bear numbers that are no ranks: findings name files instead"""
    versions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """fact -> versions of libraries, as dumps and logs tell them; for the catalogue of known bugs"""


# --- out ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Culprit:
    rank: int | None
    host: str | None = None
    gpu: int | None = None
    gpu_uuid: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class GroupRef:
    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Counts of ranks: who should have spoken, who did, whose word is old, who lacks older calls."""

    expected: int = 0
    reported: int = 0
    stale: int = 0
    truncated: int = 0
    only_open: int = 0
    """of ``truncated``, dumps that hold open calls only: their rings need not have overflowed"""
    size_told: bool = True
    """False where ``expected`` is only the highest rank heard of"""


@dataclass(frozen=True, slots=True)
class Downstream:
    """Who merely waits because of this."""

    groups: int = 0
    ranks: int = 0


@dataclass(frozen=True, slots=True)
class MergedStack:
    """Identical stacks once; minority first in ``Diagnosis.stacks``."""

    frames: tuple[str, ...]
    ranks: tuple[int, ...]
    source: str
    role: str = "waiting"
    """``culprit``, ``suspect`` or ``waiting``"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One independent thing found. The top of a ``Diagnosis`` is its worst finding."""

    verdict: str
    fault_class: str
    """``class`` in JSON: hang, crash, hardware, host, storage, software, workload, health, blind, none or
    unknown"""
    severity: Severity
    summary: str
    """one sentence, at most 200 characters"""
    rule: str
    """rule and version, e.g. ``hang.missing_rank v1``"""
    confidence: float
    cause: str | None = None
    owner: Owner = Owner.UNKNOWN
    culprit_ranks: tuple[int, ...] = ()
    suspect_ranks: tuple[int, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    group: GroupRef | None = None
    seq: int | None = None
    op: str | None = None
    node: str | int | None = None
    link: str | None = None
    switch: str | None = None
    onset_step: int | None = None
    downstream: Downstream = Downstream()
    why: tuple[str, ...] = ()
    recommended_action: str = ""
    decisive: bool = False
    """evidence that opens an incident at once: process or node dead, mismatch, fatal Xid, GPU lost"""
    joined_ranks: tuple[int, ...] = ()
    """members of ``group`` that issued ``seq``"""
    missing_ranks: tuple[int, ...] = ()
    """members of ``group`` that did not"""
    lost_s: float | None = None
    """of something slow: what a step, or a checkpoint, loses by it at most"""
    lost_ratio: float | None = None
    """the same as a share of the job's time, 0 to 1"""
    bad_steps: int = 0
    """of something slow: steps beyond the bound, of ``seen_steps`` since its onset; 0: not counted"""
    seen_steps: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "class": self.fault_class,
            "kind": self.verdict,
            "severity": str(self.severity),
            "cause": self.cause,
            "owner": str(self.owner),
            "culprit_ranks": list(self.culprit_ranks),
            "suspect_ranks": list(self.suspect_ranks),
            "culprits": [
                {"rank": c.rank, "host": c.host, "gpu": c.gpu, "gpu_uuid": c.gpu_uuid, "pid": c.pid}
                for c in self.culprits
            ],
            "group": None
            if self.group is None
            else {"name": self.group.name, "desc": self.group.desc, "ranks": list(self.group.ranks)},
            "seq": self.seq,
            "op": self.op,
            "node": self.node,
            "link": self.link,
            "switch": self.switch,
            "onset_step": self.onset_step,
            "confidence": round(self.confidence, 3),
            "downstream": {"groups": self.downstream.groups, "ranks": self.downstream.ranks},
            "summary": self.summary,
            "why": list(self.why),
            "recommended_action": self.recommended_action,
            "rule": self.rule,
            "decisive": self.decisive,
            "joined_ranks": list(self.joined_ranks),
            "missing_ranks": list(self.missing_ranks),
            "lost_s": None if self.lost_s is None else round(self.lost_s, 6),
            "lost_ratio": None if self.lost_ratio is None else round(self.lost_ratio, 4),
            "bad_steps": self.bad_steps,
            "seen_steps": self.seen_steps,
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on an observation: its worst finding on top, all findings beneath."""

    findings: tuple[Finding, ...]
    """worst first, at least one (``no_fault`` and ``not_enough_data`` are findings too)"""
    coverage: Coverage
    stacks: tuple[MergedStack, ...] = ()
    problems: tuple[InputProblem, ...] = ()
    stale_ranks: tuple[int, ...] = ()
    """ranks whose dump is of another time: left out of everything but the coverage"""

    @property
    def worst(self) -> Finding:
        return self.findings[0]

    def to_dict(self) -> dict[str, Any]:
        """JSON of DESIGN section 4: ranks are the union over independent root findings."""
        top = self.worst.to_dict()
        top["culprit_ranks"] = sorted({r for f in self.findings for r in f.culprit_ranks})
        top["suspect_ranks"] = sorted({r for f in self.findings for r in f.suspect_ranks})
        seen: dict[tuple[Any, ...], dict[str, Any]] = {}
        for finding in self.findings:
            for culprit in finding.to_dict()["culprits"]:
                rank = culprit["rank"]
                seen.setdefault(tuple(culprit.values()) if rank is None else (rank,), culprit)
        top["culprits"] = list(seen.values())
        top["coverage"] = {
            "expected": self.coverage.expected,
            "reported": self.coverage.reported,
            "stale": self.coverage.stale,
            "truncated": self.coverage.truncated,
        }
        top["findings"] = [f.to_dict() for f in self.findings]
        top["stacks"] = [
            {"frames": list(s.frames), "ranks": list(s.ranks), "source": s.source, "role": s.role}
            for s in self.stacks
        ]
        top["problems"] = [{"source": p.source, "reason": p.reason, "rank": p.rank} for p in self.problems]
        return top
