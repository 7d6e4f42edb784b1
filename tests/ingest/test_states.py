"""What pages are told of a cluster and a job: sums add up, silence is unknown, who is behind is named."""

from dataclasses import replace

import numpy as np
import pytest

from clusterwatch.analysis.motion import EXIT_ENDED, EXIT_FAILED, RANK_STATES
from clusterwatch.fleet.overview import STATE_OF_BYTE
from clusterwatch.ingest import ranks_now, states
from clusterwatch.ingest.layout import ClusterLayout, GroupLayout, JobLayout
from clusterwatch.store import hot

S = 1_000_000_000
NOW = 1_796_000_000 * S
WORLD = GroupLayout("0", "dp", (0, 1, 2, 3))


def tiny_cluster(closed: int | None = None) -> ClusterLayout:
    """Two nodes of two GPUs: slots 0..3 on nodes 10, 10, 20, 20."""
    node = np.array([10, 10, 20, 20])
    if closed is not None:
        node[closed] = -1
    return ClusterLayout(1, 7, node, np.array([0, 1, 0, 1]), {10: "gpu-a", 20: "gpu-b"})


def nodes(**age_s: float) -> hot.NodesRead:
    """``a`` and ``b`` heard so many seconds ago; a node left out was never heard."""
    ids = {"a": 10, "b": 20}
    seen = np.array([NOW - int(age * S) for age in age_s.values()], np.int64)
    count = len(age_s)
    return hot.NodesRead(
        np.array([ids[name] for name in age_s], np.int64), np.ones(count, np.int64), seen,
        np.zeros(count, np.uint8), seen, np.full(count, NOW),
    )  # fmt: skip


def layout(exits: dict[int, int] | None = None, stopped: tuple[int, ...] = ()) -> JobLayout:
    """Ranks 0..3 on the GPUs of the tiny cluster, rows 100..103 of the database, one group over all."""
    return JobLayout(
        id=5, cluster_id=1, key="88213", name="llama", state="running", attempt=0,
        rank_id=np.arange(100, 104), rank=np.arange(4),
        node=np.array([10, 10, 20, 20]), gpu=np.array([0, 1, 0, 1]),
        exit=np.array([(exits or {}).get(rank, 0) for rank in range(4)], np.uint8),
        stopped=np.array([rank in stopped for rank in range(4)]),
        host=np.array([0, 0, 1, 1]), hosts=("gpu-a", "gpu-b"), groups={900: WORLD},
    )  # fmt: skip


def progress(
    numbers: list[int],
    completed: list[int],
    moved_age_s: list[float],
    *,
    order: list[int] | None = None,
    steps: list[int] | None = None,
    seen_age_s: float = 0.5,
) -> hot.JobProgress:
    """Hot state of the four ranks in one group, in any order of rows."""
    rows = order or [0, 1, 2, 3]
    pick = np.array(rows)
    count = len(rows)
    at = np.array([NOW - int(age * S) for age in moved_age_s])
    return hot.JobProgress(
        rank_id=100 + pick,
        node_id=np.array([10, 10, 20, 20])[pick],
        seen_ns=np.full(count, NOW - int(seen_age_s * S)),
        step=np.array(steps or [4, 4, 4, 4])[pick],
        phase=np.full(count, 2, np.uint8),
        phase_since_ns=np.full(count, NOW - 60 * S),
        moved_ns=at[pick],
        heard_ns=np.full(count, NOW - S),
        row=np.arange(count),
        group_id=np.full(count, 900),
        enqueued=np.array(numbers)[pick],
        completed=np.array(completed)[pick],
        sequence=np.array(numbers)[pick],
    )


HEALTHY = progress([8, 8, 8, 8], [8, 8, 8, 8], [0.2] * 4)
RANK_2_MISSING = progress([9, 9, 8, 9], [8, 8, 8, 8], [20.0, 20.0, 21.0, 20.0])


def job_now(
    held: hot.JobProgress, of: JobLayout | None = None, place: ClusterLayout | None = None
) -> states.JobNow:
    found = of or layout()
    slots = states.slots_of(place or tiny_cluster(), found)
    return states.JobNow(found, ranks_now.look(found, held, NOW), 0.5, slots)


def words(slots: bytes) -> list[str]:
    return [STATE_OF_BYTE.get(byte, "none") for byte in slots]


def cluster(heard: hot.NodeStates, *jobs: states.JobNow, closed: int | None = None) -> states.State:
    return states.cluster_state(tiny_cluster(closed), heard, jobs, NOW, NOW)


def rank_words(now: states.JobNow) -> list[str]:
    return [RANK_STATES[state] for state in now.ranks.state]


