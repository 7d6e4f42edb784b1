"""``clusterwatch bench detect --stalls``: are made stalls named, and how soon does a look see them?

In: numbers of ranks, seeds, kinds. Out: a table of kind x ranks, then the figures. Traces come from
``simulate.traces``, which knows nothing of the rules. The delay is in simulated time: every node sends a
frame a second at a moment of its own, a gateway writes them down once a second, and the job is looked at
once a second; counted is from the last progress to the first look that suspects. What a look and the commit
of an incident take by themselves comes on top. *known*: how often the rank at fault is already among the
suspects of that look; who has issued the call that all wait in is told by traces only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.analysis.gaps import GapHistory, limits
from clusterwatch.analysis.model import Finding, ProcessState
from clusterwatch.analysis.progress import PROCESS_CODES, Look, Motion, glance, judge
from clusterwatch.ops.errors import OpsError
from clusterwatch.simulate.traces import Fault, Kind, Layout, TraceJob, Truth
from collectors.formats.columns import TraceColumns
from collectors.wire.records import PHASES

LAYOUTS: Final = {
    64: (Layout(tensor=8, pipeline=2, data=4), Layout(pipeline=8, data=8)),
    512: (Layout(tensor=8, pipeline=8, data=8), Layout(pipeline=8, data=64)),
    24_576: (Layout(tensor=8, pipeline=16, data=192), Layout(pipeline=16, data=1_536)),
}
"""A usual job of each number of ranks, and one without tensor groups for kinds that need that."""
_WHOLE_MAX: Final = 4_096
"""Of larger jobs only the open calls are captured, as it is done live."""
_STEPS: Final = 6
_NS: Final = 10**9
_RANKS_PER_NODE: Final = 8
_ON_THE_WAY_S: Final = (0.005, 0.3)
"""From a node's clock tick to its frame at the gateway."""
_BEFORE_S: Final = 5
_LOOKS: Final = 30
_GAPS_S: Final = (0.6, 0.9, 1.1)
"""Of the job before: between two advances that are seen once a second."""
_BASE_NS: Final = 1_760_000_000 * _NS


@dataclass(frozen=True, slots=True)
class Stall:
    """One judged case. ``delay_s`` None: never suspected, or not a matter of progress."""

    kind: str
    ranks: int
    exact: bool
    """verdict, culprits and suspects are those of the truth"""
    call_right: bool
    """the group, number and operation as well; a rank that is missed may be waited for in several calls"""
    wrong: bool
    """a rank is named that is not at fault"""
    delay_s: float | None
    known_at_once: bool | None
    """the look that suspects has the rank at fault among its suspects"""
    seconds: float
    summary: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this part."""
    parser.add_argument("--stalls", action="store_true", help="judge made stalls instead of slow jobs")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Makes and judges the stalls, prints the table, gives the figures.

    Raises:
        OpsError: a number of ranks for which there is no job.
    """
    if not set(options.ranks) <= set(LAYOUTS):
        raise OpsError(f"--stalls takes --ranks of {', '.join(map(str, LAYOUTS))}.")
    found = []
    for ranks in options.ranks:
        for kind in (None, *Kind):
            if not options.only or (kind or "no_fault").startswith(options.only):
                for seed in range(options.first_seed, options.first_seed + options.seeds):
                    found.append(judged(ranks, kind, seed))
    if not found:
        raise OpsError("there is no such case.")
    print("\n".join(_table(found)), flush=True)
    return _figures(options, found)


