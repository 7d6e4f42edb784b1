"""A whole fabric: each switch with its cables both ways, a cable that is gone, counters that are full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectors.pollers import ib_documents
from collectors.pollers.command import CommandError
from collectors.pollers.device import ConfigError, DeviceReading
from collectors.pollers.ib_cluster import IbClusterPoller, from_config
from collectors.pollers.ib_memory import FILE_MAX_BYTES
from collectors.sources.base import Sample, SourceEvent
from tests.collectors.pollers import fabric_texts
from tests.collectors.pollers.fabric_texts import Model

LEAF, SPINE = "ib-leaf-00", "ib-spine-00"


class Site:
    """A folder that something of the site writes the tools' words into, and who reads it."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder / "fabric"
        self.folder.mkdir()
        self.now_s = 1_000_000.0
        self.poller = self._made(config)

    def _made(self, config: dict[str, Any]) -> IbClusterPoller:
        ask = ib_documents.from_files(self.folder, 900.0, lambda: self.now_s)
        lanes = config.get("lanes", 4)
        poller = IbClusterPoller("ib", ask, lanes=lanes, clock=lambda: self.now_s, wall=lambda: self.now_s)
        poller.keep_in(self.folder.parent)
        return poller

    def restart(self) -> None:
        """The poller's process ends and starts again, with what it kept."""
        self.poller = self._made({})

    def write(self, **texts: str) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        for name, text in texts.items():
            (self.folder / f"{name}.txt").write_text(text, encoding="utf-8")
            os.utime(self.folder / f"{name}.txt", (self.now_s, self.now_s))

    def look(self, model: Model, **texts: str) -> dict[str, DeviceReading]:
        self.now_s += 60.0
        self.write(ibnetdiscover=fabric_texts.ibnetdiscover(model), **texts)
        return {f"{told.device.kind}/{told.device.name}": told for told in self.poller.poll(0.0)}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield Site(tmp_path)


def sample(told: DeviceReading, entity: str, metric: str) -> Sample:
    (found,) = [one for one in told.reading.samples if (one.entity, one.metric) == (entity, metric)]
    return found


def value(told: DeviceReading, port: int, metric: str, switch: str = LEAF) -> tuple[float | None, str]:
    found = sample(told, f"switchport/{switch}/{port}", metric)
    return found.value, found.quality


def events(told: DeviceReading, kind: str) -> list[SourceEvent]:
    return [event for event in told.reading.events if event.kind == kind]


def test_every_switch_is_a_device_and_the_fabric_is_counted(site: Site) -> None:
    told = site.look(Model())
    assert sorted(told) == ["fabric/ib", "switch/ib-leaf-00", "switch/ib-leaf-01", "switch/ib-spine-00"]
    assert {one.metric: one.value for one in told["fabric/ib"].reading.samples} == {
        "switches_count": 3, "adapters_count": 4, "adapter_links_count": 4, "switch_links_count": 2,
    }  # fmt: skip
    assert not told["fabric/ib"].reading.events


def test_a_port_tells_its_far_end_by_host_device_and_guid(site: Site) -> None:
    told = site.look(Model())
    to_host = sample(told[f"switch/{LEAF}"], f"switchport/{LEAF}/2", "neighbour_count")
    assert to_host.labels == {
        "peer": "gtn-0101", "peer_port": "mlx5_1", "peer_mac": "", "peer_guid": "e8ebd30300700010/1",
    }  # fmt: skip
    up = sample(told[f"switch/{LEAF}"], f"switchport/{LEAF}/3", "neighbour_count")
    assert up.labels == {"peer": SPINE, "peer_port": "1", "peer_mac": ""}
    down = sample(told[f"switch/{SPINE}"], f"switchport/{SPINE}/1", "neighbour_count")
    assert down.labels == {"peer": LEAF, "peer_port": "3", "peer_mac": ""}


