"""What the agent tells of processes that stand still, by a clock and a /proc that only the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from collectors import hook_messages as messages
from collectors import processes
from collectors.ranks import BLOCKED_LOOKS, BLOCKED_LOOKS_SPEAKING, RankState, RankTable
from collectors.wire import records

S = 1_000_000_000
PID = 4_242


class Node:
    """A table with one rank whose hook speaks and whose letter in /proc is what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_ns, self.letter, self.step = 1_000 * S, "S", 0
        self.emitted: list[Any] = []
        self.table = RankTable("n1", self, self.emitted.append)
        monkeypatch.setattr(processes, "state", lambda pid: self.letter)
        monkeypatch.setattr(processes, "wchan", lambda pid: "rpc_wait_bit_killable")
        self.rank: RankState = self.table.hello(PID, messages.Hello(v=1, rank=3, world_size=8, job="j"))

    def now_ns(self) -> int:
        return self.at_ns

    def monotonic_s(self) -> float:
        return self.at_ns / S

    def live(self, seconds: int, *, speaks: bool = True, steps: bool = False) -> list[str]:
        """Ticks of a second each; the words told since the begin."""
        for _ in range(seconds):
            self.at_ns += S
            self.step += steps
            if speaks:
                self.table.progress(self.rank, messages.Progress(step=self.step, phase="checkpoint"))
            self.table.look_at_still()
        return [record.fields["word"] for record in self.emitted if isinstance(record, records.Event)]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def test_a_rank_that_stands_in_a_write_is_told_though_its_hook_speaks(node: Node) -> None:
    node.letter = "D"
    assert node.live(4 + BLOCKED_LOOKS_SPEAKING) == []
    assert node.live(4) == ["blocked"]
    node.letter = "S"
    assert node.live(1) == ["blocked", "running"]


def test_a_checkpoint_that_is_in_the_kernel_at_most_looks_is_work(node: Node) -> None:
    for _ in range(10):
        node.letter = "D"
        node.live(BLOCKED_LOOKS_SPEAKING - 1)
        node.letter = "R"
        assert node.live(1) == []


def test_a_silent_process_in_the_kernel_is_told_after_two_looks(node: Node) -> None:
    node.letter = "D"
    assert node.live(2 + BLOCKED_LOOKS, speaks=False) == ["blocked"]


def test_a_rank_that_makes_steps_is_not_looked_at(node: Node) -> None:
    node.letter = "D"
    assert node.live(30, steps=True) == []


def test_labels_of_a_job_go_with_its_ranks_also_after_a_restart_of_the_agent(node: Node) -> None:
    hello = messages.Hello(v=1, rank=4, world_size=8, job="j", labels={"partition": "batch"})
    told = node.table.inventory(node.table.hello(PID + 1, hello))
    assert told.labels == {"partition": "batch"}
    later = RankTable("n1", node, node.emitted.append)
    later.adopt(told)
    assert [one.labels for one in later.inventories()] == [{"partition": "batch"}]
