"""Files beside the answer: which side of the trouble is at fault is said."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterwatch.cli.report import outputs
from clusterwatch.readers import folder
from collectors.formats.columns import TraceColumns
from tests.data.recorder import Job

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    job = Job(2)
    job.all()
    (tmp_path / "dumps").mkdir()
    for rank in range(2):
        (tmp_path / "dumps" / f"nccl_trace_rank_{rank}").write_bytes(job.pickled(rank))
    return tmp_path / "dumps"


def rings(dumps: Path) -> Iterator[TraceColumns]:
    windows = folder.read(dumps).windows
    return outputs.read_again(dumps, folder.traces(dumps, None, windows), [0, 1])


def test_an_input_that_went_away_is_no_fault_of_the_output(dumps: Path, capsys: Captured) -> None:
    again = rings(dumps)
    shutil.rmtree(dumps)
    target = dumps.parent / "trace.json"
    assert outputs.write(target, lambda file: [file.write(b"x") for _ in again]) == 66
    said = capsys.readouterr().err
    assert "is not written" in said and "dumps cannot be read again: No such file" in said
    assert not target.exists()


def test_a_dump_that_went_away_is_named_and_the_rest_is_written(dumps: Path, capsys: Captured) -> None:
    again = rings(dumps)
    (dumps / "nccl_trace_rank_1").unlink()
    assert outputs.write(dumps.parent / "trace.json", lambda file: [file.write(b"x") for _ in again]) == 0
    assert "dumps of rank 1 changed meanwhile" in capsys.readouterr().err
    assert (dumps.parent / "trace.json").read_bytes() == b"x"


def test_a_full_disk_is_a_fault_of_the_output(dumps: Path, capsys: Captured) -> None:
    def fill(file: object) -> None:
        raise OSError(28, "No space left on device")

    assert outputs.write(dumps.parent / "trace.json", fill) == 64
    assert "cannot be written: No space left" in capsys.readouterr().err
