"""Slow ranks of a running job become incidents of their hosts, open once, and close when they recover."""

from __future__ import annotations

import pytest

from clusterwatch.detect import slow, slow_look, tasks
from clusterwatch.incidents.models import Evidence, Incident
from clusterwatch.incidents.queries import lost_gpu_hours, lost_gpus
from clusterwatch.jobs.models import Rank
from clusterwatch.jobs.step_notes import notes_of
from clusterwatch.store import hot
from clusterwatch.web import incident_page
from tests.detect.fake_job import SECOND, forget_rosters
from tests.detect.trainer import STEP_S, Trainer


def only() -> Incident:
    return Incident.objects.get()


def test_a_healthy_job_raises_nothing(trainer: Trainer) -> None:
    trainer.train(10)
    assert trainer.look() == 10 and not Incident.objects.exists() and notes_of(trainer.job.job.pk) == []


def test_a_slow_rank_is_an_open_incident_of_its_host_with_its_step(trainer: Trainer) -> None:
    trainer.train(5, work={5: 0.1})
    trainer.look()
    trainer.train(5, work={5: 0.1})
    trainer.look()
    incident = only()
    assert (incident.verdict, incident.state, incident.diagnosis["culprit_ranks"]) == (
        "slow_gpu",
        "open",
        [5],
    )
    assert incident.diagnosis["onset_step"] == 31 and incident.diagnosis["culprits"][0]["host"] == "host-2"
    assert incident.node_id == trainer.job.nodes[2].pk and incident.gpu_count == 8
    assert abs(incident.diagnosis["lost_s"] - 0.1) < 0.02
    assert "host-2" in incident.summary and "since step 31" in incident.summary
    assert Evidence.objects.filter(incident=incident, kind="steps").exists()


def test_it_stays_one_incident_while_it_lasts_and_closes_when_it_is_over(trainer: Trainer) -> None:
    for _ in range(4):
        trainer.train(5, work={5: 0.2})
        trainer.look()
    assert only().state == "open"
    for _ in range(5):
        trainer.train(5)
        trainer.look()
    assert only().state == "resolved" and "like its peers" in only().resolution


def test_progress_of_the_job_does_not_close_it(trainer: Trainer) -> None:
    for _ in range(3):
        trainer.train(5, work={5: 0.2})
        trainer.look()
    trainer.job.train(3)
    assert only().state == "open"


def test_bursts_that_come_and_go_are_suspected_and_page_nobody(trainer: Trainer) -> None:
    for _ in range(6):
        trainer.train(4, work={5: 0.8})
        trainer.train(6)
        trainer.look()
    assert Incident.objects.exists() and {one.state for one in Incident.objects.all()} <= {
        "suspected",
        "resolved",
    }
    assert not Incident.objects.filter(opened_at__isnull=False).exists()


def test_processes_without_a_gpu_are_suspected_and_page_nobody(trainer: Trainer) -> None:
    Rank.objects.update(gpu_index=None)
    forget_rosters()
    for _ in range(4):
        trainer.train(5, work={5: 0.5})
        trainer.look()
    assert (only().state, only().diagnosis["culprit_ranks"]) == ("suspected", [5])


def test_what_costs_little_is_suspected_and_pages_nobody(trainer: Trainer) -> None:
    for _ in range(12):
        trainer.train(5, work={5: 0.019})
        trainer.look()
    assert {incident.state for incident in Incident.objects.all()} <= {"suspected"}


def test_a_rank_that_waits_for_its_data_is_told_as_that(trainer: Trainer) -> None:
    for _ in range(3):
        trainer.train(5, data={2: 0.4})
        trainer.look()
    assert (only().verdict, only().diagnosis["culprit_ranks"]) == ("slow_dataloader", [2])


def test_a_step_counts_when_all_told_it_or_the_rest_will_not_come(trainer: Trainer) -> None:
    trainer.train(5, silent=(3,))
    assert trainer.look() == 0
    trainer.job.now_ns += slow_look.LATE_NS + SECOND
    trainer.job.write()
    assert trainer.look() == 5


def test_ranks_that_tell_no_waits_blame_nobody(trainer: Trainer) -> None:
    for _ in range(4):
        trainer.train(5, work={rank: float("nan") for rank in range(8)})
        trainer.look()
    assert not Incident.objects.exists()


def test_lost_memory_costs_time_and_no_verdict(trainer: Trainer) -> None:
    trainer.train(10, work={5: 0.2})
    trainer.look()
    assert only().state == "open"
    hot.save_steps(trainer.job.job.pk, b"\xc1damaged")
    trainer.train(10, work={5: 0.2})
    trainer.look()
    assert only().state == "open" and only().diagnosis["culprit_ranks"] == [5]


def test_the_task_looks_at_running_jobs(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(slow, "look", lambda job_id, _now_ns: seen.append(job_id))
    assert tasks.look_at_job_steps(trainer.job.job.pk) is True
    hot.take_lease(f"detect:slow:{trainer.job.job.pk}", "another", 5)
    assert tasks.look_at_job_steps(trainer.job.job.pk) is False and seen == [trainer.job.job.pk]


def test_the_page_of_a_slow_part_counts_what_it_costs_and_says_that_the_job_goes_on(trainer: Trainer) -> None:
    for _ in range(3):
        trainer.train(5, work={5: 0.2})
        trainer.look()
    incident = only()
    assert abs(lost_gpus(incident) - 8 * 0.2 / STEP_S) < 0.15  # type: ignore[operator]
    page = incident_page.build(incident, [], has_gpus=True)
    assert page.slow and page.lost_gpus == lost_gpus(incident)
    card = next(card for card in page.cards if card.kind == "why")
    assert card.title == "How we know" and "own work" in incident.diagnosis["why"][0]
    incident.diagnosis["lost_ratio"] = None
    assert lost_gpus(incident) is None and lost_gpu_hours(incident) is None
