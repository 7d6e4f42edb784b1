"""What hooks tell of GPU memory is a value of its rank; what they do not tell is null with a reason."""

from __future__ import annotations

from collectors.hook_messages import Allocator, Hello
from collectors.rank_allocator import NOT_TOLD, STALE_NS, AllocatorReadings
from collectors.ranks import RankTable
from tests.collectors.fakes import FakeClock


def table(clock: FakeClock) -> RankTable:
    found = RankTable("n1", clock, lambda record: None)
    for rank in (0, 1):
        found.hello(100 + rank, Hello(v=1, rank=rank, world_size=2, job="7"))
    return found


def test_each_rank_has_its_allocator_or_says_why_not() -> None:
    clock = FakeClock()
    ranks = table(clock)
    state = ranks.get(101)
    assert state is not None
    ranks.set_allocator(state, Allocator(4, 0, 10, 20, 30))
    samples = AllocatorReadings().reading(ranks, clock.now_ns()).samples
    told = {(one.entity, one.metric): (one.value, one.quality) for one in samples}
    assert told["job/7/rank/1", "torch_allocator_retries_total"] == (4, "ok")
    assert told["job/7/rank/1", "torch_reserved_bytes"] == (30, "ok")
    assert told["job/7/rank/1", "torch_out_of_memory_total"] == (0, "ok")
    assert told["job/7/rank/0", "torch_reserved_bytes"] == (None, NOT_TOLD)
    assert len(told) == 10


def test_an_old_word_is_no_value() -> None:
    clock = FakeClock()
    ranks = table(clock)
    state = ranks.get(100)
    assert state is not None
    ranks.set_allocator(state, Allocator(4, 0, 10, 20, 30))
    later = AllocatorReadings().reading(ranks, clock.now_ns() + STALE_NS)
    assert {one.value for one in later.samples} == {None}


def test_a_node_without_ranks_tells_nothing() -> None:
    assert not AllocatorReadings().reading(RankTable("n1", FakeClock(), lambda record: None), 1).samples
