"""What NCCL says of its choices: the same text for the same choice; any bytes are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats.nccl_log import TEXT_MAX_CHARS, Choices, ProcessChoices, bounded


def facts(*lines: str) -> dict[str, str]:
    choices = Choices()
    for line in lines:
        choices.take(line)
    return choices.facts()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.7<0>",
            {"nccl.hca": "RoCE mlx5_0:1 mlx5_1:1"},
        ),
        (
            "NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_2:1/RoCE ; OOB ib0:1<0>",
            {"nccl.hca": "IB+RoCE mlx5_0:1 mlx5_2:1"},
        ),
        ("NET/IB : No device found.", {"nccl.hca": "none"}),
        ("Using network IBext_v8", {"nccl.net": "IBext_v8"}),
        ("Using network AWS Libfabric", {"nccl.net": "AWS Libfabric"}),
        ("Assigned NET plugin Socket to comm", {"nccl.net": "Socket"}),
        ("NCCL version 2.27.6+cuda13.0", {"nccl.version": "2.27.6+cuda13.0"}),
        ("NCCL_IB_GID_INDEX set by environment to 3.", {"nccl.gid_index": "3"}),
        ("NCCL_IB_TC set to 106", {"nccl.traffic_class": "106"}),
        (
            "NET/IB: NCCL Dev 1 IbDev 1 Port 1 qpn 7113 mtu 5 query_ece={x=1} GID 3 (80FE/A) fifoRkey=0x1",
            {"nccl.gid_index": "3"},
        ),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", {"nccl.transport_intra": "P2P/CUMEM"}),
        ("Channel 03/0 : 5[5] -> 4[4] via SHM/direct/direct", {"nccl.transport_intra": "SHM"}),
        ("Ring 00 : 155[3d000] -> 157[b2000] via P2P/IPC", {"nccl.transport_intra": "P2P/IPC"}),
        ("Channel 01 : 1[1] -> 0[0] via P2P/direct pointer", {"nccl.transport_intra": "P2P/direct pointer"}),
        ("Channel 01 : 1[1] -> 0[0] via P2P/indirect/3[3]", {"nccl.transport_intra": "P2P/indirect"}),
        (
            "Channel 02/0 : 9[1] -> 0[0] [receive] via NET/IB/0(7)/GDRDMA/Shared",
            {"nccl.gdr": "yes", "nccl.transport_inter": "NET/IB"},
        ),
        (
            "Channel 02/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/3",
            {"nccl.gdr": "no", "nccl.transport_inter": "NET/AWS Libfabric"},
        ),
        ("Channel 00/02 :    0   1   2   3", {}),
        ("Bootstrap : Using eth0:10.0.0.7<0>", {}),
    ],
)  # fmt: skip
def test_a_line_and_what_it_tells(line: str, told: dict[str, str]) -> None:
    assert facts(line) == told


def test_ways_of_all_channels_are_one_text_in_one_order() -> None:
    lines = [f"Channel {n:02}/0 : 0[0] -> 8[0] [send] via NET/IB/{n}/GDRDMA" for n in range(8)]
    lines.append("Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0")
    wanted = {"nccl.gdr": "no, yes", "nccl.transport_inter": "NET/IB, NET/Socket"}
    assert facts(*lines) == facts(*reversed(lines)) == wanted


def test_each_process_of_a_shared_file_has_its_own_and_the_oldest_are_forgotten() -> None:
    told = ProcessChoices(pids_max=2)
    for pid, net in ((7, "IB"), (8, "Socket"), (9, "IB")):
        told.take(f"[rank1]: [2026-01-02 10:00:00] node:{pid}:99 [1] NCCL INFO Using network {net}".encode())
    assert told.get(7) is None
    assert [choices.facts() for pid in (8, 9) if (choices := told.get(pid))] == [
        {"nccl.net": "Socket"}, {"nccl.net": "IB"},
    ]  # fmt: skip


def test_an_old_version_names_no_process() -> None:
    told = ProcessChoices()
    told.take(b"NCCL version 2.19.3+cuda12.3")
    told.take(b"we use NCCL version 9 or so")
    assert told.unnamed.facts() == {"nccl.version": "2.19.3+cuda12.3"}


def test_a_long_text_is_cut_and_still_tells_two_apart() -> None:
    one, other = bounded("mlx5_0:1 " * 40 + "a"), bounded("mlx5_0:1 " * 40 + "b")
    assert len(one) == TEXT_MAX_CHARS and one != other
    assert bounded("short") == "short"


@given(
    st.text(max_size=300), st.sampled_from(["", "NET/IB : Using ", "Channel 0 via NET/", "Using network "])
)
def test_any_line_is_taken_and_what_it_tells_may_travel(text: str, head: str) -> None:
    told = ProcessChoices()
    told.take(f"h:1:2 [0] NCCL INFO {head}{text}".encode("utf-8", "replace"))
    choices = told.get(1)
    for fact, value in (choices.facts() if choices else {}).items():
        assert fact.startswith("nccl.") and 0 < len(value) <= TEXT_MAX_CHARS and value.isprintable()


@given(st.binary(max_size=300))
def test_any_bytes_are_taken(data: bytes) -> None:
    told = ProcessChoices()
    told.take(data + b":1:1 [0] NCCL INFO " + data)
