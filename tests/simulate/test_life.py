"""A cluster served second by second by a clock of the test: one seed, one story; and ailing agents."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from clusterwatch.simulate import start
from clusterwatch.simulate.cluster import PHASES, Cluster
from clusterwatch.simulate.kept import Settings
from collectors.wire import blocks, codec, records
from tests.simulate.test_frames import unmasked

S = 1_000_000_000
MINUTE = 60 * S
BEGIN = 29_933_333 * MINUTE


class TestClock:
    """Stands until it is moved."""

    __test__ = False

    def __init__(self) -> None:
        self.t_ns = BEGIN

    def now_ns(self) -> int:
        return self.t_ns

    def monotonic_s(self) -> float:
        return self.t_ns / 1e9


class Recorder:
    """In place of a node's connection: keeps every message."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.times: list[int] = []
        self.connected, self.held = True, False

    def send_frame(self, frame: memoryview) -> bool:
        return self.send_message(unmasked(frame))

    def send_message(self, message: bytes) -> bool:
        if self.connected:
            self.messages.append(message)
        return self.connected

    def tend(self) -> None:
        """Nothing waits here."""

    def drop(self) -> None:
        self.connected, self.held = False, True

    def let_go(self) -> None:
        self.connected, self.held = True, False


class Life:
    """What a cluster of 64 GPUs said."""

    def __init__(self, root: Path, *faults: str, seed: int = 0) -> None:
        clock = TestClock()
        settings = Settings("c", 64, seed, root, "ws://127.0.0.1:1", token="t", faults=faults)
        self.cluster: Cluster = start.cluster(settings, clock)
        self._clock = clock
        self.wires = {line.node.name: Recorder() for line in self.cluster.lines}
        for line in self.cluster.lines:
            line.wire = self.wires[line.node.name]  # type: ignore[assignment]

    def live(self, first: int, last: int) -> Life:
        """Serves the seconds from ``first`` to ``last``."""
        for second in range(first, last):
            for number, group in enumerate(self.cluster._parts):
                self._clock.t_ns = BEGIN + second * S + number * S // PHASES
                self.cluster.serve(group, self._clock.t_ns)
        return self

    def frames(self, node: str) -> list[records.HotFrame]:
        return [codec.decode_from_node(message) for message in self.wires[node].messages]  # type: ignore[misc]

    def spooled(self, node: str, kind: type | None = None) -> list[records.Spooled]:
        line = next(line for line in self.cluster.lines if line.node.name == node)
        found = [
            codec.decode_record(payload)
            for lane in records.LANES
            for _, payload in line.spool.read(lane, 0, 10_000, 2**30)
        ]
        return [record for record in found if kind is None or isinstance(record, kind)]

    def everything(self) -> dict[str, list[bytes]]:
        said: dict[str, list[bytes]] = defaultdict(list)
        for line in self.cluster.lines:
            said[line.node.name] += self.wires[line.node.name].messages
            for lane in records.LANES:
                said[line.node.name] += [payload for _, payload in line.spool.read(lane, 0, 10_000, 2**30)]
        return said


ALL = ("gpu_off_bus@20+20", "slow_gpu@10", "agent_lagging@5", "clock_stepped@30", "link_flap@8", "psu_lost@3")