# --- the cluster ------------------------------------------------------------------------------------------


def test_a_heard_cluster_without_jobs_is_idle():
    state = cluster(nodes(a=0.5, b=2.9))
    assert words(state["slots"]) == ["idle"] * 4
    assert state["coverage"] == {"expected": 2, "reported": 2} and state["silent"] == {}


def test_a_node_silent_for_3_s_is_unknown_and_named_though_its_job_was_fine():
    state = cluster(nodes(a=0.5, b=3.1), job_now(HEALTHY))
    assert words(state["slots"]) == ["ok", "ok", "unknown", "unknown"]
    assert state["coverage"] == {"expected": 2, "reported": 1}
    assert state["silent"] == {
        20: {"name": "gpu-b", "since_ms": (NOW - int(3.1 * S)) // 10**6, "link": "open"}
    }


def test_a_node_whose_gateway_fell_silent_is_unknown_and_not_the_one_that_is_silent():
    of_dead = replace(nodes(a=0.5, b=3.1), word_ns=np.array([NOW, NOW - int(3.1 * S)]))
    state = cluster(of_dead, job_now(HEALTHY))
    assert words(state["slots"]) == ["ok", "ok", "unknown", "unknown"]
    assert state["silent"][20]["link"] == "gateway_silent"


def test_a_node_never_heard_is_unknown_without_a_time():
    assert cluster(nodes(a=0.5))["silent"] == {20: {"name": "gpu-b", "since_ms": None, "link": "unknown"}}


def test_nothing_heard_at_all_is_all_unknown():
    assert words(cluster(hot.empty_nodes(), job_now(HEALTHY))["slots"]) == ["unknown"] * 4


@pytest.mark.parametrize("closed", [None, 0, 3])
@pytest.mark.parametrize("heard", [nodes(), nodes(a=0.1), nodes(a=0.1, b=0.1), nodes(a=9, b=9)])
@pytest.mark.parametrize("jobs", [(), (job_now(HEALTHY),), (job_now(RANK_2_MISSING),)])
def test_the_counts_add_up_to_the_total(closed, heard, jobs):
    state = cluster(heard, *jobs, closed=closed)
    assert sum(state["counts"].values()) == state["total"] == (4 if closed is None else 3)


def test_a_closed_slot_is_no_place():
    assert words(cluster(nodes(a=0.1, b=0.1), closed=1)["slots"]) == ["idle", "none", "idle", "idle"]


def test_only_the_rank_that_is_behind_degrades_its_slot_the_waiting_ones_are_ok():
    state = cluster(nodes(a=0.1, b=0.1), job_now(RANK_2_MISSING))
    assert words(state["slots"]) == ["ok", "ok", "degraded", "ok"]


def test_a_process_that_ended_badly_fails_its_slot_and_one_that_ended_well_leaves_it():
    now = job_now(HEALTHY, layout(exits={1: EXIT_FAILED, 3: EXIT_ENDED}))
    assert words(cluster(nodes(a=0.1, b=0.1), now)["slots"]) == ["ok", "failed", "ok", "idle"]


def test_ranks_that_share_a_node_without_gpus_show_the_worst():
    place = ClusterLayout(1, 1, np.array([10]), np.array([-1]), {10: "cpu-a"})
    shared = layout(stopped=(2,))
    shared.node[:], shared.gpu[:] = 10, -1
    state = states.cluster_state(place, nodes(a=0.1), [job_now(HEALTHY, shared, place)], NOW, NOW)
    assert words(state["slots"]) == ["degraded"]


def test_the_job_line_says_step_rate_phase_and_since_when_it_stands():
    (moving,) = cluster(nodes(a=0.1, b=0.1), job_now(HEALTHY))["jobs"].values()
    assert (moving["key"], moving["ranks"], moving["reported"], moving["step"]) == ("88213", 4, 4, 4)
    assert (moving["phase"], moving["step_rate"], moving["still_since_ms"]) == ("train", 0.5, None)
    (standing,) = cluster(nodes(a=0.1, b=0.1), job_now(RANK_2_MISSING))["jobs"].values()
    assert standing["still_since_ms"] == (NOW - 20 * S) // 10**6


@pytest.mark.parametrize(("age_s", "told"), [(0.5, None), (2.9, None), (4.0, (NOW - 4 * S) // 10**6)])
def test_a_gateway_that_stopped_writing_is_told_by_its_last_word(age_s, told):
    assert states.gateway_silent_since_ms(NOW - int(age_s * S), NOW) == told


def test_a_gateway_that_never_wrote_is_told_as_such():
    assert states.gateway_silent_since_ms(None, NOW) == 0


# --- the job ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [None, [3, 1, 0, 2]])
def test_the_missing_rank_is_behind_and_its_peers_wait_in_any_order_of_rows(order):
    held = progress([9, 9, 8, 9], [8, 8, 8, 8], [20.0, 20.0, 21.0, 20.0], order=order)
    now = job_now(held)
    assert rank_words(now) == ["waiting", "waiting", "behind", "waiting"]
    state = states.job_state(now, NOW, NOW)
    assert state["behind"] == [0, 0, 1, 0]
    assert state["open_calls"] == {
        900: {
            "name": "0", "desc": "dp", "size": 4, "sequence": 9, "joined": 3, "missing": [2],
            "missing_count": 1, "unreported_count": 0, "since_s": NOW // S - 20,
        }
    }  # fmt: skip
    assert state["shapes"]["dp x 4"] == {"desc": "dp", "size": 4, "count": 1, "open": 1, "stuck": 1}


def test_a_member_nobody_speaks_of_is_unreported_not_missing():
    held = progress([9, 9, 8, 9], [8, 8, 8, 8], [20.0] * 4, order=[0, 1, 3])
    now = job_now(held)
    assert rank_words(now)[2] == "unknown"
    (call,) = states.job_state(now, NOW, NOW)["open_calls"].values()
    assert (call["joined"], call["missing"], call["unreported_count"]) == (3, [], 1)
    assert states.job_state(now, NOW, NOW)["behind"][2] is None


def test_a_moving_job_names_nobody_though_its_ranks_are_sampled_apart():
    now = job_now(progress([9, 9, 8, 9], [8, 8, 8, 8], [0.4, 0.1, 0.9, 0.2]))
    assert rank_words(now) == ["moving"] * 4
    state = states.job_state(now, NOW, NOW)
    assert state["behind"] == [0] * 4 and state["open_calls"] == {}
    assert state["shapes"]["dp x 4"] | {"open": 0} == {
        "desc": "dp",
        "size": 4,
        "count": 1,
        "open": 0,
        "stuck": 0,
    }


def test_without_an_open_call_standing_ranks_are_still_and_nobody_is_behind():
    now = job_now(progress([8, 8, 7, 8], [8, 8, 7, 8], [20.0] * 4))
    assert rank_words(now) == ["still"] * 4


def test_ranks_of_a_former_attempt_in_hot_state_do_not_count():
    held = progress([9, 9, 8, 9], [8, 8, 8, 8], [20.0] * 4)
    other = layout()
    other.rank_id[:] += 1000
    now = job_now(held, other)
    assert rank_words(now) == ["unknown"] * 4
    assert states.job_state(now, NOW, NOW)["open_calls"] == {}


def test_ends_and_stops_win_over_progress():
    now = job_now(HEALTHY, layout(exits={0: EXIT_ENDED, 1: EXIT_FAILED}, stopped=(2,)))
    assert rank_words(now) == ["ended", "failed", "stopped", "moving"]
    counts = states.job_state(now, NOW, NOW)["rank_counts"]
    assert sum(counts.values()) == 4 and counts["stopped"] == 1


def test_frames_that_no_longer_carry_a_rank_make_it_unknown():
    assert rank_words(job_now(progress([8] * 4, [8] * 4, [0.1] * 4, seen_age_s=3.5))) == ["unknown"] * 4


def test_columns_of_healthy_ranks_hold_still_from_second_to_second():
    one = states.job_state(job_now(HEALTHY), NOW, NOW)
    other = states.job_state(job_now(progress([9] * 4, [9] * 4, [0.7, 0.1, 0.3, 0.2])), NOW, NOW)
    for key in ("states", "still_since_s", "hook_silent_since_s", "behind", "steps_behind"):
        assert one[key] == other[key]


def test_steps_behind_is_unknown_before_the_first_step():
    state = states.job_state(job_now(progress([8] * 4, [8] * 4, [0.1] * 4, steps=[7, 6, -1, 7])), NOW, NOW)
    assert state["step"] == 7 and state["steps_behind"] == [0, 1, None, 0]


def test_a_job_without_processes_yet_has_a_frame():
    empty = layout()
    blank = JobLayout(
        **{
            name: getattr(empty, name)
            for name in ("id", "cluster_id", "key", "name", "state", "attempt", "hosts")
        },
        **{
            name: getattr(empty, name)[:0]
            for name in ("rank_id", "rank", "node", "gpu", "exit", "stopped", "host")
        },
        groups={},
    )
    state = states.job_state(job_now(hot.empty_progress(), blank), NOW, None)
    assert state["coverage"] == {"expected": 0, "reported": 0} and state["step"] is None
