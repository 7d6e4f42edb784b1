"""Wire v1 records of one training process: who it is, how it ends, its phases, steps and calls.

Had from ``records`` by everybody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from collectors.wire import limits
from collectors.wire.base import Name, RankId, Record, Text


class GroupInfo(msgspec.Struct, omit_defaults=True, frozen=True):
    """One process group as its member sees it; made by ``group_info``, read by ``members``.

    Members are global ranks in group order: ``ranks``, or ``span`` where they lie at equal distances, as the
    groups of most layouts do. Without it every rank of a job of N would name N ranks: N * N numbers a start.
    """

    index: int
    name: Name
    desc: Name = ""
    backend: Name = ""
    ranks: list[int] = []
    recorder_id: int | None = None
    """pg_id in this process's recorder, when known; never comparable between ranks"""
    span: tuple[int, int, int] | None = None
    """first member, distance, count"""

    @property
    def members(self) -> Sequence[int]:
        """Global ranks in group order."""
        if self.span is None:
            return self.ranks
        first, step, count = self.span
        return range(first, first + step * count, step)


def group_info(
    index: int, name: str, desc: str, backend: str, members: Sequence[int], recorder_id: int | None = None
) -> GroupInfo:
    """A group in its shortest form."""
    if len(members) >= _SPAN_MIN and (step := members[1] - members[0]) > 0:
        span = (members[0], step, len(members))
        if list(members) == list(range(members[0], members[0] + step * len(members), step)):
            return GroupInfo(index, name, desc, backend, [], recorder_id, span)
    return GroupInfo(index, name, desc, backend, list(members), recorder_id)


_SPAN_MIN = 4


class RankInventory(Record, tag="rank_inventory", frozen=True):
    """A training process said hello to the agent, or its groups changed."""

    t_ns: int
    ref: int
    id: RankId
    pid: int
    host: Name
    world_size: int
    local_rank: int | None = None
    gpu_index: int | None = None
    gpu_uuid: Name | None = None
    started_ns: int | None = None
    torch_version: Name = ""
    backend: Name = ""
    command: Text = ""
    groups: list[GroupInfo] = []
    blind: list[Name] = []
    """what the hook cannot see in this process, in words (``p2p on gloo``, ``unknown torch version``)"""
    job_name: Name = ""
    user: Name = ""
    labels: Annotated[dict[Name, Name], Meta(max_length=limits.JOB_LABELS_MAX)] = {}


class ExceptionInfo(msgspec.Struct, omit_defaults=True, frozen=True):
    """The exception that ended (or will end) a rank, as its own process saw it."""

    type: Name
    message: Text
    traceback: Text
    t_ns: int


class RankExit(Record, tag="rank_exit", frozen=True):
    """A training process is gone: time by pidfd, status as far as a non-parent can know it.

    ``exit_code`` and ``signal`` come from ``clusterwatch-run`` (the parent) where it ran the process,
    else they stay None.
    """

    t_ns: int
    ref: int
    id: RankId
    pid: int
    exit_code: int | None = None
    signal: int | None = None
    exception: ExceptionInfo | None = None
    clean: bool | None = None
    """the hook saw the interpreter finish normally"""


class PhaseChange(Record, tag="phase", frozen=True):
    """A rank entered ``phase`` at ``t_ns``; ``before`` lasted ``before_s``."""

    t_ns: int
    id: RankId
    phase: Name
    before: Name
    before_s: float
    detail: Text = ""


class Steps(Record, tag="steps", frozen=True):
    """Steps one rank finished, columns of equal length; older agents leave the last two out."""

    t_ns: int
    id: RankId
    step: list[int]
    end_ns: list[int]
    duration_s: list[float]
    data_wait_s: list[float | None]
    checkpoint_s: list[float | None]
    gc_s: list[float | None]
    cpu_s: list[float | None]
    wait_s: list[float | None] = []
    """inside blocking collectives and receives, their transfer included; empty: unknown in every row"""
    late_launch: list[float | None] = []
    """share of that time, 0 to 1, in calls that the host launched too late to run ahead; empty as above"""


class Edges(Record, tag="edges", frozen=True):
    """How long a rank's calls took in some of its steps: a row per (step, group, op, size).

    Columns of equal length. ``group`` is an index as in ``RankInventory.groups``, ``op`` one into ``ops``.
    The last to arrive waits for nobody, so the shortest time among a group's members is the transfer's. Which
    steps are told is decided by the step's number alone, so all ranks tell of the same ones.
    """

    t_ns: int
    id: RankId
    ops: list[Name]
    """``all_reduce``, ``send``, ... without the backend's prefix"""
    step: list[int]
    group: list[int]
    op: list[int]
    size_bytes: list[int]
    """what one rank passed to a call"""
    count: list[int]
    """calls that were timed"""
    sum_s: list[float]
    min_s: list[float]
    p10_s: list[float]
    p50_s: list[float]