@pytest.mark.parametrize("words", ["MT4129 ConnectX7   Mellanox Technologies", "localhost mlx5_0", ""])
def test_an_adapter_that_does_not_know_its_host_goes_by_its_guid(site: Site, words: str) -> None:
    told = site.look(Model(rename={-1: words} if words else {-1: " "}))
    labels = sample(told[f"switch/{LEAF}"], f"switchport/{LEAF}/1", "neighbour_count").labels
    assert (labels["peer"], labels["peer_guid"]) == ("e8ebd30300700000", "e8ebd30300700000/1")


def test_states_of_ports_without_a_cable_come_from_iblinkinfo(site: Site) -> None:
    model = Model()
    for in_lines in (False, True):
        told = site.look(model, iblinkinfo=fabric_texts.iblinkinfo(model, in_lines))
        leaf = told[f"switch/{LEAF}"]
        assert value(leaf, 1, "oper_up_count") == (1, "ok")
        assert value(leaf, 8, "oper_up_count") == (0, "ok")
        assert sample(leaf, f"switch/{LEAF}", "ports_count").value == 8
        assert value(leaf, 1, "rate_gbps") == (400.0, "ok")
        assert value(leaf, 8, "rate_gbps") == (None, "link_down")
        assert events(leaf, "port_down") == []


def test_a_port_that_the_subnet_manager_has_not_set_up_is_not_up(site: Site) -> None:
    text = fabric_texts.iblinkinfo(Model()).replace("Active/  LinkUp", "Initialize/  LinkUp", 1)
    told = site.look(Model(), iblinkinfo=text)
    assert value(told[f"switch/{LEAF}"], 1, "oper_up_count") == (0, "ok")


@pytest.mark.parametrize("with_states", [False, True])
def test_a_cable_that_is_gone_is_a_port_down_at_both_ends(site: Site, with_states: bool) -> None:
    whole, cut = Model(), Model(cut={(0, 3)})
    states = {"iblinkinfo": fabric_texts.iblinkinfo(cut)} if with_states else {}
    site.look(whole)
    told = site.look(cut, **states)
    for switch, port, peer in ((LEAF, 3, SPINE), (SPINE, 1, LEAF)):
        reading = told[f"switch/{switch}"]
        assert value(reading, port, "oper_up_count", switch) == (0, "ok")
        (event,) = events(reading, "port_down")
        assert (event.entity, event.standing) == (f"switchport/{switch}/{port}", True)
        assert event.attributes["peer"] == peer
    assert events(site.look(whole)[f"switch/{LEAF}"], "port_down") == []


def test_after_a_restart_a_dead_link_is_known_by_its_own_counter(site: Site) -> None:
    cut = Model(cut={(0, 3)}, errors={(0, 3): {"LinkDownedCounter": 4}})
    told = site.look(
        cut, iblinkinfo=fabric_texts.iblinkinfo(cut), ibqueryerrors=fabric_texts.ibqueryerrors(cut)
    )
    (event,) = events(told[f"switch/{LEAF}"], "port_down")
    assert event.entity == f"switchport/{LEAF}/3"


def test_a_cable_that_went_is_still_gone_for_a_poller_that_starts_again(site: Site) -> None:
    site.look(Model())
    site.restart()
    told = site.look(Model(cut={(0, 3)}))
    for switch, port in ((LEAF, 3), (SPINE, 1)):
        (event,) = events(told[f"switch/{switch}"], "port_down")
        assert event.entity == f"switchport/{switch}/{port}"
    site.restart()
    assert len(events(site.look(Model(cut={(0, 3)}))[f"switch/{LEAF}"], "port_down")) == 1
    assert events(site.look(Model())[f"switch/{LEAF}"], "port_down") == []


def test_a_switch_that_went_while_no_poller_ran_is_told_and_forgotten_after_a_day(site: Site) -> None:
    site.look(Model())
    site.restart()
    told = site.look(Model(gone={2}))
    assert events(told[f"switch/{SPINE}"], "switch_lost")
    site.now_s += 90_000.0
    site.restart()
    told = site.look(Model(gone={2}))
    assert f"switch/{SPINE}" not in told


