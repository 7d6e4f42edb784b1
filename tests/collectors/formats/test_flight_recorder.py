"""The decoder on both flavours, on old and broken dumps, and under fuzzing."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats.columns import COMPLETED, NULL, SCHEDULED, TraceColumns, check, pack, unpack
from collectors.formats.flight_recorder import DUMP_MAX_BYTES, decode
from collectors.formats.trace import TraceError
from collectors.wire import limits
from tests.data.recorder import Job


def two_ranks() -> Job:
    job = Job(2)
    job.group("1", "tp", (0, 1))
    job.all()
    job.all(group="1", op="_all_gather_base", size=(4, 8), out=(8, 8))
    job.send(0, 1, state="scheduled")
    return job


def dumped(**changes: Any) -> bytes:
    return pickle.dumps(two_ranks().dump(0) | changes, protocol=2)


def entry(**changes: Any) -> bytes:
    """A dump whose first entry is changed; None drops the key."""
    dump = two_ranks().dump(0)
    row = dump["entries"][0] | changes
    dump["entries"] = [{k: v for k, v in row.items() if v is not None}]
    return pickle.dumps(dump, protocol=2)


def test_pickle_and_json_tell_the_same_story() -> None:
    job = two_ranks()
    assert decode(job.pickled(0), 0) == decode(job.json(0), 0)


def test_reads_the_fields_of_an_entry() -> None:
    trace = decode(two_ranks().pickled(0), 0, "file", 5)
    rows = trace.entries
    calls = [trace.signatures[at] for at in rows.signature]
    assert (trace.version, trace.backend, trace.source, trace.taken_ns) == ("2.10", "nccl", "file", 5)
    assert [call.op for call in calls] == ["all_reduce", "_all_gather_base", "send 0->1"]
    assert [call.is_p2p for call in calls] == [False, False, True]
    assert calls[1].input_sizes == ((4, 8),) and calls[1].output_sizes == ((8, 8),)
    assert list(rows.sequence) == [1, 1, 1] and list(rows.stack) == [NULL] * 3
    assert list(rows.state) == [COMPLETED, COMPLETED, SCHEDULED]
    assert [trace.groups[g].desc for g in rows.group] == ["default_pg", "tp", "default_pg"]
    assert trace.groups[1].ranks == (0, 1)
    check(trace)


def test_unknown_is_told_and_never_zero() -> None:
    trace = decode(two_ranks().json(0), 0)
    assert list(trace.entries.started_ns) == [NULL] * 3
    assert trace.entries.completed_ns[2] == NULL
    assert all(group.last_started is None for group in trace.groups)


def test_status_is_joined_through_entries() -> None:
    trace = decode(two_ranks().pickled(0), 0)
    by_desc = {group.desc: group for group in trace.groups}
    assert (by_desc["tp"].last_enqueued, by_desc["tp"].last_completed) == (1, 1)


def silent_groups(*made: int, entries: bool) -> list[int | None]:
    """``last_enqueued`` of groups 5, 6, ... without an entry, whose status rows say ``made``."""
    names = range(5, len(made) + 5)
    config = {str(n): {"name": str(n), "desc": f"g{n}", "ranks": "[0, 1]"} for n in (0, *names)}
    rows = {str(n): {"last_enqueued_collective": number} for n, number in zip(names, made, strict=True)}
    held = json.loads(two_ranks().json(0))["entries"] if entries else []
    data = {"version": "2.10", "pg_config": config, "pg_status": rows, "entries": held}
    return [g.last_enqueued for g in decode(json.dumps(data).encode(), 0).groups if g.name >= "5"]


def test_a_group_whose_calls_the_ring_has_dropped_has_its_status_all_the_same() -> None:
    assert silent_groups(7, entries=True) == [7]
    assert silent_groups(7, 4, entries=True) == [4, 4]
    assert silent_groups(7, -1, entries=True) == [None, None]


def test_a_ring_that_lost_everything_proves_no_call_lacking() -> None:
    assert silent_groups(7, 4, entries=False) == [7, 7]
    assert silent_groups(-1, entries=False) == [None]


def test_a_rank_without_calls_has_groups_and_no_entries() -> None:
    trace = decode(Job(3).json(1), 1)
    assert len(trace.entries) == 0 and trace.groups[0].ranks == (0, 1, 2)


def test_members_that_cannot_be_right_are_left_out() -> None:
    gloo = Job(4, "gloo")
    gloo.all()
    assert decode(gloo.pickled(0), 0).groups[0].ranks == ()
    foreign = {"0": {"name": "0", "desc": "default_pg", "ranks": "[4, 5]"}}
    assert decode(dumped(pg_config=foreign), 0).groups[0].ranks == ()


def test_two_local_groups_of_one_name_get_no_members() -> None:
    dump = two_ranks().dump(0)
    dump["entries"][1]["process_group"] = ("0", "default_pg")
    trace = decode(pickle.dumps(dump, protocol=2), 0)
    assert [group.ranks for group in trace.groups if group.name == "0"] == [(), ()]


@pytest.mark.parametrize("version", ["3.0", "0.9", "two", "", "2" * 40, 2, None])
def test_refuses_only_an_unknown_major_version(version: Any) -> None:
    with pytest.raises(TraceError, match="version"):
        decode(dumped(version=version), 0)


@pytest.mark.parametrize("version", ["1.0", "2.0", "2.9", "2.10", "2.999"])
def test_reads_every_known_major_version(version: str) -> None:
    assert decode(dumped(version=version), 0).version == version


def test_old_entries_without_newer_fields_are_read() -> None:
    old = {"pg_id": 0, "seq_id": 7, "profiling_name": "nccl:all_reduce", "state": "completed"}
    trace = decode(pickle.dumps({"version": "1.5", "entries": [old]}, protocol=2), 0)
    assert list(trace.entries.sequence) == [7] and trace.groups[0].name == "0"


@pytest.mark.parametrize(
    "changes",
    [
        {"collective_seq_id": "many"},
        {"time_created_ns": 2**64 - 1},
        {"input_sizes": [[-5, "x"]]},
        {"frames": []},
        {"process_group": None},
        {"state": "dancing"},
        {"profiling_name": None},
        {"record_id": True},
    ],
)
def test_an_odd_field_does_not_lose_the_dump(changes: dict[str, Any]) -> None:
    check(decode(entry(**changes), 0))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"[1, 2]",
        b'{"version": "2.10"}',
        b"{" * 100_000,
        pickle.dumps([1], protocol=2),
        pickle.dumps({"version": "2.10", "entries": {}, "pg_config": {}} | {"entries": "x"}, protocol=2),
        dumped(entries=[1]),
        entry(frames=[1]),
        entry(input_sizes=[7]),
        entry(process_group=("x" * 300, "")),
        entry(profiling_name="nccl:" + "x" * 300),
        json.dumps({"version": "2.10", "entries": [[]]}).encode(),
    ],
)
def test_names_what_is_no_dump(data: bytes) -> None:
    with pytest.raises(TraceError):
        decode(data, 0)


def test_size_and_count_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match="bytes"):
        decode(b"\x80" * (DUMP_MAX_BYTES + 1), 0)
    monkeypatch.setattr(limits, "ENTRIES_PER_TRACE_MAX", 2)
    with pytest.raises(TraceError, match="entries"):
        decode(two_ranks().pickled(0), 0)


def test_shared_objects_are_converted_once() -> None:
    """A pickle may point a hundred thousand entries at one list of thousands of shapes."""
    shapes = [[1, 2, 3]] * 8_000
    row = two_ranks().dump(0)["entries"][0] | {"input_sizes": shapes}
    trace = decode(pickle.dumps({"version": "2.10", "entries": [row] * 20_000}, protocol=2), 0)
    assert len(trace.entries) == 20_000
    assert len(trace.signatures) == 1 and len(trace.signatures[0].input_sizes) == 8_000


def test_stacks_are_read_innermost_first_and_capped() -> None:
    frames = [{"name": f"f{n}", "filename": "job.py", "line": n} for n in range(400)]
    trace = decode(entry(frames=frames), 0)
    assert trace.stacks[0][0] == "f0 (job.py:0)"
    assert len(trace.stacks[0]) == limits.FRAMES_PER_STACK_MAX


def sound(data: bytes) -> TraceColumns | None:
    """The decoder either refuses in words or gives a trace that survives the wire."""
    try:
        trace = decode(data, 0)
    except TraceError as error:
        assert str(error)
        return None
    check(trace)
    assert unpack(pack(trace)) == trace
    return trace


@given(st.integers(0, 2**32), st.sampled_from(["pickle", "json"]))
def test_a_cut_off_dump_is_refused(seed: int, flavour: str) -> None:
    whole = two_ranks().pickled(0) if flavour == "pickle" else two_ranks().json(0)
    cut = random.Random(seed).randrange(len(whole))
    with pytest.raises(TraceError):
        decode(whole[:cut], 0)


@given(st.integers(0, 2**32), st.sampled_from(["pickle", "json"]))
def test_flipped_bits_never_escape(seed: int, flavour: str) -> None:
    data = bytearray(two_ranks().pickled(0) if flavour == "pickle" else two_ranks().json(0))
    source = random.Random(seed)
    for _ in range(source.randint(1, 6)):
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    sound(bytes(data))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["version", "entries", "pg_config", "pg_status", "nccl_comm_state"])


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_shape_of_json_never_escapes(dump: dict[str, Any]) -> None:
    sound(json.dumps({"version": "2.10"} | dump).encode())


@given(st.dictionaries(st.sampled_from(sorted(two_ranks().dump(0)["entries"][0])), VALUES, max_size=4))
def test_any_value_in_any_field_never_escapes(changes: dict[str, Any]) -> None:
    dump = two_ranks().dump(0)
    dump["entries"][0].update(changes)
    sound(json.dumps(dump).encode())
