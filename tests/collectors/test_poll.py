"""Devices asked by hand: each answer is printed, and who gives none is told and holds up nobody."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collectors import poll
from collectors.__main__ import main
from collectors.pollers.device import ConfigError, Device, DeviceReading
from collectors.sources.base import Reading, Sample, SourceEvent
from tests.collectors.pollers.test_switch_fboss import MODELS

SAMPLE = Sample("switchport/rsw-1/eth1", "neighbour_count", 1, labels={"peer": "gtn-0101"})


@dataclass
class Fake:
    """A poller that tells what it is given; an exception is raised, an event is waited for."""

    name: str
    tells: tuple[DeviceReading | Exception | threading.Event, ...]
    deadline_s: float = 5.0
    period_s: float = 60.0

    def poll(self, at_s: float) -> Iterable[DeviceReading]:
        for one in self.tells:
            if isinstance(one, Exception):
                raise one
            if isinstance(one, threading.Event):
                one.wait(30)
            else:
                yield one

    def close(self) -> None:
        pass


def told(name: str, state: str = "ok") -> DeviceReading:
    event = SourceEvent(f"switch/{name}", "port_down", "down", standing=True)
    return DeviceReading(Device("switch", name), Reading([SAMPLE], [event]), state)


def printed(*pollers: Fake, looks: int = 1) -> tuple[int, list[dict[str, Any]]]:
    out = io.StringIO()
    code = poll.run(list(pollers), looks, 0.0, out)
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def test_each_device_is_told_with_its_samples_and_events() -> None:
    code, lines = printed(Fake("switch_gnmi", (told("rsw-1"),)))
    assert code == 0
    device, sample, event = lines
    assert {line["type"]: line["device"]["name"] for line in lines} == dict.fromkeys(
        ("device", "sample", "event"), "rsw-1"
    )
    assert (device["state"], device["node"], device["source"]) == ("ok", None, "switch_gnmi")
    assert (sample["value"], sample["labels"], sample["host"]) == (1, {"peer": "gtn-0101"}, None)
    assert event["kind"] == "port_down"


def test_a_poller_that_hangs_is_told_and_the_others_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    for_ever = threading.Event()
    hangs = Fake("switch_snmp", (told("a"), for_ever), deadline_s=0.3)
    code, lines = printed(hangs, Fake("switch_gnmi", (told("b"), told("c"))))
    for_ever.set()
    assert code == 1
    assert {line["device"]["name"] for line in lines} == {"a", "b", "c"}
    assert "poller switch_snmp failed: not done within 0.3 s" in capsys.readouterr().err


def test_a_device_that_is_not_reached_and_a_poller_that_fails_are_seen_in_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, lines = printed(Fake("switch_snmp", (told("a", "no_answer"),)))
    assert (code, lines[0]["state"]) == (1, "no_answer")
    code, lines = printed(Fake("switch_snmp", (told("a"), RuntimeError("odd"))))
    assert code == 1 and len(lines) == 3
    assert "odd" in capsys.readouterr().err


def test_of_two_looks_the_second_is_printed() -> None:
    assert len(printed(Fake("switch_snmp", (told("a"),)), looks=2)[1]) == 3


def test_the_command_reads_switches_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fboss/rsw-1").mkdir(parents=True)
    for name, model in MODELS.items():
        (tmp_path / f"fboss/rsw-1/{name}.json").write_text(json.dumps({"localhost": model}))
    config = tmp_path / "pollers.toml"
    config.write_text('[switch_fboss]\nfolder = "fboss"\ntargets = [{ name = "rsw-1" }]\n')
    assert main(["poll", str(config), "--interval-s", "0.1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["device"] == {"kind": "switch", "name": "rsw-1"}
    rates = [line["value"] for line in lines if line.get("metric") == "rate_gbps"]
    assert 400 in rates


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no poller"),
        ("x = ", "is no TOML"),
        ("[switch_morse]\n", "no poller 'switch_morse'"),
        ("switch_snmp = 3\n", "switch_snmp must be a table"),
        ('[switch_fboss]\nfolder = "gone"\ntargets = [{ name = "a/b" }]\n', "switch_fboss"),
    ],
)
def test_a_bad_file_is_one_line_that_names_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    config = tmp_path / "pollers.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=said):
        poll.load(config)
    assert main(["poll", str(config)]) == 78
    (line,) = capsys.readouterr().err.splitlines()
    assert "pollers.toml" in line


def test_a_file_that_is_not_there_and_an_impossible_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["poll", str(tmp_path / "none.toml")]) == 78
    assert main(["poll", str(tmp_path), "--interval-s", "-1"]) == 64
    assert main(["poll", str(tmp_path), "--interval-s", "nan"]) == 64
    assert capsys.readouterr().out == ""
