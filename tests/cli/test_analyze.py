"""The command: words, JSON, exit codes, and that it starts light."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterwatch.cli.main import main
from tests.data.blocking_job import World
from tests.data.recorder import Job

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    folder = tmp_path / "dumps"
    folder.mkdir()
    job = World("data_loader", 5).run()
    for rank in range(8):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(job.pickled(rank))
    return folder


def test_prints_the_sentence_first_then_who_where_and_what_next(stuck: Path, capsys: Captured) -> None:
    assert main(["analyze", str(stuck)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Rank 5 never joined all_reduce 13 of tp (4, 5)")
    labels = [line.split()[0] for line in lines[1 : lines.index("")] if line[2] != " "]
    assert labels == ["verdict", "culprit", "where", "since", "joined", "waiting", "evidence", "next"]
    assert any(line.startswith("  coverage  8 ranks reported; the dumps do not tell") for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_json_holds_the_words_of_the_design(stuck: Path, capsys: Captured) -> None:
    assert main(["analyze", str(stuck), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["kind"], found["class"]) == ("missing_rank", "missing_rank", "hang")
    assert (found["culprit_ranks"], found["seq"], found["op"]) == ([5], 13, "all_reduce")
    assert found["group"] == {"name": "3", "desc": "tp", "ranks": [4, 5]}
    assert found["coverage"] == {"expected": 8, "reported": 8, "stale": 0, "truncated": 0}


def test_a_topology_names_host_and_gpu(stuck: Path, capsys: Captured) -> None:
    path = stuck.parent / "topology.json"
    path.write_text(json.dumps({"ranks": [{"rank": r, "node": r // 2, "gpu": r % 2} for r in range(8)]}))
    main(["analyze", str(stuck), "--topology", str(path)])
    assert "rank 5 (node 2, GPU 1)" in capsys.readouterr().out


def test_stacks_are_merged(stuck: Path, capsys: Captured) -> None:
    main(["analyze", str(stuck), "--stacks"])
    assert "the dumps hold none" in capsys.readouterr().out
    job = Job(2)
    job.all()
    for rank in range(2):
        job.rings[rank].entries[0]["frames"] = [{"name": "step", "filename": "job.py", "line": 3}]
        (stuck / f"nccl_trace_rank_{rank}").write_bytes(job.pickled(rank))
    main(["analyze", str(stuck), "--stacks"])
    assert "step (job.py:3)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere"], 66),
        (["."], 3),
        ([], 64),
        ([".", "--topology", "nowhere"], 66),
        ([".", "--world-size", "0"], 64),
        ([".", "--world-size", "99999999999999"], 64),
        ([""], 64),
    ],
)
def test_exit_codes(
    arguments: list[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        given = main(["analyze", *arguments])
    except SystemExit as stop:
        given = int(stop.code or 0)
    assert given == code
    capsys.readouterr()


def test_a_healthy_job_exits_0(tmp_path: Path, capsys: Captured) -> None:
    job = World().run()
    for rank in range(8):
        (tmp_path / f"rank_{rank}").write_bytes(job.pickled(rank))
    assert main(["analyze", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("No fault")


def test_names_from_dumps_never_reach_the_terminal_raw(tmp_path: Path, capsys: Captured) -> None:
    job = Job(2)
    job.group("1", "\x1b[31mred\n", (0, 1))
    job.all()
    job.call(0, "1", state="scheduled")
    for rank in range(2):
        (tmp_path / f"rank_{rank}").write_bytes(job.pickled(rank))
    main(["analyze", str(tmp_path)])
    assert "\x1b" not in capsys.readouterr().out


def test_a_terminal_that_knows_few_letters_still_gets_the_verdict(stuck: Path) -> None:
    program = "import sys; from clusterwatch.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "analyze", str(stuck)]
    done = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=60, check=False
    )
    assert done.returncode == 2 and done.stdout.startswith(b"Rank 5 never joined")


def test_starts_without_django() -> None:
    code = (
        "import sys, clusterwatch.cli.analyze;"
        "print([m for m in ('django', 'torch', 'psycopg') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
