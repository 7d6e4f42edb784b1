"""Files as they lie on a cluster, through the command: names, several jobs, broken ones, pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.analysis.verdicts import CATALOGUE
from clusterwatch.cli.report import words
from collectors.formats.flight_recorder import decode
from collectors.formats.trace import TraceError
from tests.cases.jobs import Call, Halt, Job, Sync
from tests.cases.judged import analyzed, named
from tests.cases.writer import Flavour

PAGES = Path(__file__).parents[2] / "templates" / "docs" / "verdicts"


PAIRS = ((1, "tp", (0, 1)), (2, "tp", (2, 3)), (9, "dp", (0, 2)), (10, "dp", (1, 3)))


def lacking(rank: int, world: int = 4) -> Job:
    job = Job(world)
    job.repeat(5, Call(job.default), Sync())
    job.programs[rank].append(Halt())
    job.every(Call(job.default))
    return job.run()


@pytest.mark.parametrize(
    "name",
    [
        "comm_lib_trace_rank_{}",
        "nccl_trace_rank_{}",
        "trace_rank_gpu-17-3_{}",
        "run7_rank{}.pkl",
        "_dump_{}",
        "nccl_trace_rank_{}_node12",
    ],
)
def test_whatever_the_files_are_called(tmp_path: Path, name: str) -> None:
    """Public issue 140879 among them: a host name with numbers stands before the rank."""
    found = analyzed(lacking(2).write(tmp_path, name))
    assert named(found) == ("missing_rank", [2], []) and found["exit_code"] == 2


def test_a_broken_file_is_named_and_the_rest_is_judged(tmp_path: Path) -> None:
    folder = lacking(2).write(tmp_path)
    (folder / "comm_lib_trace_rank_1").write_bytes(b"\x80\x02garbage")
    found = analyzed(folder)
    assert named(found) == ("missing_rank", [2], [])
    assert [problem["rank"] for problem in found["problems"]] == [1]


@pytest.mark.parametrize("at_ns", [2**31, 2**62, 2**63 - 1])
def test_one_absurd_time_makes_no_other_file_stale(tmp_path: Path, at_ns: int) -> None:
    job = lacking(2)
    job.rings[1].entries[-1]["time_created_ns"] = at_ns
    found = analyzed(job.write(tmp_path))
    assert named(found) == ("missing_rank", [2], []) and found["coverage"]["stale"] == 0
    assert [problem["rank"] for problem in found["problems"]] == [1]


def test_two_jobs_in_one_folder_are_told(tmp_path: Path) -> None:
    lacking(2).write(tmp_path, "jobA_comm_lib_trace_rank_{}")
    lacking(5, world=8).write(tmp_path, "jobB_comm_lib_trace_rank_{}")
    found = analyzed(tmp_path)
    assert found["culprit_ranks"] in ([2], [5])
    assert any("another job" in problem["reason"] for problem in found["problems"])


def test_an_empty_folder_is_not_enough_data(tmp_path: Path) -> None:
    found = analyzed(tmp_path)
    assert found["verdict"] == "not_enough_data" and found["exit_code"] == 3


@pytest.mark.parametrize(
    "word", [w for w, row in CATALOGUE.items() if row.fault_class in {"hang", "crash", "blind", "none"}]
)
def test_every_verdict_of_the_engine_has_its_page_of_four_parts(word: str) -> None:
    text = (PAGES / f"{word}.md").read_text()
    assert text.startswith("# ")
    for heading in ("## How we know", "## What to do", "## When we would be wrong"):
        assert text.count(heading) == 1


class TestOlderCalls:
    """Why a dump lacks older calls: its ring overflowed, or the finished ones were left out."""

    def coverage(self, **how: Any) -> str:
        job = Job(4)
        job.repeat(6, Call(job.default), Sync())
        job.every(Call(job.default), ranks=range(3))
        job.run()
        traces = tuple(decode(data, rank, str(rank)) for rank, data in job.pickles(**how).items())
        return words.coverage(diagnose(Observation(traces=traces))).replace("\N{NO-BREAK SPACE}", " ")

    def test_a_dump_of_open_calls_is_not_told_as_an_overflow(self) -> None:
        told = self.coverage(only_active=True)
        assert "3 dumps hold open calls only" in told and "overflow" not in told

    def test_a_ring_that_overflowed_is(self) -> None:
        told = self.coverage(keep=4)
        assert "4 rings overflowed" in told and "open calls only" not in told

    def test_a_whole_ring_is_neither(self) -> None:
        assert self.coverage() == "4 of 4 ranks reported"


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("at", [2, -1])
def test_both_readers_refuse_a_pickle_that_pops(at: int, compiled: bool) -> None:
    data = lacking(2).pickles()[0]
    with pytest.raises(TraceError, match="opcode POP"):
        decode(data[:at] + b"K\x010" + data[at:], 0, compiled=compiled)


def test_a_damaged_dump_is_not_told_as_none(tmp_path: Path) -> None:
    folder = lacking(2).write(tmp_path / "dumps")
    damaged = folder / "comm_lib_trace_rank_2"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    found = analyzed(folder)
    assert named(found) == ("suspect_no_dump", [], [2])
    assert "left a dump that cannot be read" in found["summary"]


def test_half_of_a_hung_gloo_job_of_untold_size_ends_with_unknown(tmp_path: Path) -> None:
    """Ranks 0 and 1 wait, unseen, for ranks that left no dump; 2 and 3 wait for these two."""
    job = Job(4, Flavour("gloo"))
    pairs = [job.group(str(n), desc, ranks) for n, desc, ranks in PAIRS]
    for _ in range(3):
        for pair in pairs:
            job.every(Call(pair), Sync(), ranks=pair.ranks)
    for rank in (0, 1):
        job.programs[rank][-2:] = [Halt()]
    found = analyzed(job.run().write(tmp_path / "dumps"))
    assert (found["verdict"], found["exit_code"], found["suspect_ranks"]) == ("not_enough_data", 3, [])
    assert "waits in all_reduce" in found["summary"]
