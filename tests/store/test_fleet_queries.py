"""Questions about a small cluster whose every number is known: answers, gaps with their reasons, bounds."""

from __future__ import annotations

import time
from array import array

import numpy as np
import pytest
import redis

from clusterwatch.cli.benches import query_data, query_measure
from clusterwatch.cli.benches.query_data import NAMES, Made, Plan
from clusterwatch.store import fleet_minutes, fleet_queries, node_series, past_states
from clusterwatch.store.answers import MINUTE_NS, SECOND_NS, Gap, QueryRefused, Reason, Window
from clusterwatch.store.fleet_minutes import By, Plane
from collectors.wire import blocks
from tests.store import test_queries as blocks_of

pytestmark = pytest.mark.django_db

GPUS, POWER = 64, "gpu_power_w"


@pytest.fixture
def made(db: None, valkey: redis.Redis) -> Made:
    """An hour of 8 nodes, raw for the newest 15 minutes; it ended three minutes ago."""
    plan = Plan(GPUS, 1, 15, int(time.time() // 60) - 3)
    return query_data.generate(plan, lambda text: None)


def test_every_question_of_the_bench_is_answered_as_numpy_says(made: Made) -> None:
    questions = list(query_measure._questions(made))
    assert len(questions) >= 15
    wrong = [question.name for question in questions if not question.is_right(question.ask())]
    assert wrong == []


def gap(answer: node_series.NodeAnswer) -> tuple[Gap, ...]:
    return answer.series[0].gaps.told


def test_seconds_outside_the_blocks_say_why_they_are_not_there(made: Made) -> None:
    end_ns = made.plan.end_minute * MINUTE_NS
    window = Window(end_ns - MINUTE_NS, end_ns + 5 * MINUTE_NS)
    answer = node_series.gpu_series(made.node_ids[5], 2, window, metrics=[POWER], step_s=10)
    series = answer.series[0]
    assert series.unit == "w" and not series.of_node
    assert np.isfinite(series.mean[:6]).all() and np.isnan(series.mean[6:]).all()
    assert [one.reason for one in series.gaps.told] == [Reason.NO_DATA, Reason.NOT_YET]
    assert series.coverage.reported == 6 and series.coverage.expected > 6
    # Before the last 15 minutes there is only the rollup: the second is gone, the minute is not.
    early = Window(made.plan.first_minute * MINUTE_NS, made.plan.first_minute * MINUTE_NS + 10 * MINUTE_NS)
    (only,) = gap(node_series.gpu_series(made.node_ids[5], 2, early, metrics=[POWER], step_s=1))
    assert (only.start_ns, only.end_ns, only.reason) == (early.start_ns, early.end_ns, Reason.NO_DATA)


def test_a_metric_nobody_sends_and_a_time_that_is_dropped_have_their_own_reasons(made: Made) -> None:
    window = query_measure.last_minutes(made, 10)
    node = made.node_ids[0]
    assert [g.reason for g in gap(node_series.gpu_series(node, 0, window, metrics=["gpu_mood"]))] == [
        Reason.NOT_COLLECTED
    ]
    old = Window(window.start_ns - 40 * 86_400 * SECOND_NS, window.start_ns - 39 * 86_400 * SECOND_NS)
    for told in (
        gap(node_series.gpu_series(node, 0, old, metrics=[POWER], step_s=60)),
        fleet_minutes.top_k(made.cluster_id, POWER, old, 3, slot_count=GPUS).gaps.told,
        fleet_queries.stored_percentiles(made.cluster_id, "fleet", POWER, old).gaps.told,
    ):
        assert [g.reason for g in told] == [Reason.EXPIRED]
    stored = fleet_queries.stored_percentiles(made.cluster_id, "fleet", "gpu_mood", window)
    assert [g.reason for g in stored.gaps.told] == [Reason.NOT_COLLECTED]
    ranked = fleet_minutes.top_k(made.cluster_id, "gpu_mood", window, 3, slot_count=GPUS)
    assert [g.reason for g in ranked.gaps.told] == [Reason.NOT_COLLECTED] and not len(ranked.slots)


def test_a_gap_in_a_block_is_a_gap_in_the_answer() -> None:
    one = [3] * 60
    one[20:30] = [blocks.MISSING] * 10
    blocks_of.store(1, blocks_of.block(0, [[1] * 60, one]))
    window = Window(blocks_of.T0, blocks_of.T0 + MINUTE_NS)
    answer = node_series.gpu_series(7, 1, window, step_s=1)
    host, power = answer.series
    assert (host.metric, host.of_node, power.metric, power.unit) == ("other", True, "power_w", "W")
    assert power.mean[0] == 1.5 and np.isnan(power.mean[20:30]).all()
    (told,) = power.gaps.told
    start_ns = blocks_of.T0 + 20 * SECOND_NS
    assert told == Gap(start_ns, start_ns + 10 * SECOND_NS, Reason.NO_DATA)
    by_minute = node_series.gpu_series(7, 1, window, step_s=60)
    assert by_minute.series[1].mean.tolist() == [1.5] and by_minute.source == "node_minute"


def test_two_blocks_of_one_minute_and_two_shapes_are_one_series() -> None:
    first = [*range(30), *[blocks.MISSING] * 30]
    blocks_of.store(
        1,
        blocks_of.block(0, [first]),
        blocks_of.block(0, [[*[blocks.MISSING] * 30, *range(30, 60)]]),
        blocks_of.block(1, [[5] * 60, [6] * 60]),
    )
    window = Window(blocks_of.T0, blocks_of.T0 + 2 * MINUTE_NS)
    series = node_series.gpu_series(7, 0, window, metrics=["power_w"], step_s=1).series[0]
    assert series.mean.tolist() == [*[v * 0.5 for v in range(60)], *[2.5] * 60]
    assert series.gaps.told == () and series.coverage.ratio == 1


def test_a_damaged_block_is_counted_and_its_neighbours_are_read(made: Made) -> None:
    from django.db import connection

    newest = (made.plan.end_minute - 1) * MINUTE_NS
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE raw_block SET data = %s WHERE node_id = %s AND t_ns = %s",
            [b"damaged", made.node_ids[0], newest],
        )
    window = query_measure.last_minutes(made, 2)
    answer = node_series.gpu_series(made.node_ids[0], 0, window, metrics=[POWER], step_s=1)
    assert answer.damaged == 1
    assert np.isfinite(answer.series[0].mean[:60]).all() and np.isnan(answer.series[0].mean[60:]).all()


def test_latest_says_which_slots_are_silent_and_which_never_spoke(made: Made) -> None:
    now_ns = time.time_ns()
    fresh = fleet_queries.latest(made.cluster_id, POWER, GPUS + 8, max_age_s=60, now_ns=now_ns)
    assert fresh.coverage.reported == GPUS and not fresh.silent.any()
    assert (fresh.seen_ns[GPUS:] == 0).all() and np.isnan(fresh.values[GPUS:]).all()
    later = fleet_queries.latest(made.cluster_id, POWER, GPUS, max_age_s=10, now_ns=now_ns + 20 * 10**9)
    assert later.silent.all() and np.isnan(later.values).all() and later.coverage.reported == 0


def test_rack_percentiles_are_the_same_by_the_second_and_exact_by_the_minute(made: Made) -> None:
    window = query_measure.last_minutes(made, 10)
    nodes, slots = list(made.node_ids[:2]), np.arange(16)
    answer = fleet_queries.group_percentiles(made.cluster_id, POWER, nodes, slots, window, step_s=60)
    means = made.truth.power[-10:, :16].mean(axis=2)
    assert answer.source == "fleet_minute" and (answer.count == 16).all()
    np.testing.assert_allclose(answer.columns["p50"], np.percentile(means, 50, axis=1), rtol=1e-6)
    missing = fleet_queries.group_percentiles(
        made.cluster_id, POWER, [10**9, nodes[0]], slots, window, step_s=10
    )
    assert missing.coverage.reported * 2 == missing.coverage.expected
    nothing = fleet_queries.group_percentiles(made.cluster_id, POWER, [10**9], slots[:8], window, step_s=10)
    assert nothing.coverage.reported == 0 and np.isnan(nothing.columns["p50"]).all()


def test_coarser_percentiles_keep_extremes_and_weigh_the_mean(made: Made) -> None:
    window = query_measure.last_minutes(made, 10)
    fine = fleet_queries.stored_percentiles(made.cluster_id, "fleet", POWER, window, step_s=10)
    coarse = fleet_queries.stored_percentiles(made.cluster_id, "fleet", POWER, window, step_s=60)
    by_minute = {name: values.reshape(-1, 6) for name, values in fine.columns.items()}
    np.testing.assert_allclose(coarse.columns["low"], by_minute["low"].min(axis=1))
    np.testing.assert_allclose(coarse.columns["high"], by_minute["high"].max(axis=1))
    np.testing.assert_allclose(coarse.columns["mean"], by_minute["mean"].mean(axis=1))
    np.testing.assert_allclose(coarse.columns["p99"], by_minute["p99"].mean(axis=1))


def test_the_smallest_of_some_slots_are_ranked_too(made: Made) -> None:
    window = query_measure.last_minutes(made, 10)
    some = np.array([60, 3, 17, 41])
    ranked = fleet_minutes.top_k(
        made.cluster_id, POWER, window, 2, largest=False, slots=some, slot_count=GPUS
    )
    means = made.truth.power[-10:].mean(axis=(0, 2))
    assert ranked.slots.tolist() == sorted(some.tolist(), key=lambda slot: means[slot])[:2]
    assert (ranked.coverage.expected, ranked.minutes.reported) == (4, 10)


def test_a_heat_map_gathers_gpus_and_minutes_that_do_not_fit(made: Made) -> None:
    late = made.plan.end_minute % 3  # buckets of three minutes begin at whole threes
    end_ns = (made.plan.end_minute - late) * MINUTE_NS
    window = Window(end_ns - 12 * MINUTE_NS, end_ns)
    slots = np.array([5, 1, 9, 13, 2])
    power = made.truth.power[15 - late - 12 : 15 - late, slots]  # (minutes, GPUs, seconds)
    high = fleet_minutes.heat_map(
        made.cluster_id, POWER, slots, window, plane=Plane.HIGH, rows_max=3, columns_max=4
    )
    assert high.grid.step_s == 180 and [group.tolist() for group in high.groups] == [[5, 1], [9, 13], [2]]
    wanted = power.max(axis=2).reshape(4, 3, 5).max(axis=1).T
    np.testing.assert_allclose(high.values[0], np.maximum(wanted[0], wanted[1]), rtol=1e-6)
    mean = fleet_minutes.heat_map(made.cluster_id, POWER, slots, window, columns_max=4)
    np.testing.assert_allclose(mean.values, power.mean(axis=2).reshape(4, 3, 5).mean(axis=1).T, rtol=1e-6)
    assert mean.coverage.ratio == 1


def test_a_past_map_is_the_frame_at_or_before_the_time_or_says_why_there_is_none(made: Made) -> None:
    end_ns = made.plan.end_minute * MINUTE_NS
    frame = past_states.map_at(made.cluster_id, "state", end_ns - 1)
    assert isinstance(frame, past_states.MapFrame) and frame.t_ns == end_ns - 10 * SECOND_NS
    assert (frame.slots == made.truth.frames[frame.t_ns]).all()
    assert past_states.map_at(made.cluster_id, "state", end_ns + 70 * SECOND_NS) is Reason.NO_DATA
    assert past_states.map_at(made.cluster_id, "mood", end_ns) is Reason.NOT_COLLECTED
    assert past_states.map_at(made.cluster_id, "state", time.time_ns() + MINUTE_NS) is Reason.NOT_YET
    assert past_states.map_at(made.cluster_id, "state", end_ns - 30 * 86_400 * SECOND_NS) is Reason.EXPIRED


def test_the_exact_second_of_a_node_without_blocks_says_why(made: Made) -> None:
    moment = made.plan.end_minute * MINUTE_NS - 7 * SECOND_NS
    known, unknown = past_states.second_of_nodes([made.node_ids[4], 10**9], moment, metrics=[POWER])
    assert known.reason is None and known.units == {POWER: "w"}
    np.testing.assert_allclose(known.values[POWER], made.truth.power[-1, 32:40, 53])
    assert (unknown.values, unknown.reason) == ({}, Reason.NO_DATA)
    (old,) = past_states.second_of_nodes([made.node_ids[4]], moment - 3 * 86_400 * SECOND_NS)
    assert old.reason is Reason.EXPIRED


def test_questions_that_are_too_large_say_what_would_do(made: Made) -> None:
    now_ns = made.plan.end_minute * MINUTE_NS
    week = Window(now_ns - 7 * 86_400 * SECOND_NS, now_ns)
    cluster = made.cluster_id
    for ask, words in (
        (lambda: fleet_minutes.top_k(cluster, POWER, week, 10, slot_count=GPUS), "24 h"),
        (lambda: fleet_minutes.top_k(cluster, POWER, week, 10**6, slot_count=GPUS), "from 1 to"),
        (lambda: fleet_minutes.heat_map(cluster, POWER, np.arange(8), week), "24 h"),
        (lambda: node_series.gpu_series(1, 0, week, step_s=1), "coarser"),
        (
            lambda: node_series.gpu_series(1, 0, week, step_s=60, metrics=[f"m{n}" for n in range(400)]),
            "fewer metrics",
        ),
        (lambda: past_states.second_of_nodes(range(1_000), now_ns), "a rack"),
        (
            lambda: fleet_queries.group_percentiles(
                cluster, POWER, list(range(64)), np.arange(512), week, step_s=10
            ),
            "fewer nodes",
        ),
    ):
        with pytest.raises(QueryRefused, match=words):
            ask()


def test_names_of_collected_metrics_come_from_the_index(made: Made) -> None:
    window = query_measure.last_minutes(made, 5)
    assert fleet_minutes.metric_names(made.cluster_id, window) == sorted(NAMES)
    assert fleet_minutes.metric_names(made.cluster_id + 1, window) == []


def test_a_ranking_by_growth_of_a_counter_counts_what_was_counted(made: Made) -> None:
    window = query_measure.last_minutes(made, 10)
    ranked = fleet_minutes.top_k(
        made.cluster_id,
        "nic_fec_corrected_total",
        window,
        GPUS,
        by=By.GROWTH,
        is_counter=True,
        slot_count=GPUS,
    )
    every = 3 * (1 + ranked.slots % 7)
    assert np.abs(ranked.values - 540 / every).max() <= 1 and ranked.slots[0] % 7 == 0


def test_a_rollup_of_another_length_than_its_header_gives_no_number() -> None:
    blocks_of.store(1, blocks_of.block(0, [[2] * 60]))
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("UPDATE node_minute SET low = '{1}', mean = '{}', high = ARRAY[NULL, 4]::real[]")
    window = Window(blocks_of.T0, blocks_of.T0 + MINUTE_NS)
    series = node_series.gpu_series(7, 0, window, metrics=["power_w"], step_s=60).series[0]
    assert np.isnan(series.low[0]) and np.isnan(series.mean[0]) and series.high[0] == 4.0
    assert array("d", series.high).tolist() == [4.0]