@pytest.mark.parametrize(
    "kept",
    [
        "", "[]", '{"fabric": "ib", "switches": 7}', "[" * 100_000, "x" * (FILE_MAX_BYTES + 1),
        '{"fabric": "other", "switches": [["b83fd20300000000", "a", 1000000, "ff"]]}',
        '{"fabric": "ib", "switches": [["no guid", "a", 1000000, "ff"], ["b83fd20300000000", "a\\n", 1, "f"],'
        ' ["b83fd20300000000", "a", true, "ff"], ["b83fd20300000000", "a", 1000000, "-1"], [1], null,'
        ' ["b83fd20300000000", "a", NaN, "f"], ["b83fd20300000000", "a", 9000000, "f"]]}',
    ],
)  # fmt: skip
def test_a_broken_memory_of_a_fabric_is_forgotten(site: Site, kept: str) -> None:
    (site.folder.parent / "ib_cluster.json").write_text(kept, encoding="utf-8")
    told = site.look(Model(cut={(0, 3)}))
    assert sorted(told) == ["fabric/ib", "switch/ib-leaf-00", "switch/ib-leaf-01", "switch/ib-spine-00"]
    assert events(told[f"switch/{LEAF}"], "port_down") == []


def test_a_disabled_port_is_no_fault(site: Site) -> None:
    cut = Model(cut={(0, 3)}, errors={(0, 3): {"LinkDownedCounter": 4}})
    text = fabric_texts.iblinkinfo(cut).replace("Down/ Polling", "Down/Disabled")
    told = site.look(cut, iblinkinfo=text, ibqueryerrors=fabric_texts.ibqueryerrors(cut))
    assert value(told[f"switch/{LEAF}"], 3, "admin_up_count") == (0, "ok")
    assert events(told[f"switch/{LEAF}"], "port_down") == []


def test_a_switch_that_is_gone_is_told_for_a_day(site: Site) -> None:
    site.look(Model())
    told = site.look(Model(gone={2}))
    assert told[f"switch/{SPINE}"].state == "not_in_fabric"
    (event,) = told[f"switch/{SPINE}"].reading.events
    assert (event.kind, event.standing) == ("switch_lost", True)
    assert value(told[f"switch/{LEAF}"], 3, "oper_up_count") == (0, "ok")
    site.now_s += 90_000.0
    assert f"switch/{SPINE}" not in site.look(Model(gone={2}))
    assert site.look(Model())[f"switch/{SPINE}"].state == "ok"


def test_switches_that_share_a_name_are_told_apart_from_then_on(site: Site) -> None:
    same = Model(rename={0: "Quantum Mellanox Technologies", 1: "Quantum Mellanox Technologies"})
    names = sorted(site.look(same))
    assert names == [
        "fabric/ib",
        "switch/Quantum-Mellanox-Technologies-b83fd20300000000",
        "switch/Quantum-Mellanox-Technologies-b83fd20300000100",
        "switch/ib-spine-00",
    ]
    assert names[1] in site.look(replace(same, gone={1}))


def test_bytes_are_four_for_each_word_and_rates_come_with_the_second_look(site: Site) -> None:
    first, second = Model(data={(0, 1): 0}), Model(data={(0, 1): 375_000_000})
    told = site.look(first, counters=fabric_texts.counters(first))
    assert value(told[f"switch/{LEAF}"], 1, "tx_bytes_per_s") == (None, "first_sample")
    told = site.look(second, counters=fabric_texts.counters(second))
    assert value(told[f"switch/{LEAF}"], 1, "tx_bytes_per_s") == (25_000_000.0, "ok")
    assert value(told[f"switch/{LEAF}"], 1, "tx_utilization_ratio") == (0.0005, "ok")
    assert value(told[f"switch/{LEAF}"], 1, "rx_packets_delta_count") == (23_437_500, "ok")


