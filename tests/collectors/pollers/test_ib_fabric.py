"""The fabric: a port is found by its GUID, a link that lost lanes is a warning."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.pollers.ib_fabric import IbFabricPoller, links
from collectors.sources.base import SourceEvent
from tests.collectors.sources.trees import CASES, look, write

SWITCH = """vendid=0x2c9
switchguid=0xe8ebd30300e10000(e8ebd30300e10000)
Switch\t65 "S-e8ebd30300e10000"\t\t# "MF0;ib-leaf-02:MQM9700/U1" enhanced port 0 lid 4 lmc 0
[1]\t"S-e8ebd30300e20000"[33]\t\t# "MF0;ib-spine-01:MQM9700/U1" lid 2 4xNDR
[9]\t"H-e8ebd30300771a40"[1](e8ebd30300771a41) \t\t# "gtn-0101 mlx5_4" lid 82 {0}
[10]\t"H-e8ebd30300881a40"[1](e8ebd30300881a40) \t\t# "gtn-0102 mlx5_4" lid 83 4xNDR
"""
ADAPTER = """caguid=0xe8ebd30300771a40
Ca\t1 "H-e8ebd30300771a40"\t\t# "gtn-0101 mlx5_4"
[1](e8ebd30300771a41) \t"S-e8ebd30300e10000"[9]\t\t# lid 82 lmc 0 "MF0;ib-leaf-02:MQM9700/U1" lid 4 4xNDR
"""
PEER = {"switch": "ib-leaf-02", "switch_port": 9, "width_speed": "4xNDR", "peer": "gtn-0101 mlx5_4"}


def events(
    root: Path, text: str, device: str | None = "mlx5_4", more: dict[str, str] | None = None
) -> list[SourceEvent]:
    files = {"proc/sys/kernel/hostname": "gtn-0101\n", "commands/ibnetdiscover.txt": text} | (more or {})
    if device:
        files[f"sys/class/infiniband/{device}/node_guid"] = "e8eb:d303:0077:1a40\n"
    write(root, files)
    return look(IbFabricPoller(), root)[1]


@pytest.mark.parametrize("text", [SWITCH.format("4xNDR"), ADAPTER, ADAPTER + SWITCH.format("4xNDR")])
def test_a_port_is_found_from_either_end_and_told_once(tmp_path: Path, text: str) -> None:
    (event,) = events(tmp_path, text)
    assert (event.entity, event.kind, event.severity) == ("port/mlx5_4/1", "ib_peer", "info")
    assert event.attributes == PEER


def test_the_guid_is_believed_and_not_what_an_adapter_calls_itself(tmp_path: Path) -> None:
    (event,) = events(tmp_path, SWITCH.format("4xNDR"), device="mlx5_7")
    assert event.entity == "port/mlx5_7/1"


def test_without_sysfs_the_adapters_own_words_must_do(tmp_path: Path) -> None:
    (event,) = events(tmp_path, SWITCH.format("4xNDR"), device=None)
    assert event.entity == "port/mlx5_4/1"


def test_a_name_that_belongs_to_another_adapter_is_out_of_date(tmp_path: Path) -> None:
    other = SWITCH.format("4xNDR").replace("771a40", "991a40")
    assert events(tmp_path, other) == []


@pytest.mark.parametrize(
    ("width", "inventory", "severity", "words"),
    [
        ("2xNDR", None, "warning", "2 of 4 lanes"),
        ("2xNDR", 400, "warning", "200 Gb/s instead of 400"),
        ("2xNDR", 200, "info", ""),
        ("4xHDR", 400, "warning", "200 Gb/s instead of 400"),
        ("4xHDR", None, "info", ""),
        ("1xSDR", None, "warning", "1 of 4 lanes"),
    ],
)
def test_a_link_that_lost_lanes_or_speed_is_a_warning(
    tmp_path: Path, width: str, inventory: int | None, severity: str, words: str
) -> None:
    rows = f'[[rdma]]\ndevice = "mlx5_4"\nport = 1\nrate_gbps = {inventory}\n' if inventory else ""
    (event,) = events(tmp_path, SWITCH.format(width), more={"etc/clusterwatch/agent.toml": rows})
    assert event.severity == severity
    assert words in event.message
    assert event.attributes["width_speed"] == width


def test_a_line_without_its_width_is_still_a_peer(tmp_path: Path) -> None:
    (event,) = events(tmp_path, SWITCH.format(""))
    assert event.attributes == PEER | {"width_speed": None}


def test_two_adapters_joined_by_a_cable_have_no_switch(tmp_path: Path) -> None:
    text = (
        'Ca\t1 "H-e8ebd30300771a40"\t\t# "gtn-0101 mlx5_4"\n'
        '[1](e8ebd30300771a40) \t"H-e8ebd30300881a40"[1] # lid 1 lmc 0 "gtn-0102 mlx5_0" lid 2 4xNDR\n'
    )
    (event,) = events(tmp_path, text)
    assert event.attributes["switch"] is None
    assert event.attributes["switch_port"] is None


def test_a_switch_without_a_managed_name_goes_by_what_it_says(tmp_path: Path) -> None:
    (event,) = events(
        tmp_path, SWITCH.format("4xNDR").replace("MF0;ib-leaf-02:MQM9700/U1", "Quantum Mellanox")
    )
    assert event.attributes["switch"] == "Quantum Mellanox"


def test_without_infiniband_there_is_nothing(tmp_path: Path) -> None:
    assert look(IbFabricPoller(), tmp_path) == ({}, [])


@given(st.text(alphabet='SHCa[]"-#()x4NDR0123456789 \t\n', max_size=300))
def test_garbage_gives_no_error(text: str) -> None:
    links(text)


@pytest.mark.skipif(not CASES.is_dir(), reason="the given nodes are not here")
def test_the_sample_nodes_port_has_its_switch() -> None:
    _, found = look(IbFabricPoller(), CASES / "node-a/t1")
    assert [(event.entity, dict(event.attributes)) for event in found] == [("port/mlx5_4/1", PEER)]
