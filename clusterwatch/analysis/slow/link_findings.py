"""What the kept transfers of a running job show: slow ports, leaf switches and NVLinks, or transfers alone.

In: ``KeptLinks``, the job's ``Paths`` and ``Layout``. Out: ``Finding``s. A part outside of an NVLink domain
is named from two slow paths on: one slow group alone names the group. What a rank sends and receives in a
group of more than two supports or clears a part and says nothing alone. Transfers that were never otherwise
and have no part in common are how the job lies on its network, and nobody's fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from clusterwatch.analysis.model import Finding, RankFacts
from clusterwatch.analysis.sentence import count
from clusterwatch.analysis.slow import judge, links
from clusterwatch.analysis.slow.edges import Paths
from clusterwatch.analysis.slow.layout import Layout
from clusterwatch.analysis.slow.link_parts import Parts
from clusterwatch.analysis.slow.links import SlowPart
from clusterwatch.analysis.slow.live_links import KeptLinks
from clusterwatch.analysis.slow.ranks import SlowRanks
from clusterwatch.analysis.slow.steps import StepTable
from clusterwatch.analysis.slow.wording import Case
from clusterwatch.analysis.slow.work import Model

NAMED_MIN: Final = 2
"""Slow paths that a port, a host or a leaf must have; one path is used by all of its members alike."""
UNNAMED: Final = "port nearest to rank "
"""What a rank's port is called where nobody told its name."""


def findings(kept: KeptLinks, paths: Paths, layout: Layout, facts: Mapping[int, RankFacts]) -> list[Finding]:
    """Independent slow parts, the one that explains most first. ``layout``: with ports and leaves."""
    if not kept.stands_out or len(kept.steps) < judge.STEPS_MIN:
        return []
    slow = kept.slow(paths)
    if not slow:
        return []
    parts = Parts.of(paths.members, _measured(kept, paths), paths.crosses, layout)
    case = _case(kept, paths, layout, facts)
    found = [_one_or_none(part) for part in links.explain(slow, parts, NAMED_MIN)]
    return [_told(case, kept, paths, part) for part in found if _says_something(part, kept, paths)]


def _measured(kept: KeptLinks, paths: Paths) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Paths of which anything is known in the window."""
    known = kept.key[np.isfinite(kept.excess).any(axis=0)]
    return np.isin(paths.key, known)


def _one_or_none(part: SlowPart) -> SlowPart:
    """Of several parts that fit alike none is named; the GPUs of one NVLink domain are one part."""
    is_one = len(part.parts) == 1 or (bool(part.parts) and part.parts[0].kind == "nvlink")
    return part if is_one else replace(part, parts=())


def _says_something(part: SlowPart, kept: KeptLinks, paths: Paths) -> bool:
    if all(one.path >= paths.group_count for one in part.slow):
        return False
    return bool(part.parts) or _began(part, kept, paths)[1]


def _began(part: SlowPart, kept: KeptLinks, paths: Paths) -> tuple[int, bool]:
    """(step at which the first of its paths began, whether any was otherwise before)."""
    onsets = [kept.onsets[int(paths.key[one.path])] for one in part.slow]
    return min(step for step, _ in onsets), any(changed for _, changed in onsets)


def _case(kept: KeptLinks, paths: Paths, layout: Layout, facts: Mapping[int, RankFacts]) -> Case:
    """As much of a ``Case`` as a finding on links needs: told steps, paths, who told."""
    rows = len(kept.steps)
    empty = np.zeros((rows, 0))
    nobody = np.zeros(0, np.int64)
    table = StepTable(
        steps=np.array(kept.steps, np.int64), work=empty, usual=empty, first_gap=empty, rare_gap=empty,
        late_launch=empty, step_s=np.full(rows, kept.step_s or np.nan), stage_work=np.zeros(0), transfers=(),
        layout=layout, paths=paths.members, path_names=paths.names,
    )  # fmt: skip
    model = Model(empty, np.zeros(rows), empty, empty, has_replicas=False)
    slow = SlowRanks(
        np.zeros(0, np.bool_), nobody, np.zeros(0), np.zeros(0), nobody, np.zeros(rows), empty
    )
    heard = float((kept.told >= 0).mean()) if len(kept.told) else 0.0
    return Case(table, model, slow, facts, heard)


def _told(case: Case, kept: KeptLinks, paths: Paths, part: SlowPart) -> Finding:
    layout = case.table.layout
    is_unnamed = len(part.parts) == 1 and part.parts[0].name.startswith(UNNAMED)
    found = judge.of_links(replace(case, table=replace(case.table, layout=replace(
        layout, parts_told=not is_unnamed))), part)  # fmt: skip
    ordered = sorted(part.slow, key=lambda one: (one.bad_rows, one.path))
    middle = ordered[len(ordered) // 2]
    step, changed = _began(part, kept, paths)
    summary = found.summary.replace(f"since step {found.onset_step}", f"since step {step}")
    return replace(
        found, onset_step=step, summary=summary, why=(*found.why, *_why(part, paths, changed)),
        bad_steps=middle.bad_rows, seen_steps=middle.seen_rows,
    )  # fmt: skip


def _why(part: SlowPart, paths: Paths, changed: bool) -> list[str]:
    """By whose clock, and what is not known."""
    by_host = any(paths.is_timed_by_host[one.path] for one in part.slow)
    clock = "the hosts' clocks" if by_host else "the GPUs' own clocks"
    told = [
        f"times by {clock}, the shortest among all members of {count(len(part.slow), 'path')}: "
        "who comes last to a call waits for nobody"
    ]
    if not changed:
        told.append("it was so in all steps that are known")
    return told
