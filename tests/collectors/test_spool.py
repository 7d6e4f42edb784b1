"""The spool loses nothing that was flushed, doubles nothing, and says what it had to let go."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from collectors.spool import CHAIN_OF, Spool
from collectors.wire import codec, records
from collectors.wire.records import LANES, Lane, RankId
from tests.collectors.fakes import FakeClock

RANK = RankId(job="j", rank=0)


def event(number: int, size: int = 0) -> records.Event:
    return records.Event(t_ns=number, source="s", kind="k", severity="info", text="x" * size)


def block(number: int, size: int = 0) -> records.Block:
    return records.Block(
        minute_ns=number * 60_000_000_000, codec="cw1", metrics=[], data=os.urandom(size), rollup=b""
    )


def steps(number: int, size: int = 0) -> records.Steps:
    none: list[float | None] = [None] * max(1, size // 10)
    rows = len(none)
    return records.Steps(
        number, RANK, [number] * rows, [number] * rows, [0.1] * rows, none, none, none, none
    )  # fmt: skip


def identity(payload: bytes) -> tuple[str, int] | None:
    """What makes a test record itself; None for the spool's own reports."""
    record = codec.decode_record(payload)
    if isinstance(record, records.Dropped):
        return None
    return str(record.__struct_config__.tag), record.t_ns


def drain(spool: Spool, lane: Lane, after: int | None = None) -> list[tuple[int, bytes]]:
    out: list[tuple[int, bytes]] = []
    sequence = spool.acked(lane) if after is None else after
    while found := spool.read(lane, sequence, 7):
        out += found
        sequence = found[-1][0]
    return out


def reported(spool: Spool) -> dict[str, int]:
    """Sum of all ``Dropped`` records in the urgent lane."""
    total: dict[str, int] = {}
    for _, payload in drain(spool, "urgent", after=0):
        record = codec.decode_record(payload)
        if isinstance(record, records.Dropped):
            for name, count in record.counts.items():
                total[name] = total.get(name, 0) + count
    return total


