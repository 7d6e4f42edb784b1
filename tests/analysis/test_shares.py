"""Gathers and scatters of several roots or none, also where some members have left the call already."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.cases.jobs import Call, Job, Sync
from tests.cases.judged import Verdict, judge, named
from tests.cases.writer import Group


def rooted(group: Group, rank: int, op: str, roots: Iterable[int]) -> Call:
    """What a rank passes: only a root has both sides."""
    mine, everything = ((64,),), ((64,),) * len(group.ranks) if rank in roots else ()
    return Call(group, op, *((everything, mine) if op == "scatter" else (mine, everything)))


def stuck(
    op: str, roots: set[int], done: Iterable[int], *, before: Iterable[int] = (2,), more: int = 0
) -> Job:
    """Four ranks; the sixth call never ends but for ``done``, which go on to ``more`` further calls.

    Args:
        before: the roots of an earlier call of the kind, which ended.
    """
    job = Job(4)
    job.repeat(4, Call(job.default), Sync())
    job.never = frozenset({("0", 6)})
    for rank in range(4):
        job.programs[rank].append(rooted(job.default, rank, op, before))
        job.programs[rank] += [Sync(), rooted(job.default, rank, op, roots)]
    job.run()
    for rank in done:
        job.rings[rank].finish(job.rings[rank].entries[5], job.now_ns)
        for _ in range(more):
            job.rings[rank].collective(job.default, at_ns=job.now_ns)
    return job


def found(op: str, roots: set[int], done: Iterable[int], **how: object) -> Verdict:
    return judge(stuck(op, roots, done, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize("op", ["gather", "scatter"])
class TestHalfDone:
    @pytest.mark.parametrize("more", [0, 1])
    @pytest.mark.parametrize("done", [(), (1,), (1, 2), (0,), (0, 1, 2)])
    def test_two_roots_are_suspects_whoever_has_left(self, op: str, done: tuple[int, ...], more: int) -> None:
        verdict = found(op, {0, 3}, done, more=more)
        assert named(verdict) == ("size_mismatch", [], [0, 3]) and verdict["cause"] == "two_roots"
        assert verdict["seq"] == 6 and len(verdict["findings"]) == 1
        assert verdict["summary"].startswith(f"Ranks 0, 3 each act as the root: {op} 6")

    @pytest.mark.parametrize("done", [(), (1,), (1, 2)])
    def test_no_root_suspects_all(self, op: str, done: tuple[int, ...]) -> None:
        verdict = found(op, set(), done)
        assert named(verdict) == ("size_mismatch", [], [0, 1, 2, 3]) and verdict["cause"] == "no_root"

    @pytest.mark.parametrize("done", [(0,), (0, 1), (0, 1, 3)])
    def test_one_root_is_no_mismatch(self, op: str, done: tuple[int, ...]) -> None:
        assert named(found(op, {2}, done)) == ("no_fault", [], [])

    def test_not_where_the_recorder_notes_every_such_call_like_that(self, op: str) -> None:
        assert found(op, set(), (), before=())["verdict"] == "all_joined_not_finished"
        assert found(op, set(), (1,), before=())["verdict"] == "no_fault"

    def test_not_where_a_member_has_not_come_yet(self, op: str) -> None:
        """Rank 1 may be the root of its own call; what is lacking is told first."""
        job = stuck(op, {0, 3}, ())
        del job.rings[1].entries[5:]
        status = job.rings[1]._status
        status[0][0] = 5
        assert named(judge(job)) == ("missing_rank", [1], [])


@pytest.mark.parametrize("members", [(1, 3, 5, 7), (4, 5)])
def test_a_ratio_that_fits_nobody_is_told_of_the_group_it_is_in(members: tuple[int, ...]) -> None:
    job = Job(8)
    group = job.group("7", "part", members)
    job.repeat(4, Call(job.default), Sync())
    job.never = frozenset({("7", 1)})
    short = ((512 * len(members) - 4,),)
    job.every(Call(group, "_all_gather_base", ((512,),), short), Sync(), ranks=members)
    job.every(Call(job.default), Sync())
    verdict = judge(job.run())
    assert named(verdict) == ("size_mismatch", [], list(members)) and verdict["downstream"]["ranks"] > 0
    assert verdict["summary"].startswith(f"Ranks {', '.join(map(str, members))} all pass sizes that fit no")
