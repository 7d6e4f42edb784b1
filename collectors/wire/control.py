"""Messages that steer a connection between a node and a gateway; none of them is spooled."""

from __future__ import annotations

import msgspec

from collectors.wire.base import CaptureWant, GpuIdentity, Lane, Name, Record, Text


class LaneNext(msgspec.Struct, frozen=True):
    """The next sequence number the sender will use in each lane."""

    urgent: int
    bulk: int


class Hello(Record, tag="hello", frozen=True):
    """First message of a connection. ``epoch`` is a random id made with the spool folder.

    ``credential`` is what a former ``Welcome`` issued; ``enrolment_token`` is needed without one.
    """

    version: str
    cluster: Name
    node: Name
    machine_id: Name
    boot_id: Name
    epoch: Name
    agent_version: Name
    t_ns: int
    next: LaneNext
    credential: Name | None = None
    enrolment_token: Name | None = None
    gpus: list[GpuIdentity] = []
    cpu_count: int | None = None
    memory_bytes: int | None = None
    simulated: bool = False
    rack: Name | None = None
    leaf: Name | None = None
    nvlink_domain: Name | None = None


class Welcome(Record, tag="welcome", frozen=True):
    """The gateway's answer: what is already stored, and the credential when it was just issued."""

    version: str
    t_ns: int
    acked: LaneNext
    """Highest committed sequence per lane of this epoch; 0 when none."""
    credential: Name | None = None


class Refuse(Record, tag="refuse", frozen=True):
    """The gateway will not talk: ``code`` is stable (``bad_version``, ``bad_credential``, ``revoked``,
    ``foreign_machine``, ``duplicate_node``, ``bad_enrolment``, ``bad_hello``, ``too_large``), ``reason`` is
    for people."""

    code: Name
    reason: Text
    retry_after_s: float | None = None


class Ack(Record, tag="ack", frozen=True):
    """All records of ``lane`` up to ``sequence`` are committed (or rejected and counted)."""

    lane: Lane
    sequence: int


class Reject(Record, tag="reject", frozen=True):
    """One record was not stored and must not be sent again."""

    lane: Lane
    sequence: int
    reason: Text


class Slow(Record, tag="slow", frozen=True):
    """Please hold ``Put`` messages of this lane for ``pause_s``; hot frames go on."""

    lane: Lane
    pause_s: float


class CaptureOrder(Record, tag="capture", frozen=True):
    """Collect ``want`` from ``ranks`` (``None``: every rank of the job on this node)."""

    capture_id: int
    job: Name
    want: list[CaptureWant]
    ranks: list[int] | None = None
    deadline_s: float = 10.0
    ras_rank: int | None = None
    """The node of this global rank also asks NCCL's RAS, for the whole job; older agents do not know it."""


class Bye(Record, tag="bye", frozen=True):
    """A clean stop: the close that follows is not a death."""

    reason: Text = ""
