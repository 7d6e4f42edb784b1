"""Wire v1 stays what it is: the bytes of every message are pinned."""

from __future__ import annotations

import json

import msgspec
import pytest

from collectors.wire import codec, limits, records
from tests.collectors.wire import samples

GOLDEN = json.loads(samples.GOLDEN.read_text())
FROM_GATEWAY = {"welcome", "refuse", "ack", "reject", "slow", "capture", "capture_ras"}
FROM_NODE = {"hello", "hot", "put", "bye"}


def decode(name: str, data: bytes) -> object:
    if name in FROM_GATEWAY:
        return codec.decode_from_gateway(data)
    return codec.decode_from_node(data) if name in FROM_NODE else codec.decode_record(data)


def test_every_message_of_the_contract_has_a_golden_sample() -> None:
    kinds = {
        kind.__struct_config__.tag
        for union in (records.FromNode, records.FromGateway, records.Spooled)
        for kind in union.__args__
    }
    assert kinds == {type(one).__struct_config__.tag for one in samples.messages().values()}


@pytest.mark.parametrize("name", sorted(samples.messages()))
def test_old_bytes_are_read_and_written_as_ever(name: str) -> None:
    message = samples.messages()[name]
    data = bytes.fromhex(GOLDEN[name])
    assert decode(name, data) == message
    assert codec.encode(message) == data


@pytest.mark.parametrize("name", sorted(samples.messages()))
def test_a_field_of_a_newer_minor_version_is_ignored(name: str) -> None:
    fields = msgspec.msgpack.decode(bytes.fromhex(GOLDEN[name]))
    assert decode(name, msgspec.msgpack.encode(fields | {"from_the_future": [1]})) == samples.messages()[name]


@pytest.mark.parametrize("name", sorted(samples.messages()))
def test_a_cut_message_is_refused_with_words(name: str) -> None:
    data = bytes.fromhex(GOLDEN[name])
    for end in range(len(data)):
        with pytest.raises(codec.WireError):
            decode(name, data[:end])


def test_a_kind_of_the_other_direction_is_refused() -> None:
    with pytest.raises(codec.WireError):
        codec.decode_from_node(bytes.fromhex(GOLDEN["welcome"]))
    with pytest.raises(codec.WireError):
        codec.decode_from_gateway(bytes.fromhex(GOLDEN["event"]))


def test_another_major_version_is_refused_and_a_newer_minor_one_is_not() -> None:
    codec.check_version("1.99")
    for version in ("2.0", "0.9", "", "one"):
        with pytest.raises(codec.WireError) as refused:
            codec.check_version(version)
        assert refused.value.code == "bad_version"


def test_a_frame_over_the_limit_is_refused_on_both_sides() -> None:
    put = records.Put(lane="bulk", items=[records.PutItem(1, bytes(limits.FRAME_MAX_BYTES))])
    with pytest.raises(codec.WireError) as refused:
        codec.encode(put)
    assert refused.value.code == "too_large"
    with pytest.raises(codec.WireError):
        codec.decode_from_node(bytes(limits.FRAME_MAX_BYTES + 1))


def test_a_name_over_the_limit_is_refused() -> None:
    event = msgspec.structs.replace(samples.messages()["event"], kind="x" * 256)
    with pytest.raises(codec.WireError):
        codec.decode_record(msgspec.msgpack.encode(event))
