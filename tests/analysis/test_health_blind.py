"""What we cannot see is said, and accuses no part."""

from __future__ import annotations

import numpy as np
import pytest

from clusterwatch.analysis import health_blind as rules
from clusterwatch.analysis.health_blind import Vitals, Watch

S = 10**9
NODES, GPUS = 4, 8
COUNT = NODES * GPUS
NODE = np.repeat(np.arange(1, NODES + 1), GPUS).astype(np.int64)
NO_HOOK = np.zeros(COUNT, np.bool_)


def silence(*seconds: float) -> np.ndarray:
    return np.array(seconds)


def test_most_agents_silent_at_once_is_one_finding_that_names_nobody() -> None:
    silent = np.r_[np.full(2_000, 40.0), np.full(1_072, 0.5)]
    found = rules.agents_silent(silent, np.arange(3_072) < 1_500)
    assert found is not None and found.verdict == "agents_silent" and found.node is None
    assert found.summary.startswith("2,000 of 3,072 agents of the cluster are silent at once")
    assert found.why[0] == "1,500 connections are closed, 500 are open and silent" and not found.culprits


@pytest.mark.parametrize(
    "silent", [silence(40, 0.5), silence(40), silence(), silence(9, 9, 9), silence(40, 40, 1, 1)]
)
def test_few_agents_or_short_silence_is_none(silent: np.ndarray) -> None:
    assert rules.agents_silent(silent, np.zeros(len(silent), np.bool_)) is None


def test_gateways_may_be_started_again() -> None:
    assert rules.ingest_down(rules.INGEST_AFTER_S) is None
    found = rules.ingest_down(16)
    assert found is not None and (found.verdict, str(found.severity)) == ("ingest_down", "critical")


def vitals(util: float, power: float, moved: float, only: slice | None = None) -> Vitals:
    """All GPUs; with ``only`` the others work on."""
    place = slice(None) if only is None else only
    columns = [np.full(COUNT, usual, np.float32) for usual in (1.0, 600.0, 20_000.0)]
    for column, value in zip(columns, (util, power, moved), strict=True):
        column[place] = value
    return Vitals(*columns)


WORKING = vitals(1.0, 600.0, 20_000.0)


def lived(*told: Vitals, every_s: int = 60) -> tuple[Watch, int]:
    """Ten minutes of work, then these, one each minute."""
    state, now_ns = Watch.empty(COUNT), 10**18
    for one in [WORKING] * 10 + list(told):
        now_ns += every_s * S
        state = rules.watch(state, one, now_ns)
    return state, now_ns


def test_busy_gpus_that_draw_little_and_move_nothing_are_a_stall_without_a_name() -> None:
    state, now_ns = lived(*[vitals(1.0, 250.0, 0.0)] * 4)
    found = rules.stalled_unnamed(state, NODE, NO_HOOK, now_ns)
    assert found is not None and (found.verdict, found.confidence) == ("stalled_unnamed", 0.5)
    assert found.summary.startswith("32 GPUs of 4 nodes look busy") and found.node is None


@pytest.mark.parametrize(
    "told",
    [
        vitals(1.0, 560.0, 0.0), vitals(0.1, 100.0, 0.0), vitals(1.0, 250.0, 900.0),
        vitals(1.0, 250.0, float("nan")), vitals(1.0, float("nan"), 0.0),
        vitals(1.0, 250.0, 0.0, slice(0, GPUS)), vitals(1.0, 250.0, 0.0, slice(4, 12)),
    ],
    ids=["computes", "idle", "moves data", "traffic unknown", "power unknown", "one node", "halves of two"],
)  # fmt: skip
def test_what_may_be_work_is_no_stall(told: Vitals) -> None:
    state, now_ns = lived(*[told] * 4)
    assert rules.stalled_unnamed(state, NODE, NO_HOOK, now_ns) is None


def test_a_short_pause_is_no_stall_and_a_new_one_counts_from_its_beginning() -> None:
    still = vitals(1.0, 250.0, 0.0)
    for told in ([still, still], [still, still, WORKING, still, still]):
        state, now_ns = lived(*told)
        assert rules.stalled_unnamed(state, NODE, NO_HOOK, now_ns) is None


def test_gpus_that_never_moved_data_are_not_known_to_wait() -> None:
    state, now_ns = Watch.empty(COUNT), 10**18
    for _ in range(6):
        now_ns += 60 * S
        state = rules.watch(state, vitals(1.0, 250.0, 0.0), now_ns)
    assert rules.stalled_unnamed(state, NODE, NO_HOOK, now_ns) is None


def test_nodes_with_a_hook_are_judged_by_their_own_job() -> None:
    state, now_ns = lived(*[vitals(1.0, 250.0, 0.0)] * 4)
    hooked = NODE <= 3
    assert rules.stalled_unnamed(state, NODE, hooked, now_ns) is None
    assert rules.stalled_unnamed(state, NODE, NODE <= 2, now_ns) is not None


def test_a_cluster_that_grows_keeps_what_is_known() -> None:
    state, _ = lived()
    grown = state.sized(COUNT + 8)
    assert (grown.working_w[:COUNT] == state.working_w).all() and np.isnan(grown.working_w[COUNT:]).all()
