"""Events of a device lie among those of the node that polls it, and are found by the device's name."""

from __future__ import annotations

import time

import pytest
from psycopg.types.json import Jsonb

from clusterwatch.store import partitions, queries, series

NODE = 7


@pytest.mark.django_db
def test_events_of_a_device_are_told_from_those_of_its_poller_and_of_other_devices() -> None:
    now_ns = time.time_ns()
    partitions.ensure("event", [now_ns])
    rows = series.Rows()
    devices = ("switch/leaf-1", "switch/leaf-10", "bmc/leaf-1", None, "switch/leaf-1")
    for number, device in enumerate(devices):
        fields = {"entity": "x"} if device is None else {"device": device}
        head = (1, NODE, now_ns + number, "e1", number)
        rows.add("event", (*head, "p", f"kind_{number}", "info", "", Jsonb(fields), None, None, None, None))
    rows.write()
    window = (now_ns, now_ns + 10**9)
    found = queries.events(*window, node_id=NODE, device="switch/leaf-1")
    assert [event.kind for event in found] == ["kind_4", "kind_0"]
    assert queries.events(*window, node_id=NODE + 1, device="switch/leaf-1") == []
    assert len(queries.events(*window, node_id=NODE)) == len(devices)
