"""Each fault changes what a real one would change, at its place and in its time, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from clusterwatch.simulate.faults.catalogue import FAULTS
from collectors.wire import records
from collectors.wire.metrics import Throttle
from tests.simulate.faults.lived import Lived, at

START, LATER = 30.0, 70.0
HEALTHY = Lived()
UP, DOWN, GONE = "up", "down", "gone"

# fault -> metrics that differ at its place from those of its neighbours, and how
SIGNALS: dict[str, dict[str, str]] = {
    "slow_gpu": {"gpu_sm_clock_mhz": DOWN, "gpu_sm_activity_ratio": UP},
    "thermal_throttle": {"gpu_temperature_c": UP, "gpu_memory_temperature_c": UP, "gpu_sm_clock_mhz": DOWN,
                         "gpu_power_w": DOWN, "gpu_throttle_reasons": UP},
    "gpu_off_bus": {"gpu_power_w": GONE, "gpu_sm_clock_mhz": GONE, "gpu_ecc_uncorrectable_total": GONE},
    "nvlink_degraded": {"gpu_nvlink_tx_mib_per_s": DOWN, "gpu_nvlink_rx_mib_per_s": DOWN},
    "dirty_optics": {"nic_fec_corrected_total": UP, "nic_out_of_sequence_total": UP},
    "pfc_storm": {"nic_tx_mib_per_s": DOWN, "nic_rx_mib_per_s": DOWN},
    "data_loader_slow": {"gpu_util_ratio": DOWN},
    "cpu_hog": {"host_cpu_ratio": UP},
    "nfs_hung": {"host_processes_blocked_count": UP, "host_cpu_iowait_ratio": UP,
                 "storage_requests_waiting_count": UP},
    "psu_lost": {"host_power_supplies_ok_count": DOWN},
}  # fmt: skip
STILL = (
    "hbm_error", "gpu_off_bus", "nic_down", "nfs_hung", "rank_killed", "rank_stuck", "op_mismatch",
    "p2p_lost", "cross_group_cycle", "symmetric_stall",
)  # fmt: skip
SLOW = (
    "slow_gpu", "thermal_throttle", "nvlink_degraded", "dirty_optics", "pfc_storm", "leaf_slow", "spine_hash",
    "cpu_hog", "data_loader_slow", "power_brake", "gc_pauses", "stage_imbalance", "sequence_imbalance",
)  # fmt: skip


def nodes_of(lived: Lived) -> set[int]:
    """Nodes of the worlds that a fault may touch."""
    found = {node for shift in lived.scene.shifts for node in shift.nodes}
    touched = {id(world) for node in found if (world := lived.scene.world_at(node))}
    worlds = [w for w in lived.scene.worlds if id(w) in touched or w.plan.job == lived.truth.job]
    return found | {node for w in worlds for node in range(w.plan.first_node, w.plan.end_node)}


@pytest.mark.parametrize("fault", FAULTS)
def test_before_its_time_nothing_is_changed(fault: str):
    lived = Lived(f"{fault}@{START}")
    assert lived.second(START - 4).changed(HEALTHY.second(START - 4)) == {}
    for world, healthy in zip(lived.scene.worlds, HEALTHY.scene.worlds, strict=True):
        mine, theirs = lived.columns(world, START - 4), HEALTHY.columns(healthy, START - 4)
        assert (mine.enqueued == theirs.enqueued).all() and (mine.moved_ns == theirs.moved_ns).all()
        assert world.living(slice(0, world.plan.node_count), at(START - 4)) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_jobs_and_nodes_that_have_no_part_in_it_are_not_changed(fault: str):
    lived = Lived(f"{fault}@{START}")
    touched = nodes_of(lived)
    changed = lived.second(LATER).changed(HEALTHY.second(LATER))
    assert {place[0] for places in changed.values() for place in places} <= touched
    for world, healthy in zip(lived.scene.worlds, HEALTHY.scene.worlds, strict=True):
        if world.plan.first_node not in touched:
            assert (lived.columns(world, LATER).enqueued == HEALTHY.columns(healthy, LATER).enqueued).all()
    assert {
        node for node, record in lived.records if not isinstance(record, records.RankInventory)
    } <= touched


@pytest.mark.parametrize("fault", SIGNALS)
def test_its_signals_stand_out_among_the_neighbours(fault: str):
    lived = Lived(f"{fault}@{START}")
    values = lived.second(LATER, first=LATER - 10).values
    node, gpu = lived.node(), lived.truth.gpu
    for metric, how in SIGNALS[fault].items():
        column = values[metric]
        mine = column[node] if column.ndim == 1 else column[node, gpu]
        if how == GONE:
            assert np.isnan(mine) and not np.isnan(np.delete(column[node], gpu)).any()
            continue
        busy = [n for n in range(lived.world.plan.first_node, lived.world.plan.end_node) if n != node] if (
            lived.truth.job
        ) else [n for n in range(16) if n != node]  # fmt: skip
        others = column[busy].ravel()
        assert mine > others.max() if how == UP else mine < others.min(), (
            metric,
            mine,
            others.min(),
            others.max(),
        )


@pytest.mark.parametrize("fault", STILL)
def test_a_job_that_stands_still_moves_nowhere_and_draws_the_power_of_waiting(fault: str):
    lived = Lived(f"{fault}@{START}")
    first, later = (lived.columns(lived.world, t) for t in (LATER, LATER + 30))
    assert (first.enqueued == later.enqueued).all() and (first.completed == later.completed).all()
    power, traffic = (lived.second(LATER).values[m] for m in ("gpu_power_w", "nic_tx_mib_per_s"))
    mine = slice(lived.world.plan.first_node, lived.world.plan.end_node)
    assert np.nanmax(power[mine]) < 260 and (traffic[mine] == 0).all()
    busy = lived.scene.worlds[-1].plan.first_node
    assert lived.world.plan.first_node == busy or power[busy].min() > 300


@pytest.mark.parametrize("fault", ["rank_stuck", "nfs_hung"])
def test_whoever_is_stuck_is_in_no_call_and_the_others_wait(fault: str):
    lived = Lived(f"{fault}@{START}")
    found = lived.columns(lived.world, LATER)
    in_call = (found.enqueued > found.completed).any(axis=2).reshape(-1)
    culprits = list(lived.truth.culprit_ranks)
    assert not in_call[culprits].any() and np.delete(in_call, culprits).all()
    util = lived.second(LATER).values["gpu_util_ratio"]
    stuck = lived.world.plan.node_of(culprits[0])
    assert util[stuck, culprits[0] % 8] == 0.0 and util[stuck + (-1 if stuck else 1)].min() > 0.9


@pytest.mark.parametrize("fault", SLOW)
def test_a_slow_job_takes_longer_steps_from_its_begin_to_its_end(fault: str):
    lived = Lived(f"{fault}@{START}+60")
    worlds = [w for w in lived.scene.worlds if w.plan.first_node in nodes_of(lived)]
    slowed = max(worlds, key=lambda w: w.plan.size)
    healthy = next(w for w in HEALTHY.scene.worlds if w.plan.first_node == slowed.plan.first_node)
    usual = np.median(HEALTHY.steps(healthy, 35, 85).duration_s)
    assert np.median(lived.steps(slowed, 60, 85).duration_s) > 1.03 * usual
    assert np.median(lived.steps(slowed, 120, 170).duration_s) == pytest.approx(usual, rel=0.01)


@pytest.mark.parametrize(
    ("fault", "column"),
    [
        ("slow_gpu", "work_s"),
        ("thermal_throttle", "work_s"),
        ("cpu_hog", "work_s"),
        ("data_loader_slow", "data_wait_s"),
    ],
)
def test_the_late_rank_has_the_longest_part_of_its_own_and_the_shortest_collectives(fault: str, column: str):
    lived = Lived(f"{fault}@{START}")
    times = lived.steps(lived.world, 70, 120)
    culprits = list(lived.truth.culprit_ranks)
    own, collective = getattr(times, column).mean(axis=1), times.collective_s.mean(axis=1)
    rest = np.setdiff1d(np.arange(lived.world.plan.size), culprits)
    assert own[culprits].min() > own[rest].max()
    assert collective[culprits].max() < collective[rest].min()
    assert np.ptp(times.duration_s.mean(axis=1)) < 0.01, "a synchronous step takes all the same"


@pytest.mark.parametrize(
    ("fault", "numbers"), [("gpu_off_bus", [79]), ("hbm_error", [48, 63, 94]), ("nvlink_degraded", [74])]
)
def test_the_kernel_says_its_xid_in_the_drivers_words(fault: str, numbers: list[int]):
    lived = Lived(f"{fault}@{START}")
    said = lived.events("xid")
    assert [int(event.fields["xid"]) for _, event in said] == numbers
    for node, event in said:
        assert node == lived.node() and event.fields["gpu_uuid"] == lived.truth.gpu_uuid
        assert event.text.startswith(f"NVRM: Xid (PCI:{event.fields['pci']}): {event.fields['xid']}, pid=")


@pytest.mark.parametrize(
    ("fault", "signal", "code"), [("rank_killed", 9, None), ("gpu_off_bus", None, 1), ("hbm_error", None, 1)]
)
def test_a_rank_that_dies_is_told_once_and_leaves_the_frames(
    fault: str, signal: int | None, code: int | None
):
    lived = Lived(f"{fault}@{START}")
    (gone,) = lived.of(records.RankExit)
    assert (gone.id.rank, gone.signal, gone.exit_code) == (lived.truth.culprit_ranks[0], signal, code)
    assert gone.t_ns == lived.truth.start_ns and (gone.exception is not None) == (code is not None)
    nodes = slice(0, lived.world.plan.node_count)
    assert lived.world.living(nodes, gone.t_ns - 1) is None
    assert np.flatnonzero(~lived.world.living(nodes, gone.t_ns).ravel()).tolist() == [gone.id.rank]


@pytest.mark.parametrize(
    "fault", ["rank_killed", "op_mismatch", "p2p_lost", "cross_group_cycle", "hbm_error"]
)
def test_a_job_that_is_restarted_ends_all_ranks_and_begins_its_next_attempt(fault: str):
    lived = Lived(f"{fault}@{START}+40")
    exits, starts = lived.of(records.RankExit), lived.of(records.RankInventory)
    size = lived.world.plan.size
    assert sorted(e.id.rank for e in exits) == sorted(s.id.rank for s in starts) == list(range(size))
    assert {s.id.attempt for s in starts} == {1} and {e.id.attempt for e in exits} == {0}
    assert {s.ref for s in starts}.isdisjoint({e.ref for e in exits})
    assert lived.world.living(slice(0, lived.world.plan.node_count), at(200)) is None
    moving = [lived.columns(lived.world, t).completed for t in (200, 203)]
    assert (moving[1].sum() > moving[0].sum()) and lived.world.timeline.moment(at(200)).attempt == 1


def test_a_port_that_is_down_carries_nothing_and_says_so():
    lived = Lived(f"nic_down@{START}+60")
    second = lived.second(LATER).values
    assert second["nic_tx_mib_per_s"][lived.node(), lived.truth.gpu] == 0
    assert [event.fields["port"] for _, event in lived.events("link_down")] == [lived.truth.link]
    assert len(lived.events("link_up")) == 1
    assert lived.second(170).values["nic_tx_mib_per_s"][lived.node(), lived.truth.gpu] > 0


def test_a_flapping_port_is_down_for_four_seconds_every_twenty():
    lived = Lived(f"link_flap@{START}+60")
    down, up = (lived.events(f"link_{word}") for word in ("down", "up"))
    assert [event.t_ns for _, event in down] == [at(t) for t in (30, 50, 70)]
    assert [event.t_ns for _, event in up] == [at(t) for t in (34, 54, 74)]


def test_a_storm_pauses_the_ports_behind_the_leaf_and_not_the_one_that_makes_it():
    lived = Lived(f"pfc_storm@{START}")
    paused = lived.second(LATER).values["nic_pfc_pause_us_total"] > 100_000
    leaf = lived.truth.switch
    behind = np.array([[name == leaf for name in node.leaves] for node in lived.scene.nodes])
    behind[lived.node(), lived.truth.gpu] = False
    assert (paused == behind).all() and paused.any()


def test_a_power_brake_holds_every_gpu_of_the_rack_and_no_other():
    lived = Lived(f"power_brake@{START}")
    reasons = lived.second(LATER).values["gpu_throttle_reasons"].astype(int)
    braked = (reasons & Throttle.HW_POWER_BRAKE).astype(bool)
    rack = np.array([node.rack == lived.truth.rack for node in lived.scene.nodes])
    assert braked[rack].all() and not braked[~rack].any()


@pytest.mark.parametrize("fault", ["leaf_slow", "spine_hash"])
def test_ports_behind_a_slow_switch_carry_less_than_those_of_the_same_job_elsewhere(fault: str):
    lived = Lived(f"{fault}@{START}")
    rates = lived.second(LATER).values["nic_tx_mib_per_s"]
    ranks = lived.truth.culprit_ranks
    mine = {(lived.world.plan.node_of(rank), rank % 8) for rank in ranks}
    inside = [rates[place] for place in mine]
    outside = [
        rates[node, gpu]
        for node in range(lived.world.plan.first_node, lived.world.plan.end_node)
        for gpu in range(8)
        if (node, gpu) not in mine
    ]
    assert max(inside) < min(outside)


def test_a_slow_checkpoint_keeps_one_node_writing_while_the_others_wait():
    lived = Lived(f"checkpoint_slow@{START}+20")
    node, t = lived.node(), START + 20
    assert lived.world.timeline.moment(at(t)).phase == records.PHASES.index("checkpoint")
    writing = lived.second(t).values["storage_write_mib_per_s"]
    others = [n.place for n in lived.world.nodes if n.place != node]
    assert writing[node] > 100 and (writing[others] == 0).all()
    times = lived.steps(lived.world, START + 30, START + 60)
    saved = times.checkpoint_s[:, 0]
    culprits = list(lived.truth.culprit_ranks)
    assert saved[culprits].min() > 3 * np.delete(saved, culprits).max()


def test_collector_pauses_are_scattered_over_ranks_and_steps():
    lived = Lived(f"gc_pauses@{START}")
    hit = lived.steps(lived.world, 40, 240).gc_s > 0.1
    assert 0.01 < hit.mean() < 0.04 and hit.any(axis=1).mean() > 0.3


def test_longer_sequences_wander_and_a_long_stage_stays():
    wandering = Lived(f"sequence_imbalance@{START}")
    work = wandering.steps(wandering.world, 40, 240).work_s
    assert np.ptp(work.mean(axis=1)) < 0.15 * work.mean() < np.ptp(work[:, 0])
    staying = Lived(f"stage_imbalance@{START}")
    layout, work = staying.world.plan.layout, staying.steps(staying.world, 40, 240).work_s.mean(axis=1)
    last = np.array([layout.stage(rank) == layout.pipeline - 1 for rank in range(layout.world)])
    assert work[last].min() > 1.25 * work[~last].max()


def test_a_hung_mount_blocks_the_ranks_of_its_node_in_their_checkpoint():
    lived = Lived(f"nfs_hung@{START}+100")
    assert len(lived.events("nfs_not_responding")) == len(lived.events("nfs_ok")) == 1
    blocked = [event.id.rank for _, event in lived.events("process_state")]
    assert tuple(sorted(blocked)) == lived.truth.culprit_ranks
    phase = lived.columns(lived.world, LATER).phase.reshape(-1)
    checkpoint = records.PHASES.index("checkpoint")
    assert set(np.flatnonzero(phase == checkpoint).tolist()) == set(lived.truth.culprit_ranks)
    assert lived.columns(lived.world, 170).completed.sum() > lived.columns(lived.world, LATER).completed.sum()
