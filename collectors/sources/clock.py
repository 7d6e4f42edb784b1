"""The wall clock: whether it is kept, how far it may be off, and whether it was set.

In: adjtimex(2); ``chronyc``, where chrony runs. Out: samples of ``host``; ``clock_unsynchronised`` while
nothing keeps the clock, ``clock_step`` when it was set. Times of events on different nodes can be put in
order only as far as their clocks agree. Source: see the parts.
"""

from __future__ import annotations

from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import HOST, OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.clock_chrony import (
    SOURCES,
    SOURCES_ARGV,
    TRACKING,
    TRACKING_ARGV,
    Servers,
    Tracking,
    servers,
    tracking,
)
from collectors.sources.clock_kernel import Kept, Steps, kept
from collectors.sources.counters import NOT_AVAILABLE
from collectors.sources.tools import output
from collectors.sources.tree import Tree, reason

STEP_S: Final = 0.1
CHRONY_EVERY_S: Final = 300.0
CHRONY_TIMEOUT_S: Final = 3.0
"""chronyc itself waits 1 s for an answer and asks again twice."""
SYNCHRONISED: Final = "clock_synchronised_count"
OFFSET: Final = "clock_offset_s"
UNSYNCHRONISED: Final = "unsynchronised"


class ClockSource:
    """One clock. Keeps chrony's last answer between two questions, and how far the clocks were apart."""

    name = "clock"
    period_s = 60.0
    deadline_s = 10.0
    metrics = (
        MetricSpec(SYNCHRONISED, "count", 1.0),
        MetricSpec(OFFSET, "s", 1e-9),
        MetricSpec("clock_error_max_s", "s", 1e-6),
        MetricSpec("clock_stratum_count", "count", 1.0),
    )

    def __init__(self, steps: Steps | None = None) -> None:
        self._steps = steps or Steps()
        self._asked_s: float | None = None
        self._tracking: Tracking | str | None = None
        """chrony's answer, or why there is none"""
        self._servers: Servers | None = None

    def read(self, tree: Tree, at_s: float) -> Reading:
        kernel: Kept | str | None
        try:
            kernel = kept(tree)
        except OSError as error:
            kernel = reason(error)
        if tree.is_due(self._asked_s, at_s, CHRONY_EVERY_S):
            self._asked_s = at_s
            self._ask(tree)
        samples = [*_of_kernel(kernel), *_of_chrony(self._tracking, self._servers)]
        if isinstance(kernel, Kept) and not isinstance(self._tracking, Tracking):
            why = NOT_AVAILABLE if kernel.is_synchronised else UNSYNCHRONISED
            known = kernel.offset_s is not None
            samples.append(Sample(HOST, OFFSET, kernel.offset_s, OK if known else why))
        samples += _synchronised(kernel, self._tracking)
        events = [*_unsynchronised(kernel, self._tracking), *self._step(tree)]
        return Reading(samples, events)

    def _ask(self, tree: Tree) -> None:
        """Has chrony say what it knows. Without chrony nothing is said of it."""
        self._tracking = self._servers = None
        try:
            text = output(tree, TRACKING, TRACKING_ARGV, CHRONY_TIMEOUT_S, 4_096).decode("utf-8", "replace")
            self._tracking = tracking(text) or "unreadable"
            said = output(tree, SOURCES, SOURCES_ARGV, CHRONY_TIMEOUT_S, 65_536).decode("utf-8", "replace")
            self._servers = servers(said)
        except FileNotFoundError:
            return
        except OSError as error:
            # chronyc is there and its daemon may not be: the kernel's word is enough then.
            self._tracking = self._tracking or ("no_answer" if tree.is_live else reason(error))

    def _step(self, tree: Tree) -> list[SourceEvent]:
        moved_s = self._steps.moved_s() if tree.is_live else None
        if moved_s is None or abs(moved_s) <= STEP_S:
            return []
        way = "forward" if moved_s > 0 else "back"
        text = f"the wall clock was set {way} by {abs(moved_s):.3f} s"
        attributes: dict[str, Attribute] = {"step_s": round(moved_s, 6)}
        return [SourceEvent(HOST, "clock_step", text, attributes=attributes)]


def _of_kernel(kernel: Kept | str | None) -> list[Sample]:
    names = "clock_error_max_s", "clock_error_estimated_s"
    if kernel is None:
        return []
    if isinstance(kernel, str):
        return [Sample(HOST, name, None, kernel) for name in names]
    return [Sample(HOST, names[0], kernel.error_max_s), Sample(HOST, names[1], kernel.error_estimated_s)]


def _of_chrony(told: Tracking | str | None, found: Servers | None) -> list[Sample]:
    if told is None:
        return []
    if isinstance(told, str):
        return [Sample(HOST, "clock_stratum_count", None, told)]
    values = {
        OFFSET: told.offset_s,
        "clock_offset_rms_s": told.rms_offset_s,
        "clock_frequency_error_ppm": told.frequency_ppm,
        "clock_stratum_count": told.stratum,
        "clock_root_delay_s": told.root_delay_s,
        "clock_root_dispersion_s": told.root_dispersion_s,
    }
    follows = told.is_synchronised  # else chrony prints zeros
    samples = [
        Sample(HOST, name, value if follows else None, OK if follows else UNSYNCHRONISED)
        for name, value in values.items()
    ]
    if found is not None:
        samples += [
            Sample(HOST, "clock_sources_count", found.all),
            Sample(HOST, "clock_sources_reachable_count", found.reachable),
            Sample(HOST, "clock_sources_false_count", found.false),
        ]
    return samples


def _synchronised(kernel: Kept | str | None, told: Tracking | str | None) -> list[Sample]:
    """By the kernel and by chrony: where both tell, both must say so."""
    words = [one.is_synchronised for one in (kernel, told) if isinstance(one, Kept | Tracking)]
    if words:
        return [Sample(HOST, SYNCHRONISED, int(all(words)))]
    why = next((one for one in (kernel, told) if isinstance(one, str)), None)
    return [Sample(HOST, SYNCHRONISED, None, why)] if why else []


def _unsynchronised(kernel: Kept | str | None, told: Tracking | str | None) -> list[SourceEvent]:
    by_kernel = isinstance(kernel, Kept) and not kernel.is_synchronised
    by_chrony = isinstance(told, Tracking) and not told.is_synchronised
    if not by_kernel and not by_chrony:
        return []
    who = " and ".join(word for word, says in (("the kernel", by_kernel), ("chrony", by_chrony)) if says)
    text = f"nothing keeps the wall clock, by {who}: times of this node may be off"
    attributes: dict[str, Attribute] = {"kernel": by_kernel, "chrony": by_chrony}
    return [SourceEvent(HOST, "clock_unsynchronised", text, attributes=attributes, standing=True)]
