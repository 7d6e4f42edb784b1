"""What the join across layers takes and gives: where ranks run, when something began, what a cause is.

In: nothing; words for ``correlate`` and its neighbours. Out: frozen records. A mount is known by its host
only, since nothing tells which of a host's mounts a rank uses; a power domain is a rack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from clusterwatch.analysis.model import Owner
from clusterwatch.analysis.signals import Signal

VERSION: Final = "v1"
COVERS_MIN_RATIO: Final = 0.8
"""A cause is named from here on (DESIGN section 4). Source: the rule of traceml's stragglers."""
NAME_MIN: Final = 0.6
"""Confidence from which a part is named that the trace itself could not tell."""
ROWS_MAX: Final = 32
"""Rows of evidence; what is left out is counted."""


class Layer(StrEnum):
    GPU = "gpu"
    NVLINK = "nvlink"
    LINK = "link"
    HOST = "host"
    STORAGE = "storage"
    POWER = "power"


class PartKind(StrEnum):
    """``SOME_PORT`` and ``SOME_GPU``: of this host, and nothing tells which rank's it is."""

    GPU = "gpu"
    PORT = "port"
    SOME_GPU = "some_gpu"
    SOME_PORT = "some_port"
    HOST = "host"
    MOUNT = "mount"
    RACK = "rack"
    LEAF = "leaf"
    SERVER = "server"


SHARED: Final = frozenset({PartKind.RACK, PartKind.LEAF, PartKind.SERVER})


@dataclass(frozen=True, slots=True)
class Part:
    """What is to blame. ``host`` is empty for what many hosts share."""

    kind: PartKind
    name: str
    host: str = ""

    @property
    def label(self) -> str:
        """The part in words."""
        words = {
            PartKind.GPU: f"GPU {self.name} of {self.host}",
            PartKind.PORT: f"port {self.name} of {self.host}",
            PartKind.SOME_GPU: f"a GPU of {self.host}",
            PartKind.SOME_PORT: f"port {self.name} of {self.host}",
            PartKind.HOST: self.host,
            PartKind.MOUNT: f"{self.name} of {self.host}",
            PartKind.RACK: f"rack {self.name}",
            PartKind.LEAF: f"switch {self.name}",
            PartKind.SERVER: f"storage {self.name}",
        }
        return words[self.kind]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs; empty or None where it is not known.

    Attributes:
        ports: RDMA devices nearest to its GPU; empty: not known.
        is_blocked: its process stands in the kernel (state D).
    """

    rank: int
    node_id: int | None = None
    host: str = ""
    gpu: int | None = None
    gpu_uuid: str = ""
    pid: int | None = None
    ports: frozenset[str] = frozenset()
    leaf: str = ""
    rack: str = ""
    phase: str = ""
    is_blocked: bool = False


@dataclass(frozen=True, slots=True)
class Vitals:
    """Newest values of a rank's GPU and of the port nearest to it. None: not known, or old."""

    util_ratio: float | None = None
    temperature_c: float | None = None
    port_mib_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Onset:
    """When the trouble began.

    Attributes:
        at_ns: last progress of a stall; end of a process; end of the first slow step.
        slack_s: how much later than that the fault may have struck: a usual gap of progress.
        lasting_s: how long a fault that is over may still have brought this about.
        clock_error_s: of ``at_ns``.
        node_id: whose clock it is of; its own signals need no allowance. None: of no single one.
    """

    at_ns: int
    slack_s: float = 0.0
    lasting_s: float = 0.0
    clock_error_s: float = 0.0
    node_id: int | None = None


@dataclass(frozen=True, slots=True)
class Retries:
    """How long NCCL's InfiniBand transport waits for an answer. None: the job does not say."""

    timeout: int | None = None
    retry_count: int | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """What a kind of signal means as a cause.

    Attributes:
        explains: verdicts it can be the cause of.
        worth: how often such a signal is the cause where its part and time fit, 0 to 1: judgement.
        fatal: alone enough to stop a job.
    """

    word: str
    says: str
    layer: Layer
    owner: Owner
    worth: float
    explains: frozenset[str]
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One signal as evidence: taken, or why not."""

    at_ns: int
    host: str
    part: str
    kind: str
    text: str
    taken: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """Signals of one part that fit, and the ranks that run on it."""

    cause: Cause
    part: Part
    signals: tuple[Signal, ...]
    ranks: frozenset[int]
    certainty: float
    """of time and place together, 0 to 1"""

    @property
    def at_ns(self) -> int:
        return self.first.at_ns

    @property
    def first(self) -> Signal:
        return min(self.signals, key=lambda one: (one.at_ns, one.host, one.part, one.kind))


@dataclass(frozen=True, slots=True)
class Joined:
    """What the layers beneath say of a finding. ``cause`` None: nothing is named, and ``why`` says so.

    Attributes:
        ranks: those the part holds up first; empty for what many hosts share.
        suspects: where the part cannot be told apart.
        covers_ratio: share of the cost that the cause explains, 0 to 1.
        left_out: rows beyond ``ROWS_MAX``.
        looked: without a name, what that rests on.
    """

    cause: str | None = None
    layer: Layer | None = None
    sentence: str = ""
    part: Part | None = None
    ranks: tuple[int, ...] = ()
    suspects: tuple[int, ...] = ()
    owner: Owner = Owner.UNKNOWN
    confidence: float = 0.0
    covers_ratio: float = 0.0
    why: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    left_out: int = 0
    looked: str = ""
    decisive: bool = False

    def to_dict(self) -> dict[str, Any]:
        """What is named and why, as JSON; the same for the same signals, however late it is made."""
        return {
            "cause": self.cause,
            "part": None if self.part is None else self.part.label,
            "covers_ratio": round(self.covers_ratio, 3),
            "confidence": round(self.confidence, 3),
            "why": list(self.why),
        }


@dataclass(frozen=True, slots=True)
class World:
    """Everything a join looks at.

    Attributes:
        places: of all ranks of the world, by rank.
        retries: of the job's NCCL.
        unread: why signals may be missing; empty: all were read.
    """

    places: Mapping[int, Place]
    signals: tuple[Signal, ...]
    onset: Onset
    vitals: Mapping[int, Vitals] = field(default_factory=dict)
    retries: Retries = Retries()
    unread: str = ""
