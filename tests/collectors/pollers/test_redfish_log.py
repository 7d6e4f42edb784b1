"""Entries of a BMC's log: history is not told, what is new is told once, also after a poller's restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.pollers.redfish import MARKS_FILE, RedfishPoller
from tests.collectors.pollers.http_peer import peer
from tests.collectors.pollers.redfish_looks import CLOCK_S, bmc, looks, poller, told, values
from tests.collectors.pollers.redfish_trees import V1, log_entry, log_tree, node


def test_the_first_look_at_a_log_is_history_and_what_comes_after_is_told_once() -> None:
    tree = node()
    entries = [log_entry(1), log_entry(2, "Critical", Message="old")]

    def grow() -> None:
        new = [log_entry(3, "Critical", Message="PSU0 lost AC"), log_entry(4), log_entry(5, "Warning")]
        tree.update(log_tree([*new, *entries]))  # newest first, as some BMCs have it

    first, second, third = looks(tree, grow, lambda: None)
    assert told(first, "sel_entry") == [] and told(third, "sel_entry") == []
    critical, warning = told(second, "sel_entry")
    assert (critical.severity, critical.message) == ("critical", "SEL: PSU0 lost AC")
    assert critical.attributes["entry"] == "3" and not critical.standing
    assert warning.severity == "warning"
    assert values(second)["bmc/b1", "log_entries_count"] == 5


def test_a_cleared_log_tells_its_new_entries_although_their_numbers_are_small() -> None:
    tree = node()
    _, found = looks(tree, lambda: tree.update(log_tree([log_entry(1, "Critical", Message="after")])))
    assert [one.message for one in told(found, "sel_entry")] == ["SEL: after"]


def test_the_time_of_an_entry_counts_only_if_it_lies_between_two_looks() -> None:
    tree = node()
    tree[f"{V1}/Managers/bmc"]["DateTime"] = "2019-01-01T00:01:00Z"  # a BMC that lost its clock
    new = [
        log_entry(3, "Critical", Created="2019-01-01T00:00:30Z"),
        log_entry(4, "Critical", Created="2018-01-01T00:00:00Z"),
    ]
    with peer(tree) as running:
        wall = [CLOCK_S]
        asking = RedfishPoller([bmc(running.address)], wall=lambda: wall[0])
        (first,) = asking.poll(0.0)
        tree.update(log_tree([log_entry(1), log_entry(2, "Critical", Message="old"), *new]))
        wall[0] += 60.0
        (second,) = asking.poll(60.0)
    assert (values(first)["bmc/b1", "clock_offset_s"] or 0) < -200_000_000
    fits, strange = told(second, "sel_entry")
    assert fits.t_ns == int((CLOCK_S + 30.0) * 1e9)
    assert strange.t_ns is None and strange.attributes["bmc_time"] == "2018-01-01T00:00:00Z"


def test_entries_written_while_no_poller_ran_are_told_by_the_next(tmp_path: Path) -> None:
    tree = node()
    with peer(tree) as running:
        first = poller(bmc(running.address))
        first.keep_in(tmp_path)
        list(first.poll(0.0))
        tree.update(
            log_tree([log_entry(1), log_entry(2, "Critical", Message="old"), log_entry(3, "Critical")])
        )
        second = poller(bmc(running.address))
        second.keep_in(tmp_path)
        (found,) = second.poll(0.0)
    assert [one.attributes["entry"] for one in told(found, "sel_entry")] == ["3"]


@pytest.mark.parametrize("kept", [b"", b"[]", b"\xff", b'{"b1": {"x": [1]}}', b'{"b1": 3}', b"[" * 100_000])
def test_a_broken_memory_of_logs_is_forgotten(kept: bytes, tmp_path: Path) -> None:
    (tmp_path / MARKS_FILE).write_bytes(kept)
    with peer(node()) as running:
        asking = poller(bmc(running.address))
        asking.keep_in(tmp_path)
        (found,) = asking.poll(0.0)
    assert found.state == "ok" and told(found, "sel_entry") == []


def test_a_flood_of_entries_is_told_as_a_number() -> None:
    tree = node()
    flood = [log_entry(n, "Critical") for n in range(3, 203)]
    old = [log_entry(1), log_entry(2, "Critical", Message="old")]
    _, found = looks(tree, lambda: tree.update(log_tree([*old, *flood])))
    events = told(found, "sel_entry")
    assert len(events) == 33 and events[-1].message == "SEL: 168 more new entries"
    assert events[0].attributes["entry"] == "171"
