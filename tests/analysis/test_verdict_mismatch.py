"""op, size, type and order mismatches; what is legal; and the two-rank ties that name nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cases.jobs import Call, Halt, Job, Parts, Sync
from tests.cases.judged import Verdict, judge, named, where
from tests.cases.meshes import mesh, train
from tests.cases.writer import Flavour


def flat(world: int, calls: int = 5, flavour: Flavour = Flavour()) -> Job:  # noqa: B008
    job = Job(world, flavour)
    job.repeat(calls, Call(job.default), Sync())
    return job


def odd(world: int, usual: dict[str, object], other: dict[str, object], prefix: str = "nccl") -> Verdict:
    """Rank 1 passes ``other`` in call 6, the rest ``usual``."""
    job = flat(world, flavour=Flavour(prefix))
    for rank in range(world):
        what = other if rank == 1 else usual
        job.programs[rank] += [Call(job.default, **what), Sync()]  # type: ignore[arg-type]
    return judge(job.run())


def gathered(count: int, world: int, short: int = 0) -> dict[str, object]:
    return {"op": "_all_gather_base", "inputs": ((count,),), "outputs": ((count * world - short,),)}


def scattered(count: int, world: int) -> dict[str, object]:
    return {"op": "_reduce_scatter_base", "inputs": ((count * world,),), "outputs": ((count,),)}


KINDS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "op": ("op_mismatch", {}, {"op": "broadcast"}),
    "size": ("size_mismatch", {}, {"inputs": ((1000,),)}),
    "type": ("dtype_mismatch", {}, {"dtype": "Half"}),
}


class TestMajority:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("world", [3, 4, 8])
    @pytest.mark.parametrize("prefix", ["nccl", "gloo", "ncclx"])
    def test_names_the_odd_one(self, kind: str, world: int, prefix: str) -> None:
        verdict, usual, other = KINDS[kind]
        found = odd(world, usual, other, prefix)
        assert named(found) == (verdict, [1], []) and where(found) == ("0", 6, "all_reduce")

    @pytest.mark.parametrize("kind", KINDS)
    def test_names_neither_of_two(self, kind: str) -> None:
        verdict, usual, other = KINDS[kind]
        assert named(odd(2, usual, other)) == (verdict, [], [0, 1])

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("desc", ["mesh_{}", "undefined"])
    def test_sibling_groups_decide_between_two(self, kind: str, desc: str) -> None:
        verdict, _, other = KINDS[kind]
        job = train(mesh(tp=2, dp=4))
        if desc == "undefined":
            job = _undescribed(job)
        program = job.programs[5]
        pairs = [n for n, move in enumerate(program) if isinstance(move, Call) and len(move.group.ranks) == 2]
        call = program[pairs[6]]
        assert isinstance(call, Call)
        program[pairs[6]] = replace(call, **other)  # type: ignore[arg-type]
        found = judge(job.run())
        assert named(found) == (verdict, [5], []) and found["group"]["ranks"] == [4, 5]

    def test_a_rank_that_never_came_to_the_call_is_a_fault_of_its_own(self) -> None:
        job = flat(8)
        job.programs[5].append(Halt())
        job.programs[2].append(Call(job.default, inputs=((7,),)))
        job.every(Call(job.default))
        found = judge(job.run())
        named_by = {(one["verdict"], *one["culprit_ranks"]) for one in found["findings"]}
        assert named_by == {("size_mismatch", 2), ("missing_rank", 5)}

    def test_other_shapes_of_one_count_are_legal(self) -> None:
        assert named(odd(4, {"inputs": ((32, 32),)}, {})) == ("no_fault", [], [])

    def test_a_call_too_many_is_told_where_it_comes_up(self) -> None:
        job = train(mesh(tp=2, dp=4), steps=4)
        calls = [
            n for n, m in enumerate(job.programs[5]) if isinstance(m, Call) and m.group.desc == "mesh_dp"
        ]
        job.programs[5].insert(calls[4], job.programs[5][calls[4]])
        assert named(judge(job.run())) == ("op_mismatch", [5], [])

    def test_a_call_left_out_is_no_swap(self) -> None:
        job = train(mesh(tp=2, dp=4), steps=4)
        calls = [
            n for n, m in enumerate(job.programs[5]) if isinstance(m, Call) and m.group.desc == "mesh_dp"
        ]
        del job.programs[5][calls[4]]
        assert named(judge(job.run())) == ("op_mismatch", [5], [])


def _undescribed(job: Job) -> Job:
    """The same job with groups that nobody described."""
    renamed = {g: replace(g, desc="undefined") for g in job.groups[1:]}
    job.groups = [renamed.get(g, g) for g in job.groups]
    for ring, program in zip(job.rings, job.programs, strict=True):
        ring.groups = [renamed.get(g, g) for g in ring.groups]
        program[:] = [
            replace(m, group=renamed.get(m.group, m.group)) if isinstance(m, Call) else m for m in program
        ]
    return job


class TestSizes:
    @pytest.mark.parametrize("world", [3, 4])
    @pytest.mark.parametrize("shape", [gathered, scattered])
    def test_gathers_and_scatters(self, world: int, shape: type) -> None:
        assert named(odd(world, shape(512, world), shape(500, world))) == ("size_mismatch", [1], [])

    def test_the_one_whose_output_fits_the_group_decides_between_two(self) -> None:
        found = odd(2, gathered(512, 2), gathered(512, 2, short=24))
        assert named(found) == ("size_mismatch", [1], []) and "fits" in " ".join(found["why"])

    def test_a_ratio_that_no_member_can_meet_suspects_all(self) -> None:
        job = flat(4)
        job.never = frozenset({("0", 6)})
        job.every(Call(job.default, **gathered(512, 4, short=4)))  # type: ignore[arg-type]
        found = judge(job.run())
        assert named(found) == ("size_mismatch", [], [0, 1, 2, 3]) and found["cause"] == "wrong_ratio"

    def test_not_where_the_recorder_notes_all_gathers_like_that(self) -> None:
        job = Job(4)
        job.repeat(5, Call(job.default, "all_gather", ((512,),), ((512,),)), Sync())
        job.never = frozenset({("0", 6)})
        job.every(Call(job.default, "all_gather", ((512,),), ((512,),)))
        assert named(judge(job.run())) == ("all_joined_not_finished", [], [])

    def rooted(self, op: str, roots: set[int], share: dict[int, int], never: bool, swapped: bool) -> Verdict:
        """A gather or scatter; NCCL notes a scatter's output as its input (``swapped``)."""
        job = flat(4)
        job.never = frozenset({("0", 6)}) if never else frozenset()
        for rank in range(4):
            mine, all_of = ((share.get(rank, 64),),), ((64,),) * 4 if rank in roots else ()
            both = (all_of, mine) if (op == "scatter") is not swapped else (mine, all_of)
            job.programs[rank] += [Call(job.default, op, *both), Sync()]
        return judge(job.run())

    @pytest.mark.parametrize(("op", "swapped"), [("gather", False), ("scatter", False), ("scatter", True)])
    def test_a_root_passes_more_than_the_others(self, op: str, swapped: bool) -> None:
        stuck = self.rooted(op, {2}, {}, never=True, swapped=swapped)
        assert named(stuck) == ("all_joined_not_finished", [], [])
        wrong = self.rooted(op, {2}, {1: 60}, never=True, swapped=swapped)
        assert named(wrong) == ("size_mismatch", [1], [])

    @pytest.mark.parametrize("op", ["gather", "scatter"])
    def test_two_roots_are_suspects(self, op: str) -> None:
        found = self.rooted(op, {0, 3}, {}, never=True, swapped=False)
        assert named(found) == ("size_mismatch", [], [0, 3]) and found["cause"] == "two_roots"

    def test_no_root_at_all(self) -> None:
        found = self.rooted("scatter", set(), {}, never=True, swapped=False)
        assert found["verdict"] == "size_mismatch" and found["cause"] == "no_root"

    def exchange(self, sent: list[int], received: list[int], op: str = "all_to_all") -> Verdict:
        job = flat(len(sent))
        job.never = frozenset({("0", 6)})
        for rank, (out, back) in enumerate(zip(sent, received, strict=True)):
            job.programs[rank].append(Call(job.default, op, ((out,),), ((back,),)))
        return judge(job.run())

    @pytest.mark.parametrize("op", ["all_to_all", "alltoall_base", "all_to_allv"])
    def test_uneven_exchanges_are_legal_by_their_totals(self, op: str) -> None:
        assert self.exchange([100, 200, 300], [300, 200, 100], op)["verdict"] == "all_joined_not_finished"

    @pytest.mark.parametrize("op", ["all_to_all", "all_to_allv"])
    def test_totals_that_differ_name_who_leaves_an_even_split(self, op: str) -> None:
        assert named(self.exchange([100, 50, 100, 100], [100] * 4, op)) == ("size_mismatch", [1], [])

    def test_totals_of_an_uneven_exchange_name_nobody(self) -> None:
        assert named(self.exchange([100, 250, 300], [300, 200, 100])) == ("size_mismatch", [], [0, 1, 2])

    @pytest.mark.parametrize("op", ["all_gather_v", "reduce_scatter_v"])
    def test_v_collectives_may_differ(self, op: str) -> None:
        found = odd(4, {"op": op, "inputs": ((100,),)}, {"op": op, "inputs": ((300,),)})
        assert named(found) == ("no_fault", [], [])


