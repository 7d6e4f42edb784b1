"""The kernel's log: forms of Xids seen in the field, echoes and roots, losses, lines that are no fault."""

# ruff: noqa: E501  (lines of logs stay as they are printed)

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources import kernel_log, kmsg
from collectors.sources.kernel_log import KernelLogSource
from collectors.sources.kmsg import KmsgReader, Lost, Record, fresh
from collectors.sources.tree import Tree
from tests.collectors.sources.kernel_node import BTIME, A, B, events, node
from tests.collectors.sources.trees import given_lines, look, write


def test_the_given_node() -> None:
    missed = given_lines(KernelLogSource(), "gpu/GPU-e7a40086", "nic/rnic2")
    assert [line for line in missed if '"event"' in line] == []


@pytest.mark.parametrize(
    ("line", "code", "entity", "told"),
    [
        ("NVRM: Xid (PCI:0000:0a:00): 119, pid=2024380, name=nvidia-smi, Timeout waiting for RPC", 119, f"gpu/{A}", {"pid": 2024380, "name": "nvidia-smi"}),
        ("NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 79, f"gpu/{A}", {}),
        ("NVRM: Xid (0000:0a:00): 14, Channel 00000001", 14, f"gpu/{A}", {}),
        ("NVRM: Xid (PCI:0000:0a:00 GPU-I:05): 94, pid=7194, name=python, Ch 00000007", 94, f"gpu/{A}", {"pid": 7194, "name": "python", "gpu_instance": 5}),
        ("NVRM: Xid (PCI:0000:0b:00): 31, pid=9, name=a, b: c, Ch 00000001, intr 00000000. MMU Fault", 31, f"gpu/{B}", {"pid": 9, "name": "a, b: c"}),
        ("NVRM: Xid (PCI:0000:0c:00): 48, An uncorrectable double bit error", 48, "pci/0000:0c:00.0", {}),
        ("NVRM: Xid (PCI:0000:0a:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x00000004 0x0)", 149, f"gpu/{A}", {"link": 8, "fatal": True}),
        ("NVRM: Xid (PCI:0000:0a:00): 145, RLW_REMAP Nonfatal XC0 i0 Link -1 (0x4 0x0)", 145, f"gpu/{A}", {"fatal": False}),
        ("NVRM: Xid (PCI:0000:0a:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x1)", 74, f"gpu/{A}", {"link": 6, "fatal": True}),
    ],
)  # fmt: skip
def test_every_form_of_an_xid(
    tmp_path: Path, line: str, code: int, entity: str, told: dict[str, object]
) -> None:
    (event,) = events(tmp_path, line)
    bdf = {"gpu/" + A: "0000:0a:00.0", "gpu/" + B: "0000:0b:00.0"}.get(entity, entity.removeprefix("pci/"))
    assert (event.kind, event.code, event.entity) == ("xid", code, entity)
    assert event.attributes == told | {"bdf": bdf}
    assert event.t_ns == BTIME * 10**9 + 10**9


def test_the_driver_line_that_maps_an_address_wins(tmp_path: Path) -> None:
    found = events(
        tmp_path,
        f"NVRM: GPU at PCI:0000:0c:00: {A}",
        "NVRM: GPU Board Serial Number: 1654922006536",
        "NVRM: Xid (PCI:0000:0c:00): 63, Row Remapper: New row marked for remapping",
    )
    assert [event.entity for event in found] == [f"gpu/{A}"]


def test_the_history_that_follows_a_gsp_timeout_is_one_event(tmp_path: Path) -> None:
    """A public log: an Xid 119 with dozens of lines of history behind it."""
    history = [
        "NVRM: GPU0 GSP RPC buffer contains function 76",
        "NVRM: GPU0 RPC history (CPU -> GSP):",
        "NVRM:  entry function data0",
    ]
    found = events(
        tmp_path, "NVRM: Xid (PCI:0000:0a:00): 119, pid=1, name=x, Timeout after 6s of waiting", *history * 20
    )
    assert [event.code for event in found] == [119]


def test_a_cleanup_names_the_xid_it_follows(tmp_path: Path) -> None:
    found = events(
        tmp_path,
        "NVRM: Xid (PCI:0000:0b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x1)",
        "NVRM: Xid (PCI:0000:0a:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 02 (0x1)",
        "NVRM: Xid (PCI:0000:0a:00): 45, pid=5, name=python, Ch 00000010, caused by previous Xid 149",
    )
    roots = [
        (event.code, event.attributes.get("root_code"), event.attributes.get("root_entity"))
        for event in found
    ]
    assert roots == [(149, None, None), (145, 149, f"gpu/{B}"), (45, 149, f"gpu/{B}")]


def test_a_cleanup_that_names_nothing_follows_the_fault_of_its_gpu(tmp_path: Path) -> None:
    found = events(
        tmp_path,
        "NVRM: Xid (PCI:0000:0b:00): 95, pid=5, name=python, Uncontained",
        "NVRM: Xid (PCI:0000:0b:00): 45, pid=5, name=python, Ch 00000010",
        "NVRM: Xid (PCI:0000:0a:00): 45, pid=6, name=python, Ch 00000010",
    )
    assert [event.attributes.get("root_code") for event in found] == [None, 95, None]


def test_the_drivers_own_recovery_action_wins(tmp_path: Path) -> None:
    found = events(
        tmp_path,
        "NVRM: Xid (PCI:0000:0a:00): 94, pid=5, name=python, Contained: SM (0x1)",
        "NVRM: Xid (PCI:0000:0a:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    )
    assert [event.severity for event in found] == ["critical", "info"]
    assert [event.attributes["recovery_action"] for event in found] == ["NODE_REBOOT", "NODE_REBOOT"]
    assert found[1].attributes["root_code"] == 94
    back = "NVRM: Xid (PCI:0000:0a:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    (event,) = events(tmp_path, back)
    assert (event.severity, event.attributes["recovery_action"]) == ("info", "NONE")


@pytest.mark.parametrize(
    "lines",
    [
        ["NVRM: GPU 0000:0a:00.0: GPU has fallen off the bus."],
        ["NVRM: GPU at PCI:0000:0a:00 has fallen off the bus and is not responding"],
        ["NVRM: The NVIDIA GPU 0000:0a:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has", "NVRM: fallen off the bus and is not responding to commands."],
    ],
)  # fmt: skip
def test_a_gpu_lost_without_an_xid(tmp_path: Path, lines: list[str]) -> None:
    """Public logs: one line or three, and no Xid."""
    (event,) = events(tmp_path, *lines)
    assert (event.kind, event.entity, event.severity) == ("gpu_lost", f"gpu/{A}", "critical")


def test_a_loss_that_an_xid_tells_is_not_told_again(tmp_path: Path) -> None:
    found = events(
        tmp_path,
        "NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: GPU 0000:0a:00.0: GPU has fallen off the bus.",
    )
    assert [event.kind for event in found] == ["xid"]


@pytest.mark.parametrize(
    ("word", "severity", "fatal"), [("Non-fatal", "warning", False), ("Fatal", "critical", True)]
)
def test_a_switch_fault_says_in_words_whether_it_is_fatal(
    tmp_path: Path, word: str, severity: str, fatal: bool
) -> None:
    (event,) = events(
        tmp_path,
        f"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, {word}, Link 32 egress non-posted PRIV error (First)",
    )
    assert (event.kind, event.code, event.entity, event.severity) == (
        "sxid",
        12028,
        "pci/0000:05:00.0",
        severity,
    )
    assert event.attributes == {"bdf": "0000:05:00.0", "link": 32, "fatal": fatal}


def test_what_a_process_wrote_is_not_believed_and_no_gap(tmp_path: Path) -> None:
    node(tmp_path)
    line = "NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus."
    write(tmp_path, {"dev/kmsg": f"3,1,1,-;hello\n12,2,2,-;{line}\n3,3,3,-;world\n"})
    assert look(KernelLogSource(), tmp_path)[1] == []


def test_only_what_is_new_is_told_and_a_new_boot_begins_again(tmp_path: Path) -> None:
    source, line = KernelLogSource(), "NVRM: Xid (PCI:0000:0a:00): 13, Graphics SM Warp Exception"
    assert len(look(source, node(tmp_path, line))[1]) == 1
    assert len(look(source, node(tmp_path, line, line))[1]) == 1
    assert look(source, node(tmp_path, line, line))[1] == []
    assert len(look(source, node(tmp_path, line, boot="b2"))[1]) == 1


def test_what_is_missing_between_two_looks_is_counted(tmp_path: Path) -> None:
    source = KernelLogSource()
    look(source, node(tmp_path, "a", "b"))
    (event,) = look(source, node(tmp_path, "c", first=110))[1]
    assert (event.kind, event.attributes) == ("kmsg_gap", {"lost": 8})


def test_a_source_that_starts_again_goes_on_where_it_was(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:0a:00): 13, Graphics SM Warp Exception"
    state = tmp_path / "state"
    state.mkdir()
    root = node(tmp_path / "node", line)
    for told in (1, 0):
        source = KernelLogSource()
        source.keep_in(state)
        assert len(look(source, root)[1]) == told
    (state / "kernel_log.json").write_text("damaged")
    source = KernelLogSource()
    source.keep_in(state)
    assert len(look(source, root)[1]) == 1


def test_bytes_that_are_no_text_and_escapes(tmp_path: Path) -> None:
    node(tmp_path)
    line = rb"INFO: task caf\xc3\xa9:7 blocked for more than 9 seconds"
    write(tmp_path, {"dev/kmsg": b"3,1,1,-;" + line + b"\n3,2,2,-;\xff\xfe Link down\n"})
    (event,) = look(KernelLogSource(), tmp_path)[1]
    assert event.attributes["comm"] == "café"


def test_the_journal_is_read_where_the_log_may_not_be(tmp_path: Path) -> None:
    node(tmp_path)
    (tmp_path / "dev/kmsg").unlink()
    line = "NVRM: Xid (PCI:0000:0a:00): 13, Graphics"
    told = {"_TRANSPORT": "kernel", "_SOURCE_MONOTONIC_TIMESTAMP": "5000000"}
    rows = [
        told | {"MESSAGE": list(line.encode() + b"\xff")},
        told | {"MESSAGE": 3},
        {"MESSAGE": line, "SYSLOG_FACILITY": "3"},
    ]
    write(tmp_path, {"commands/journalctl_-k_-o_json.json": "\n".join(map(json.dumps, rows)) + "\ngarbage\n"})
    source = KernelLogSource()
    (event,) = look(source, tmp_path)[1]
    assert (event.code, event.t_ns) == (13, BTIME * 10**9 + 5 * 10**9)
    assert look(source, tmp_path)[1] == []


def test_a_live_log_is_read_record_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record a read; EPIPE where some were overwritten; EAGAIN at the end."""
    answers: list[bytes | int] = [b"3,7,1,-;a\n KEY=1\n", errno.EPIPE, b"3,9,2,-;b\n", errno.EAGAIN]

    def read(_: int, __: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    reader = KmsgReader("/dev/null")
    monkeypatch.setattr(os, "read", read)
    found = reader.read()
    monkeypatch.undo()
    reader.close()
    assert [record.text for record in found] == ["a", "b"]
    assert list(fresh(found, None)) == [found[0], Lost(1, 2), found[1]]


@given(st.binary(max_size=400))
def test_any_bytes_are_read(data: bytes) -> None:
    for record in kmsg.parse(data):
        assert isinstance(record, Record)
    kmsg.parse_journal(data)


class LiveTree(Tree):
    """A recorded node that is read like this machine."""

    is_live = True


class FakeReader:
    """Records that each look finds, one batch after the other."""

    def __init__(self, *batches: bytes) -> None:
        self._batches = list(batches)

    def read(self) -> list[Record]:
        return kmsg.parse(self._batches.pop(0)) if self._batches else []


def live(root: Path, *batches: bytes) -> tuple[KernelLogSource, LiveTree]:
    source = KernelLogSource()
    source._reader = FakeReader(*batches)  # type: ignore[assignment]
    return source, LiveTree(node(root))


def test_a_flood_hides_no_other_fault(tmp_path: Path) -> None:
    """A public report: thousands of the same Xid as a job ends; what else happened is still told."""
    echo = "NVRM: Xid (PCI:0000:0a:00): 45, pid=5, name=python, Ch 00000001"
    lines = [echo] * 3_000 + ["NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus."]
    source, tree = live(tmp_path, "".join(f"3,{n},{n},-;{line}\n" for n, line in enumerate(lines)).encode())
    found = source.read(tree, 0.0).events
    assert [event.code for event in found[-2:]] == [79, 45]
    assert (found[-1].kind, found[-1].attributes) == ("kmsg_flood", {"kind": "xid", "count": 2_800})
    assert len(found) == 202
    assert len(events(tmp_path / "recorded", *lines)) == 3_001  # what was recorded is told whole


def test_an_idle_look_reads_nothing_but_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, tree = live(tmp_path, b"3,1,1,-;hello\n")
    source.read(tree, 0.0)
    monkeypatch.setattr(LiveTree, "read_bytes", None)
    reading = source.read(tree, 1.0)
    assert reading.events == () and reading.samples[0].value == 1


def test_a_kill_told_at_two_looks_is_one_event(tmp_path: Path) -> None:
    first = b"3,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/a,task=python,pid=9,uid=0\n"
    source, tree = live(tmp_path, first, b"3,2,2,-;Out of memory: Killed process 9 (python) total-vm:1kB\n")
    assert [len(source.read(tree, at).events) for at in (0.0, 1.0)] == [1, 0]


def test_a_log_that_was_cut_off_does_not_begin_again(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:0a:00): 13, Graphics"
    source = KernelLogSource()
    assert [len(look(source, node(tmp_path, *[line] * count))[1]) for count in (3, 1, 3)] == [3, 0, 0]


def test_where_the_place_cannot_be_written_the_events_are_told(tmp_path: Path) -> None:
    source = KernelLogSource()
    source.keep_in(tmp_path / "gone")
    root = node(tmp_path / "node", "NVRM: Xid (PCI:0000:0a:00): 13, Graphics")
    assert len(look(source, root)[1]) == 1


def test_the_driver_names_a_gpu_that_no_tool_lists(tmp_path: Path) -> None:
    uuid = "GPU-00000000-0000-0000-0000-00000000000c"
    told = f"Model: \t NVIDIA H100\nGPU UUID: \t {uuid}\n"
    write(tmp_path, {"proc/driver/nvidia/gpus/0000:0c:00.0/information": told})
    (event,) = events(tmp_path, "NVRM: Xid (PCI:0000:0c:00): 13, Graphics")
    assert event.entity == f"gpu/{uuid}"


PIECES = (
    "NVRM: ", "Xid (PCI:0000:0a:00", " GPU-I:05", "): ", "149", "154", "45", ", ", "pid=", "name=", "7", "<unknown>",
    "caused by previous Xid ", "to 0x1 (", ")", "Link ", "-1", " Fatal", "Non-fatal", "The NVIDIA GPU ", "0000:0a:00.0",
    "fallen off the bus", "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): ", "mlx5_core 0000:12:00.0 ", "eth0: ", "Link down",
    "INFO: task ", " blocked for more than ", " seconds", "oom-kill:constraint=", "task_memcg=", ",task=", ",pid=", "nvme ",
    "nvme2n1", "I/O error, dev ", "nfs: server ", " not responding", "GPU at PCI:0000:0a:00: ", A, "\\x0a", "\\xff", "é",
)  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=8))
def test_any_line_made_of_real_ones_is_read_and_what_it_tells_is_bounded(lines: list[str]) -> None:
    source = KernelLogSource()
    source._reader = FakeReader("".join(f"3,{n},{n},-;{text}\n" for n, text in enumerate(lines)).encode())  # type: ignore[assignment]
    for event in source.read(LiveTree(Path("/nonexistent")), 0.0).events:
        assert event.entity.isprintable() and len(event.entity) <= 128
        assert event.message.isprintable() and len(event.message) <= 300
        assert len(json.dumps(dict(event.attributes))) <= 600


LOST = "NVRM: GPU 0000:0b:00.0: GPU has fallen off the bus."
ONLY_A = f"index, uuid, pci.bus_id\n0, {A}, 00000000:0A:00.0\n"


def test_a_gpu_that_no_list_has_any_more_keeps_its_name(tmp_path: Path) -> None:
    source = KernelLogSource()
    look(source, node(tmp_path))
    root = write(node(tmp_path, LOST), {"commands/nvidia-smi_query-gpu.csv": ONLY_A})
    (event,) = look(source, root)[1]
    assert event.entity == f"gpu/{B}"


def test_the_only_gpu_that_is_missing_is_the_one_at_an_unknown_address(tmp_path: Path) -> None:
    expected = {"etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{A}", "{B}"]\n'}
    root = write(node(tmp_path, LOST), {"commands/nvidia-smi_query-gpu.csv": ONLY_A} | expected)
    (event,) = look(KernelLogSource(), root)[1]
    assert event.entity == f"gpu/{B}"
    two = {"etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{A}", "{B}", "{B[:-1]}c"]\n'}
    (event,) = look(KernelLogSource(), write(root, two))[1]
    assert event.entity == "pci/0000:0b:00.0"  # two are missing: nothing tells which this is


def test_a_boot_that_is_not_told_is_the_same(tmp_path: Path) -> None:
    source, line = KernelLogSource(), "NVRM: Xid (PCI:0000:0a:00): 13, Graphics"
    told = []
    for has_boot in (False, True, False):
        root = node(tmp_path, line)
        if not has_boot:
            (root / "proc/sys/kernel/random/boot_id").unlink()
        told.append(len(look(source, root)[1]))
    assert told == [1, 0, 0]


def test_a_journal_that_shows_nothing_is_no_quiet_kernel(tmp_path: Path) -> None:
    node(tmp_path)
    write(
        tmp_path, {"read_errors.json": '{"dev/kmsg": "EPERM"}', "commands/journalctl_-k_-o_json.json": "{}"}
    )
    assert look(KernelLogSource(), tmp_path)[0] == {("host", "kernel_log_readable_count"): (None, "eperm")}


def test_a_log_that_may_not_be_read_is_not_a_host_without_faults(tmp_path: Path) -> None:
    node(tmp_path)
    write(tmp_path, {"read_errors.json": '{"dev/kmsg": "EPERM"}'})
    assert look(KernelLogSource(), tmp_path)[0] == {("host", "kernel_log_readable_count"): (None, "eperm")}
    (tmp_path / "read_errors.json").unlink()
    assert look(KernelLogSource(), tmp_path)[0]["host", "kernel_log_readable_count"] == (1, "ok")


@pytest.mark.parametrize("spare_bytes", range(4))
def test_of_a_long_recording_the_end_is_read_from_a_whole_line_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare_bytes: int
) -> None:
    """Half a record of a process would look like one of the kernel: 12 cut to 2."""
    xid = "NVRM: Xid (PCI:0000:0a:00): %d, pid=1, name=a, x"
    old, cut, new = (f"{prio},{at},{at},-;{xid % at}\n" for prio, at in ((3, 13), (12, 31), (3, 79)))
    monkeypatch.setattr(kernel_log, "RECORDED_MAX_BYTES", len(new) + len(cut) - spare_bytes)
    write(tmp_path, {"dev/kmsg": old + cut + new})
    assert [event.code for event in look(KernelLogSource(), tmp_path)[1] if event.kind == "xid"] == [79]
