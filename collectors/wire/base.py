"""What every record of wire v1 is made of: bounded names and texts, lanes, who a GPU or a rank is."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from collectors.wire import limits

Name = Annotated[str, Meta(max_length=limits.NAME_MAX_CHARS)]
Text = Annotated[str, Meta(max_length=limits.TEXT_MAX_CHARS)]
Lane = Literal["urgent", "bulk"]
LANES: tuple[Lane, ...] = ("urgent", "bulk")
Severity = Literal["info", "warning", "critical", "unknown"]
CaptureWant = Literal["window", "ring", "stacks"]

PHASES = (
    "unknown",
    "startup",
    "train",
    "data_loading",
    "checkpoint",
    "evaluation",
    "compile",
    "gc",
    "teardown",
)
"""What a rank says it is doing; the index is what travels in ``HotProgress.phase``."""


class Record(msgspec.Struct, tag_field="k", omit_defaults=True, frozen=True):
    """Base of everything that travels."""


class GpuIdentity(msgspec.Struct, omit_defaults=True, frozen=True):
    """One GPU of a node; ``index`` is its place on the node."""

    index: int
    uuid: Name | None = None
    serial: Name | None = None
    model: Name | None = None
    pci: Name | None = None
    nvlink_domain: Name | None = None


class RankId(msgspec.Struct, omit_defaults=True, frozen=True):
    """A rank as DESIGN 4 has it: RANK alone is not unique in elastic and RL jobs."""

    job: Name
    rank: Annotated[int, Meta(ge=0)]
    attempt: Annotated[int, Meta(ge=0)] = 0
    world: Name = ""
    role: Name = ""
