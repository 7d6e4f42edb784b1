"""Modules of network ports in every dialect: light per lane, heat, who made them; copper has no light."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources import optics
from collectors.sources.base import Reading, SourceEvent
from collectors.sources.optics import OpticsSource
from collectors.sources.optics_dialects import parse
from collectors.sources.optics_module import events, samples
from collectors.sources.tree import Tree
from tests.collectors.sources.test_nvml_live import Live
from tests.collectors.sources.trees import write

PORT = "port/mlx5_0/1"
RX_LIMITS = (1.6218, 0.0832, 1.2589, 0.1202)
Told = dict[tuple[str, ...], tuple[float | None, str]]


def line(name: str, value: str) -> str:
    return f"\t{name:<41} : {value}\n"


def limits(name: str, unit: str, values: tuple[float, ...]) -> str:
    kinds = ("high alarm", "low alarm", "high warning", "low warning")
    return "".join(
        line(f"{name} {kind} threshold", unit.format(value))
        for kind, value in zip(kinds, values, strict=True)
    )


def qsfp(rx: tuple[str, ...] = ("0.8000 mW / -0.97 dBm",) * 4, heat: str = "41.25", flag: str = "Off") -> str:
    """A QSFP28 with four lanes as ``ethtool -m`` prints it."""
    lanes = range(1, len(rx) + 1)
    return "".join([
        line("Identifier", "0x11 (QSFP28)"),
        line("Transmitter technology", "0x00 (850 nm VCSEL)"),
        line("Length (Copper or Active cable)", "0m"),
        line("Vendor name", "ACME OPTICS"),
        line("Vendor OUI", "00:02:c9"),
        line("Vendor PN", "AO-100G-SR4"),
        line("Vendor rev", "A2"),
        line("Vendor SN", "SN0001"),
        line("Module temperature", f"{heat} degrees C / 106.25 degrees F"),
        line("Module voltage", "3.2825 V"),
        line("Alarm/warning flags implemented", "Yes"),
        *(line(f"Laser tx bias current (Channel {n})", f"{6.5 + n:.3f} mA") for n in lanes),
        *(line(f"Transmit avg optical power (Channel {n})", "1.0000 mW / 0.00 dBm") for n in lanes),
        *(line(f"Rcvr signal avg optical power(Channel {n})", rx[n - 1]) for n in lanes),
        *(line(f"Laser rx power low alarm (Chan {n})", flag if n == 2 else "Off") for n in lanes),
        line("Module temperature high warning", flag),
        limits("Laser bias current", "{:.3f} mA", (15, 4, 13, 5)),
        limits("Laser output power", "{0:.4f} mW / 0.00 dBm", (3, 0.3, 2.5, 0.4)).replace(" / 0.00 dBm", ""),
        limits("Module temperature", "{:.2f} degrees C / 0.00 degrees F", (75, -5, 70, 0)),
        limits("Module voltage", "{:.4f} V", (3.63, 2.97, 3.46, 3.13)),
        limits("Laser rx power", "{:.4f} mW", RX_LIMITS),
    ])  # fmt: skip


DARK = "0.0000 mW / -inf dBm"
DAC = (
    line("Identifier", "0x11 (QSFP28)")
    + line("Transmitter technology", "0xa0 (Copper cable unequalized)")
    + line("Length (Copper or Active cable)", "2m")
    + line("Vendor name", "ACME CABLES")
    + line("Vendor SN", "C7")
    + line("Module temperature", "0.00 degrees C / 32.00 degrees F")
    + line("Module voltage", "0.0000 V")
    + line("Laser tx bias current (Channel 1)", "0.000 mA")
    + line("Transmit avg optical power (Channel 1)", DARK)
    + line("Rcvr signal avg optical power(Channel 1)", DARK)
)
SFP = (
    line("Identifier", "0x03 (SFP)")
    + line("Transceiver type", "10G Ethernet: 10G Base-SR")
    + line("Vendor name", "ACME")
    + line("Optical diagnostics support", "Yes")
    + line("Laser bias current", "6.000 mA")
    + line("Laser output power", "0.5012 mW / -3.00 dBm")
    + line("Receiver signal average optical power", "0.3981 mW / -4.00 dBm")
    + line("Module temperature", "-3.50 degrees C / 25.70 degrees F")
)
OSFP = (
    line("Identifier", "0x19 (OSFP 8X Pluggable Transceiver)")
    + line("Active firmware version", "61.22")
    + line("Cable assembly length", "3.0000m")
    + "".join(
        line(f"Rcvr signal avg optical power (Channel {n})", "1.0000 mW / 0.00 dBm") for n in range(1, 9)
    )
    + line("Laser rx power low alarm (Chan 3)", "On")
    + line("Module temperature high alarm", "Off")
    + line("Module temperature", "50.00 degrees C / 122.00 degrees F")
)
JSON = """[{"identifier": 25, "identifier_description": "OSFP", "vendor_name": "ACME",
 "vendor_sn": "S9", "module_temperature": 52.5, "module_voltage": 3.3,
 "laser_tx_bias_current": [7.1, 7.2],
 "transmit_avg_optical_power": [1.0, 2.0], "rx_power": {"values": [1.0, 0.0], "type": "avg"},
 "module_temperature_high_alarm": false, "module_temperature_high_warning": true,
 "laser_rx_power_low_alarm": [true, true], "active_firmware_version": {"major": 61, "minor": 22},
 "module_temperature": {"high_alarm_threshold": 75.0, "low_alarm_threshold": -5.0,
   "high_warning_threshold": 50.0, "low_warning_threshold": 0.0},
 "laser_rx_power": {"high_alarm_threshold": 4.0, "low_alarm_threshold": 0.1,
   "high_warning_threshold": 3.0, "low_warning_threshold": 0.2}}]"""


def mlxlink(**more: Any) -> str:
    fields = {
        "Temperature [C]": "54 [-5..75]",
        "Voltage [mV]": "3261.2 [2970..3630]",
        "Bias Current [mA]": "8.380,8.390,8.400,8.410 [2..15]",
        "Rx Power Current [dBm]": "1.886,1.989,-11.0,1.976 [-10.41..6]",
        "Tx Power Current [dBm]": "1.562,1.427,1.559,-40 [-8.508..5]",
        "Cable Technology": "850 nm VCSEL",
        "Vendor Name": "ACME",
        "Vendor Part Number": "AO-800",
        "Vendor Serial Number": "X1",
        "Rev": "A1",
        "FW Version": "46.120.38",
        "Transfer Distance [m]": "30",
    } | more
    return json.dumps({"result": {"output": {"Module Info": fields}}, "status": {"code": 0}})


def told(reading: Reading, entity: str = PORT) -> Told:
    return {
        (one.metric, *(one.labels.values() if one.metric not in ("part_count", "fact_count") else ())): (
            one.value, one.quality,
        )
        for one in reading.samples if one.entity == entity
    }  # fmt: skip


def module(text: str, entity: str = PORT) -> tuple[Told, list[SourceEvent], dict[str, str]]:
    found = parse(text.encode())
    labels = next((one.labels for one in samples(entity, found) if one.metric == "part_count"), {})
    return told(Reading(list(samples(entity, found))), entity), list(events(entity, "rnic0", found)), labels


def test_lanes_values_and_maker_of_a_four_lane_module() -> None:
    found, faults, labels = module(qsfp())
    assert found["rx_power_dbm", "2"] == (-0.97, "ok")
    assert found["tx_power_dbm", "4"] == (0.0, "ok")
    assert found["tx_bias_a", "1"] == (0.0075, "ok")
    assert found["module_temperature_c",] == (41.25, "ok")
    assert found["module_voltage_v",] == (3.2825, "ok")
    assert found["module_alarms_count",] == found["module_warnings_count",] == (0, "ok")
    assert labels == {
        "part": "module", "vendor": "ACME OPTICS", "part_number": "AO-100G-SR4", "revision": "A2",
        "serial": "SN0001",
    }  # fmt: skip
    assert faults == []


def test_no_serial_number_is_compared_between_nodes() -> None:
    facts = [one.labels for one in samples(PORT, parse(mlxlink().encode())) if one.metric == "fact_count"]
    assert facts == [
        {"fact": "optics.vendor", "value": "ACME"}, {"fact": "optics.part_number", "value": "AO-800"},
        {"fact": "optics.firmware", "value": "46.120.38"},
    ]  # fmt: skip


def test_flags_that_are_on_are_counted() -> None:
    found, _, _ = module(qsfp(flag="On"))
    assert found["module_alarms_count",] == (1, "ok") and found["module_warnings_count",] == (1, "ok")


def test_flags_of_lanes_that_ethtool_prints_wrongly_are_not_taken() -> None:
    found, _, labels = module(OSFP)
    assert found["module_alarms_count",] == (0, "ok")
    assert found["rx_power_dbm", "8"] == (0.0, "ok")
    assert (labels["firmware"], labels["length_m"]) == ("61.22", "3")


def test_a_module_of_one_lane() -> None:
    found, _, _ = module(SFP)
    assert found["rx_power_dbm", "1"] == (-4.0, "ok") and found["tx_power_dbm", "1"] == (-3.0, "ok")
    assert found["tx_bias_a", "1"] == (0.006, "ok") and found["module_temperature_c",] == (-3.5, "ok")
    assert ("module_alarms_count",) not in found


def test_copper_tells_who_made_it_and_no_more() -> None:
    found, faults, labels = module(DAC)
    assert {key[0] for key in found} == {"part_count", "fact_count"}
    assert labels["length_m"] == "2" and faults == []


def test_json_with_a_value_and_its_thresholds_under_one_name() -> None:
    found, faults, labels = module(JSON)
    assert found["module_temperature_c",] == (52.5, "ok")
    assert found["tx_power_dbm", "2"][0] == pytest.approx(3.01, abs=0.01)
    assert found["rx_power_dbm", "2"] == (None, "no_light") and found["tx_bias_a", "2"] == (0.0072, "ok")
    assert found["module_warnings_count",] == (1, "ok") and found["module_alarms_count",] == (0, "ok")
    assert labels["firmware"] == "61.22"
    assert [(e.kind, e.severity) for e in faults] == [("optics_weak", "warning"), ("optics_hot", "warning")]


def test_an_infiniband_module_by_mlxlink() -> None:
    found, faults, labels = module(mlxlink())
    assert found["rx_power_dbm", "1"] == (1.886, "ok") and found["tx_power_dbm", "4"] == (None, "no_light")
    assert found["tx_bias_a", "4"] == (0.00841, "ok") and found["module_voltage_v",] == (3261.2 / 1_000, "ok")
    assert labels["length_m"] == "30"
    (weak,) = faults
    assert weak.attributes == {"rx_lanes": ["3"], "tx_lanes": ["4"]} and weak.standing
    assert weak.message.endswith("rx lane 3 -11.0 dBm; tx lane 4 none")


@pytest.mark.parametrize("value", ["N/A", "0,0,0,0 [0..0]"])
def test_a_copper_cable_by_mlxlink(value: str) -> None:
    fields = dict.fromkeys(("Bias Current [mA]", "Rx Power Current [dBm]", "Tx Power Current [dBm]"), value)
    fields |= {name: value.split(",")[0] for name in ("Temperature [C]", "Voltage [mV]")}
    found, faults, _ = module(mlxlink(**fields, **{"Cable Technology": "Copper cable, passive, unequalized"}))
    assert {key[0] for key in found} == {"part_count", "fact_count"} and faults == []


@pytest.mark.parametrize(
    ("rx", "weak"),
    [
        (("0.8000 mW / -0.97 dBm",) * 4, []),
        (("0.1000 mW / -10.00 dBm", "0.8 mW / -0.97 dBm", "0.8 mW / -0.97 dBm", DARK), ["1", "4"]),
        ((DARK,) * 4, []),  # no link: that is told by who watches links
    ],
)
def test_lanes_below_the_modules_own_warning_threshold(rx: tuple[str, ...], weak: list[str]) -> None:
    _, faults, _ = module(qsfp(rx))
    assert [event.attributes["rx_lanes"] for event in faults] == ([weak] if weak else [])


@pytest.mark.parametrize(
    ("heat", "told_of"), [("69.90", None), ("70.00", ("warning", 70.0)), ("80.10", ("critical", 75.0))]
)
def test_heat_by_the_modules_own_thresholds(heat: str, told_of: tuple[str, float] | None) -> None:
    _, faults, _ = module(qsfp(heat=heat))
    assert [(e.severity, e.attributes["threshold_c"]) for e in faults if e.kind == "optics_hot"] == (
        [told_of] if told_of else []
    )


def test_thresholds_of_zero_judge_nobody() -> None:
    text = qsfp(("0.1000 mW / -10.00 dBm",) * 4)
    for name in ("Laser rx power", "Module temperature"):
        for kind in ("high alarm", "low alarm", "high warning", "low warning"):
            text += line(f"{name} {kind} threshold", "0.0000 mW / -inf dBm")
    assert module(text)[1] == []


@pytest.mark.parametrize("heat", ["-300.0", "999999999999.0", "9" * 90])
def test_a_temperature_that_is_none_is_null(heat: str) -> None:
    found, faults, _ = module(qsfp(heat=heat))
    assert found["module_temperature_c",] == (None, "out_of_range") and faults == []


# --- looks ------------------------------------------------------------------------------------------------


def node(root: Path, files: dict[str, str]) -> Path:
    return write(root, {
        "sys/class/net/rnic0/device": "../../../0000:1a:00.0",
        "sys/class/infiniband/mlx5_0/device": "../../../0000:1a:00.0",
        **files,
    })  # fmt: skip


def test_a_recorded_port_is_that_of_its_rdma_device(tmp_path: Path) -> None:
    root = node(tmp_path, {
        "commands/ethtool_-m_rnic0.txt": qsfp(), "commands/ethtool_-m_eth9.json": JSON,
        "commands/mlxlink_-m_mlx5_7.json": mlxlink(),
    })  # fmt: skip
    reading = OpticsSource().read(Tree(root), 0.0)
    assert {one.entity for one in reading.samples} == {PORT, "nic/eth9", "port/mlx5_7/1"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[3]", "null", "[" * 50_000, "\0" * 500, "Identifier", "9" * 9_000]
)
def test_garbage_costs_that_port_only(tmp_path: Path, text: str) -> None:
    root = node(tmp_path, {"commands/ethtool_-m_rnic0.txt": text, "commands/ethtool_-m_eth9.txt": qsfp()})
    reading = OpticsSource().read(Tree(root), 0.0)
    assert told(reading) == {("module_temperature_c",): (None, "unreadable")}
    assert told(reading, "nic/eth9")["module_temperature_c",] == (41.25, "ok")


def test_the_drivers_sensor_tells_where_no_tool_does(tmp_path: Path) -> None:
    sensors = "sys/bus/pci/devices/0000:1a:00.0/hwmon/hwmon3"
    root = node(tmp_path, {
        "commands/ethtool_-m_rnic0.txt": "",
        f"{sensors}/temp1_label": "asic\n", f"{sensors}/temp1_input": "90000\n",
        f"{sensors}/temp2_label": "Module0\n", f"{sensors}/temp2_input": "77000\n",
        f"{sensors}/temp2_crit": "75000\n",
    })  # fmt: skip
    reading = OpticsSource().read(Tree(root), 0.0)
    assert told(reading) == {("module_temperature_c",): (77.0, "ok")}
    assert [(event.kind, event.severity) for event in reading.events] == [("optics_hot", "critical")]


def live(root: Path, ports: int = 3, infiniband: bool = False) -> Path:
    for number in range(ports):
        bdf = f"../../../0000:1{number}:00.0"
        write(root, {
            f"sys/class/infiniband/mlx5_{number}/device": bdf,
            f"sys/class/infiniband/mlx5_{number}/ports/1/link_layer":
                "InfiniBand\n" if infiniband else "Ethernet\n",
            f"sys/class/net/rnic{number}/device": bdf,
        })  # fmt: skip
    return root


def asking(monkeypatch: pytest.MonkeyPatch, answers: dict[str, bytes | OSError]) -> list[str]:
    asked: list[str] = []

    def output(_: Tree, __: str, argv: list[str], *___: object) -> bytes:
        asked.append(" ".join(argv))
        said = answers.get(argv[0], FileNotFoundError(errno.ENOENT, "no such tool"))
        if isinstance(said, OSError):
            raise said
        return said

    monkeypatch.setattr(optics, "output", output)
    return asked


def test_one_port_a_look_and_each_again_after_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asking(monkeypatch, {"ethtool": qsfp().encode()})
    source, tree = OpticsSource(), Live(live(tmp_path))
    for number in range(20):  # 285 s
        before = len(asked)
        reading = source.read(tree, 15.0 * number)
        assert len(asked) - before <= 1
    assert sorted(asked[:3]) == [f"ethtool -m rnic{number}" for number in range(3)]
    assert len(asked) == 3
    source.read(tree, 330.0)
    assert asked[3:] == asked[:1]
    assert {one.entity for one in reading.samples} == {f"port/mlx5_{number}/1" for number in range(3)}


def test_infiniband_is_asked_by_whichever_tool_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asking(monkeypatch, {"mstlink": mlxlink().encode()})
    reading = OpticsSource().read(Live(live(tmp_path, 1, infiniband=True)), 0.0)
    assert asked == ["mlxlink -d 0000:10:00.0 -m --json", "mstlink -d 0000:10:00.0 -m --json"]
    assert told(reading)["rx_power_dbm", "1"] == (1.886, "ok")


def test_a_virtual_function_has_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asking(monkeypatch, {"ethtool": qsfp().encode()})
    write(tmp_path, {"sys/class/net/vf0/device/physfn/x": ""})
    assert OpticsSource().read(Live(tmp_path), 0.0) == Reading([], []) and asked == []


def test_a_port_without_a_module_is_asked_hourly_and_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asking(monkeypatch, {"ethtool": OSError(errno.EIO, "Operation not supported")})
    source, tree = OpticsSource(), Live(live(tmp_path, 1))
    for number in range(240):
        assert source.read(tree, 15.0 * number) == Reading([], [])
    assert len(asked) == 1
    source.read(tree, 3_700.0)
    assert len(asked) == 2


def test_a_module_that_was_pulled_is_null_once_and_then_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, bytes | OSError] = {"ethtool": qsfp(heat="80").encode()}
    asking(monkeypatch, answers)
    source, tree = OpticsSource(), Live(live(tmp_path, 1))
    assert [event.kind for event in source.read(tree, 0.0).events] == ["optics_hot"]
    answers["ethtool"] = TimeoutError(errno.ETIMEDOUT, "no answer")
    reading = source.read(tree, 350.0)
    assert told(reading) == {("module_temperature_c",): (None, "etimedout")} and not reading.events
    assert source.read(tree, 700.0) == Reading([], [])
    answers["ethtool"] = qsfp().encode()
    assert told(source.read(tree, 4_400.0))["module_temperature_c",] == (41.25, "ok")


LINES = st.lists(
    st.one_of(st.sampled_from((qsfp() + DAC + SFP + OSFP).splitlines()), st.text(max_size=60)), max_size=30
)


@given(LINES, st.data())
def test_any_lines_give_no_error(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(one.replace("0", data.draw(st.sampled_from(["0", "-", "9" * 40, "e"]))) for one in lines)
    judge(text.encode(errors="replace"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_value_in_any_field_of_json_gives_no_error(data: st.DataObject) -> None:
    said: Any = json.loads(data.draw(st.sampled_from([JSON, mlxlink()])))
    fields = said[0] if isinstance(said, list) else said["result"]["output"]["Module Info"]
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), max_size=4)):
        fields[name] = data.draw(VALUES)
    judge(json.dumps(said).encode(errors="replace"))


def judge(data: bytes) -> None:
    try:
        found = parse(data)
    except ValueError:
        return
    for sample in samples(PORT, found):
        assert (sample.value is None) == (sample.quality != "ok")
        assert all(text.isprintable() and 0 < len(text) <= 128 for text in sample.labels.values())
    list(events(PORT, "rnic0", found))