def judged(ranks: int, kind: Kind | None, seed: int) -> Stall:
    """One case: its traces judged, and the looks of a detector at its progress."""
    job = _job(ranks, kind, seed)
    traces = tuple(job.traces())
    began = time.process_time()
    told = diagnose(Observation(traces=traces, world_size=job.layout.world))
    seconds = time.process_time() - began
    (truth,) = job.expected
    named = {rank for one in told.findings for rank in one.culprit_ranks}
    is_live = kind is not None and kind is not Kind.STALE_DUMP
    delay_s, known_at_once = _watched(job, traces, truth, seed) if is_live else (None, None)
    return Stall(
        str(kind or "no_fault"), ranks, any(_names(one, truth) for one in told.findings),
        any(_names(one, truth) and _tells_call(one, truth) for one in told.findings),
        not named <= {*truth.culprit_ranks, *truth.suspect_ranks}, delay_s, known_at_once, seconds,
        told.worst.summary,
    )  # fmt: skip


def _job(ranks: int, kind: Kind | None, seed: int) -> TraceJob:
    """The usual layout, or the other one where the usual one has no place for such a fault."""
    usual, plain = LAYOUTS[ranks]
    faults = () if kind is None else (Fault(kind),)
    made = TraceJob(usual, faults, steps=_STEPS, seed=seed, open_only=ranks > _WHOLE_MAX, moving=kind is None)
    try:
        made.expected  # noqa: B018  raises where there is no place
    except ValueError:
        return replace(made, layout=plain)
    return made


def _names(found: Finding, truth: Truth) -> bool:
    told = found.verdict, found.culprit_ranks, found.suspect_ranks
    return told == (truth.verdict, truth.culprit_ranks, truth.suspect_ranks)


def _tells_call(found: Finding, truth: Truth) -> bool:
    group = None if found.group is None else (found.group.name, found.group.desc)
    if truth.group not in (None, group):
        return False
    return truth.seq is None or (found.seq, found.op) == (truth.seq, truth.op)


# --- progress as a detector sees it ----------------------------------------------------------------------


