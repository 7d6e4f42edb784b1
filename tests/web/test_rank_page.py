"""Parts of a rank's steps on its page: own work beside its neighbours'; unknown is never drawn as 0."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from clusterwatch.store.step_history import StepColumns
from clusterwatch.web.rank_page import STEPS_SHOWN, _steps
from tests.web.conftest import SignIn
from tests.web.seed import Seeded
from tests.web.seed_facts import STUCK_RANK
from tests.web.test_pages import text_of


def columns(rank: list[int], step: list[int], **parts: list[float]) -> StepColumns:
    count = len(rank)

    def floats(name: str) -> Any:
        return np.array(parts.get(name, [np.nan] * count), np.float32)

    return StepColumns(
        worlds=("", "critic"), world=np.array(parts.get("world", [0] * count), np.int64), rank=np.array(rank),
        step=np.array(step), end_ns=np.array(step) * 10**9, duration_s=np.full(count, 2, np.float32),
        work_s=floats("work_s"), wait_s=floats("wait_s"), data_wait_s=floats("data_wait_s"),
        checkpoint_s=floats("checkpoint_s"), gc_s=floats("gc_s"), late_launch=floats("late_launch"),
        is_whole=False,
    )  # fmt: skip


def test_the_newest_steps_of_the_rank_come_first() -> None:
    told = columns([3] * 40 + [4] * 40, list(range(40)) * 2)
    shown = _steps(told, "", 3)
    assert [row.step for row in shown] == list(range(39, 39 - STEPS_SHOWN, -1))


def test_own_work_stands_beside_the_median_of_the_node_in_the_same_step() -> None:
    told = columns([3, 4, 5, 3], [7, 7, 7, 8], work_s=[1.5, 1.0, 1.25, 1.5])
    newest, older = _steps(told, "", 3)
    assert (older.work_s, older.node_work_s) == (1.5, 1.25)
    assert (newest.work_s, newest.node_work_s) == (1.5, None), "of one rank there is no median"


def test_a_part_that_is_unknown_is_none() -> None:
    (row,) = _steps(columns([3], [7], gc_s=[0.5]), "", 3)
    assert (row.work_s, row.wait_s, row.gc_s) == (None, None, 0.5)


def test_a_rank_of_the_same_number_in_another_world_is_another() -> None:
    told = columns([3, 3], [7, 8], world=[0, 1])
    assert [row.step for row in _steps(told, "critic", 3)] == [8]
    assert _steps(told, "actor", 3) == ()


def cells_of(html: str) -> list[list[str]]:
    table = html.split("<h2>Steps</h2>")[1].split("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table.split("<tbody>")[1], re.DOTALL)
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", r)] for r in rows]


def test_the_page_tells_where_the_time_of_a_step_went(seeded: Seeded, sign_in: SignIn) -> None:
    rows = cells_of(text_of(sign_in("vera").get(f"/jobs/{seeded.job.pk}/ranks/3")))
    assert len(rows) == STEPS_SHOWN
    for _step, _ended, took, work, _median, wait, data, checkpoint, gc in rows:
        parts_s = float(work) + float(wait) + float(data) + float(checkpoint)
        assert parts_s == pytest.approx(float(took), abs=0.003)
        assert float(gc) == 0.125


def test_the_page_says_why_a_part_is_not_known(seeded: Seeded, sign_in: SignIn) -> None:
    html = text_of(sign_in("vera").get(f"/jobs/{seeded.job.pk}/ranks/{STUCK_RANK}"))
    assert "collectives that the hook cannot time" in html and "a part of the step is not known" in html
    assert all(row[2] != row[3] for row in cells_of(html))
