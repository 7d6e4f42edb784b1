"""NCCL Inspector logs on a disk: whole, packed, cut off, wrong, hostile, beside other files."""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterwatch.readers import inspector_log
from clusterwatch.readers.archives import survey
from clusterwatch.simulate.step_job import SHAPES, Fault, Kind, StepJob
from tests.cases.inspector_logs import Plugin, name, pid, records, write
from tests.cases.jobs import Call, Halt, Job
from tests.cases.judged import Verdict, analyzed

SHAPE = SHAPES[16].__class__(steps=24)
JOB = StepJob(SHAPE, (Fault(Kind.GPU, 1.3, place=10, step=8),), seed=3)
SLOW = {"rank": None, "host": "node002", "gpu": None, "gpu_uuid": None, "pid": pid(10)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One GPU 30 % slow from step 8 on."""
    return write(JOB, tmp_path_factory.mktemp("inspector"))


def names_the_process(found: Verdict) -> bool:
    return bool(found["verdict"] == "slow_gpu" and found["culprits"] == [SLOW])


def reasons(found: Verdict) -> str:
    return "\n".join(f"{problem['source']}: {problem['reason']}" for problem in found["problems"])


def with_lines(whole: Path, to: Path, extra: bytes, at: int = 50) -> Path:
    """A copy of the logs with something between the lines of one."""
    shutil.copytree(whole, to)
    file = to / name(JOB, 3)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:at], extra + b"\n", *lines[at:]]))
    return to


def test_the_slow_process_is_named_by_host_and_number(whole: Path) -> None:
    found = analyzed(whole)
    assert names_the_process(found) and found["exit_code"] == 1
    assert (found["class"], found["node"], found["onset_step"]) == ("hardware", "node002", None)
    assert (found["culprit_ranks"], found["suspect_ranks"]) == ([], [])
    assert f"rocess {pid(10)} on node002" in found["summary"]
    assert found["coverage"] == {"expected": 16, "reported": 16, "stale": 0, "truncated": 0}
    assert "a hang cannot be seen" in reasons(found) and "less than 8192 bytes" in reasons(found)


def test_with_calls_of_every_size_the_rank_is_known(tmp_path: Path) -> None:
    found = analyzed(write(JOB, tmp_path / "all", Plugin(least_bytes=0)))
    assert (found["verdict"], found["culprit_ranks"]) == ("slow_gpu", [10])
    assert found["culprits"] == [SLOW | {"rank": 10}]
    assert "less than" not in reasons(found)


def test_packed_files_other_names_and_an_archive_say_the_same(whole: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    for number, file in enumerate(sorted(whole.iterdir())):
        kind = ".jsonl.gz" if number % 2 else ".log.gz"
        (packed / f"{file.stem}{kind}").write_bytes(gzip.compress(file.read_bytes(), 1))
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(whole, "run-7/inspector")
    plain = analyzed(whole)
    assert names_the_process(plain)
    for other in (analyzed(packed), analyzed(tmp_path / "logs.tar.gz")):
        assert [other[key] for key in ("summary", "confidence")] == [
            plain[key] for key in ("summary", "confidence")
        ]


def test_one_file_with_the_lines_of_all_is_taken_apart(whole: Path, tmp_path: Path) -> None:
    every = b"".join(file.read_bytes() for file in sorted(whole.iterdir()))
    (tmp_path / "everything.txt").write_bytes(every)
    assert names_the_process(analyzed(tmp_path / "everything.txt"))


BAD = {
    "no JSON": b"{header",
    "a list": b"[1, 2]",
    "another object": b'{"header": 1}',
    "not UTF-8": b'{"header": "\xff\xfe"}',
    "deep": b"[" * 50_000,
    "long": b'{"header": "' + b"x" * 70_000 + b'"}',
}


@pytest.mark.parametrize("what", BAD)
def test_a_line_that_is_none_costs_itself_and_is_counted(whole: Path, tmp_path: Path, what: str) -> None:
    found = analyzed(with_lines(whole, tmp_path / "log", BAD[what]))
    assert names_the_process(found)
    assert "1 line is none of the plugin's" in reasons(found)


CHANGES: dict[str, dict[str, Any]] = {
    "a rank outside its communicator": {"header": {"rank": 4}},
    "a communicator of nobody": {"header": {"n_ranks": 0}},
    "more ranks than there can be": {"header": {"n_ranks": 2**70}},
    "a negative number": {"coll_perf": {"coll_sn": -1}},
    "a number beyond 64 bits": {"coll_perf": {"coll_sn": 2**80}},
    "an absurd size": {"coll_perf": {"coll_msg_size_bytes": 2**64}},
    "a host that is a number": {"metadata": {"hostname": 7}},
    "a send among collectives": {"coll_perf": {"coll": "Send"}},
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_absurd_value_costs_its_line(whole: Path, tmp_path: Path, what: str) -> None:
    lines = (whole / name(JOB, 3)).read_text().splitlines()
    line = json.loads(next(text for text in lines if "ReduceScatter" in text))
    for part, values in CHANGES[what].items():
        line[part] |= values
    found = analyzed(with_lines(whole, tmp_path / "log", json.dumps(line).encode()))
    assert names_the_process(found)
    assert "1 line is none of the plugin's" in reasons(found)


def test_numbers_that_json_does_not_know_are_no_fault(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "log")
    file = tmp_path / "log" / name(JOB, 0)
    file.write_text(file.read_text().replace('"coll_busbw_gbs":12.5', '"coll_busbw_gbs":inf'))
    found = analyzed(tmp_path / "log")
    assert names_the_process(found) and "none of the plugin's" not in reasons(found)


def test_a_packed_log_that_is_cut_off_is_used_as_far_as_it_goes(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "log")
    file = tmp_path / "log" / name(JOB, 1)
    data = gzip.compress(file.read_bytes())
    file.unlink()
    (tmp_path / "log" / f"{file.name}.gz").write_bytes(data[: len(data) * 4 // 5])
    found = analyzed(tmp_path / "log")
    assert names_the_process(found) and "what comes after is not used" in reasons(found)


def test_logs_without_times_name_the_setting_that_writes_them(tmp_path: Path) -> None:
    for rank, lines in records(JOB).items():
        for line in lines:
            del line["coll_perf" if "coll_perf" in line else "p2p_perf"]["event_trace_ts"]
        (tmp_path / name(JOB, rank)).write_text("\n".join(map(json.dumps, lines)))
    found = analyzed(tmp_path)
    assert (found["verdict"], found["exit_code"]) == ("not_enough_data", 3)
    assert "NCCL_INSPECTOR_DUMP_VERBOSE=1" in reasons(found)


def test_what_the_plugin_says_it_lost_is_told(whole: Path, tmp_path: Path) -> None:
    line = json.loads((whole / name(JOB, 3)).read_text().splitlines()[0])
    del line["coll_perf"]
    line["dump_stats"] = {"coll_dropped_since_last_dump": 17, "p2p_dropped_since_last_dump": -4}
    found = analyzed(with_lines(whole, tmp_path / "log", json.dumps(line).encode()))
    assert "overwrote 17 calls" in reasons(found)


def test_dumps_win_over_these_logs(whole: Path, tmp_path: Path) -> None:
    job = Job(4)
    job.programs = [[Call(job.default) for _ in range(4)] for _ in range(4)]
    job.programs[2][2:] = [Halt()]
    job.run()
    shutil.copytree(whole, tmp_path / "log")
    for rank, data in job.pickles().items():
        (tmp_path / "log" / f"nccl_trace_rank_{rank}").write_bytes(data)
    found = analyzed(tmp_path / "log")
    assert found["class"] == "hang" and found["culprit_ranks"] == [2]
    assert "these logs are not" in reasons(found)


def test_other_files_with_such_names_are_no_such_logs(tmp_path: Path) -> None:
    (tmp_path / "node001-pid77.log").write_text("loading the model\nstep 1\n")
    assert inspector_log.names_in(survey(tmp_path)) == frozenset()
    assert analyzed(tmp_path)["verdict"] == "not_enough_data"


def test_an_empty_log_is_said(tmp_path: Path, whole: Path) -> None:
    line = (whole / name(JOB, 3)).read_text().splitlines()[0]
    (tmp_path / "node000-pid5.log").write_text(line[:-40])
    found = analyzed(tmp_path)
    assert found["verdict"] == "not_enough_data" and "no line of them tells" in reasons(found)


values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8), st.just("Send"),
    st.just("AllReduce"), st.integers(0, 9),
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 40), values), min_size=1, max_size=6), st.binary(max_size=30))
@settings(max_examples=25, deadline=None)
def test_no_line_ever_stops_the_reader(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, Any]], tail: bytes
) -> None:
    lines = [dict(line) for line in records(SMALL)[0][:30]]
    for place, value in changes:
        line = json.loads(json.dumps(lines[place % len(lines)]))
        part = line[sorted(line)[place % 3]]
        part[sorted(part)[place % len(part)]] = value
        lines.append(line)
    folder = tmp_path_factory.mktemp("any")
    (folder / "a-pid1.log").write_bytes("\n".join(map(json.dumps, lines)).encode() + b"\n" + tail)
    found = survey(folder)
    log = inspector_log.read(found, inspector_log.names_in(found))
    assert len(log.lines) <= len(lines)
    analyzed(folder)


SMALL = StepJob(SHAPES[16].__class__(tensor=2, pipeline=2, data=1, steps=2, gpus_per_node=2), seed=1)