class SpoolMachine(RuleBasedStateMachine):
    """A spool, a server that commits what it is sent, killed agents and power cuts, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="cw-spool-"))
        self.number = 0
        self.flushed: set[tuple[str, int]] = set()
        self.written: set[tuple[str, int]] = set()
        self.on_disk: dict[Path, int] = {}
        self.committed: dict[Lane, dict[int, bytes]] = {lane: {} for lane in LANES}
        self.sent: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self.open()

    def open(self) -> None:
        self.spool = Spool(self.folder, segment_bytes=700, clock=FakeClock())
        self.note_flushed()
        for lane in LANES:  # a new connection: the server says what it has
            self.spool.ack(lane, max(self.committed[lane], default=0))
            self.sent[lane] = self.spool.acked(lane)

    def note_flushed(self) -> None:
        self.flushed |= self.written
        self.on_disk = {path: path.stat().st_size for path in self.folder.rglob("*.seg")}

    @rule(kind=st.sampled_from([event, block, steps]), size=st.integers(0, 400))
    def append(self, kind: object, size: int) -> None:
        self.number += 1
        record = kind(self.number, size)  # type: ignore[operator]
        assert self.spool.append(record) is not None
        self.written.add((record.__struct_config__.tag, record.t_ns))

    @rule()
    def sync(self) -> None:
        self.spool.sync()
        self.note_flushed()

    @rule(lane=st.sampled_from(LANES), count=st.integers(1, 5), acks=st.booleans())
    def send(self, lane: Lane, count: int, acks: bool) -> None:
        """The server commits; the acknowledgement may be lost on its way."""
        found = self.spool.read(lane, self.sent[lane], count)
        for sequence, payload in found:
            assert sequence > self.sent[lane]
            assert sequence not in self.committed[lane]
            self.committed[lane][sequence] = payload
            self.sent[lane] = sequence
        if found and acks:
            self.spool.ack(lane, self.sent[lane])

    @rule()
    def report(self) -> None:
        self.spool.report_drops()

    @rule()
    def restart_cleanly(self) -> None:
        self.spool.close()
        self.open()

    @rule()
    def kill(self) -> None:
        """kill -9: what was written is in the page cache, nothing else happens any more."""
        self.abandon()
        self.open()

    @rule(keep=st.floats(0, 1))
    def cut_power(self, keep: float) -> None:
        """Bytes that were not flushed may be gone, from any byte on."""
        self.abandon()
        for path in self.folder.rglob("*.seg"):
            flushed, size = self.on_disk.get(path, 0), path.stat().st_size
            os.truncate(path, flushed + int((size - flushed) * keep))
        kept = {identity(payload) for payload in self.whole_records()}
        self.written = {found for found in self.written if found in kept or found in self.flushed}
        self.open()

    def abandon(self) -> None:
        for chain in self.spool._chains.values():
            for segment in chain.segments:
                segment.seal()

    def whole_records(self) -> list[bytes]:
        copy = Path(tempfile.mkdtemp(prefix="cw-spool-"))
        shutil.copytree(self.folder, copy, dirs_exist_ok=True)
        other = Spool(copy, clock=FakeClock())
        out = [payload for lane in LANES for _, payload in drain(other, lane, after=0)]
        other.close()
        shutil.rmtree(copy)
        return out

    @invariant()
    @precondition(lambda self: hasattr(self, "spool"))
    def nothing_is_doubled(self) -> None:
        for lane in LANES:
            found = [identity(payload) for payload in self.committed[lane].values()]
            known = [name for name in found if name is not None]
            assert len(known) == len(set(known))

    def teardown(self) -> None:
        self.spool.sync()
        self.note_flushed()
        for lane in LANES:
            rest = drain(self.spool, lane, after=self.sent[lane])
            assert [sequence for sequence, _ in rest] == sorted({sequence for sequence, _ in rest})
            for sequence, payload in rest:
                assert sequence not in self.committed[lane]
                self.committed[lane][sequence] = payload
        arrived = [identity(payload) for lane in LANES for payload in self.committed[lane].values()]
        known = [name for name in arrived if name is not None]
        assert len(known) == len(set(known))
        assert set(known) >= self.flushed
        self.spool.close()
        shutil.rmtree(self.folder)


SpoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSpoolMachine = SpoolMachine.TestCase


def test_numbers_rise_in_each_lane_and_survive_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    assert [spool.append(event(1)), spool.append(block(1)), spool.append(event(2))] == [1, 1, 2]
    epoch = spool.epoch
    spool.sync()
    spool.ack("urgent", 2)
    spool.close()
    again = Spool(tmp_path / "s")
    assert again.epoch == epoch
    assert again.append(event(3)) == 3
    assert again.acked("urgent") == 2


@pytest.mark.parametrize("lane", LANES)
def test_every_kind_of_record_takes_its_number_from_its_own_lane(lane: Lane) -> None:
    assert {kind for kind, own in records.LANE_OF.items() if own == lane} == {
        kind for kind in records.LANE_OF if records.LANE_OF[CHAIN_OF.get(kind, "event")] == lane
    }


def test_only_flushed_records_may_be_sent(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(event(1))
    assert spool.read("urgent", 0, 10) == []
    spool.sync()
    spool.append(event(2))
    assert [sequence for sequence, _ in spool.read("urgent", 0, 10)] == [1]


def test_a_wiped_folder_begins_a_new_epoch(tmp_path: Path) -> None:
    first = Spool(tmp_path / "s").epoch
    shutil.rmtree(tmp_path / "s")
    assert Spool(tmp_path / "s").epoch != first


def test_a_damaged_state_file_begins_a_new_epoch_and_keeps_the_records(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(event(1))
    spool.close()
    (tmp_path / "s" / "state.json").write_text("{half")
    again = Spool(tmp_path / "s")
    assert again.epoch != spool.epoch
    assert len(drain(again, "urgent")) == 1


def test_acknowledged_files_are_deleted(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", segment_bytes=1_000)
    for number in range(50):
        spool.append(event(number, 200))
    spool.sync()
    before = len(list((tmp_path / "s").rglob("*.seg")))
    spool.ack("urgent", 50)
    assert before > 5
    assert len(list((tmp_path / "s").rglob("*.seg"))) == 1
    assert spool.pending_records == 0


def test_what_was_acknowledged_is_remembered_when_its_files_are_gone(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", segment_bytes=1_000)
    for number in range(50):
        spool.append(event(number, 200))
    spool.sync()
    spool.ack("urgent", 40)
    assert Spool(tmp_path / "s").acked("urgent") == 40  # killed, not closed


def test_numbers_of_files_that_were_let_go_are_not_used_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", max_bytes=20_000, segment_bytes=4_000)
    assert [spool.append(block(number, 500)) for number in range(1, 6)] == [1, 2, 3, 4, 5]
    spool.sync()
    for number in range(40):
        spool.append(event(number, 500))  # drives all blocks out
    assert spool.read("bulk", 0, 1) == []
    assert Spool(tmp_path / "s").append(block(6)) == 6  # killed, not closed


def test_a_record_is_pending_until_it_is_acknowledged_or_let_go(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=4_000, segment_bytes=1_000)
    number = spool.append(block(1))
    assert number is not None
    assert spool.is_pending("bulk", number)
    assert not spool.is_pending("urgent", number)
    spool.ack("bulk", number)
    assert not spool.is_pending("bulk", number)
    second = spool.append(block(2, 1_000))
    assert second is not None
    assert spool.is_pending("bulk", second)
    for size in range(5):
        spool.append(event(size, 900))
    assert not spool.is_pending("bulk", second), "a full spool let it go"
    spool.close()


def test_a_full_spool_drops_raw_samples_first_then_steps_and_keeps_events(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", max_bytes=60_000, segment_bytes=4_000)
    for number in range(20):
        spool.append(event(number, 500))
        spool.append(steps(number, 100))
        spool.append(block(number, 1_000))
    for number in range(20, 60):
        spool.append(event(number, 500))
    spool.report_drops()
    spool.sync()
    kinds = [codec.decode_record(payload) for lane in LANES for _, payload in drain(spool, lane)]
    events = [record for record in kinds if isinstance(record, records.Event)]
    blocks = [record for record in kinds if isinstance(record, records.Block)]
    assert len(events) == 60
    assert len(blocks) < 20
    assert reported(spool)["block"] == 20 - len(blocks)
    assert "event" not in reported(spool)
    assert spool.size_bytes <= 60_000 + 64 * 1024


def test_a_newcomer_never_drives_out_what_is_more_precious(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", max_bytes=20_000, segment_bytes=4_000)
    for number in range(33):
        spool.append(event(number, 500))
    assert spool.append(block(1, 5_000)) is None
    spool.report_drops()
    spool.sync()
    assert reported(spool) == {"block": 1}
    assert len(drain(spool, "urgent")) == 33 + 1


def test_oldest_events_go_when_only_events_are_left(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", max_bytes=20_000, segment_bytes=2_000)
    for number in range(200):
        assert spool.append(event(number, 500)) is not None
    spool.report_drops()
    spool.sync()
    found = [codec.decode_record(payload) for _, payload in drain(spool, "urgent")]
    events = [record.t_ns for record in found if isinstance(record, records.Event)]
    assert events == list(range(200 - len(events), 200))
    assert reported(spool)["event"] == 200 - len(events)


def test_damage_in_the_middle_is_skipped_and_reported(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for number in range(10):
        spool.append(event(number, 50))
    spool.close()
    path = next((tmp_path / "s").rglob("*.seg"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    again = Spool(tmp_path / "s")
    again.report_drops()
    again.sync()
    assert sum(identity(payload) is not None for _, payload in drain(again, "urgent")) == 9
    assert reported(again) == {"event": 1}


def test_a_number_that_a_torn_tail_may_have_held_is_not_used_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for number in range(3):
        spool.append(event(number, 50))
    spool.sync()
    path = next((tmp_path / "s").rglob("*.seg"))
    state = (tmp_path / "s" / "state.json").read_text()
    os.truncate(path, path.stat().st_size - 5)
    (tmp_path / "s" / "state.json").write_text(state)
    again = Spool(tmp_path / "s")
    sequence = again.append(event(9))
    assert sequence is not None
    assert sequence > 3


def test_bytes_that_change_under_a_running_agent_are_skipped(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for number in range(3):
        spool.append(event(number, 50))
    spool.sync()
    path = next((tmp_path / "s").rglob("*.seg"))
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff\xff")
    assert [sequence for sequence, _ in drain(spool, "urgent")] == [1, 3]
    assert spool.unreadable_total == 1


def test_a_record_over_the_limit_is_dropped_and_reported(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    assert spool.append(block(1, 4 * 1024 * 1024)) is None
    spool.report_drops()
    spool.sync()
    assert reported(spool) == {"block": 1}


def test_a_rejected_record_is_reported_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(event(1))
    spool.sync()
    spool.note_rejected("urgent", 1, "future")
    spool.report_drops()
    spool.sync()
    report = codec.decode_record(drain(spool, "urgent")[-1][1])
    assert isinstance(report, records.Dropped)
    assert report.counts == {"event": 1}
    assert (report.reason, report.first_sequence, report.last_sequence) == ("rejected: future", 1, 1)
    spool.note_rejected("urgent", 2, "future")  # the report itself: no report of a report
    spool.report_drops()
    spool.sync()
    assert len(drain(spool, "urgent")) == 2


def test_a_disk_that_refuses_costs_the_record_and_not_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(event(1))
    real_write = os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert spool.append(event(2)) is None
    monkeypatch.setattr(os, "write", real_write)
    assert spool.append(event(3)) == 3
    spool.report_drops()
    spool.sync()
    # Room was made with the oldest event, and the second try failed as well.
    assert reported(spool) == {"event": 2}


def test_half_a_record_on_a_full_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "s")
    for number in range(3):
        spool.append(steps(number))
    real_write = os.write

    def half(fd: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return real_write(fd, bytes(data[: len(data) // 2]))

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    spool.append(event(1))
    monkeypatch.setattr(os, "write", real_write)
    spool.append(event(2))
    spool.close()
    again = Spool(tmp_path / "s")
    assert again.unreadable_total == 0
    assert [identity(payload) for _, payload in drain(again, "urgent")][0] == ("event", 2)


def test_a_full_disk_does_not_keep_acknowledged_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the disk could never become free again."""
    spool = Spool(tmp_path / "s", segment_bytes=1_000)
    for number in range(50):
        spool.append(event(number, 200))
    spool.sync()

    def full(path: object, *flags: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    spool.ack("urgent", 50)
    monkeypatch.undo()
    assert len(list((tmp_path / "s").rglob("*.seg"))) == 1


def test_a_file_the_disk_cannot_read_costs_its_records_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(event(1))
    spool.append(block(1))
    spool.close()
    real_open = Path.open

    def broken(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name.startswith("block"):
            raise OSError(5, "Input/output error")
        return real_open(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", broken)
    again = Spool(tmp_path / "s")
    assert len(drain(again, "urgent")) == 1
    again.report_drops()
    again.sync()
    assert reported(again) == {"block": 1}
    number = again.append(block(2))
    assert number is not None
    assert number > 1


def test_a_new_epoch_keeps_the_records(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(event(1))
    spool.sync()
    before = spool.epoch
    spool.begin_epoch()
    assert spool.epoch != before
    assert len(drain(spool, "urgent")) == 1
    spool.close()
    assert Spool(tmp_path / "s").epoch == spool.epoch


def test_the_folder_and_its_files_are_private(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(event(1))
    spool.close()
    for path in (tmp_path / "s").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