def _watched(
    job: TraceJob, traces: tuple[TraceColumns, ...], truth: Truth, seed: int
) -> tuple[float | None, bool | None]:
    """(seconds from the last progress to the first look that suspects, whether it has the right rank)."""
    world = job.layout.world
    random = np.random.default_rng([seed, world, *truth.verdict.encode(), 41])
    nodes = -(-world // _RANKS_PER_NODE)
    sent_s, way_s = random.random(nodes), random.uniform(*_ON_THE_WAY_S, nodes)
    written_s, looked_s = random.random(2).tolist()
    history = GapHistory()
    for gap_s in random.choice(_GAPS_S, 60).tolist():
        history = history.with_gap(gap_s)
    suspect_s = limits("train", history, False).suspect_s
    numbers, before = _numbers(traces), None
    for number in range(-_BEFORE_S, _LOOKS):
        at_s = number + looked_s
        word_s = np.floor(at_s - written_s) + written_s
        frame_s = np.floor(word_s - way_s - sent_s) + sent_s
        look = _look(job, numbers, at_s, word_s, frame_s, sent_s, way_s)
        (state,) = judge(before, look).worlds
        if state.motion is Motion.STALLED and state.stall_s(look.at_ns) >= suspect_s and at_s > 0:
            guilty = {*truth.culprit_ranks, *truth.suspect_ranks}
            return at_s, guilty <= set(state.suspects) if guilty else None
        before = glance(look)
    return None, None


def _numbers(traces: tuple[TraceColumns, ...]) -> dict[str, Any]:
    """Rows of (rank, group, enqueued, completed, sequence) when everything stands still."""
    groups: dict[tuple[str, str], int] = {}
    rows = [
        (
            trace.rank, groups.setdefault((one.name, one.desc), len(groups)), one.last_enqueued or 0,
            one.last_completed or 0, -1 if one.desc == "pp" else one.last_enqueued or 0,
        )
        for trace in traces for one in trace.groups
    ]  # fmt: skip
    names = ("row", "group_id", "enqueued", "completed", "sequence")
    return dict(zip(names, np.array(rows, np.int64).T, strict=True))


def _look(
    job: TraceJob, numbers: dict[str, Any], at_s: float, word_s: float, frame_s: Any, sent_s: Any, way_s: Any
) -> Look:
    """What hot state holds at a moment; the last progress is at 0 s."""
    world = job.layout.world
    node = np.arange(world) // _RANKS_PER_NODE
    moved_s = np.minimum(frame_s, sent_s) + way_s  # the first frame after 0 has the last numbers
    is_still = (frame_s >= sent_s)[node]
    gone = np.isin(np.arange(world), sorted(job.silent))
    process = np.full(world, PROCESS_CODES.index(ProcessState.RUNNING), np.uint8)
    process[gone & (at_s > 0)] = PROCESS_CODES.index(ProcessState.EXITED)
    back = np.where(is_still, 0, np.floor(-frame_s[node]).astype(np.int64) + 1)
    less = back[numbers["row"]]
    told = {
        name: np.where((name == "sequence") & (numbers[name] < 0), -1, numbers[name] - less)
        for name in ("enqueued", "completed", "sequence")
    }

    def ns(seconds: Any) -> Any:
        return _BASE_NS + np.rint(np.asarray(seconds) * _NS).astype(np.int64)

    arrived = ns((frame_s + way_s)[node])
    return Look(
        at_ns=int(ns(at_s)), word_ns=int(ns(word_s)), rank=np.arange(world), rank_id=np.arange(world),
        world=np.zeros(world, np.int64), seen_ns=arrived, heard_ns=arrived, moved_ns=ns(moved_s[node]),
        step=1_000 - back, phase=np.full(world, PHASES.index("train"), np.uint8),
        phase_since_ns=np.full(world, _BASE_NS - 60 * _NS), process=process, clean=np.zeros(world, np.bool_),
        row=numbers["row"], group_id=numbers["group_id"], **told,
    )  # fmt: skip


# --- what is printed --------------------------------------------------------------------------------------


def _table(found: list[Stall]) -> Iterator[str]:
    yield (
        f"{'kind':<26}{'ranks':>7}{'cases':>7}{'exact':>7}{'call':>7}{'wrong':>7}"
        f"{'p50 s':>8}{'most s':>8}{'known':>7}{'cpu s':>8}"
    )
    rows: dict[tuple[str, int], list[Stall]] = {}
    for one in found:
        rows.setdefault((one.kind, one.ranks), []).append(one)
    for (kind, ranks), some in rows.items():
        delays = [one.delay_s for one in some if one.delay_s is not None]
        right = [one.known_at_once for one in some if one.known_at_once is not None]
        told = f"{np.median(delays):>8.1f}{max(delays):>8.1f}" if delays else f"{'-':>8}{'-':>8}"
        share = f"{sum(right) / len(right):>7.0%}" if right else f"{'-':>7}"
        cpu_s = float(np.mean([one.seconds for one in some]))
        counts = (sum(getattr(one, name) for one in some) for name in ("exact", "call_right", "wrong"))
        counted = "".join(f"{number:>7}" for number in (ranks, len(some), *counts))
        yield f"{kind:<26}{counted}{told}{share}{cpu_s:>8.2f}"


def _figures(options: argparse.Namespace, found: list[Stall]) -> dict[str, Any]:
    delays = [one.delay_s for one in found if one.delay_s is not None]
    live = [one for one in found if one.kind not in ("no_fault", str(Kind.STALE_DUMP))]
    return {
        "bench": "detect", "stalls": True, "ranks": options.ranks, "seeds": options.seeds,
        "cases": len(found), "exact": sum(one.exact for one in found),
        "call_right": sum(one.call_right for one in found), "wrong_names": sum(one.wrong for one in found),
        "watched": len(live), "suspected": len(delays),
        "suspected_p50_s": round(float(np.quantile(delays, 0.5)), 2) if delays else None,
        "suspected_p99_s": round(float(np.quantile(delays, 0.99)), 2) if delays else None,
        "judge_max_s": round(max(one.seconds for one in found), 2),
    }  # fmt: skip
