"""One cause across layers: each class of join with its near misses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterwatch.analysis.correlate import join
from clusterwatch.analysis.correlate_model import Joined, Onset, Place, Retries, Vitals, World
from clusterwatch.analysis.correlate_words import explained
from clusterwatch.analysis.model import Finding, Owner, Severity
from tests.analysis.layers import (
    ONSET,
    brake,
    checkpointing,
    finding,
    joined_call,
    link_down,
    link_up,
    missing,
    places,
    signal,
    slow,
    spinning,
    throttle,
    uuid,
    world,
    xid,
)


def joined(found: Finding, seen: World) -> Joined:
    one = join(found, seen)
    assert one is not None
    return one


def reasons(one: Joined) -> list[str]:
    return [row.reason for row in one.rows if not row.taken]


# --- a rank that the trace names --------------------------------------------------------------------------


def test_an_xid_on_its_gpu_is_the_cause_of_a_missing_rank_and_its_owner_is_infra() -> None:
    seen = world(xid(119))
    one = joined(missing(11), seen)
    assert (one.cause, one.owner, one.ranks, one.decisive) == ("xid_119", Owner.INFRA, (11,), True)
    assert one.sentence == "GPU 3 of host-1: Xid 119 at 12:03:11 UTC"
    assert one.covers_ratio == 1.0
    assert one.confidence == pytest.approx(0.9)
    found = explained(missing(11), one, seen.places)
    assert (found.verdict, found.cause, found.owner, found.node) == (
        "missing_rank", "xid_119", Owner.INFRA, "host-1",
    )  # fmt: skip
    assert found.confidence == pytest.approx(1 - 0.4 * 0.55)
    assert found.summary == "missing_rank of the job. Cause: GPU 3 of host-1: Xid 119 at 12:03:11 UTC."
    assert found.rule == "hang.missing_rank v1; cause.xid_119 v1"
    assert "none of 63 other ranks has the same; it explains 100% of the cost" in found.why
    assert (
        "confidence of the cause 0.90 = 0.90 (its kind) x 1.00 (its part and time) x 1.00 (peers, "
        in (found.why[2])
    )


def test_one_lost_gpu_is_the_root_of_its_other_lines() -> None:
    echo = xid(45, at_s=1.2, severity=Severity.INFO, fields={"root_code": "79", "root_entity": "gpu/x"})
    one = joined(missing(11), world(xid(119, at_s=0.5), xid(79, at_s=1.0), echo, xid(154, at_s=1.3)))
    assert (one.cause, one.sentence) == (
        "xid_79", "GPU 3 of host-1: Xid 79, fell off the bus at 12:03:11 UTC",
    )  # fmt: skip
    assert "follows from Xid 79" in reasons(one)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        pytest.param(xid(119, gpu=4), "no named rank runs on it", id="neighbour GPU"),
        pytest.param(xid(119, at_s=4.0), "began after the trouble did", id="after the onset"),
        pytest.param(xid(119, gpu=9), "no rank of the job runs on it", id="a GPU that the job does not use"),
        pytest.param(xid(119, at_s=-4_000.0), "lived with it for over an hour", id="an old fault"),
        pytest.param(
            throttle(1, 3, 0x40, "hw_thermal_slowdown"), "does not explain missing_rank", id="only hot"
        ),
    ],
)
def test_what_does_not_fit_is_no_cause_and_the_evidence_says_why(told: Any, why: str) -> None:
    one = joined(missing(11), world(told))
    assert (one.cause, one.ranks, one.suspects) == (None, (), ())
    assert [why in reason for reason in reasons(one)] == [True]
    assert one.looked == "1 signal of GPUs, links, hosts and mounts looked at for 1 rank"
    kept = explained(missing(11), one, places())
    assert (kept.cause, kept.culprit_ranks, kept.confidence) == (None, (11,), 0.6)


def test_another_hosts_signal_is_not_even_a_row() -> None:
    one = joined(missing(11), world(xid(119, host=5)))
    assert (one.cause, one.rows) == (None, ())


def test_a_clock_that_is_off_by_two_seconds_lets_a_later_line_be_the_cause() -> None:
    late = xid(119, at_s=4.5)
    assert joined(missing(11), world(late)).cause is None
    assert joined(missing(11), world(replace(late, clock_error_s=2.0))).cause == "xid_119"


def test_what_most_healthy_peers_have_explains_nothing_and_the_lift_is_said() -> None:
    everywhere = [xid(119, host, gpu) for host in range(8) for gpu in range(8)]
    one = joined(missing(11), world(*everywhere))
    assert one.cause is None
    assert one.why == (
        "GPU 3 of host-1: Xid 119, but 63 of 63 other ranks have the same (lift 1.0): it explains nothing",
    )


def test_a_few_peers_with_the_same_lower_the_confidence() -> None:
    one = joined(missing(11), world(xid(119), xid(119, 5, 0), xid(119, 6, 0)))
    assert one.cause == "xid_119"
    assert one.confidence == pytest.approx(0.9 * (1 - 4 / 63))
    assert "2 of 63 other ranks have the same (lift 31.5)" in one.why[1]


def test_a_cause_is_named_only_from_four_fifths_of_the_cost_on() -> None:
    short = joined(missing(8, 9, 10, 11), world(*(xid(119, gpu=gpu) for gpu in range(3))))
    assert (short.cause, short.covers_ratio) == (None, 0.75)
    assert "explains 3 of 4 named ranks; a cause is named from 80 % on" in short.why[0]
    enough = joined(missing(8, 9, 10, 11, 12), world(*(xid(119, gpu=gpu) for gpu in range(4))))
    assert (enough.cause, enough.covers_ratio, enough.ranks) == ("xid_119", 0.8, (8, 9, 10, 11))
    assert enough.sentence == "host-1: Xid 119 at 12:03:11 UTC"


def test_ranks_without_a_place_get_no_cause() -> None:
    nowhere = {rank: Place(rank) for rank in range(64)}
    assert joined(missing(11), world(xid(119), places=nowhere)).cause is None
    assert join(missing(11), world(xid(119), places={})) is None


def test_a_gpu_that_is_not_told_is_a_gpu_of_the_host_and_less_sure() -> None:
    unknown = {rank: replace(place, gpu_uuid="") for rank, place in places().items()}
    one = joined(missing(11), world(xid(119), places=unknown))
    assert one.sentence == "a GPU of host-1: Xid 119 at 12:03:11 UTC"
    assert one.confidence == pytest.approx(0.9 * 0.7)
    assert not one.decisive


@pytest.mark.parametrize("verdict", ["op_mismatch", "size_mismatch", "cross_group_cycle", "out_of_memory"])
def test_faults_of_code_are_not_explained_by_hardware(verdict: str) -> None:
    assert join(finding(verdict, culprit_ranks=(11,)), world(xid(119))) is None


def test_a_stopped_process_keeps_its_cause() -> None:
    assert join(missing(11, cause="stopped"), world(xid(119))) is None


def test_a_program_can_have_made_a_page_fault() -> None:
    one = joined(
        finding("rank_failed", "crash", culprit_ranks=(11,), owner=Owner.USER),
        world(xid(31, at_s=-0.5, severity=Severity.WARNING)),
    )
    assert (one.cause, one.owner, one.decisive) == ("xid_31", Owner.UNKNOWN, False)
    found = explained(finding("rank_failed", "crash", culprit_ranks=(11,), owner=Owner.USER), one, places())
    assert found.owner is Owner.USER


def test_what_the_driver_asks_for_beats_the_catalogue() -> None:
    asked = xid(31, severity=Severity.WARNING, fields={"recovery_action": "GPU_RESET"})
    assert joined(missing(11), world(asked)).owner is Owner.INFRA


def test_a_process_the_kernel_killed_is_found_by_its_id() -> None:
    killed = signal("oom_kill", at_s=0.0, fields={"pid": "1003"})
    dead = finding("dead_rank", culprit_ranks=(11,), cause="SIGKILL")
    one = joined(dead, world(killed))
    assert (one.cause, one.ranks) == ("host_memory", (11,))
    assert "by its own process or stack: SIGKILL" in explained(dead, one, places()).why
    other = signal("oom_kill", at_s=0.0, fields={"pid": "77"})
    assert joined(dead, world(other)).cause is None


# --- something slow ---------------------------------------------------------------------------------------


def test_a_slow_gpu_gets_its_thermal_throttle_with_time_reason_and_heat() -> None:
    heat = {11: Vitals(temperature_c=84.2)}
    one = joined(slow("slow_gpu", 11), world(throttle(1, 3, 0x48, "hw_thermal_slowdown", 0.0), vitals=heat))
    assert (one.cause, one.ranks) == ("thermal_throttle", (11,))
    assert one.sentence == (
        "GPU 3 of host-1: thermal throttle since 12:03:10 UTC (hw_thermal_slowdown), 84 C"
    )
    found = explained(slow("slow_gpu", 11), one, places())
    assert found.recommended_action.startswith("Check fans, coolant")


def test_a_power_cap_of_software_is_no_cause() -> None:
    assert joined(slow("slow_gpu", 11), world(throttle(1, 3, 0x4, "sw_power_cap"))).cause is None


def test_the_brake_of_a_rack_is_one_cause_of_many_slow_gpus() -> None:
    ranks = tuple(range(16, 32))
    told = [brake(host, gpu) for host in (2, 3) for gpu in range(8)]
    one = joined(slow("slow_gpu", *ranks), world(*told))
    assert (one.cause, one.covers_ratio, one.ranks) == ("power_brake", 1.0, ranks)
    assert one.sentence == "rack rack-1: power brake since 12:03:05 UTC (hw_power_brake_slowdown)"


def test_a_brake_that_all_racks_have_does_not_say_who_is_slow() -> None:
    told = [brake(host, gpu) for host in range(8) for gpu in range(8)]
    assert joined(slow("slow_gpu", 11), world(*told)).cause is None


def test_link_errors_go_with_the_rank_that_is_late_on_that_port() -> None:
    weak = signal("rate_degraded", part="port/mlx5_3/1", at_s=-3.0, source="infiniband")
    one = joined(slow("slow_nic", 11), world(weak))
    found = explained(slow("slow_nic", 11), one, places())
    assert (found.cause, found.link, found.node) == ("link_degraded", "mlx5_3", "host-1")
    beside = signal("rate_degraded", part="port/mlx5_4/1", at_s=-3.0)
    assert joined(slow("slow_nic", 11), world(beside)).cause is None


def test_a_slow_rank_without_a_signal_stays_without_a_cause() -> None:
    one = joined(slow("slow_gpu", 11), world())
    assert (one.cause, one.looked) == (
        None, "0 signals of GPUs, links, hosts and mounts looked at for 1 rank",
    )  # fmt: skip


# --- all have joined and nobody is named ------------------------------------------------------------------


def test_a_symmetric_stall_gets_its_name_from_the_one_gpu_with_an_xid() -> None:
    seen = world(xid(119))
    one = joined(joined_call(), seen)
    assert (one.cause, one.ranks, one.decisive) == ("xid_119", (11,), True)
    found = explained(joined_call(), one, seen.places)
    assert (found.verdict, found.culprit_ranks, found.owner) == (
        "all_joined_not_finished", (11,), Owner.INFRA,
    )  # fmt: skip
    assert (found.culprits[0].host, found.culprits[0].gpu, found.culprits[0].gpu_uuid) == (
        "host-1", 3, uuid(1, 3),
    )  # fmt: skip
    assert found.summary.startswith("GPU 3 of host-1: Xid 119 at 12:03:11 UTC. all_joined")
    assert found.confidence == pytest.approx(0.9)


def test_the_sentence_keeps_the_job_and_says_the_cause_once() -> None:
    seen, call = world(xid(119)), joined_call()
    told = replace(call, summary="Job 7 has stood still for 42 s: all members joined x and none finished.")
    found = explained(told, joined(call, seen), seen.places)
    assert found.summary == (
        "Job 7 has stood still for 42 s: GPU 3 of host-1, Xid 119 at 12:03:11 UTC. "
        "All members joined x and none finished."
    )
    who = "rank 11 (host-1, GPU 3) never joined all_reduce"
    long = f"Job {'8' * 40} has stood still for 2 min 19 s at step 29: {who}"
    told = replace(missing(11), cause="checkpoint", summary=f"{long} of dp; 3 ranks wait. Cause: checkpoint.")
    found = explained(told, joined(missing(11), seen), seen.places)
    assert found.summary == f"{long} of dp. Cause: GPU 3 of host-1: Xid 119 at 12:03:11 UTC."


def test_a_symmetric_stall_gets_its_name_from_the_one_port_that_is_down() -> None:
    found = explained(joined_call(), joined(joined_call(), world(link_down())), places())
    assert (found.cause, found.culprit_ranks, found.link, found.node, found.decisive) == (
        "link_down", (11,), "mlx5_3", "host-1", False,
    )  # fmt: skip


def test_a_port_of_a_host_whose_ports_are_not_told_names_no_rank() -> None:
    unknown = {rank: replace(place, ports=frozenset()) for rank, place in places().items()}
    one = joined(joined_call(), world(link_down(), places=unknown))
    assert (one.cause, one.ranks, one.suspects) == ("link_down", (), tuple(range(8, 16)))


def test_a_port_is_found_by_the_gpu_beside_it() -> None:
    unknown = {rank: replace(place, ports=frozenset()) for rank, place in places().items()}
    told = signal("link_down", at_s=1.0, fields={"port": "mlx5_5", "gpu_index": "5"})
    assert joined(joined_call(), world(told, places=unknown)).ranks == (13,)


def test_a_signal_on_a_part_outside_the_group_is_no_cause() -> None:
    call = joined_call(4)
    assert joined(call, world(xid(119, host=6))).cause is None


def test_a_leaf_with_all_its_ports_down_is_one_cause_and_blames_no_rank() -> None:
    told = [link_down(host, f"mlx5_{gpu}") for host in range(4) for gpu in range(8)]
    found = explained(joined_call(), joined(joined_call(), world(*told)), places())
    assert (found.cause, found.switch, found.culprit_ranks, found.suspect_ranks) == (
        "link_down", "leaf-0", (), (),
    )  # fmt: skip
    assert found.summary.startswith("Switch leaf-0: link down since 12:03:11 UTC.")


def test_the_earliest_xid_across_hosts_is_the_root_beyond_clock_error() -> None:
    told = [xid(149, 1, 3, 0.5), *(xid(145, host, 0, 1.5) for host in (2, 5, 6))]
    one = joined(joined_call(), world(*told))
    assert (one.cause, one.ranks) == ("xid_149", (11,))
    assert any(line.startswith("later, or not enough to stop a job: GPU 0 of host-2") for line in one.why)


@pytest.mark.parametrize(
    ("other", "domain"), [(5, "no known part of 2 hosts"), (0, "rack rack-0"), (3, "switch leaf-0")]
)
def test_within_clock_error_nobody_is_the_root_and_the_domain_is_named(other: int, domain: str) -> None:
    told = [xid(119, host, 3, at_s, clock_error_s=2.0) for host, at_s in ((1, 0.5), (other, 2.0))]
    one = joined(joined_call(), world(*told))
    assert (one.cause, one.ranks, one.suspects) == (None, (), tuple(sorted((11, 8 * other + 3))))
    assert one.why[0].startswith("cannot tell which was first")
    assert one.why[0].endswith(f"they share {domain}")
    found = explained(joined_call(), one, places())
    assert (found.culprit_ranks, found.cause) == ((), None)


def test_a_symmetric_stall_without_signals_stays_without_a_name_and_tells_what_was_looked_at() -> None:
    one = joined(joined_call(), world(vitals=spinning()))
    assert (one.cause, one.suspects) == (None, ())
    assert one.why == ("RDMA idle, 100% of GPUs busy; they spin in the call and move nothing",)


def test_the_one_gpu_that_rests_while_its_peers_spin_is_suspected_and_not_named() -> None:
    resting = spinning(rank_21=Vitals(util_ratio=0.0, port_mib_per_s=0.0))
    one = joined(joined_call(), world(vitals=resting))
    assert (one.cause, one.ranks, one.suspects) == (None, (), (21,))
    assert one.why[0].startswith("GPU 5 of host-2 (rank 21) rests while the GPUs of the 63 other ranks")
    two = spinning(rank_21=Vitals(util_ratio=0.0), rank_22=Vitals(util_ratio=0.0))
    assert joined(joined_call(), world(vitals=two)).suspects == ()
    dark = spinning(rank_21=Vitals(util_ratio=0.0), rank_22=Vitals(util_ratio=None))
    assert joined(joined_call(), world(vitals=dark)).suspects == ()


# --- a flap against NCCL's patience -----------------------------------------------------------------------


def test_a_flap_shorter_than_nccl_waits_did_not_stop_the_job() -> None:
    one = joined(joined_call(), world(link_down(), link_up(at_s=3.0), retries=Retries(20, 7)))
    assert one.cause is None
    assert reasons(one) == [
        "down for 2.0 s only: NCCL gives up after 30.1 to 137 s (NCCL_IB_TIMEOUT=20, NCCL_IB_RETRY_CNT=7)"
    ]


def test_the_same_flap_can_have_stopped_a_job_that_waits_for_less() -> None:
    one = joined(joined_call(), world(link_down(), link_up(at_s=3.0), retries=Retries(14, 7)))
    assert (one.cause, one.ranks) == ("link_down", (11,))
    assert one.confidence == pytest.approx(0.9 * 0.75)
    assert one.sentence == "port mlx5_3 of host-1: link down from 12:03:11 UTC to 12:03:13 UTC"
    assert any("NCCL_IB_TIMEOUT=14" in line for line in one.why)


def test_a_crash_may_come_long_after_the_link_is_back() -> None:
    failed = finding("rank_failed", "crash", culprit_ranks=(11,))
    told = (link_down(at_s=-60.0), link_up(at_s=-20.0))
    crash = World(places(), told, Onset(ONSET, lasting_s=60.0), retries=Retries(18, 7))
    assert joined(failed, crash).cause == "link_down"
    assert joined(failed, replace(crash, onset=Onset(ONSET))).cause is None


# --- storage ----------------------------------------------------------------------------------------------


def stalled_mounts(*hosts: int, server: str = "") -> list[Any]:
    fields = {"server": server} if server else {}
    return [signal("mount_stall", host, "mount/ckpt", 20.0, fields=fields, source="mounts") for host in hosts]


def test_rdma_idle_and_requests_in_flight_are_a_storage_stall() -> None:
    saving = checkpointing(places())
    told = stalled_mounts(*range(8), server="10.0.0.1")
    stands = finding("outside_collectives", confidence=0.3)
    one = joined(stands, world(*told, places=saving, vitals=spinning()))
    assert (one.cause, one.ranks) == ("storage_stall", ())
    assert one.sentence == "storage server 10.0.0.1: storage stalled since 12:03:30 UTC"
    found = explained(stands, one, saving)
    assert (found.owner, found.culprit_ranks) == (Owner.INFRA, ())
    assert found.recommended_action.startswith("Look at the named server")


def test_a_job_whose_rdma_moves_does_not_wait_for_storage() -> None:
    moving = dict.fromkeys(range(64), Vitals(port_mib_per_s=900.0))
    told = stalled_mounts(*range(8), server="10.0.0.1")
    one = joined(finding("outside_collectives"), world(*told, places=checkpointing(places()), vitals=moving))
    assert one.cause is None
    assert "RDMA still moves the job's data" in one.why[0]


def test_a_rank_in_its_data_loader_waits_for_the_mount_and_not_for_its_gpu() -> None:
    one = joined(missing(11, cause="data_loading"), world(xid(119), *stalled_mounts(1)))
    assert (one.cause, one.sentence) == (
        "storage_stall", "ckpt of host-1: storage stalled since 12:03:30 UTC",
    )  # fmt: skip


def test_a_mount_that_stalls_on_all_hosts_does_not_tell_why_one_rank_is_missing() -> None:
    assert joined(missing(11), world(*stalled_mounts(*range(8)))).cause is None


def test_what_could_not_be_read_is_said() -> None:
    one = joined(missing(11), world(unread="2 000 events were left out"))
    assert one.looked.endswith("looked at for 1 rank; 2 000 events were left out")


def test_evidence_is_bounded_and_the_same_for_the_same_signals() -> None:
    told = [xid(119, gpu=4, at_s=-float(n)) for n in range(100)]
    one, again = joined(missing(11), world(*told)), joined(missing(11), world(*reversed(told)))
    assert (len(one.rows), one.left_out) == (32, 68)
    assert (one.to_dict(), one.rows) == (again.to_dict(), again.rows)
