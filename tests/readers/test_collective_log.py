"""Collective logs as they lie on a disk: whole, cut off, packed, wrong, hostile. A bad line costs itself."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from clusterwatch.readers import collective_log
from clusterwatch.readers.observation import FormatError, observe
from clusterwatch.simulate.step_job import SHAPES, Fault, Kind, StepJob
from tests.cases.judged import analyzed, named

TINY = SHAPES[16].__class__(steps=40)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One GPU 30 % slow from step 12 on."""
    job = StepJob(TINY, (Fault(Kind.GPU, 1.3, place=10, step=12),), seed=3)
    return job.write(tmp_path_factory.mktemp("log"))


def lines(folder: Path) -> list[bytes]:
    return gzip.decompress((folder / "records.jsonl.gz").read_bytes()).splitlines()


def copy(whole: Path, to: Path, records: bytes, name: str = "records.jsonl") -> Path:
    to.mkdir(exist_ok=True)
    (to / "topology.json").write_bytes((whole / "topology.json").read_bytes())
    (to / name).write_bytes(records)
    return to


def test_the_slow_gpu_is_named_through_the_command(whole: Path) -> None:
    found = analyzed(whole)
    assert named(found) == ("slow_gpu", [10], []) and found["exit_code"] == 1
    assert (found["class"], found["node"], found["onset_step"]) == ("hardware", 2, 12)
    assert found["culprits"] == [{"rank": 10, "host": "node 2", "gpu": 2, "gpu_uuid": None, "pid": None}]
    assert found["coverage"]["reported"] == 16


def test_plain_lines_and_an_archive_say_the_same(whole: Path, tmp_path: Path) -> None:
    plain = copy(whole, tmp_path / "plain", b"\n".join(lines(whole)))
    with tarfile.open(tmp_path / "log.tar.gz", "w:gz") as archive:
        archive.add(plain, "run-7")
    assert named(analyzed(plain)) == named(analyzed(tmp_path / "log.tar.gz")) == ("slow_gpu", [10], [])


def test_any_order_and_repeated_lines_change_nothing(whole: Path, tmp_path: Path) -> None:
    rows = lines(whole)
    mixed = copy(whole, tmp_path / "mixed", b"\n".join([*rows[::-1], *rows[::7]]))
    one, other = analyzed(whole), analyzed(mixed)
    assert {key: one[key] for key in ("summary", "confidence")} == {
        key: other[key] for key in ("summary", "confidence")
    }


BAD = {
    "no JSON": b"{rank",
    "another object": b'{"rank": 1}',
    "a list": b"[1, 2]",
    "a negative rank": None,
    "a time beyond 64 bits": None,
    "not UTF-8": b'{"pg": "\xff\xfe"}',
    "nothing but blanks": b"   ",
}


@pytest.mark.parametrize("what", BAD)
def test_a_line_that_is_no_record_costs_itself(whole: Path, tmp_path: Path, what: str) -> None:
    rows = lines(whole)
    bad = BAD[what]
    if bad is None:
        record = json.loads(rows[0])
        record |= {"rank": -3} if "rank" in what else {"end_ns": 2**70}
        bad = json.dumps(record).encode()
    found = analyzed(copy(whole, tmp_path / "log", b"\n".join([*rows[:50], bad, *rows[50:]])))
    assert named(found) == ("slow_gpu", [10], [])
    told = [problem["reason"] for problem in found["problems"]]
    assert (told == []) if what == "nothing but blanks" else "1 line is no record" in told[0]


def test_a_packed_log_that_is_cut_off_is_used_as_far_as_it_goes(whole: Path, tmp_path: Path) -> None:
    data = (whole / "records.jsonl.gz").read_bytes()
    found = analyzed(copy(whole, tmp_path / "cut", data[: len(data) * 3 // 4], "records.jsonl.gz"))
    assert found["culprit_ranks"] == [10], found["summary"]
    assert any("not used" in problem["reason"] for problem in found["problems"])


@pytest.mark.parametrize(
    "topology", [b"", b"null", b"[]", b'{"ranks": []}', b'{"ranks": [{"rank": 0}, {"rank": 0}]}', b"\xff"]
)
def test_a_topology_that_is_none_is_named(whole: Path, tmp_path: Path, topology: bytes) -> None:
    folder = copy(whole, tmp_path / "log", b"\n".join(lines(whole)))
    (folder / "topology.json").write_bytes(topology)
    with pytest.raises(FormatError, match=r"topology\.json"):
        observe(folder)


@pytest.mark.parametrize("records", [b"", b"\n\n", b"no line of this is JSON\n" * 10])
def test_a_log_without_a_record_is_named(whole: Path, tmp_path: Path, records: bytes) -> None:
    with pytest.raises(FormatError, match="no line of it is a record"):
        observe(copy(whole, tmp_path / "log", records))


def changed(whole: Path, to: Path, change: dict[str, Any]) -> Path:
    folder = copy(whole, to, b"\n".join(lines(whole)))
    told = json.loads((whole / "topology.json").read_text())
    for place in told["ranks"]:
        place |= {key: value(place) for key, value in change.items()}
    (folder / "topology.json").write_text(json.dumps(told))
    return folder


def test_a_layout_that_lies_is_told_and_taken_from_the_calls(whole: Path, tmp_path: Path) -> None:
    found = analyzed(changed(whole, tmp_path / "log", {"pp": lambda place: place["rank"] % 2}))
    assert found["culprit_ranks"] == [10], found["summary"]
    assert any("do not fit the calls" in problem["reason"] for problem in found["problems"])


def test_a_topology_that_knows_half_of_the_ranks_leaves_out_the_rest(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path / "log", b"\n".join(lines(whole)))
    told = json.loads((whole / "topology.json").read_text())
    told["ranks"] = told["ranks"][:12]
    (folder / "topology.json").write_text(json.dumps(told))
    found = analyzed(folder)
    assert any("does not list all ranks" in problem["reason"] for problem in found["problems"])


def test_one_endless_line_is_not_held(whole: Path, tmp_path: Path) -> None:
    endless = b'{"rank": 1' + b" " * (3 * collective_log.LINE_MAX_BYTES) + b"}"
    found = analyzed(copy(whole, tmp_path / "log", b"\n".join([endless, *lines(whole)])))
    assert named(found) == ("slow_gpu", [10], [])


@pytest.mark.parametrize("field", ["seq", "step", "mb", "bytes", "enqueue_ns"])
@pytest.mark.parametrize("value", [-1, 2**40])
def test_absurd_numbers_in_some_records_are_survived(
    whole: Path, tmp_path: Path, field: str, value: int
) -> None:
    rows = lines(whole)
    for place in range(0, len(rows), 500):
        rows[place] = json.dumps(json.loads(rows[place]) | {field: value}).encode()
    assert analyzed(copy(whole, tmp_path / "log", b"\n".join(rows)))["verdict"]