@pytest.mark.parametrize("full", [2**32 - 1, 2**64 - 1])
def test_data_counters_that_are_full_are_unknown(site: Site, full: int) -> None:
    model = Model(data={(0, 1): full})
    told = site.look(model, counters=fabric_texts.counters(model))
    assert value(told[f"switch/{LEAF}"], 1, "tx_bytes_per_s") == (None, "saturated")


def looks(site: Site, *errors: dict[str, int], wide: bool = True) -> DeviceReading:
    """The last of several looks at port 1 of a leaf."""
    for found in errors:
        model = Model(errors={(0, 1): found})
        told = site.look(model, ibqueryerrors=fabric_texts.ibqueryerrors(model, wide))
    return told[f"switch/{LEAF}"]


def test_an_error_that_was_not_there_before_is_a_change_and_not_a_first_look(site: Site) -> None:
    told = looks(site, {}, {"PortRcvRemotePhysicalErrors": 6, "PortXmitDiscards": 12})
    assert value(told, 1, "port_rcv_remote_physical_errors_delta_count") == (6, "ok")
    assert value(told, 1, "tx_discards_per_s") == (0.2, "ok")
    assert value(told, 1, "symbol_error_total") == (0, "ok")


def test_rare_errors_are_told_only_where_there_is_one(site: Site) -> None:
    told = looks(site, {"VL15Dropped": 1})
    told_of = {one.entity for one in told.reading.samples if one.metric == "vl15_dropped_total"}
    assert told_of == {f"switchport/{LEAF}/1"}


@pytest.mark.parametrize(
    ("theirs", "ours", "full"),
    [
        ("SymbolErrorCounter", "symbol_error", 65_535),
        ("LinkDownedCounter", "link_downed", 255),
        ("ExcessiveBufferOverrunErrors", "excessive_buffer_overrun_errors", 15),
        ("PortXmitWait", "port_xmit_wait", 4_294_967_295),
    ],
)
def test_a_narrow_counter_that_is_full_is_unknown_and_a_wide_one_is_not(
    site: Site, theirs: str, ours: str, full: int
) -> None:
    assert value(looks(site, {theirs: full}, wide=False), 1, f"{ours}_total") == (None, "saturated")
    assert value(looks(site, {theirs: full}), 1, f"{ours}_total") == (full, "ok")


def test_counters_that_somebody_resets_are_told(site: Site) -> None:
    told = looks(site, {"SymbolErrorCounter": 90}, {"SymbolErrorCounter": 5})
    assert value(told, 1, "symbol_error_delta_count") == (None, "reset")
    (event,) = events(told, "counter_reset")
    assert event.attributes["counters"] == ["symbol_error"]


def test_what_is_below_a_threshold_is_unknown_and_not_0(site: Site) -> None:
    text = fabric_texts.ibqueryerrors(Model(), thresholds=" [SymbolErrorCounter = 10][LinkDownedCounter = 0]")
    told = site.look(Model(), ibqueryerrors=text)[f"switch/{LEAF}"]
    assert value(told, 1, "symbol_error_total") == (None, "below_threshold")
    assert value(told, 1, "link_downed_total") == (0, "ok")


def test_an_error_that_the_tool_was_told_to_leave_out_is_not_told(site: Site) -> None:
    text = fabric_texts.ibqueryerrors(Model()).replace("Suppressed:", "Suppressed: SymbolErrorCounter")
    told = site.look(Model(), ibqueryerrors=text)[f"switch/{LEAF}"]
    assert "symbol_error_total" not in {one.metric for one in told.reading.samples}


def test_no_zero_is_told_of_ports_that_may_not_have_answered(site: Site) -> None:
    told = site.look(Model(), ibqueryerrors=fabric_texts.ibqueryerrors(Model(), failures=1))
    assert "symbol_error_total" not in {one.metric for one in told[f"switch/{LEAF}"].reading.samples}


def test_a_tool_that_gave_up_without_saying_so_is_missed(site: Site) -> None:
    told = site.look(Model(), ibqueryerrors="", counters="")
    (event,) = told["fabric/ib"].reading.events
    assert (event.kind, event.attributes["missing"]) == ("fabric_incomplete", ["ibqueryerrors", "counters"])
    assert "symbol_error_total" not in {one.metric for one in told[f"switch/{LEAF}"].reading.samples}


