"""The compiled and the plain reader of pickles give one answer, on sound dumps and on broken ones."""

from __future__ import annotations

import copy
import os
import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats import flight_recorder
from collectors.formats.flight_recorder import decode
from collectors.formats.trace import TraceError
from tests.data.recorder import Job


def read(data: bytes) -> Any:
    assert flight_recorder.compiled_reader is not None
    return flight_recorder.compiled_reader.read(data, 1000)


@pytest.fixture(autouse=True)
def compiled() -> None:
    if flight_recorder.compiled_reader is None:
        assert os.environ.get("CI") != "true", "CI has a compiler, so the compiled reader must be there"
        pytest.skip("the compiled reader is not built: make dev with gcc and Python's headers")


def dump(shared: bool = True) -> dict[str, Any]:
    job = Job(2)
    job.group("1", "tp", (0, 1))
    for _ in range(3):
        job.all()
        job.all(group="1", op="_all_gather_base", size=(4, 8), out=(8, 8))
    job.send(0, 1, state="scheduled")
    made = job.dump(0)
    frames = [{"name": f"f{n}", "filename": "jöb.py", "line": n} for n in range(4)]
    for row in made["entries"]:
        row["frames"] = frames if shared else copy.deepcopy(frames)
    return made


def answer(data: bytes, compiled: bool) -> Any:
    try:
        return decode(data, 0, compiled=compiled)
    except TraceError as error:
        return str(error)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("shared", [True, False])
def test_sound_dumps_are_taken_by_the_compiled_reader(protocol: int, shared: bool) -> None:
    data = pickle.dumps(dump(shared), protocol)
    assert read(data) is not None
    assert answer(data, True) == answer(data, False)


CHANGES: dict[str, Any] = {
    "a field that one entry lacks": lambda row: row.pop("op_id"),
    "a field that one entry has": lambda row: row.update(duration_ms=0.0),
    "a field of another name": lambda row: row.update(other=row.pop("timeout_ms")),
    "an old sequence": lambda row: row.update(seq_id=row.pop("collective_seq_id")),
    "no frames": lambda row: row.update(frames=None),
    "a frame without a line": lambda row: row.update(frames=[{"name": "f", "filename": "a.py"}]),
    "a frame with a list": lambda row: row.update(frames=[{"name": ["f"], "filename": "a.py", "line": 1}]),
    "a time as text": lambda row: row.update(time_created_ns="0"),
    "a flag for a time": lambda row: row.update(time_discovered_started_ns=True),
    "a number below none": lambda row: row.update(op_id=-7, time_created_ns=-7),
    "a number of 64 bits": lambda row: row.update(op_id=2**63),
    "sizes of 65 bits": lambda row: row.update(input_sizes=[[2**64]]),
    "sizes as text": lambda row: row.update(input_sizes=[["4"]]),
    "a group without a name": lambda row: row.update(process_group=None),
    "half a surrogate pair": lambda row: row.update(profiling_name="nccl:\ud800"),
    "a state that is a list": lambda row: row.update(state=["completed"]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("every", [True, False])
def test_odd_entries_among_usual_ones_get_one_answer(change: str, shared: bool, every: bool) -> None:
    made = dump(shared)
    for row in made["entries"] if every else made["entries"][2:3]:
        CHANGES[change](row)
    data = pickle.dumps(made, 2)
    assert answer(data, True) == answer(data, False)


@given(st.integers(0, 2**32), st.sampled_from([2, 4]))
def test_broken_dumps_get_one_answer(seed: int, protocol: int) -> None:
    source, data = random.Random(seed), bytearray(pickle.dumps(dump(), protocol))
    for _ in range(source.randint(1, 3)):
        data[source.randrange(2, len(data))] = source.choice(b"})](Naesut\x85\x86\x94Khqr.X") ^ source.choice(
            (0, 0, 1)
        )
    whole = bytes(data[: source.choice((len(data), source.randrange(3, len(data))))])
    assert repr(answer(whole, True)) == repr(answer(whole, False))


@pytest.mark.parametrize(
    "code", [b"\x80\x02cos\nsystem\n.", b"\x80\x02]r\xff\xff\xff\x7f.", b"\x80\x02" + b"]" * 9**6]
)
def test_hostile_streams_are_declined(code: bytes) -> None:
    assert read(code) is None
