"""The gateway's memory of its nodes: newest hot frame of each, and once a second one write to hot state.

In: hot frames with the server's time of arrival. Out: snapshots of which ``hot_writer`` makes the arrays of
``store.hot``, every time in the server's clock: a node's time ``x_ns`` becomes
``arrival - (frame.t_ns - x_ns)``, so node clocks never matter. A frame costs a look at its bytes here; they
are read once a second, all at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.ingest.admission import Admission
from clusterwatch.ingest.hot_arrays import ClockStep, ProgressPart, RankLayout
from clusterwatch.ingest.slot_values import Layout, Values
from clusterwatch.jobs.announcements import RefLayout
from clusterwatch.store import hot
from collectors.wire import limits
from collectors.wire.codec import WireError
from collectors.wire.records import HotFrame, HotMetrics, HotProgress

PROGRESS_KEPT_NS: Final = 600 * 10**9
"""Last numbers of a process that vanished, or of a node that went, are kept so long: they name dead ranks."""
LAYOUTS_PER_NODE_MAX: Final = 4 * limits.RANKS_PER_NODE_MAX
CLOCK_STEP_NS: Final = 10 * 10**9
"""A node's clock that differs by more from one frame to the next was set; less may be a late frame."""
VALUE_LAYOUTS_MAX: Final = 1_024
"""Layouts of values that are remembered; a fleet has as many as it has kinds of nodes."""


class MalformedFrame(ValueError):
    """Columns of a hot frame that do not fit together."""


