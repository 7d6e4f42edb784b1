"""What a poller says of a device is checked like a node's own readings before anything is stored."""

from __future__ import annotations

import time

import msgspec
import pytest

from clusterwatch.ingest import checks
from collectors.wire import codec, readings, records
from tests.collectors.wire.samples import TABLE


def device(**changes: object) -> records.DeviceReadings:
    told = records.DeviceReadings(
        time.time_ns(), "switch", "leaf-1", "switch_snmp", "ok", readings.CODEC, readings.pack(TABLE)
    )
    return msgspec.structs.replace(told, **changes)


def check(record: records.DeviceReadings, lane: records.Lane = "bulk") -> checks.Checked:
    return checks.check(lane, 1, codec.encode(record), time.time_ns(), {})


def test_what_a_device_told_passes_as_it_was_sent() -> None:
    told = device(node="node-7")
    assert check(told).record == told


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "toaster"}, "unknown kind"),
        ({"device": ""}, "without a name"),
        ({"poller": ""}, "without a name"),
        ({"state": ""}, "a state"),
        ({"device": "leaf\n1"}, "control characters"),
        ({"device": "leaf\u202e1"}, "control characters"),
        ({"node": "n\x1b[2J"}, "control characters"),
        ({"state": "down\nforged"}, "control characters"),
        ({"device": "leaf\u200b1"}, "not printable"),
        ({"codec": "cwr9"}, "unknown codec"),
        ({"data": b""}, "readings"),
        ({"data": readings.pack(TABLE)[:-3]}, "readings"),
    ],
)
def test_a_bad_record_of_a_device_is_refused_with_its_reason(changes: dict[str, object], reason: str) -> None:
    found = check(device(**changes))
    assert found.record is None
    assert reason in found.reason


def test_a_device_has_no_place_in_the_urgent_lane() -> None:
    assert "does not belong" in check(device(), "urgent").reason
