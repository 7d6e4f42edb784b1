"""What a row of the catalogue of known bugs is made of.

In: nothing. Out: ``KnownBug`` and its parts. How a row is compared with a finding: ``known_bugs``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from clusterwatch.analysis.known_bugs_versions import Range


class Component(StrEnum):
    """What has the bug."""

    NCCL = "nccl"
    TORCH = "torch"
    DRIVER = "driver"
    NIC_FIRMWARE = "nic_firmware"


NAMES: Final[Mapping[Component, str]] = {
    Component.NCCL: "NCCL",
    Component.TORCH: "PyTorch",
    Component.DRIVER: "NVIDIA driver",
    Component.NIC_FIRMWARE: "ConnectX firmware",
}
FACTS: Final[Mapping[Component, tuple[str, ...]]] = {
    Component.NCCL: ("nccl.version", "nccl.library"),
    Component.TORCH: ("torch.version",),
    Component.DRIVER: ("nvidia.driver",),
    Component.NIC_FIRMWARE: ("rdma.firmware",),
}
"""Facts that tell a component's version, the best first: what a process printed beats a file's name."""


class Sure(StrEnum):
    """How well a bug is known to be one."""

    CONFIRMED = "confirmed"
    """its vendor says so: release notes, or a maintainer"""
    LIKELY = "likely"
    """fixed, or explained by a maintainer, but where it began or ended is not told"""
    REPORTED = "reported"
    """users saw it; nobody has confirmed it"""


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable of NCCL the bug needs.

    Attributes:
        values: it has one of these; empty: any that is not in ``but``.
        unset: the bug is there without the variable, too.
    """

    name: str
    values: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    unset: bool = False


@dataclass(frozen=True, slots=True)
class Sign:
    """How the bug shows. Empty parts are not asked for.

    Attributes:
        line: a line of a log, of an exception or of the verdict's evidence.
    """

    verdicts: frozenset[str] = frozenset()
    ops: frozenset[str] = frozenset()
    xids: frozenset[int] = frozenset()
    line: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class KnownBug:
    """One row.

    Attributes:
        gpus: words of GPU models it needs; empty: any.
        differs: a fact that must differ among the job's nodes or ranks.
        facts: other facts it needs, by value.
        source: where it is told, in words: repository and number, or the name of a vendor's document.
    """

    id: str
    component: Component
    title: str
    ranges: tuple[Range, ...]
    sign: Sign
    action: str
    source: str
    sure: Sure
    gpus: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    differs: str = ""
    facts: tuple[tuple[str, str], ...] = ()
