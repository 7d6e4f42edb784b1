"""What polled devices told, and when it travels; messages of the process that polls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.poller_devices import LEFT_OUT, Devices
from collectors.poller_messages import Message, PollerWord, Reader, TooLarge, packed
from collectors.pollers.device import Device, DeviceReading
from collectors.sources.base import Reading, Sample, SourceEvent
from collectors.wire import readings
from tests.collectors.fakes import FakeClock

LEAF = Device("switch", "leaf-1")


def told(state: str = "ok", value: float = 1.0, node: str = "") -> DeviceReading:
    event = SourceEvent("switch/leaf-1", "port_down", "down", standing=True)
    sample = Sample("switchport/leaf-1/1", "rate_gbps", value)
    good = Reading([sample, sample], [event])
    return DeviceReading(LEAF, good if state == "ok" else Reading(), state, node)


def sent_at(devices: Devices, clock: FakeClock, seconds: int) -> list[int]:
    found = []
    for second in range(seconds):
        found += [second] * len(list(devices.due()))
        clock.advance(1)
    return found


def test_a_device_travels_each_minute_and_sooner_only_when_its_words_changed() -> None:
    clock = FakeClock()
    devices = Devices(clock)
    devices.take("switch_fboss", 60.0, told())
    assert sent_at(devices, clock, 2) == [0]
    devices.take("switch_fboss", 60.0, told(value=2.0))
    times = sent_at(devices, clock, 130)
    assert len(times) == 2 and times[1] - times[0] == 60
    devices.take("switch_fboss", 60.0, told("timeout"))
    assert len(sent_at(devices, clock, 16)) == 1


def test_a_device_that_fails_keeps_what_it_told_with_its_age_and_tells_no_fault_twice() -> None:
    clock = FakeClock()
    devices = Devices(clock)
    (event,) = devices.take("switch_fboss", 60.0, told(node="n7"))
    assert event.fields == {
        "entity": "switch/leaf-1", "device": "switch/leaf-1", "device_node": "n7", "standing": "true",
    }  # fmt: skip
    clock.advance(100)
    assert devices.take("switch_fboss", 60.0, told("timed\nout")) == []
    (record,) = devices.due()
    table = readings.unpack(record.data)
    assert (record.state, table.value, table.entities) == ("timed?out", [1], ["switchport/leaf-1/1"])
    assert (table.sources[0].state, table.sources[0].age_s) == ("timed?out", 100.0)
    assert devices.take("switch_fboss", 60.0, told()) == []


def test_a_poller_that_gives_up_makes_its_devices_unknown() -> None:
    devices = Devices(FakeClock())
    devices.take("switch_fboss", 60.0, told())
    devices.fail("switch_snmp", "hangs")
    devices.fail("switch_fboss", "not done within 30 s")
    assert [record.state for record in devices.due()] == ["not done within 30 s"]


def test_a_device_with_too_much_or_with_no_name_costs_itself_only() -> None:
    devices = Devices(FakeClock())
    many = [Sample(f"switchport/{place:0100d}", "rate_gbps", 1.5) for place in range(70_000)]
    for name in ("", "a\nb", "x" * 256):
        assert devices.take("redfish", 60.0, DeviceReading(Device("bmc", name), Reading(many[:1]))) == []
    devices.take("redfish", 60.0, DeviceReading(Device("bmc", "big"), Reading(many)))
    (record,) = devices.due()
    table = readings.unpack(record.data)
    assert 0 < len(table.value) == 70_000 - table.left_out


def test_what_is_too_much_for_one_look_is_counted_and_the_gravest_travel() -> None:
    devices = Devices(FakeClock())
    many = [SourceEvent(f"switchport/leaf-1/{place}", "flap", "went", "info") for place in range(300)]
    grave = SourceEvent("switch/leaf-1", "switch_lost", "gone", "critical")
    events = devices.take("switch_snmp", 60.0, DeviceReading(LEAF, Reading((), [*many, grave])))
    assert [event.kind for event in events] == ["switch_lost", *["flap"] * 255, LEFT_OUT]
    assert (events[-1].fields["count"], events[-1].fields["kinds"]) == ("45", '["flap 45"]')
    assert (events[-1].fields["device"], events[-1].severity) == ("switch/leaf-1", "info")
    few = devices.take("switch_snmp", 60.0, DeviceReading(LEAF, Reading((), many[:256])))
    assert [event.kind for event in few] == ["flap"] * 256


@settings(max_examples=30)
@given(st.lists(st.text(max_size=40), max_size=5), st.integers(1, 50))
def test_messages_come_out_as_they_went_in_however_they_are_cut(states: list[str], size: int) -> None:
    messages: list[Message] = [PollerWord("switch_snmp", state) for state in states]
    data = b"".join(packed(message) for message in messages)
    reader = Reader()
    assert [one for at in range(0, len(data), size) for one in reader.feed(data[at : at + size])] == messages


def test_a_message_of_a_wrong_shape_is_counted_and_one_of_no_size_ends_it() -> None:
    reader = Reader()
    good = PollerWord("", "ok")
    assert reader.feed(b"\0\0\0\x03abc" + packed(good)) == [good]
    assert reader.refused == 1
    with pytest.raises(TooLarge):
        reader.feed(b"\xff\xff\xff\xff")