def test_a_link_that_went_and_came_back_twice_flaps(site: Site) -> None:
    told = looks(site, {"LinkDownedCounter": 3}, {"LinkDownedCounter": 5})
    (event,) = events(told, "link_flap")
    assert (event.attributes["flaps"], event.attributes["downs"]) == (2, 2)


def test_perfquery_of_a_file_is_found_by_the_switchs_lid(site: Site) -> None:
    text = (
        "# Port extended counters: Lid 1 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)\n"
        "PortSelect:......................1\nPortXmitData:....................250\n"
        "SymbolErrorCounter:..............70000\n"
        "# Port counters: Lid 1 port 2 (CapMask: 0x5300)\n"
        "SymbolErrorCounter:..............65535\nPortXmitData:....................4294967295\n"
    )
    leaf = site.look(Model(), perfquery=text)[f"switch/{LEAF}"]
    assert value(leaf, 1, "symbol_error_total") == (70_000, "ok")
    assert value(leaf, 1, "tx_bytes_per_s") == (None, "first_sample")
    assert value(leaf, 2, "symbol_error_total") == (None, "saturated")
    assert value(leaf, 2, "tx_bytes_per_s") == (None, "too_narrow")


def test_a_link_that_lost_lanes_or_speed_is_degraded(site: Site) -> None:
    model = Model(width={(0, 1): 2})
    (event,) = events(site.look(model)[f"switch/{LEAF}"], "link_degraded")
    assert event.attributes == {
        "switch": LEAF, "switch_port": "1", "width_speed": "2xNDR", "could_be": "4X", "peer": "gtn-0101",
        "peer_port": "mlx5_0",
    }  # fmt: skip
    slow = fabric_texts.iblinkinfo(Model(), could_be={(0, 2): " Could be 212.5 Gbps"})
    (event,) = events(site.look(Model(), iblinkinfo=slow)[f"switch/{LEAF}"], "link_degraded")
    assert (event.entity, event.attributes["could_be"]) == (f"switchport/{LEAF}/2", "212.5 Gbps")


def test_links_that_are_split_on_purpose_are_not_degraded(tmp_path: Path) -> None:
    site = Site(tmp_path, lanes=2)
    model = Model(width={(0, 1): 2})
    text = fabric_texts.iblinkinfo(model, could_be={(0, 1): "Could be 4X "})
    assert events(site.look(model, iblinkinfo=text)[f"switch/{LEAF}"], "link_degraded") == []


def test_files_that_nobody_writes_any_more_are_no_answer(site: Site) -> None:
    site.look(Model())
    assert list(site.poller.poll(0.0)) == []  # nothing new: what was told stands
    site.now_s += 1_000.0
    with pytest.raises(CommandError, match="stale"):
        list(site.poller.poll(0.0))


@pytest.mark.parametrize("text", ["", "#\n", "\0\xff garbage\n" * 100])
def test_without_a_topology_nothing_is_known(site: Site, text: str) -> None:
    site.write(ibnetdiscover=text)
    with pytest.raises(CommandError, match="no switch"):
        list(site.poller.poll(0.0))


def test_a_tree_without_the_file_says_which(site: Site) -> None:
    with pytest.raises(CommandError, match="ibnetdiscover.txt is not there"):
        list(site.poller.poll(0.0))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"folder": "none"}, "folder: none is no folder"),
        ({"folder": ".", "ca": "mlx5_0"}, "exclude each other"),
        ({"documents": ["perfquery"]}, "known are"),
        ({"documents": "all"}, "list of texts"),
        ({"period_s": 1}, "from 60 to"),
        ({"clear": True}, "unknown key"),
        ({"name": "a b"}, "must be a name"),
    ],
)
def test_bad_settings_name_their_key(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_config(config, tmp_path)
