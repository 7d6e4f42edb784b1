"""torchelastic's file of one exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats.elastic_error import parse_error
from collectors.formats.job_log import Origin
from collectors.formats.job_log_prefix import UTC, Label, Stamp

STACK = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 12, in step\n    raise error\n'
    "ValueError: shard 7 is empty\n"
)


def written(message: Any) -> bytes:
    return json.dumps({"message": message}).encode()


def test_the_exception_its_frame_and_its_time() -> None:
    told = {
        "message": "ValueError: shard 7 is empty",
        "extraInfo": {"py_callstack": STACK, "timestamp": "1790000000"},
    }
    log = parse_error("attempt_0/3/error.json", written(told), Origin(Label(local_rank=3)))
    assert log is not None
    (event,) = log.events
    assert (event.kind, event.word("type")) == ("traceback", "ValueError")
    assert event.word("frame") == "step (/app/train.py:12)"
    assert event.stamp == Stamp(1_790_000_000_000_000_000, UTC) and not event.stamp_near
    assert event.label == Label(local_rank=3)


@pytest.mark.parametrize(
    "message", ["ValueError: shard 7", {"message": "ValueError: shard 7", "errorCode": 5}]
)
def test_a_message_without_a_stack_is_an_exception_too(message: Any) -> None:
    log = parse_error("error.json", written(message), Origin())
    assert log is not None and [event.kind for event in log.events] == ["raised"]
    assert log.events[0].stamp is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"message": 3}',
        b'{"message": {"extraInfo": []}}',
        b"\xff\xfe{",
        b"[" * 9999,
    ],
)
def test_another_file_says_nothing(data: bytes) -> None:
    assert parse_error("error.json", data, Origin()) is None


@pytest.mark.parametrize("time", ["", "soon", "-5", "9" * 40, 1e300, float("nan"), None, [], True * 0])
def test_a_time_that_is_none_is_not_told(time: Any) -> None:
    told = {"message": "x", "extraInfo": {"py_callstack": STACK, "timestamp": time}}
    log = parse_error("error.json", written(told).replace(b"NaN", b"null"), Origin())
    assert log is not None and log.events[0].stamp is None


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.dictionaries(
            st.sampled_from(["message", "extraInfo", "py_callstack", "timestamp"]), inner
        ),
    )
)
def test_any_object_is_taken(found: Any) -> None:
    parse_error("error.json", json.dumps(found).encode(), Origin())
