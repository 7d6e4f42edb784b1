"""Each nanosecond of each rank is in exactly one class, and in the right one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterwatch.analysis.goodput import Before, ratios, repeats_until, split
from clusterwatch.analysis.goodput_model import (
    NEVER_NS,
    STARTUP_MAX_NS,
    Kind,
    Memory,
    Roster,
    Spans,
    Split,
    Stall,
    Steps,
)

S = 10**9
T0 = 1_700_000_000 * S


def roster(count: int, started_s: float = -1_000.0, exits: Mapping[int, float] | None = None) -> Roster:
    exit_ns = np.full(count, NEVER_NS)
    for rank, second in (exits or {}).items():
        exit_ns[rank] = T0 + int(second * S)
    return Roster(np.zeros(count, np.int64), np.full(count, T0 + int(started_s * S)), exit_ns)


Row = tuple[int, int, float, float, float]
"""rank, step, end s, duration s, checkpoint s"""


def steps(rows: Sequence[Row]) -> Steps:
    who, number, end, length, saved = (
        (list(column) for column in zip(*rows, strict=True)) if rows else [[]] * 5
    )
    return Steps(
        np.array(who, np.int64),
        np.array(number, np.int64),
        T0 + (np.array(end, np.float64) * S).astype(np.int64),
        np.array(length, np.float64),
        np.array(saved, np.float64),
    )


def steady(count: int, seconds: int, first: int = 1, **late: float) -> list[Row]:
    """One step a second, each rank from 0 on."""
    return [(rank, first + s, s + 1.0, 1.0, 0.0) for rank in range(count) for s in range(seconds)]


def remembered(count: int, usual_s: float | None = 1.0, repeats: int | None = None) -> Memory:
    """Ranks that had stepped before, at a pace that is known."""
    paces = {} if usual_s is None else {0: [usual_s] * 10}
    return Memory(np.full(count, T0 - 500 * S), paces, repeats_until=repeats)


def seconds(found: Split) -> dict[str, float]:
    return {str(kind): ns / S for kind, ns in found.ns.items() if ns}


def of(
    rows: Sequence[Row],
    ranks: Roster,
    memory: Memory,
    *,
    phases: Mapping[str, Spans] | None = None,
    stalls: Sequence[Stall] = (),
    window_s: int = 60,
) -> Split:
    found = split(T0, T0 + window_s * S, ranks, steps(rows), phases or {}, stalls, memory)
    assert sum(found.ns.values()) == len(ranks) * window_s * S
    return found


def span(who: Sequence[int], start_s: float, end_s: float) -> Spans:
    count = len(who)
    return Spans(
        np.array(who, np.int64), np.full(count, T0 + int(start_s * S)), np.full(count, T0 + int(end_s * S))
    )


def test_steps_at_the_usual_pace_are_productive() -> None:
    assert seconds(of(steady(4, 60), roster(4), remembered(4))) == {"productive": 240.0}


def test_a_silent_rank_is_unknown_and_never_productive() -> None:
    found = of(steady(3, 60), roster(4), remembered(4))
    assert seconds(found) == {"productive": 180.0, "unknown": 60.0}
    bounds = ratios(found.ns)
    assert (bounds.goodput_low, bounds.goodput_high, bounds.ettr) == (0.75, 1.0, 0.75)


def test_a_step_beyond_the_usual_pace_is_degraded_by_what_is_beyond_it() -> None:
    rows = [(0, n, 1.5 * (n + 1), 1.5, 0.0) for n in range(40)]
    assert seconds(of(rows, roster(1), remembered(1))) == pytest.approx(
        {"productive": 40.0, "degraded": 20.0}
    )


def test_a_step_within_a_per_cent_is_whole() -> None:
    rows = [(0, n, 1.005 * (n + 1), 1.005, 0.0) for n in range(60)]
    assert seconds(of(rows, roster(1), remembered(1)))["productive"] == pytest.approx(60.0)


def test_a_first_window_has_its_own_pace_for_the_usual_one() -> None:
    found = of(steady(2, 60), roster(2), remembered(2, usual_s=None))
    assert found.usual_s == {0: 1.0} and seconds(found) == {"productive": 120.0}


def test_a_fault_of_some_hours_does_not_become_usual() -> None:
    memory = Memory(np.full(1, T0 - 1), {0: [1.0] * 50 + [1.5] * 300})
    rows = [(0, n, 1.5 * (n + 1), 1.5, 0.0) for n in range(40)]
    assert of(rows, roster(1), memory).usual_s == {0: 1.0}


def test_a_save_counts_as_checkpoint_also_for_those_who_wait_for_it() -> None:
    rows = [(0, 1, 11.0, 11.0, 10.0), (1, 1, 11.0, 11.0, 0.0)] + [
        (rank, n, 10.0 + n, 1.0, 0.0) for rank in range(2) for n in range(2, 51)
    ]
    assert seconds(of(rows, roster(2), remembered(2))) == pytest.approx(
        {"productive": 100.0, "checkpoint": 20.0}
    )


def test_who_waits_longer_than_the_save_took_is_degraded_for_the_rest() -> None:
    rows = [(0, 1, 20.0, 20.0, 4.0)] + [(0, n, 19.0 + n, 1.0, 0.0) for n in range(2, 42)]
    assert seconds(of(rows, roster(1), remembered(1))) == pytest.approx(
        {"productive": 41.0, "checkpoint": 4.0, "degraded": 15.0}
    )


def test_evaluation_inside_of_a_step_is_said_apart() -> None:
    rows = [(0, 1, 31.0, 31.0, 0.0)] + [(0, n, 30.0 + n, 1.0, 0.0) for n in range(2, 31)]
    found = of(rows, roster(1), remembered(1), phases={"evaluation": span([0], 0.5, 30.5)})
    assert seconds(found) == pytest.approx({"productive": 30.0, "evaluation": 30.0})
    assert ratios(found.ns).goodput_low == pytest.approx(1.0)


def test_a_stall_is_stalled_until_a_step_begins_again() -> None:
    hung = [(rank, 10, 50.0, 41.0, 0.0) for rank in range(2)]
    after = [(rank, 10 + n, 50.0 + n, 1.0, 0.0) for rank in range(2) for n in range(1, 11)]
    before = [(rank, n, float(n), 1.0, 0.0) for rank in range(2) for n in range(1, 10)]
    # The incident was closed by hand long after the job went on.
    found = of(
        before + hung + after,
        roster(2),
        remembered(2),
        stalls=[Stall(T0 + 10 * S, T0 + 58 * S, "missing_rank")],
    )
    assert seconds(found) == pytest.approx({"productive": 40.0, "stalled": 80.0})
    assert found.stalled_ns == {"missing_rank": 80 * S}


def test_two_stalls_share_by_verdict_and_sum_exactly() -> None:
    stalls = [Stall(T0, T0 + 10 * S, "missing_rank"), Stall(T0 + 30 * S, T0 + 50 * S, "op_mismatch")]
    found = of([], roster(3), remembered(3), stalls=stalls)
    assert found.stalled_ns == {"missing_rank": 30 * S, "op_mismatch": 60 * S}
    assert found.ns[Kind.STALLED] == 90 * S and found.ns[Kind.UNKNOWN] == 90 * S


def test_start_up_ends_with_the_first_told_step() -> None:
    rows = [(0, 2 + n, 41.0 + n, 1.0, 0.0) for n in range(20)]
    found = of(rows, roster(1, started_s=10.0), Memory(np.zeros(1, np.int64)))
    assert seconds(found) == {"idle": 10.0, "startup": 30.0, "productive": 20.0}
    assert found.memory.first_ns.tolist() == [T0 + 40 * S] and found.memory.last_step == 21


def test_start_up_without_end_is_unknown_after_half_an_hour() -> None:
    late = -STARTUP_MAX_NS / S + 20
    assert seconds(of([], roster(1, started_s=late), Memory(np.zeros(1, np.int64)))) == {
        "startup": 20.0,
        "unknown": 40.0,
    }


def test_a_rank_that_tells_no_step_is_not_starting_once_its_peers_step() -> None:
    rows = [(rank, 2 + n, 21.0 + n, 1.0, 0.0) for rank in range(3) for n in range(40)]
    found = of(rows, roster(4, started_s=0.0), Memory(np.zeros(4, np.int64)))
    assert seconds(found) == {"startup": 80.0, "productive": 120.0, "unknown": 40.0}


def test_after_its_exit_a_rank_idles_while_the_attempt_lasts() -> None:
    found = of(steady(2, 30), roster(2, exits={0: 30.0, 1: 30.0}), remembered(2))
    assert seconds(found) == {"productive": 60.0, "idle": 60.0}


def test_steps_done_before_are_restart() -> None:
    found = of(steady(2, 60, first=101), roster(2), remembered(2, repeats=120))
    assert seconds(found) == {"restart": 40.0, "productive": 80.0}


def test_a_step_cut_by_two_windows_has_the_same_shares_in_both() -> None:
    rows = [(0, 1, 20.0, 20.0, 5.0)]
    whole = split(T0, T0 + 20 * S, roster(1), steps(rows), {}, (), remembered(1))
    first = split(T0, T0 + 7 * S, roster(1), steps(rows), {}, (), remembered(1))
    second = split(T0 + 7 * S, T0 + 20 * S, roster(1), steps(rows), {}, (), first.memory)
    for kind in Kind:
        assert abs(first.ns[kind] + second.ns[kind] - whole.ns[kind]) <= 2
    assert whole.ns[Kind.CHECKPOINT] == 5 * S


def test_absurd_steps_cost_nothing_but_themselves() -> None:
    rows = [*steady(1, 60), (1, 1, 30.0, float("inf"), 0.0), (1, 2, 50.0, float("nan"), float("nan"))]
    found = of(rows, roster(2), remembered(2))
    assert found.ns[Kind.PRODUCTIVE] == 60 * S


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 50),
            st.floats(-20, 90),
            st.floats(0, 80),
            st.sampled_from([0.0, 3.0, float("nan")]),
        ),
        max_size=20,
    ),
    st.lists(st.tuples(st.integers(-10, 70), st.integers(0, 50)), max_size=3),
    st.dictionaries(st.integers(0, 3), st.floats(-5, 70), max_size=2),
    st.integers(-1, 40),
)
@settings(max_examples=40, deadline=None)
def test_the_sum_is_ranks_times_window_whatever_is_told(
    rows: list[Row], stalled: list[tuple[int, int]], exits: dict[int, float], repeats: int
) -> None:
    stalls = [Stall(T0 + a * S, T0 + (a + b) * S, "missing_rank") for a, b in stalled]
    phases = {
        "evaluation": span([0, 1], 5, 25),
        "checkpoint": span([2], 50, 70),
        "teardown": span([3], 58, 90),
    }
    found = of(rows, roster(4, 3.0, exits), remembered(4, repeats=repeats), phases=phases, stalls=stalls)
    assert min(found.ns.values()) >= 0 and sum(found.stalled_ns.values()) == found.ns[Kind.STALLED]


def test_repeated_steps_go_up_to_the_last_one_before_where_numbers_go_on() -> None:
    assert repeats_until(Before(500, 400), 401) == 500


def test_where_an_attempt_counts_from_its_start_as_many_are_repeated_as_were_lost() -> None:
    assert repeats_until(Before(500, 400), 2) == 100
    assert repeats_until(Before(500, None), 2) is None and repeats_until(Before(None, None), 7) is None


def test_no_time_has_no_ratio() -> None:
    assert ratios({}).goodput_low is None
