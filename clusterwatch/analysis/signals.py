"""What a cluster's parts say of themselves: faults of GPUs, ports, mounts, racks, switches, on one scale.

Made from events and readings by ``detect.signals``; read by the health rules and by the join across layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterwatch.analysis.model import Severity


@dataclass(frozen=True, slots=True)
class Signal:
    """One fault of one part, as its source tells it; nothing here says yet what it has done to a job.

    Attributes:
        kind: stable word of the source, e.g. ``xid``, ``link_down``, ``throttle``, ``mount_stall``.
        at_ns: when it began, by the clock of the machine that told it.
        until_ns: when it was over; None while it stands.
        node_id: of the machine that told it, or that the part belongs to; None for switches and racks.
        host: name of that machine, or kind and name of the device: ``switch/leaf-3``, ``rack/A12``.
        part: entity as on the wire: ``gpu/<uuid>``, ``port/<device>/<port>``, ``mount/<path>``, ``host``.
        code: number of an Xid or SXid.
        clock_error_s: how far the machine's clock may be off; None: not known.
        stands: its source looks again and tells its end; else it is a thing that happened.
        teller_id: node whose agent told it, as it may of a device that it asks.
    """

    kind: str
    at_ns: int
    until_ns: int | None
    node_id: int | None
    host: str
    part: str
    severity: Severity
    text: str
    source: str
    code: int | None = None
    clock_error_s: float | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    stands: bool = False
    teller_id: int | None = None
