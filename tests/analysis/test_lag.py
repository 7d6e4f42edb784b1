"""Who is behind whom."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from clusterwatch.analysis.lag import ABSENT, NO_DUMP, UNKNOWN, matrix, standing
from collectors.formats.columns import NULL
from tests.cli.report.made import stuck_job, windows
from tests.data.recorder import Job


def test_counts_the_calls_a_rank_lacks_in_each_role() -> None:
    lag = matrix(standing(windows(stuck_job())), 8)
    tp, dp = lag.roles.index("tp"), lag.roles.index("dp")
    assert lag.roles[0] == "tp", "the role in which somebody is behind comes first"
    assert lag.behind[:, tp].tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
    assert lag.behind[:, dp].tolist() == [0] * 8
    assert lag.waits[:, tp].tolist() == [False] * 4 + [True] + [False] * 3


def test_a_role_without_a_call_has_no_column() -> None:
    lag = matrix(standing(windows(stuck_job())), 8)
    assert set(lag.roles) == {"tp", "dp"} and lag.idle_roles == 2  # pp and the world made no call


def test_a_rank_without_a_dump_is_neither_behind_nor_at_the_front() -> None:
    lag = matrix(standing(windows(stuck_job(), without=(2,))), 8)
    assert set(lag.behind[2].tolist()) == {NO_DUMP}
    assert not lag.waits[2].any()


def test_ranks_that_are_in_no_group_of_a_role_are_told_apart() -> None:
    job = Job(3)
    job.group("1", "tp", (0, 1))
    job.all(group="1")
    lag = matrix(standing(windows(job)), 3)
    assert lag.behind[:, lag.roles.index("tp")].tolist() == [0, 0, ABSENT]


def test_a_ring_that_lost_its_calls_does_not_make_a_rank_late() -> None:
    job = Job(2)
    job.group("1", "tp", (0, 1))
    job.all(group="1")
    job.call(1, "1")
    first, second = windows(job)
    facts = first.groups.copy()
    facts[["low", "high", "last_enqueued"]] = (NULL, NULL, NULL)
    known = matrix(standing((replace(first, group_bytes=facts.tobytes()), second)), 2)
    assert known.behind[0, known.roles.index("tp")] == 2, "a whole ring without a call means none was made"
    lag = matrix(standing((replace(first, group_bytes=facts.tobytes(), truncated=True), second)), 2)
    assert lag.behind[0, lag.roles.index("tp")] == UNKNOWN


def test_undescribed_groups_are_told_apart_by_the_distance_of_their_members() -> None:
    job = Job(8)
    for name, ranks in (("7", (0, 1)), ("8", (2, 3)), ("9", (0, 4)), ("10", (0, 1, 3)), ("11", (5,))):
        job.group(name, "undefined", ranks)
        job.all(group=name)
    roles = set(matrix(standing(windows(job)), 8).roles)
    assert roles == {"groups of 2 neighbours", "groups of 2 at a distance of 4", "groups of 3", "groups of 1"}


def test_the_order_of_dumps_changes_nothing() -> None:
    found = list(windows(stuck_job()))
    first = matrix(standing(found), 8)
    random.Random(5).shuffle(found)
    again = matrix(standing(found), 8)
    assert first.roles == again.roles
    assert np.array_equal(first.behind, again.behind) and np.array_equal(first.waits, again.waits)


def test_no_dump_at_all_gives_an_empty_matrix() -> None:
    lag = matrix(standing(()), 2)
    assert lag.roles == () and lag.behind.shape == (2, 0)
