"""Known bugs beside the verdict of ``analyze``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.cli.main import main
from clusterwatch.cli.report import known_bugs
from collectors.formats.job_log import parse

LINE = b"node1:77:91 [0] socket.cc:484 NCCL WARN socketFinalizeAccept: wrong magic 74656d2f != 7970663b\n"


def test_a_line_of_the_log_names_the_bug_and_its_source_for_the_terminal() -> None:
    log = parse("rank0.log", [LINE])
    seen = Observation(logs=(log,), versions={"nccl.version": frozenset({"2.21.5"})})
    known = known_bugs.of(seen, diagnose(seen))
    assert known is not None and [one.bug.id for one in known.rows] == ["nccl-foreign-connection"]
    told = known_bugs.lines(known, 100)
    assert told[1] == "Known bugs it may be (the verdict does not rest on them):"
    assert "NVIDIA/nccl issue 1808" in " ".join(told) and max(map(len, told)) <= 100


def test_nothing_is_said_where_no_version_is_told() -> None:
    seen = Observation(logs=(parse("rank0.log", [LINE]),))
    assert known_bugs.of(seen, diagnose(seen)) is None and known_bugs.lines(None, 80) == []


def test_analyze_tells_them_in_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = {"version": "2.9", "nccl_version": "2.21.5", "pg_config": {}, "pg_status": {}, "entries": []}
    (tmp_path / "rank_0.json").write_text(json.dumps(head))
    (tmp_path / "rank_0.log").write_bytes(LINE)
    main(["analyze", str(tmp_path), "--json"])
    told = json.loads(capsys.readouterr().out)["known_bugs"]
    assert [(one["id"], one["fits"], one["sure"]) for one in told["rows"]] == [
        ("nccl-foreign-connection", "yes", "reported")
    ]
