"""The gateway's memory of its nodes: newest hot frame of each, and once a second one write to hot state.

In: hot frames with the server's time of arrival. Out: the arrays of ``store.hot``, every time in the server's
clock: a node's time ``x_ns`` becomes ``arrival - (frame.t_ns - x_ns)``, so node clocks never matter.
Frames are kept as their bytes; arrays over all nodes are built once a second by joining them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.ingest.admission import Admission
from clusterwatch.ingest.hot_arrays import NodePart, ProgressPart, RankLayout
from clusterwatch.jobs.announcements import RefLayout
from clusterwatch.store import hot
from collectors.wire import hot_values, limits
from collectors.wire.codec import WireError
from collectors.wire.records import AgentCost, HotFrame, HotProgress

PROGRESS_KEPT_NS: Final = 600 * 10**9
"""Last numbers of a process that vanished, or of a node that went, are kept so long: they name dead ranks."""
METRIC_NAMES_MAX: Final = 4_096
"""Metric names of one cluster; further ones are not taken."""
LAYOUTS_PER_NODE_MAX: Final = 4 * limits.RANKS_PER_NODE_MAX


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
    offset_ns: int = 0
    """server's clock minus the node's"""
    progress: HotProgress | None = None
    layout: RankLayout | None = None
    gone: dict[int, ProgressPart] = field(default_factory=dict)
    """ref -> last numbers of a process that hot frames carry no more"""
    refs: dict[int, RefLayout] = field(default_factory=dict)
    metrics: dict[str, tuple[list[float | None], int]] = field(default_factory=dict)
    """name -> (values in the order of the slots, server's time)"""
    agent: AgentCost | None = None


class Board:
    """All nodes of one gateway; used from the event loop only."""

    def __init__(self) -> None:
        self._nodes: dict[int, NodeEntry] = {}
        self._metric_names: dict[int, set[str]] = {}
        self._unresolved: set[int] = set()

    # --- nodes -----------------------------------------------------------------------------------

    def opened(self, admission: Admission, now_ns: int) -> None:
        """A node was welcomed."""
        origin = admission.origin
        old = self._nodes.get(origin.node_id)
        entry = NodeEntry(
            origin.node_id, origin.cluster_id, origin.epoch, admission.slots, now_ns, hot.OPEN, now_ns
        )
        if old is not None:
            entry.gone = old.gone
            if old.epoch == origin.epoch:
                entry.refs, entry.progress, entry.layout = old.refs, old.progress, old.layout
                entry.offset_ns = old.offset_ns
            if old.slots == admission.slots:
                entry.metrics = old.metrics
        self._nodes[origin.node_id] = entry

    def closed(self, node_id: int, link: int, now_ns: int) -> None:
        """The node's connection ended; ``link`` is ``hot.CLOSED`` or ``hot.CLOSED_CLEAN``."""
        entry = self._nodes.get(node_id)
        if entry is not None:
            entry.link, entry.link_since_ns = link, now_ns

    def heard(self, node_id: int, now_ns: int) -> None:
        """Any frame at all is a sign of life."""
        self._nodes[node_id].seen_ns = now_ns

    # --- frames ----------------------------------------------------------------------------------

    def take(self, node_id: int, frame: HotFrame, now_ns: int) -> None:
        """Keeps a node's newest frame. Raises ``MalformedFrame``."""
        entry = self._nodes[node_id]
        if not 0 < frame.t_ns < 2**62:
            raise MalformedFrame("a time that is no time")
        if frame.progress is not None:
            _check_progress(frame.progress)
        self._take_metrics(entry, frame, now_ns)
        entry.seen_ns = now_ns
        entry.offset_ns = now_ns - frame.t_ns
        entry.agent = frame.agent or entry.agent
        self._take_progress(entry, frame.progress, now_ns)

    def _take_metrics(self, entry: NodeEntry, frame: HotFrame, now_ns: int) -> None:
        try:
            metrics = hot_values.unpack(frame.metrics)
        except WireError as error:
            raise MalformedFrame(str(error)) from error
        names = self._metric_names.setdefault(entry.cluster_id, set())
        for name, values in metrics.items():
            if name not in names:
                if (
                    len(names) >= METRIC_NAMES_MAX
                    or not name.isprintable()
                    or len(name) > limits.NAME_MAX_CHARS
                ):
                    continue
                names.add(name)
            if len(values) == len(entry.slots) or len(values) == 1:
                entry.metrics[name] = (values, now_ns)

    def _take_progress(self, entry: NodeEntry, progress: HotProgress | None, now_ns: int) -> None:
        old, layout = entry.progress, entry.layout
        unchanged = (
            progress is not None
            and old is not None
            and layout is not None
            and (progress.ref, progress.group_count, progress.group_index)
            == (old.ref, old.group_count, old.group_index)
        )
        if not unchanged:
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
                part = ProgressPart(
                    entry.node_id, entry.seen_ns, entry.offset_ns, entry.progress, entry.layout
                )
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

    def collect(self, now_ns: int) -> tuple[list[NodePart], list[ProgressPart]]:
        """What one write needs, safe to be read by another thread while frames go on coming."""
        nodes, progress = [], []
        for entry in self._nodes.values():
            self._forget_old(entry, now_ns)
            nodes.append(
                NodePart(
                    entry.node_id, entry.cluster_id, entry.seen_ns, entry.link, entry.link_since_ns,
                    entry.slots, dict(entry.metrics),
                )
            )  # fmt: skip
            if entry.progress is not None and entry.layout is not None:
                progress.append(
                    ProgressPart(entry.node_id, entry.seen_ns, entry.offset_ns, entry.progress, entry.layout)
                )
            progress += entry.gone.values()
        return nodes, progress

    def _forget_old(self, entry: NodeEntry, now_ns: int) -> None:
        for ref in [ref for ref, part in entry.gone.items() if now_ns - part.seen_ns > PROGRESS_KEPT_NS]:
            del entry.gone[ref]
        if now_ns - entry.seen_ns > PROGRESS_KEPT_NS:
            entry.progress, entry.layout = None, None
            entry.metrics.clear()


def _check_progress(progress: HotProgress) -> None:
    """N and M agree over all columns. Raises ``MalformedFrame``."""
    count, left = divmod(len(progress.ref), 4)
    if left or count > limits.RANKS_PER_NODE_MAX:
        raise MalformedFrame(f"{count} ranks")
    wide: Sequence[bytes] = (progress.step, progress.phase_since_ns, progress.moved_ns, progress.heard_ns)
    if any(len(column) != 8 * count for column in wide) or len(progress.phase) != count:
        raise MalformedFrame("rank columns of unequal length")
    if len(progress.group_count) != 2 * count:
        raise MalformedFrame("group_count of another length")
    counts: NDArray[np.uint16] = np.frombuffer(progress.group_count, "<u2")
    pairs = int(counts.sum())
    if pairs > count * limits.GROUPS_PER_RANK_MAX or len(progress.group_index) != 2 * pairs:
        raise MalformedFrame("group_index does not fit group_count")
    if any(len(column) != 8 * pairs for column in (progress.enqueued, progress.completed, progress.sequence)):
        raise MalformedFrame("group columns of unequal length")
