"""Waiting for peers inside real torch processes over gloo: who works longest waits least."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collectors.hook.fake_agent import FakeAgent
from tests.collectors.hook.test_torch_jobs import environment, finish, launch, stop

pytestmark = [pytest.mark.torch]
pytest.importorskip("torch")

RANKS, SLOW = 4, 2
SETTLED = 4
"""Steps of each way that are left out: torch builds its buckets, the hook learns that C++ makes calls."""

Steps = dict[int, list[dict[str, Any]]]


class Lagging:
    """Four ranks, one of which has more to do, and what they told."""

    def __init__(self, folder: Path) -> None:
        agent = FakeAgent(folder / "hook.sock")
        agent.start()
        shared = environment(agent.path, WORLD_SIZE=str(RANKS))
        processes = [
            launch("lagging", shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(RANKS)
        ]
        try:
            said, errors, code = finish(processes[0])
        finally:
            for process in processes:
                stop(process)
            agent.stop()
        assert code == 0, errors
        self.ways = {line["way"]: (line["first"], line["last"]) for line in said}
        self.errors = errors
        pids = {frame.pid: frame.header["rank"] for frame in agent.of("hello")}
        self._rows: Steps = defaultdict(list)
        self.calls: Steps = defaultdict(list)
        for kind, rows_of in (("steps", self._rows), ("edges", self.calls)):
            for frame in agent.of(kind):
                columns = {n: frame.header[n] for n in frame.header if n not in ("k", "t_ns", "ops")}
                rows = zip(*columns.values(), strict=True)
                rows_of[pids[frame.pid]] += [dict(zip(columns, row, strict=True)) for row in rows]
        self.ops = [frame.header["ops"] for frame in agent.of("edges")]

    def steps(self, way: str) -> Steps:
        first, last = self.ways[way]
        kept = range(first + SETTLED + 1, last + 1)
        return {rank: [row for row in self._rows[rank] if row["step"] in kept] for rank in range(RANKS)}


@pytest.fixture(scope="module")
def lagging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lagging]:
    yield Lagging(tmp_path_factory.mktemp("lagging"))


@pytest.mark.parametrize("way", ["by_call", "by_work", "by_native", "by_comm_hook", "with_buffers"])
def test_the_slow_rank_works_longest_and_waits_least(lagging: Lagging, way: str) -> None:
    waits, works = {}, {}
    for rank, rows in lagging.steps(way).items():
        assert len(rows) == 10 - SETTLED and all(row["wait_s"] is not None for row in rows)
        waits[rank] = statistics.median(row["wait_s"] for row in rows)
        works[rank] = statistics.median(row["duration_s"] - row["wait_s"] for row in rows)
    rest = [rank for rank in range(RANKS) if rank != SLOW]
    assert works[SLOW] > 0.06 and works[SLOW] > max(works[rank] for rank in rest) + 0.03
    assert waits[SLOW] < min(waits[rank] for rank in rest) - 0.03
    assert min(waits[rank] for rank in rest) > 0.03


def test_the_shortest_of_a_call_among_the_members_is_the_transfer(lagging: Lagging) -> None:
    """One all-reduce of 16 numbers and one of 4 a step; three ranks wait for the fourth."""
    first, last = lagging.ways["by_call"]
    told = range(max(first + 1, 2), last + 1)
    shortest = {
        rank: [row["p10_s"] for row in rows if row["step"] in told and row["size_bytes"] == 64]
        for rank, rows in lagging.calls.items()
    }
    assert set(shortest) == set(range(RANKS)) and all(len(found) == len(told) for found in shortest.values())
    among = [min(found[place] for found in shortest.values()) for place in range(len(told))]
    assert statistics.median(among) < 0.015
    assert all(statistics.median(shortest[rank]) > 0.03 for rank in range(RANKS) if rank != SLOW)
    early = [row for rows in lagging.calls.values() for row in rows[:4]]
    assert all((row["group"], row["count"]) == (0, 1) for row in early)
    assert {op for ops in lagging.ops for op in ops} <= {"all_reduce", "barrier"}


def test_a_call_that_nobody_saw_being_made_leaves_the_waiting_unknown(lagging: Lagging) -> None:
    rows = [row for rows in lagging.steps("by_group").values() for row in rows]
    assert rows and all(row["wait_s"] is None and row["duration_s"] > 0 for row in rows)


def test_waiting_inside_a_checkpoint_is_the_checkpoints(lagging: Lagging) -> None:
    for rows in lagging.steps("in_checkpoint").values():
        assert all(row["wait_s"] + row["checkpoint_s"] <= row["duration_s"] + 0.001 for row in rows)
        assert statistics.median(row["checkpoint_s"] for row in rows) > 0.03


def test_the_job_hears_nothing_of_it(lagging: Lagging) -> None:
    assert "clusterwatch" not in lagging.errors


def test_a_compiler_still_knows_the_collectives(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path / "hook.sock")
    agent.start()
    process = launch("remapped", environment(agent.path))
    try:
        (said,), errors, code = finish(process)
    finally:
        stop(process)
        agent.stop()
    assert code == 0, errors
    assert said["known"] == [True] * 4 and said["pickled"]
    assert (said["graphs"], said["breaks"]) == (1, 0), "as without the hook"
    assert said["signature"].startswith("(tensor, op=")
