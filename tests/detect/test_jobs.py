"""Each kind of fault, from hot state and rows to the incident, by a clock that only the test moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clusterwatch.incidents.models import Incident
from clusterwatch.incidents.queries import open_evidence
from clusterwatch.store import tails
from tests.detect.fake_job import GATEWAY, FakeJob

CLOSED_BY_PEER = {"type": "RuntimeError", "message": "Connection closed by peer [10.0.0.3]", "traceback": ""}


def names(incident: Incident) -> list[int]:
    return incident.diagnosis["culprit_ranks"] or incident.diagnosis["suspect_ranks"]


# --- healthy jobs page nobody -----------------------------------------------------------------------------


def test_a_training_job_has_no_incident(fake_job: FakeJob) -> None:
    fake_job.train(20)
    assert fake_job.incidents() == []


def test_steps_of_eight_seconds_are_learned_and_then_suspect_nobody(fake_job: FakeJob) -> None:
    fake_job.train(96, every=8)
    before = len(fake_job.incidents())
    fake_job.train(48, every=8)
    assert len(fake_job.incidents()) == before
    assert all(incident.opened_at is None for incident in fake_job.incidents())


@pytest.mark.parametrize(
    ("phase", "seconds"), [("startup", 120), ("checkpoint", 20), ("evaluation", 40), ("compile", 120)]
)
def test_a_healthy_pause_outside_of_steps_is_not_even_suspected(
    fake_job: FakeJob, phase: str, seconds: int
) -> None:
    for process in fake_job.ranks.values():
        process.phase = phase
    fake_job.wait_for(0)
    fake_job.ticks(seconds)
    for process in fake_job.ranks.values():
        process.phase = "train"
    fake_job.train(10)
    assert fake_job.incidents() == []


def test_a_planned_elastic_restart_opens_nothing(fake_job: FakeJob) -> None:
    for rank in range(8):
        fake_job.end(rank, exit_signal=15)
    fake_job.end_job()
    fake_job.ticks(6)
    fake_job.start_attempt(1)
    for process in fake_job.ranks.values():
        process.phase = "startup"
    fake_job.ticks(20)
    fake_job.train(10)
    assert fake_job.incidents() == []


def test_groups_made_anew_open_nothing(fake_job: FakeJob) -> None:
    for process in fake_job.ranks.values():
        process.calls, process.moved_ns = {}, fake_job.now_ns
    fake_job.ticks(30)
    for process in fake_job.ranks.values():
        process.calls = {fake_job.world.pk: [0, 0, 0]}
    fake_job.train(5)
    assert fake_job.incidents() == []


def test_a_job_that_ends_normally_rank_by_rank_opens_nothing(fake_job: FakeJob) -> None:
    for rank in range(8):
        fake_job.end(rank, exit_code=0, clean_exit=True)
        fake_job.tick(0.5)
    fake_job.end_job()
    fake_job.ticks(30)
    assert fake_job.incidents() == []


# --- hangs ------------------------------------------------------------------------------------------------


def test_a_rank_that_never_joins_is_suspected_within_5_s_and_opened_within_15(fake_job: FakeJob) -> None:
    fake_job.wait_for(3)
    suspected = fake_job.seconds_until("suspected", 5)
    assert (fake_job.incident().verdict, names(fake_job.incident())) == ("missing_rank", [3])
    assert fake_job.incident().opened_at is None
    assert fake_job.seconds_until("open", 15) + suspected <= 15
    assert fake_job.incident().threshold_source.startswith("at least 10 s")


def test_before_there_is_history_the_default_of_the_phase_holds(fake_job: FakeJob) -> None:
    young = FakeJob(name="run-2")
    young.train(4)
    young.wait_for(3)
    young.ticks(12)
    assert young.incident().state == "suspected"
    assert young.incident().threshold_source == "default for train, no history yet"
    assert young.seconds_until("open", 20) >= 18


def test_a_stopped_process_is_named_with_its_cause(fake_job: FakeJob) -> None:
    fake_job.wait_for(5)
    fake_job.stop(5)
    fake_job.seconds_until("suspected", 5)
    found = fake_job.incident()
    assert (found.verdict, found.diagnosis["culprit_ranks"], found.diagnosis["cause"]) == (
        "missing_rank",
        [5],
        "stopped",
    )


def test_a_rank_that_stands_in_storage_while_it_saves_is_suspected_within_20_s(fake_job: FakeJob) -> None:
    fake_job.ranks[5].phase = "checkpoint"
    fake_job.wait_for(5)
    fake_job.ticks(12)
    assert fake_job.incidents() == []
    fake_job.block(5)
    assert fake_job.seconds_until("suspected", 20) < 8
    found = fake_job.incident()
    assert (found.verdict, names(found)) == ("missing_rank", [5])
    fake_job.ticks(60)
    assert fake_job.incident().state == "suspected"


def test_a_process_whose_hook_fell_silent_is_named(fake_job: FakeJob) -> None:
    fake_job.wait_for(5)
    fake_job.ranks[5].speaks = False
    fake_job.ticks(6)
    assert names(fake_job.incident()) == [5]


def test_all_in_the_same_call_names_nobody(fake_job: FakeJob) -> None:
    fake_job.wait_for()
    fake_job.seconds_until("open", 15)
    assert fake_job.incident().verdict == "all_joined_not_finished"
    assert names(fake_job.incident()) == []


def test_a_job_that_moves_again_resolves_with_words(fake_job: FakeJob) -> None:
    fake_job.wait_for(3)
    fake_job.seconds_until("open", 15)
    fake_job.train(3)
    found = fake_job.incident()
    assert found.state == "resolved"
    assert found.resolution.startswith("the job moves again after ")
    fake_job.train(10)
    assert len(fake_job.incidents()) == 1


def test_a_person_who_acknowledged_keeps_the_incident_until_the_job_moves(fake_job: FakeJob) -> None:
    fake_job.wait_for(3)
    fake_job.seconds_until("open", 15)
    Incident.objects.filter(job=fake_job.job).update(state="acknowledged")
    fake_job.ticks(40)
    assert fake_job.incident().state == "acknowledged"
    fake_job.train(3)
    assert fake_job.incident().state == "resolved"


def test_a_job_cancelled_while_it_hangs_resolves_and_is_no_crash(fake_job: FakeJob) -> None:
    fake_job.wait_for(3)
    fake_job.seconds_until("open", 15)
    for rank in range(8):
        fake_job.end(rank, exit_signal=15)
    fake_job.end_job("failed")
    fake_job.ticks(5)
    assert (fake_job.incident().state, fake_job.incident().fault_class) == ("resolved", "hang")


# --- deaths and crashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", [{"exit_signal": 15}, {"exit_signal": 9}, {"exit_signal": 6}, {}])
def test_who_ends_after_the_stall_was_suspected_did_not_cause_it(
    fake_job: FakeJob, fate: dict[str, object]
) -> None:
    """The job is stopped rank by rank, or a watchdog aborts the waiting ranks: the first name stays."""
    fake_job.train(10)
    fake_job.stop(5)
    fake_job.wait_for(5)
    fake_job.ticks(20)
    assert fake_job.incident().diagnosis["culprit_ranks"] == [5]
    for rank in (0, 1, 2, 3, 7):
        fake_job.end(rank, **fate)
        fake_job.ticks(1)
    fake_job.ticks(5)
    incident = fake_job.incident()
    assert (incident.diagnosis["verdict"], incident.diagnosis["culprit_ranks"]) == ("missing_rank", [5])


def test_the_death_of_the_named_rank_is_told(fake_job: FakeJob) -> None:
    fake_job.train(10)
    fake_job.stop(5)
    fake_job.wait_for(5)
    fake_job.ticks(20)
    fake_job.end(5, exit_signal=9)
    fake_job.ticks(4)
    incident = fake_job.incident()
    assert incident.diagnosis["culprit_ranks"] == [5]
    assert incident.diagnosis["verdict"] in ("rank_failed", "dead_rank")


def test_a_killed_rank_whose_peers_raise_is_the_first_to_fail(fake_job: FakeJob) -> None:
    fake_job.end(3, exit_signal=9)
    for rank in (0, 1, 2, 4, 5, 6, 7):
        fake_job.end(
            rank, after_s=0.4, exit_code=1, exception=CLOSED_BY_PEER | {"t_ns": fake_job.now_ns + 300_000_000}
        )
    fake_job.end_job("failed")
    assert fake_job.seconds_until("open", 5) <= 3
    assert (fake_job.incident().fault_class, names(fake_job.incident())) == ("crash", [3])


def test_a_raised_exception_is_told_and_kept(fake_job: FakeJob) -> None:
    boom = {"type": "ValueError", "message": "bad batch", "traceback": "line 7", "t_ns": fake_job.now_ns}
    fake_job.end(6, exit_code=1, exception=boom)
    for rank in range(6):
        fake_job.end(
            rank, after_s=0.5, exit_code=1, exception=CLOSED_BY_PEER | {"t_ns": fake_job.now_ns + 400_000_000}
        )
    fake_job.end_job("failed")
    fake_job.seconds_until("open", 5)
    assert names(fake_job.incident()) == [6]
    kinds = set(fake_job.incident().evidence.values_list("kind", flat=True))
    assert {"exception", "process"} <= kinds


def test_a_dead_rank_whose_peers_wait_opens_at_once(fake_job: FakeJob) -> None:
    fake_job.wait_for(3)
    fake_job.end(3, exit_signal=11)
    assert fake_job.seconds_until("open", 5) <= 3
    assert names(fake_job.incident()) == [3]


def test_a_crash_stays_open_after_the_job_ended(fake_job: FakeJob) -> None:
    test_a_killed_rank_whose_peers_raise_is_the_first_to_fail(fake_job)
    fake_job.ticks(70)
    assert fake_job.incident().state == "open"


def test_the_next_attempt_resolves_the_crash_once_it_makes_progress(fake_job: FakeJob) -> None:
    test_a_killed_rank_whose_peers_raise_is_the_first_to_fail(fake_job)
    fake_job.start_attempt(1)
    for process in fake_job.ranks.values():
        process.phase, process.step, process.calls = "startup", 0, {}
    fake_job.ticks(3)
    assert fake_job.incident().state == "open"
    for process in fake_job.ranks.values():
        process.phase, process.calls = "train", {fake_job.world.pk: [1, 1, 1]}
    fake_job.train(4)
    assert fake_job.incident().resolution == "attempt 1 of the job makes progress"


def test_a_hang_that_turns_out_to_be_a_death_stays_one_incident(fake_job: FakeJob) -> None:
    fake_job.wait_for(3)
    fake_job.seconds_until("suspected", 5)
    fake_job.end(3, exit_signal=9)
    fake_job.ticks(4)
    found = fake_job.incident()
    assert found.state == "open"
    assert found.changes.filter(kind="verdict").exists()
    assert names(found) == [3]


# --- hosts and agents -------------------------------------------------------------------------------------


def test_a_host_that_falls_silent_while_peers_wait_is_a_dead_node(fake_job: FakeJob) -> None:
    fake_job.wait_for(2, 3)
    fake_job.freeze_host(1)
    assert fake_job.seconds_until("open", 6) <= 6
    found = fake_job.incident()
    assert (found.verdict, found.diagnosis["culprit_ranks"], found.diagnosis["node"]) == (
        "dead_node",
        [2, 3],
        "host-1",
    )


def keep_tail(fake_job: FakeJob, index: int) -> None:
    """The gateway saves the last minutes of a host: two slots, power for the last three seconds."""
    values = np.full((1, 120, 2), np.nan, np.float32)
    values[0, -3:] = [[600.5, 601.25], [602.0, np.nan], [71.0, 72.0]]
    tails.save(
        fake_job.nodes[index].pk, tails.Tail(fake_job.now_ns, fake_job.now_ns, ("gpu_power_w",), values)
    )


def last_minutes(incident: Incident) -> list[dict[str, Any]]:
    pieces = [open_evidence(piece) for piece in incident.evidence.filter(kind="last_minutes")]
    return [piece.payload["nodes"][0] for piece in pieces]


def test_the_last_minutes_of_a_dead_node_are_kept_with_its_incident(fake_job: FakeJob) -> None:
    fake_job.wait_for(2, 3)
    fake_job.freeze_host(1)
    keep_tail(fake_job, 1)
    fake_job.seconds_until("open", 6)
    fake_job.ticks(3)
    (kept,) = last_minutes(fake_job.incident())
    assert kept["host"] == "host-1"
    assert kept["metrics"] == {"gpu_power_w": [[600.5, 601.25], [602.0, None], [71.0, 72.0]]}
    assert kept["first_second_ns"] == kept["last_word_ns"] - 2 * 10**9
    (piece,) = fake_job.incident().evidence.filter(kind="last_minutes")
    (shown,) = open_evidence(piece).payload["rows"]
    assert (shown["lowest"], shown["highest"], shown["last_of_each_slot"]) == (71.0, 602.0, [71.0, 72.0])


def test_the_last_minutes_of_a_lost_agent_are_kept_once(fake_job: FakeJob) -> None:
    fake_job.lose_agent(1)
    keep_tail(fake_job, 1)
    fake_job.train(30)
    found = fake_job.incident()
    assert (found.verdict, found.state) == ("agents_silent", "open")
    assert [kept["host"] for kept in last_minutes(found)] == ["host-1"]


def test_most_hosts_silent_at_once_accuses_none_of_them(fake_job: FakeJob) -> None:
    fake_job.wait_for()
    for host in (0, 1, 2):
        fake_job.freeze_host(host)
    fake_job.ticks(12)
    assert all(incident.verdict != "dead_node" for incident in fake_job.incidents())


def test_a_lost_agent_is_never_a_dead_node(fake_job: FakeJob) -> None:
    fake_job.lose_agent(1)
    fake_job.train(5)
    found = fake_job.incident()
    assert (found.verdict, found.fault_class, found.state) == ("agents_silent", "blind", "suspected")
    assert found.summary.startswith("The agent on host-1 is gone; its host answered last we knew")
    assert found.diagnosis["culprit_ranks"] == []
    fake_job.train(30)
    assert fake_job.incident().state == "open"
    fake_job.regain_agent(1)
    fake_job.train(3)
    assert fake_job.incident().resolution == "every agent of the job is back"


def test_a_lost_agent_of_a_job_that_is_over_is_not_told(fake_job: FakeJob) -> None:
    fake_job.lose_agent(1)
    for rank in (0, 1, 4, 5, 6, 7):
        fake_job.end(rank, exit_signal=15)
    fake_job.ticks(15)
    assert fake_job.incidents() == []


def test_a_stall_behind_a_lost_agent_names_the_unseen_ranks_as_suspects_only(fake_job: FakeJob) -> None:
    fake_job.lose_agent(1)
    fake_job.wait_for(2, 3)
    fake_job.seconds_until("open", 15)
    found = [i for i in fake_job.incidents() if i.fault_class == "hang"]
    assert len(found) == 1
    assert found[0].diagnosis["culprit_ranks"] == []
    assert found[0].diagnosis["suspect_ranks"] == [2, 3]
    assert found[0].diagnosis["coverage"]["reported"] == 6


# --- blindness --------------------------------------------------------------------------------------------


def test_while_no_gateway_writes_nothing_is_said_and_nothing_resolved(fake_job: FakeJob) -> None:
    fake_job.wait_for(3)
    fake_job.seconds_until("open", 15)
    checked = fake_job.incident().checked_at
    fake_job.gateway_alive = False
    fake_job.ticks(6)
    checked = fake_job.incident().checked_at
    fake_job.do_step()
    fake_job.ticks(20)
    assert fake_job.incident().state == "open"
    assert fake_job.incident().checked_at == checked


def test_a_gateway_that_dies_accuses_none_of_its_nodes(fake_job: FakeJob) -> None:
    fake_job.move_hosts("other", 0, 1)
    fake_job.train(5)
    fake_job.dead_gateways = {"other"}
    for _ in range(40):
        fake_job.do_step()
        fake_job.tick()
    assert fake_job.incidents() == []
    fake_job.move_hosts(GATEWAY, 0, 1)
    fake_job.train(5)
    assert fake_job.incidents() == []


def test_a_host_that_falls_silent_is_named_though_another_gateway_died_before(fake_job: FakeJob) -> None:
    fake_job.move_hosts("other", 0, 1)
    fake_job.train(5)
    fake_job.dead_gateways = {"other"}
    fake_job.do_step()
    fake_job.ticks(2)
    fake_job.wait_for(6, 7)
    fake_job.freeze_host(3)
    fake_job.ticks(8)
    found = [incident for incident in fake_job.incidents() if incident.verdict == "dead_node"]
    assert [(i.diagnosis["node"], sorted(names(i))) for i in found] == [("host-3", [6, 7])]


def test_after_blindness_a_job_that_went_on_raises_no_storm(fake_job: FakeJob) -> None:
    fake_job.gateway_alive = False
    for _ in range(30):
        fake_job.do_step()
        fake_job.tick()
    fake_job.gateway_alive = True
    fake_job.train(10)
    assert fake_job.incidents() == []


def test_an_empty_hot_state_says_nothing(fake_job: FakeJob, valkey: object) -> None:
    fake_job.wait_for(3)
    valkey.flushall()  # type: ignore[attr-defined]
    fake_job.gateway_alive = False
    fake_job.ticks(12)
    assert fake_job.incidents() == []


# --- jobs nobody speaks of any more -----------------------------------------------------------------------


def test_a_job_whose_hosts_are_gone_for_good_is_no_longer_called_running(fake_job: FakeJob) -> None:
    fake_job.train(10)
    for host in range(4):
        fake_job.freeze_host(host)
    fake_job.ticks(30)
    assert fake_job.state() == "running"
    fake_job.tick(600)
    assert fake_job.state() == "unknown"
    for host in range(4):
        fake_job.regain_agent(host)
    fake_job.train(2)
    assert fake_job.state() == "running"


def test_one_host_that_still_speaks_keeps_a_job_running(fake_job: FakeJob) -> None:
    fake_job.train(10)
    for host in range(3):
        fake_job.freeze_host(host)
    fake_job.tick(700)
    assert fake_job.state() == "running"