@dataclass(slots=True)
class NodeEntry:
    """One node as this gateway last heard it."""

    node_id: int
    cluster_id: int
    epoch: str
    slots: tuple[int, ...]
    seen_ns: int
    link: int
    link_since_ns: int
    slot_bytes: bytes = b""
    """``slots`` as int64"""
    offset_ns: int = 0
    """server's clock minus the node's"""
    frame_ns: int = 0
    """the node's time of its newest frame, 0 before the first"""
    step: ClockStep | None = None
    """the newest jump of the node's clock"""
    progress: HotProgress | None = None
    layout: RankLayout | None = None
    gone: dict[int, ProgressPart] = field(default_factory=dict)
    """ref -> last numbers of a process that hot frames carry no more"""
    refs: dict[int, RefLayout] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one write needs; nothing of it changes any more."""

    now_ns: int
    nodes: hot.NodeStates
    slots: list[tuple[int, ...]]
    """of each row of ``nodes``"""
    progress: list[ProgressPart]
    values: dict[int, list[Values]]
    """cluster id -> values that came since the last snapshot, oldest first"""


class Board:
    """All nodes of one gateway; used from the event loop only."""

    def __init__(self) -> None:
        self._nodes: dict[int, NodeEntry] = {}
        self._value_layouts: dict[bytes, Layout] = {}
        self._values: dict[int, list[Values]] = {}
        self._unresolved: set[int] = set()
        self.clock_steps: deque[tuple[int, int]] = deque(maxlen=1_000)
        """(node id, ns the clock was set forward by) since the owner last emptied it"""

    # --- nodes -----------------------------------------------------------------------------------

    def opened(self, admission: Admission, now_ns: int) -> None:
        """A node was welcomed."""
        origin = admission.origin
        old = self._nodes.get(origin.node_id)
        entry = NodeEntry(
            origin.node_id, origin.cluster_id, origin.epoch, admission.slots, now_ns, hot.OPEN, now_ns,
            np.array(admission.slots, "<i8").tobytes(),
        )  # fmt: skip
        if old is not None:
            entry.gone = old.gone
            if old.epoch == origin.epoch:
                entry.refs, entry.progress, entry.layout = old.refs, old.progress, old.layout
                entry.offset_ns, entry.frame_ns, entry.step = old.offset_ns, old.frame_ns, old.step
        self._nodes[origin.node_id] = entry

    def closed(self, node_id: int, link: int, now_ns: int) -> None:
        """The node's connection ended; ``link`` is ``hot.CLOSED`` or ``hot.CLOSED_CLEAN``."""
        entry = self._nodes.get(node_id)
        if entry is not None:
            entry.link, entry.link_since_ns = link, now_ns

    def heard(self, node_id: int, now_ns: int) -> None:
        """Any frame at all is a sign of life."""
        self._nodes[node_id].seen_ns = now_ns

    def is_fresh(self, node_id: int, now_ns: int) -> bool:
        """The node was heard within the time after which it counts as silent."""
        entry = self._nodes.get(node_id)
        return entry is not None and now_ns - entry.seen_ns < limits.SILENT_AFTER_S * 1e9

    # --- frames ----------------------------------------------------------------------------------

    def take(self, node_id: int, frame: HotFrame, now_ns: int) -> None:
        """Keeps a node's newest frame. Raises ``MalformedFrame``."""
        entry = self._nodes[node_id]
        if not 0 < frame.t_ns < 2**62:
            raise MalformedFrame("a time that is no time")
        if frame.metrics is not None:
            self._take_values(entry, frame.metrics, now_ns)
        self._take_time(entry, frame.t_ns, now_ns)
        self._take_progress(entry, frame.progress, now_ns)

    def _take_time(self, entry: NodeEntry, t_ns: int, now_ns: int) -> None:
        """Notes when a frame came, and whether the node's clock jumped since the one before."""
        offset_ns = now_ns - t_ns
        stepped_ns = entry.offset_ns - offset_ns
        if entry.frame_ns and abs(stepped_ns) > CLOCK_STEP_NS:
            entry.step = ClockStep(entry.offset_ns, entry.frame_ns, stepped_ns > 0)
            self.clock_steps.append((entry.node_id, stepped_ns))
        entry.seen_ns, entry.offset_ns, entry.frame_ns = now_ns, offset_ns, t_ns

    def _take_values(self, entry: NodeEntry, metrics: HotMetrics, now_ns: int) -> None:
        layout = self._value_layouts.get(metrics.layout)
        if layout is None:
            layout = self._new_layout(metrics.layout)
        if len(metrics.values) != layout.size_bytes:
            raise MalformedFrame("values do not fit their layout")
        values = Values(layout, entry.slot_bytes, metrics.values, now_ns)
        self._values.setdefault(entry.cluster_id, []).append(values)

    def _new_layout(self, data: bytes) -> Layout:
        try:
            layout = Layout(data)
        except WireError as error:
            raise MalformedFrame(str(error)) from error
        if len(self._value_layouts) >= VALUE_LAYOUTS_MAX:
            self._value_layouts.clear()
        self._value_layouts[data] = layout
        return layout

    def _take_progress(self, entry: NodeEntry, progress: HotProgress | None, now_ns: int) -> None:
        old = entry.progress
        same = progress is not None and old is not None and _same_ranks(progress, old)
        if progress is not None:
            if not same:
                _check_ranks(progress)
            _check_numbers(progress)
        if not same or entry.layout is None:
            self._keep_vanished(entry, progress, now_ns)
            entry.layout = RankLayout.build(progress, entry.refs) if progress is not None else None
        entry.progress = progress
        if entry.layout is not None and not entry.layout.complete:
            self._unresolved.add(entry.node_id)

    def _keep_vanished(self, entry: NodeEntry, progress: HotProgress | None, now_ns: int) -> None:
        """Saves the last numbers of processes the new frame lacks."""
        if entry.progress is None or entry.layout is None:
            return
        present = set(np.frombuffer(progress.ref, "<u4").tolist()) if progress is not None else set()
        for place, ref in enumerate(np.frombuffer(entry.progress.ref, "<u4").tolist()):
            if ref not in present and len(entry.gone) < limits.RANKS_PER_NODE_MAX:
                part = _part(entry, entry.progress, entry.layout)
                entry.gone[ref] = part.only(place)
        for ref in present & entry.gone.keys():
            del entry.gone[ref]

    # --- what numbers mean -----------------------------------------------------------------------

    def learn(self, layouts: Iterable[RefLayout]) -> None:
        """Takes over what refs mean, after a commit or from the database."""
        touched: dict[int, NodeEntry] = {}
        for layout in layouts:
            entry = self._nodes.get(layout.node_id)
            if entry is None or entry.epoch != layout.epoch:
                continue
            if len(entry.refs) >= LAYOUTS_PER_NODE_MAX and layout.ref not in entry.refs:
                entry.refs.pop(next(iter(entry.refs)))
            entry.refs[layout.ref] = layout
            touched[entry.node_id] = entry
        for entry in touched.values():
            if entry.progress is not None:
                entry.layout = RankLayout.build(entry.progress, entry.refs)

    def take_unresolved(self) -> list[tuple[int, str]]:
        """(node id, epoch) of nodes whose frames carry refs not known here; each is told once a call."""
        nodes = [self._nodes[node_id] for node_id in self._unresolved if node_id in self._nodes]
        self._unresolved.clear()
        return [
            (entry.node_id, entry.epoch)
            for entry in nodes
            if entry.layout is not None and not entry.layout.complete
        ]

    # --- what is written -------------------------------------------------------------------------

    def collect(self, now_ns: int) -> Snapshot:
        """What one write needs, safe to be read by another thread while frames go on coming."""
        entries = list(self._nodes.values())
        progress = []
        for entry in entries:
            if entry.gone or now_ns - entry.seen_ns > PROGRESS_KEPT_NS:
                self._forget_old(entry, now_ns)
            if entry.progress is not None and entry.layout is not None:
                progress.append(_part(entry, entry.progress, entry.layout))
            if entry.gone:
                progress += entry.gone.values()
        values, self._values = self._values, {}
        return Snapshot(now_ns, _node_states(entries), [entry.slots for entry in entries], progress, values)

    def _forget_old(self, entry: NodeEntry, now_ns: int) -> None:
        for ref in [ref for ref, part in entry.gone.items() if now_ns - part.seen_ns > PROGRESS_KEPT_NS]:
            del entry.gone[ref]
        if now_ns - entry.seen_ns > PROGRESS_KEPT_NS:
            entry.progress, entry.layout = None, None