def test_one_seed_says_the_same_bytes_and_another_one_others(tmp_path: Path):
    lives = [
        Life(tmp_path / name, *ALL, seed=seed).live(0, 130) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, again, other = (life.everything() for life in lives)
    assert first == again and any(first[node] != other[node] for node in first)
    assert all(len(messages) > 60 for messages in first.values())


def test_a_second_more_of_one_node_changes_no_other(tmp_path: Path):
    plain, hit = (
        Life(tmp_path / "a").live(0, 30),
        Life(tmp_path / "b", "psu_lost:gpu-r001-n01@10").live(0, 30),
    )
    differing = {node for node, said in plain.everything().items() if said != hit.everything()[node]}
    assert differing == {"gpu-r001-n01"}


def test_a_node_says_what_it_is_before_anything_else(tmp_path: Path):
    life = Life(tmp_path).live(0, 3)
    node = life.cluster.lines[0].node.name
    inventory, *ranks = life.spooled(node)
    assert isinstance(inventory, records.Inventory) and inventory.facts["fabric"] == "roce"
    assert [record.id.rank for record in ranks] == list(range(8))
    assert {record.user for record in ranks} == {"svc-pretrain"} and len(ranks[0].groups) >= 3


def test_blocks_and_steps_of_every_minute(tmp_path: Path):
    life = Life(tmp_path).live(0, 185)
    for line in life.cluster.lines:
        found = life.spooled(line.node.name, records.Block)
        assert [block.minute_ns for block in found] == [BEGIN, BEGIN + MINUTE]
        for block in found:
            blocks.verify(block)
    steps = life.spooled(life.cluster.lines[0].node.name, records.Steps)
    numbers = [number for record in steps if record.id.rank == 3 for number in record.step]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 20


def test_the_agent_of_a_dead_node_says_nothing_and_keeps_nothing_of_that_time(tmp_path: Path):
    life = Life(tmp_path, "agent_dead:gpu-r001-n02@30+20").live(0, 130)
    times = np.array([(frame.t_ns - BEGIN) / S for frame in life.frames("gpu-r001-n02")])
    assert not ((times > 30.5) & (times < 50)).any() and (times > 52).sum() > 70
    assert len(life.frames("gpu-r001-n01")) == 130
    block = life.spooled("gpu-r001-n02", records.Block)[0]
    power = np.array(blocks.decode(block.metrics, block.data)[0]).reshape(8, 60)
    assert (power[:, 31:50] == blocks.MISSING).all() and (power[:, :30] != blocks.MISSING).all()


def test_the_minute_in_which_an_agent_died_is_kept_until_it_is_back(tmp_path: Path):
    life = Life(tmp_path, "agent_dead:gpu-r001-n02@30+100").live(0, 125)
    (kept,) = life.spooled("gpu-r001-n02", records.Block)
    assert kept.minute_ns == BEGIN and not life.wires["gpu-r001-n02"].connected
    assert life.live(125, 245).wires["gpu-r001-n02"].connected
    minutes = [block.minute_ns for block in life.spooled("gpu-r001-n02", records.Block)]
    assert minutes == [BEGIN, BEGIN + 2 * MINUTE], "in the minute between nobody looked"


def test_a_lagging_agent_sends_every_second_frame_and_its_blocks_late(tmp_path: Path):
    life = Life(tmp_path, "agent_lagging:gpu-r001-n02@30").live(0, 130)
    late = [frame for frame in life.frames("gpu-r001-n02") if frame.t_ns >= BEGIN + 30 * S]
    assert len(late) == 50 and {frame.t_ns // S % 2 for frame in late} == {0}
    assert len(life.frames("gpu-r001-n01")) == 130


def test_a_stepped_clock_moves_every_time_of_its_node_and_of_no_other(tmp_path: Path):
    life = Life(tmp_path, "clock_stepped:gpu-r001-n02@30").live(0, 185)
    before, after = life.frames("gpu-r001-n02")[29], life.frames("gpu-r001-n02")[40]
    assert (after.t_ns - before.t_ns) // S == 300 + 11
    moved, heard = (np.frombuffer(getattr(after.progress, name), "<i8") for name in ("moved_ns", "heard_ns"))
    assert (moved <= after.t_ns).all() and (after.t_ns - moved < 20 * S).all() and (heard <= after.t_ns).all()
    minutes = [block.minute_ns for block in life.spooled("gpu-r001-n02", records.Block)]
    assert minutes == [BEGIN + 5 * MINUTE, BEGIN + 6 * MINUTE]
    assert [b.minute_ns for b in life.spooled("gpu-r001-n01", records.Block)] == [BEGIN, BEGIN + MINUTE]


def test_a_dead_rank_is_in_no_frame_and_the_next_attempt_has_new_numbers(tmp_path: Path):
    life = Life(tmp_path, "rank_killed:88213/3@20+30").live(0, 75)
    refs = [
        np.frombuffer(frame.progress.ref, "<u4").tolist() if frame.progress else []
        for frame in life.frames("gpu-r001-n01")
    ]
    assert refs[10] == list(range(1, 9)) and refs[30] == [1, 2, 3, 5, 6, 7, 8]
    assert refs[47] == [] and refs[74] == list(range(9, 17))
    starts = life.spooled("gpu-r001-n01", records.RankInventory)
    assert [(record.id.attempt, record.ref) for record in starts[-8:]] == [(1, ref) for ref in range(9, 17)]


def test_after_a_restart_by_a_fault_the_next_simulator_begins_a_later_attempt(tmp_path: Path):
    def attempts(life: Life) -> set[int]:
        node = life.cluster.lines[0].node.name
        return {record.id.attempt for record in life.live(0, 3).spooled(node, records.RankInventory)}

    assert attempts(Life(tmp_path, "rank_killed:88213@20+30")) == {0}
    assert attempts(Life(tmp_path)) == {2} == attempts(Life(tmp_path))


@pytest.mark.parametrize("fault", ["gpu_off_bus:88213/3@20", "hbm_error:88213/3@20"])
def test_values_of_a_lost_gpu_are_unknown_in_frames_and_those_of_a_faulty_one_are_not(
    tmp_path: Path, fault: str
):
    life = Life(tmp_path, fault).live(0, 40)
    values = np.frombuffer(life.frames("gpu-r001-n01")[-1].metrics.values, "<f4")
    power = values[:8]
    assert np.isnan(power[3]) == ("gpu_off_bus" in fault) and not np.isnan(np.delete(power, 3)).any()
