"""Xid and SXid lines: what follows from what, who said it, and what the catalogue knows."""

# ruff: noqa: E501  (lines of logs stay as they are printed)

from __future__ import annotations

import tomllib
from datetime import date
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.base import SourceEvent
from collectors.sources.kernel_lines import Place
from collectors.sources.kmsg import Record
from collectors.sources.tree import Tree
from collectors.sources.xid_catalogue import catalogue, meaning, switch_meaning
from collectors.sources.xid_lines import Memory, recovery_action, with_recovery

A, B, C = (f"pci/0000:0{name}:00.0" for name in "abc")
Roots = list[tuple[int | None, object, object]]


def events(*lines: str | tuple[int, str]) -> list[SourceEvent]:
    """Events of lines a second apart, or at the second that is given with them."""
    timed = [line if isinstance(line, tuple) else (at, line) for at, line in enumerate(lines)]
    records = [Record(at, second * 1_000_000, line) for at, (second, line) in enumerate(timed)]
    memory, place = Memory(), Place(Tree(Path("/nonexistent")), 0)
    memory.learn(records, place)
    return with_recovery([event for record in records if (event := memory.event(record, place))])


def xid(gpu: str, code: int, rest: str = "") -> str:
    return f"NVRM: Xid (PCI:{gpu.removeprefix('pci/').removesuffix('.0')}): {code}, {rest}"


def roots(found: list[SourceEvent]) -> Roots:
    return [(e.code, e.attributes.get("root_code"), e.attributes.get("root_entity")) for e in found]


def test_an_echo_of_an_echo_names_the_first_fault() -> None:
    """A public log: each GPU cleans up after a 145 of its own, and that came of one GPU's 149."""
    found = events(
        xid(A, 149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x1)"),
        xid(B, 145, "RLW_REMAP Nonfatal XC0 i0 Link 02 (0x1)"),
        xid(A, 45, "pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149"),
        xid(B, 45, "pid=1818992, name=python3, Ch 0000000c caused by previous Xid 145"),
    )
    assert roots(found) == [(149, None, None), (145, 149, A), (45, 149, A), (45, 149, A)]


def test_a_cause_that_the_log_no_longer_has_is_named_all_the_same() -> None:
    (found,) = roots(events(xid(A, 45, "pid=1, name=python3, Ch 00000001 caused by previous Xid 149")))
    assert found == (45, 149, A)


def test_thousands_of_echoes_do_not_push_out_their_root() -> None:
    echoes = [(1, xid(A, 45, "pid=1, name=python3, Ch 00000001"))] * 5_000
    found = events((0, xid(A, 79, "GPU has fallen off the bus.")), *echoes)
    assert {root for _, root, _ in roots(found)[1:]} == {79}


def test_a_detail_belongs_to_the_fault_of_its_own_gpu() -> None:
    found = events(xid(B, 48, "An uncorrectable double bit error"), xid(A, 171, "DRAM"), xid(B, 171, "DRAM"))
    assert roots(found) == [(48, None, None), (171, None, None), (171, 48, B)]


def test_a_fault_long_before_is_no_root() -> None:
    assert roots(events((0, xid(A, 31, "MMU")), (61, xid(A, 45, "Ch 1"))))[1] == (45, None, None)


@pytest.mark.parametrize(
    ("number", "text", "action", "severity"),
    [
        ("0x1", "GPU Reset Required", "GPU_RESET", "critical"),
        ("0x1", "PF FLR", "GPU_RESET", "critical"),
        ("0x2", "OS Reboot", "NODE_REBOOT", "critical"),
        ("0x3", "Drain P2P", "DRAIN_P2P", "warning"),
        ("0x4", "Drain and Reset", "DRAIN_AND_RESET", "critical"),
        ("0x9", "Recover IMEX Domain", "RECOVER_IMEX_DOMAIN", "warning"),
    ],
)
def test_a_recovery_action_goes_by_its_number(number: str, text: str, action: str, severity: str) -> None:
    """Public logs: drivers word the same action differently."""
    cause, told = events(
        xid(A, 31, "pid=1, name=x, MMU Fault"),
        xid(A, 154, f"GPU recovery action changed from 0x0 (None) to {number} ({text})"),
    )
    assert cause.attributes["recovery_action"] == told.attributes["recovery_action"] == action
    assert (cause.severity, told.severity) == (severity, "info")
    assert told.attributes["root_code"] == 31
    assert recovery_action(0, text) == "NONE"


def test_a_recovery_action_without_its_cause_has_its_own_severity() -> None:
    action = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    (told,) = events(xid(A, 154, action))
    assert (told.severity, told.attributes["recovery_action"]) == ("critical", "GPU_RESET")