class TestCoalesced:
    def parts(self, job: Job) -> Parts:
        """An uneven all-gather: a broadcast per member, closed by one entry."""
        members = tuple(Call(job.default, "_broadcast_oop", ((100 + n,),)) for n in range(4))
        return Parts(job.default, "ALLGATHER_coalesced", members)

    def test_a_healthy_one_is_no_fault(self) -> None:
        job = flat(4)
        job.every(self.parts(job), Call(job.default), Sync())
        assert named(judge(job.run())) == ("no_fault", [], [])

    def test_absent_on_one_rank_names_it(self) -> None:
        job = flat(4)
        for rank in range(4):
            job.programs[rank] += [*([] if rank == 2 else [self.parts(job)]), Call(job.default), Sync()]
        found = judge(job.run())
        assert named(found) == ("op_mismatch", [2], []) and found["op"] == "ALLGATHER_coalesced"


class TestOrder:
    def swapped(self, world: int, blocking: bool = False, by_size: bool = False) -> Verdict:
        job = flat(world)
        first = Call(job.default)
        second = Call(job.default, inputs=((10,),)) if by_size else Call(job.default, "broadcast", ((10,),))
        for rank in range(world):
            one, two = (second, first) if rank == 1 else (first, second)
            job.programs[rank] += [one, Sync(), two] if blocking else [one, two]
        return judge(job.run())

    @pytest.mark.parametrize("by_size", [False, True])
    @pytest.mark.parametrize("world", [3, 4, 8])
    def test_a_swap_is_one_finding(self, world: int, by_size: bool) -> None:
        found = self.swapped(world, by_size=by_size)
        assert named(found) == ("order_mismatch", [1], []) and len(found["findings"]) == 1
        assert found["seq"] == 6

    def test_a_host_that_blocks_shows_another_operation_only(self) -> None:
        assert named(self.swapped(4, blocking=True)) == ("op_mismatch", [1], [])

    @pytest.mark.parametrize("world", [2, 4, 8])
    def test_a_swap_over_two_groups_is_one_finding(self, world: int) -> None:
        job = Job(world, one_stream=True)
        a, b = job.group("1", "a", range(world)), job.group("2", "b", range(world))
        job.repeat(4, Call(job.default), Sync())
        for rank in range(world):
            job.programs[rank] += [Call(b), Call(a)] if rank == 1 else [Call(a), Call(b)]
        found = judge(job.run())
        assert found["verdict"] == "order_mismatch" and len(found["findings"]) == 1
        assert (found["culprit_ranks"], found["suspect_ranks"]) == (([], [0, 1]) if world == 2 else ([1], []))

    def test_the_same_order_on_all_is_no_swap(self) -> None:
        job = Job(4, one_stream=True)
        a, b = job.group("1", "a", range(4)), job.group("2", "b", range(4))
        job.never = frozenset({("1", 1)})
        job.every(Call(job.default), Sync(), Call(a), Call(b))
        found = judge(job.run())
        assert named(found) == ("all_joined_not_finished", [], []) and found["group"]["name"] == "1"