def _node_states(entries: Sequence[NodeEntry]) -> hot.NodeStates:
    """One row per node."""
    count = len(entries)
    return hot.NodeStates(
        node_id=np.fromiter([entry.node_id for entry in entries], np.int64, count),
        cluster_id=np.fromiter([entry.cluster_id for entry in entries], np.int64, count),
        seen_ns=np.fromiter([entry.seen_ns for entry in entries], np.int64, count),
        link=np.fromiter([entry.link for entry in entries], np.uint8, count),
        link_since_ns=np.fromiter([entry.link_since_ns for entry in entries], np.int64, count),
    )


def _part(entry: NodeEntry, progress: HotProgress, layout: RankLayout) -> ProgressPart:
    return ProgressPart(entry.node_id, entry.seen_ns, entry.offset_ns, progress, layout, entry.step)


def _same_ranks(new: HotProgress, old: HotProgress) -> bool:
    return new.ref == old.ref and new.group_count == old.group_count and new.group_index == old.group_index


def _check_ranks(progress: HotProgress) -> None:
    """The columns that say which ranks and groups a frame is of. Raises ``MalformedFrame``."""
    count, left = divmod(len(progress.ref), 4)
    if left or count > limits.RANKS_PER_NODE_MAX:
        raise MalformedFrame(f"{count} ranks")
    if len(progress.group_count) != 2 * count:
        raise MalformedFrame("group_count of another length")
    counts: NDArray[np.uint16] = np.frombuffer(progress.group_count, "<u2")
    pairs = int(counts.sum())
    if pairs > count * limits.GROUPS_PER_RANK_MAX or len(progress.group_index) != 2 * pairs:
        raise MalformedFrame("group_index does not fit group_count")


def _check_numbers(progress: HotProgress) -> None:
    """The numbers fit their ranks and groups. Raises ``MalformedFrame``."""
    ranks, pairs = 2 * len(progress.ref), 4 * len(progress.group_index)
    times = len(progress.phase_since_ns) == len(progress.moved_ns) == len(progress.heard_ns) == ranks
    if not times or len(progress.step) != ranks or 8 * len(progress.phase) != ranks:
        raise MalformedFrame("rank columns of unequal length")
    if not len(progress.enqueued) == len(progress.completed) == len(progress.sequence) == pairs:
        raise MalformedFrame("group columns of unequal length")
