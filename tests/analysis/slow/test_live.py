"""A running job: the same names as from a whole log, over looks of any size and restarts between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clusterwatch.analysis.model import Finding
from clusterwatch.analysis.slow import live
from clusterwatch.analysis.slow.live import Batch, Kept
from tests.analysis.slow.tables import residual

GROUPS = [
    *((f"tp:{n}", (2 * n, 2 * n + 1)) for n in range(8)),
    *((f"pp:{n}", (n, n + 8)) for n in range(8)),
    *((f"dp:{n}", tuple(range(8 * (n // 2) + n % 2, 8 * (n // 2) + 8, 2))) for n in range(4)),
    ("default_pg", tuple(range(16))),
]
LAYOUT, MEMBERS, NAMES = live.layout_of(
    16, GROUPS, np.arange(16) // 4, np.arange(16) % 4, tuple(f"host-{n // 4}" for n in range(16))
)


def steps(count: int = 90) -> Batch:
    work = 2.0 * np.exp(residual(count))
    work[:, 8:] *= 1.1
    quiet = 0.01 * np.random.default_rng(3).normal(1.0, 0.02, work.shape)
    never = np.zeros_like(work)
    return Batch(np.arange(1, count + 1), work, quiet, never.copy(), never, np.full(count, 3.0))


def cut(batch: Batch, first: int, end: int) -> Batch:
    return Batch(*(getattr(batch, name)[first:end] for name in Batch.__slots__))


def watched(batch: Batch, at_once: int = 7) -> Kept:
    """Looks of ``at_once`` steps, each with what the one before packed."""
    kept = Kept.of(LAYOUT)
    for first in range(0, len(batch.steps), at_once):
        kept.take(cut(batch, first, first + at_once), LAYOUT)
        kept = live.unpack(live.pack(kept))
    return kept


def told(kept: Kept, batch: Batch) -> list[Finding]:
    window = cut(batch, int(np.searchsorted(batch.steps, kept.steps[0])), len(batch.steps))
    return live.findings(kept, window, LAYOUT, MEMBERS, NAMES, {})


def test_groups_tell_stages_and_replicas() -> None:
    assert LAYOUT.stage.tolist() == [0] * 8 + [1] * 8
    assert LAYOUT.replica.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] * 2


def test_groups_that_say_nothing_make_every_rank_its_own_replica() -> None:
    plain, _, _ = live.layout_of(4, [("default_pg", (0, 1, 2, 3))], np.zeros(4), np.zeros(4), ("",) * 4)
    assert plain.stage.tolist() == [0] * 4 and plain.replica.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("at_once", [1, 7, 90])
def test_a_slow_rank_is_named_with_its_step_however_the_looks_fall(at_once: int) -> None:
    batch = steps()
    batch.work_s[50:, 10] *= 1.06
    kept = watched(batch, at_once)
    assert kept.stands_out
    (found,) = told(kept, batch)
    assert (found.verdict, found.culprit_ranks, found.onset_step, found.node) == ("slow_gpu", (10,), 51, 2)
    assert "host-2" in found.summary


def test_the_first_slow_step_is_remembered_when_it_has_left_the_window() -> None:
    batch = steps(180)
    batch.work_s[50:, 10] *= 1.3
    kept = watched(cut(batch, 0, 60))
    assert told(kept, cut(batch, 0, 60))[0].onset_step == 51
    kept = live.unpack(live.pack(kept))
    kept.take(cut(batch, 60, 180), LAYOUT)
    kept.close()
    (found,) = told(kept, batch)
    assert found.onset_step == 51 and "since step 51" in found.summary


def test_a_healthy_job_stands_for_nothing() -> None:
    assert not watched(steps()).stands_out


def test_a_rank_that_is_fed_late_is_told_as_that() -> None:
    batch = steps()
    batch.input_s[40:, 3] += 0.5
    kept = watched(batch)
    assert [(one.verdict, one.culprit_ranks) for one in told(kept, batch)] == [("slow_dataloader", (3,))]


def test_a_host_that_writes_slowly_is_told_after_its_checkpoint() -> None:
    batch = steps()
    batch.checkpoint_s[29::20] = 1.0
    batch.checkpoint_s[49::20, 4:8] = 9.0
    kept = watched(batch)
    assert [(one.verdict, one.culprit_ranks) for one in told(kept, batch)] == [("slow_storage", (4, 5, 6, 7))]


def test_an_episode_that_is_over_is_forgotten() -> None:
    batch = steps(140)
    batch.work_s[30:60, 10] *= 1.3
    kept = watched(cut(batch, 0, 62))
    assert kept.stands_out
    kept.take(cut(batch, 62, 140), LAYOUT)
    kept.close()
    assert not kept.stands_out


def test_steps_that_were_seen_are_not_counted_again() -> None:
    batch = steps()
    kept = watched(batch)
    rows = kept.watched.rows
    kept.take(cut(batch, 60, 90), LAYOUT)
    assert kept.watched.rows == rows == 90


def test_ranks_that_tell_nothing_are_nobodys_fault() -> None:
    batch = steps()
    batch.work_s[:, 10] = np.nan
    batch.work_s[::2, 4] = np.nan
    assert not watched(batch).stands_out


def sparse(batch: Batch, every: int = 8) -> Batch:
    """Work is told of each eighth step, as where waits are measured on the GPU's stream; input of all."""
    work = np.where((batch.steps % every == 0)[:, None], batch.work_s, np.nan)
    return replace(batch, work_s=work)


def held_findings(kept: Kept) -> list[Finding]:
    assert kept.held is not None
    return live.findings(kept, kept.held, LAYOUT, MEMBERS, NAMES, {})


@pytest.mark.parametrize("at_once", [3, 40])
def test_a_slow_rank_is_named_where_each_eighth_step_tells_its_work(at_once: int) -> None:
    batch = steps(400)
    batch.work_s[203:, 10] *= 1.3
    kept = watched(sparse(batch), at_once)
    assert kept.steps == list(range(216, 401, 8)) and len(live.pack(kept)) < 16 * (8 * live.HELD_ROWS + 400)
    (found,) = held_findings(kept)
    assert (found.verdict, found.culprit_ranks) == ("slow_gpu", (10,))
    assert found.bad_steps == found.seen_steps == live.HELD_ROWS


def test_a_slow_rank_is_named_with_its_first_step_among_the_told_ones() -> None:
    batch = steps(260)
    batch.work_s[203:, 10] *= 1.3
    (found,) = held_findings(watched(sparse(batch)))
    assert (found.onset_step, found.bad_steps, found.seen_steps) == (208, 7, 7)


def test_input_by_the_hosts_clock_is_no_input_where_work_is_told_by_the_streams() -> None:
    batch = steps(400)
    batch.input_s[np.arange(1, 401) % 8 != 0, 3] += 0.5
    assert not watched(sparse(batch)).stands_out
    batch.work_s[:, 3] = np.nan
    batch.input_s[:, 3] += 0.5
    assert not watched(sparse(batch)).stands_out


def test_one_step_without_work_changes_nothing() -> None:
    batch = steps()
    batch.work_s[50:, 10] *= 1.3
    batch.work_s[[30, 70]] = np.nan
    kept = watched(batch)
    assert kept.held is None
    (found,) = told(kept, batch)
    assert (found.onset_step, found.bad_steps, found.seen_steps) == (51, 39, 39)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1" * 40, live.pack(Kept.of(LAYOUT))[:-9]])
def test_what_is_kept_and_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="kept steps"):
        live.unpack(data)
