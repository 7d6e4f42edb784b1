"""Versions of NCCL and torch out of the heads of dumps and the lines of logs."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from clusterwatch.readers.archives import survey
from clusterwatch.readers.library_versions import versions
from collectors.formats.job_log import parse

DUMP = {"version": "2.9", "pg_config": {}, "nccl_version": "2.27.3", "pg_status": {}, "entries": []}


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickled_dump_tells_its_version_without_being_unpickled(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "_dump_0").write_bytes(pickle.dumps(DUMP, protocol))
    assert versions(survey(tmp_path), ()) == {"nccl.version": {"2.27.3"}}


def test_json_dumps_of_two_versions_tell_both(tmp_path: Path) -> None:
    for rank, version in enumerate(("2.27.3", "2.28.9")):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(DUMP | {"nccl_version": version}, indent=1))
    assert versions(survey(tmp_path), ()) == {"nccl.version": {"2.27.3", "2.28.9"}}


@pytest.mark.parametrize("told", ["2.27", "unknown", "1.2.3.4", ""])
def test_what_is_no_version_of_nccl_tells_none(tmp_path: Path, told: str) -> None:
    (tmp_path / "_dump_0").write_bytes(pickle.dumps({"pg_config": {}, "nccl_version": told}, 2))
    (tmp_path / "notes.txt").write_text("nccl_version 2.21.5 is what we should try")
    assert versions(survey(tmp_path), ()).get("nccl.version", frozenset()) <= {"2.21.5"}
    (tmp_path / "notes.txt").unlink()
    assert versions(survey(tmp_path), ()) == {}


def test_a_damaged_or_empty_file_tells_none(tmp_path: Path) -> None:
    (tmp_path / "_dump_0.gz").write_bytes(b"\x1f\x8b\x08\x00damaged")
    (tmp_path / "_dump_1").write_bytes(b"")
    assert versions(survey(tmp_path), ()) == {}


def test_a_log_tells_versions_where_an_error_prints_them(tmp_path: Path) -> None:
    line = (
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1333, unhandled system error "
        "(run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1\n"
    )
    log = parse("rank0.log", [line.encode()])
    assert versions(survey(tmp_path), [log]) == {"nccl.version": {"2.18.1"}}
