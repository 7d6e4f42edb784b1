"""A job's time is counted once, in stretches, from what its ranks' agents stored."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from clusterwatch.detect import goodput
from clusterwatch.jobs import goodput_ledger as ledger
from clusterwatch.jobs.models import Checkpoint, GoodputHour, GoodputMark, Job, StartUp
from tests.jobs.goodput_run import Run, S

pytestmark = pytest.mark.django_db


def count(run: Run, until_s: float | None = None) -> None:
    """Looks until nothing is left."""
    now_ns = run.now_ns if until_s is None else run.ns(until_s) + goodput.BEHIND_NS
    while goodput.look(run.job.pk, now_ns):
        pass


def gpu_s(run: Run, attempt: int | None = None) -> dict[str, float]:
    rows = GoodputHour.objects.filter(job=run.job)
    rows = rows if attempt is None else rows.filter(attempt=attempt)
    found: dict[str, float] = {}
    for row in rows:
        key = f"{row.kind} {row.cause}".strip()
        found[key] = found.get(key, 0.0) + row.gpu_ns / S
    return {key: round(value, 3) for key, value in found.items()}


def test_a_whole_run_is_counted_to_its_end_and_every_second_once() -> None:
    run = Run()
    run.start(late={3: 5.0})
    run.train(60.0, 540)
    run.end(600.0)
    count(run)
    assert gpu_s(run) == {"startup": 235.0, "idle": 5.0, "productive": 2160.0}
    before = gpu_s(run)
    count(run)
    assert gpu_s(run) == before and GoodputMark.objects.get().is_done
    assert not ledger.uncounted_jobs(run.now_ns).filter(pk=run.job.pk).exists()


def test_hours_are_cut_at_full_hours() -> None:
    run = Run()
    run.start(at_s=3_000.0)
    run.train(3_000.0, 1_200)
    run.end(4_200.0)
    count(run)
    rows = GoodputHour.objects.filter(job=run.job, kind="productive").order_by("start_at")
    assert [(row.start_at, row.gpu_ns) for row in rows] == [
        (run.at(0), 2_400 * S),
        (run.at(3_600), 2_400 * S),
    ]


def test_counting_in_many_looks_gives_what_one_look_gives() -> None:
    run = Run()
    run.start()
    for part in range(6):
        run.train(30.0 + 100 * part, 100, first=2 + 100 * part)
        count(run, 30.0 + 100 * part + 10)
    run.end(630.0)
    count(run)
    assert gpu_s(run) == {"startup": 120.0, "productive": 2_400.0}


def test_a_stall_is_lost_to_its_verdict_and_a_restart_to_what_ended_the_attempt() -> None:
    run = Run()
    run.start()
    run.train(30.0, 100)
    run.incident(130.0, 400.0, "dead_rank")
    run.end(300.0)
    run.start(1, at_s=360.0)
    run.train(390.0, 60, first=62, attempt=1)
    run.end(450.0, attempt=1)
    count(run)
    assert gpu_s(run, 0) == {"startup": 120.0, "productive": 400.0, "stalled dead_rank": 680.0}
    # 60 s between the attempts, and the steps 62 to 101 once more.
    assert gpu_s(run, 1) == {"restart dead_rank": 4 * (60.0 + 40.0), "startup": 120.0, "productive": 80.0}


def test_attempts_that_count_from_their_own_start_repeat_what_came_after_the_last_whole_save() -> None:
    run = Run()
    run.start()
    everybody = dict.fromkeys(range(4), 2.0)
    run.train(10.0, 98, saves={41: everybody, 71: everybody})
    run.end(112.0)
    run.start(1, at_s=112.0)
    run.train(130.0, 60, attempt=1)
    run.end(190.0, attempt=1)
    count(run)
    # The last step of attempt 0 is 99, its last save holds step 70: 29 steps again, the first of them unseen.
    assert gpu_s(run, 1) == {"startup": 72.0, "restart": 4 * 28.0, "productive": 4 * 32.0}


def test_without_any_save_nobody_says_what_is_repeated() -> None:
    run = Run()
    run.start()
    run.train(10.0, 50)
    run.end(60.0)
    run.start(1, at_s=60.0)
    run.train(70.0, 20, attempt=1)
    run.end(90.0, attempt=1)
    count(run)
    assert gpu_s(run, 1) == {"startup": 40.0, "productive": 80.0}


def test_degraded_time_has_the_verdict_of_the_one_slow_incident() -> None:
    run = Run()
    run.start()
    run.train(0.0, 100)
    count(run, 90.0)
    run.incident(100.0, None, "slow_gpu", "hardware")
    run.train(100.0, 100, first=102, step_s=1.5)
    run.end(250.0)
    count(run)
    assert gpu_s(run)["degraded slow_gpu"] == pytest.approx(200.0)


def test_an_evaluation_told_as_a_phase_is_said_apart() -> None:
    run = Run()
    run.start()
    run.train(10.0, 40)
    run.train(50.0, 1, first=42, step_s=31.0)
    run.train(81.0, 60, first=43)
    run.phase(50.5, "evaluation", "train", 40.5)
    run.phase(80.5, "train", "evaluation", 30.0)
    run.end(141.0)
    count(run)
    assert gpu_s(run) == {"startup": 40.0, "productive": 404.0, "evaluation": 120.0}


def test_a_silent_host_is_unknown() -> None:
    run = Run()
    run.start()
    run.train(10.0, 100)
    run.train(110.0, 100, first=102, silent=(2, 3))
    run.end(210.0)
    count(run)
    assert gpu_s(run) == {"startup": 40.0, "productive": 600.0, "unknown": 200.0}


def test_counting_waits_for_steps_that_are_on_their_way_but_not_for_ever() -> None:
    run = Run()
    run.start()
    run.train(0.0, 100)
    count(run, 90.0)
    late_ns = run.ns(200.0) + goodput.BEHIND_NS
    assert goodput.look(run.job.pk, late_ns) == 0
    run.train(100.0, 150, first=102)
    assert goodput.look(run.job.pk, late_ns) == 1
    assert gpu_s(run) == {"productive": 800.0}
    given_up_ns = run.ns(500.0) + goodput.WAIT_MAX_NS
    assert goodput.look(run.job.pk, given_up_ns) > 0 and gpu_s(run)["unknown"] > 0


def test_saves_are_kept_with_their_slowest_ranks_and_hosts() -> None:
    run = Run()
    run.start()
    run.train(0.0, 100, saves={51: {0: 2.0, 1: 2.0, 2: 2.0, 3: 5.0}})
    run.end(105.0)
    count(run)
    save = Checkpoint.objects.get(job=run.job)
    assert (save.step, save.rank_count, save.saver_count, save.longest_s) == (50, 4, 4, 5.0)
    assert save.slowest[0] == {"rank": 3, "host": "host-1", "s": 5.0}
    assert save.cost_gpu_ns == pytest.approx(20 * S) and gpu_s(run)["checkpoint"] == 20.0


def test_a_start_up_tells_who_was_late_and_which_parts_nobody_told() -> None:
    run = Run(ranks=16)
    run.start(late={5: 40.0})
    run.phase(70.0, "startup", "compile", 20.0)
    run.phase(100.0, "train", "startup", 100.0)
    run.train(100.0, 50)
    run.end(150.0)
    count(run)
    found = StartUp.objects.get(job=run.job)
    assert found.sentence == (
        "first step after 1 min 40 s; 1 rank of host-2 was up to 40 s later at process start"
    )
    parts = {part["part"]: part for part in found.parts}
    assert parts["compile"]["p50_s"] == 20.0 and parts["import"] == {
        "part": "import", "told_count": 0, "p50_s": None, "p99_s": None, "longest_s": None, "late_count": 0,
        "slowest": [],
    }  # fmt: skip
    assert (found.first_step, found.stepped_count) == (2, 16)


def test_damaged_memory_costs_no_count() -> None:
    run = Run()
    run.start()
    run.train(0.0, 300)
    count(run, 100.0)
    GoodputMark.objects.update(memory=b"\x00damaged")
    count(run, 200.0)
    assert sum(gpu_s(run).values()) == pytest.approx(4 * 200.0)


def test_queries_of_a_stretch_do_not_grow_with_ranks() -> None:
    counts = []
    for ranks in (2, 64):
        run = Run(ranks=ranks, key=f"run-{ranks}")
        run.start()
        run.train(0.0, 100)
        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert goodput.look(run.job.pk, run.ns(90.0) + goodput.BEHIND_NS) == 1
        counts.append(len(seen))
    assert counts[0] == counts[1] <= 40


def test_a_job_no_node_speaks_of_is_not_counted() -> None:
    run = Run()
    run.start()
    Job.objects.update(state="unknown")
    assert not ledger.uncounted_jobs(run.now_ns).exists()