@pytest.mark.parametrize(
    ("line", "entity", "code", "told"),
    [
        ("NVRM: Xid (PCI:0000:0a:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception", A, 13, {"pid": 9, "name": "a", "gpu_instance": 1}),
        ("NVRM: Xid (PCI:00000000:0A:00.0): 63, Row Remapper: New row marked", A, 63, {}),
        ("NVRM: Xid (PCI:0000:0a:00): 94,", A, 94, {}),
        ("NVRM: Xid (PCI:0000:0a:00): 45, pid=7, name=torchrun_worker_0_of_8, Ch 00000001", A, 45, {"pid": 7, "name": "torchrun_worker_0_of_8"}),
        ("NVRM: Xid (PCI:0000:0a:00): 31, pid=7, name=load, step: 3, x, Ch 00000001, MMU Fault", A, 31, {"pid": 7, "name": "load, step: 3, x"}),
        ("NVRM: Xid (PCI:0000:0a:00): 45, pid=7, name=python", A, 45, {"pid": 7, "name": "python"}),
        ("NVRM: Xid (PCI:0000:0a:00): 149, NETIR Fatal XC0 i0 Link -1 (0x1)", A, 149, {"fatal": True}),
    ],
)  # fmt: skip
def test_rarer_forms(line: str, entity: str, code: int, told: dict[str, object]) -> None:
    (event,) = events(line)
    assert (event.entity, event.code) == (entity, code)
    assert {k: v for k, v in event.attributes.items() if k != "bdf"} == told


def test_a_code_nobody_knows_speaks_in_the_drivers_words() -> None:
    (event,) = events(xid(A, 998, "something new happened"))
    assert (event.message, event.severity) == ("Xid 998: something new happened", "warning")
    (event,) = events(xid(A, 998))
    assert event.message == "Xid 998"


@pytest.mark.parametrize(
    "line",
    [
        "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user/NVRM: Xid (PCI:0000:0a:00): 79, x",
        "usb 1-1: Product: NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus",
        "usb 1-1: Product: NVRM: GPU 0000:0a:00.0: GPU has fallen off the bus",
        "usb 1-1: Product: nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30",
        "usb 1-1: NVRM: GPU at PCI:0000:0a:00: GPU-00000000-0000-0000-0000-00000000000a",
        "NVRM: Xid (PCI:0000:0a:00): garbled, pid=2280636",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
    ],
)
def test_names_that_a_user_chose_are_not_the_driver(line: str) -> None:
    """A control group or a device may be called anything; the driver's lines begin with the driver."""
    assert events(line) == []


def test_a_switch_fault_of_three_lines_is_one_event() -> None:
    head = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 22013, "
    (event,) = events(
        f"{head}Non-fatal, Link 32 Minion Link DLREQ interrupt (First)",
        f"{head}Severity 0 Engine instance 32 Sub-engine instance 00",
        f"{head}Data {{0x00000001, 0x00000000}}",
    )
    assert event.attributes == {"bdf": "0000:c1:00.0", "link": 32, "fatal": False}


def test_a_switch_fault_without_words_has_the_catalogues_severity() -> None:
    (event,) = events("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 14017, Link 3 TS ATO timeout")
    assert (event.severity, event.attributes["link"]) == ("critical", 3)


def test_a_lost_gpu_in_one_record_of_three_lines() -> None:
    """How a live log has it: the breaks are escaped inside one record."""
    (event,) = events(
        "NVRM: The NVIDIA GPU 0000:0a:00.0 NVRM: (PCI ID: 10de:26b5) installed in this system has "
        "NVRM: fallen off the bus and is not responding to commands."
    )
    assert (event.kind, event.entity, event.code) == ("gpu_lost", A, None)


def test_the_catalogue_is_whole() -> None:
    text = resources.files("collectors.sources").joinpath("fault_catalogue.toml").read_text()
    rows = tomllib.loads(text)
    known = catalogue()
    assert known.version >= 1 and date.fromisoformat(known.date)
    for table, found in (("xid", known.xids), ("sxid", known.sxids)):
        assert len(found) == len(rows[table]), "a code has two rows"
        for row in found.values():
            assert row.severity in ("info", "warning", "critical")
            assert row.text and row.action and row.source
    table = "13 31 32 11 25 69 80 43 45 46 62 109 110 119 120 158 48 171 172 63 64 92 94 95 74 144 145 146 147 148 149 150 136 79 54 140 143 121 137 154 156 157 160 161 162 163 164 165"
    assert set(map(int, table.split())) <= set(known.xids)
    assert meaning(45).echo_of == () and meaning(145).echo_of == (149,) and meaning(94).echo_of is None
    assert meaning(9_999).severity == switch_meaning(1).severity == "warning"


@given(st.text(max_size=120))
def test_whatever_follows_an_xid_is_read(rest: str) -> None:
    for event in events(
        xid(A, 149, rest), f"NVRM: {rest}", f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 1, {rest}"
    ):
        assert len(event.message) <= 200
        assert all(len(str(value)) <= 64 for value in event.attributes.values())
