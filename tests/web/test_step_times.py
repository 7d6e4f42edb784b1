"""Step times of a small job are exact; those of a large one are a sample that the page names."""

from __future__ import annotations

import django
import pytest

django.setup()

from clusterwatch.store import rank_history  # noqa: E402  (models load only after Django is set up)
from clusterwatch.web import step_times  # noqa: E402
from tests.web.conftest import SignIn  # noqa: E402
from tests.web.seed import Seeded  # noqa: E402
from tests.web.test_pages import text_of  # noqa: E402


@pytest.mark.parametrize("ranks", [513, 1024, 4096, 6656, 8192, 16_384, 350_000])
def test_a_sample_is_bounded_and_visits_every_place_of_a_rack(ranks: int) -> None:
    every = step_times.sampled_every(ranks)
    sampled = range(0, ranks // 8, every)
    assert 8 * len(sampled) <= step_times.RANKS_EXACT + 8
    assert {node % 2 for node in sampled} == {0, 1}


def test_the_page_of_a_large_job_reads_a_sample_and_says_so(
    seeded: Seeded, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_times, "RANKS_EXACT", 3)
    step_times._remembered.cache_clear()
    html = text_of(sign_in("olga").get(f"/jobs/{seeded.job.pk}"))
    assert "the ranks of one node in 3" in html


def test_bands_of_a_sample_count_the_steps_of_its_nodes_only(seeded: Seeded) -> None:
    job, bounds = seeded.job, step_times.span(seeded.job)
    steps = [
        sum(band.steps for band in rank_history.step_bands(job.pk, job.attempt, *bounds, every))
        for every in (1, 3)
    ]
    assert steps[0] > steps[1] > 0


def test_a_page_s_numbers_are_read_once_per_moment(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "RANKS_EXACT", 3)
    monkeypatch.setattr("clusterwatch.web.step_times.time.time", lambda: 1_000.0)
    step_times._remembered.cache_clear()
    first = step_times.read(seeded.job, 8)
    assert first.bands and first.kept_s == step_times.KEPT_S
    assert step_times.read(seeded.job, 8) is first
