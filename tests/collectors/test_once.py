"""``once`` keeps the contract: JSON lines only, unknown is null with a reason, nothing of the live host."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectors import once, pollers, sources
from collectors.sources.base import Reading, Sample, SourceEvent
from collectors.sources.tree import Tree
from tests.collectors.fakes import REPO
from tests.collectors.sources.test_host import node
from tests.collectors.sources.trees import write


def lines(roots: list[Path], interval_s: float | None, chosen: list[str]) -> list[dict[str, Any]]:
    out = io.StringIO()
    assert once.run(roots, interval_s, chosen, out) == 0

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in out.getvalue().splitlines()]


def test_two_snapshots_give_rates_of_the_second(tmp_path: Path) -> None:
    node(tmp_path / "a", 1)
    node(tmp_path / "b", 2)
    found = {line["metric"]: line for line in lines([tmp_path / "a", tmp_path / "b"], 10.0, ["host"])}
    assert found["net_rx_bytes_per_s"]["value"] == 100.0
    assert set(found["net_rx_bytes_per_s"]) == {
        "type", "ts_ns", "host", "entity", "metric", "value", "quality", "source",
    }  # fmt: skip


def test_an_empty_tree_gives_no_line_and_nothing_of_this_machine(tmp_path: Path) -> None:
    assert lines([tmp_path], None, ["host"]) == []


def test_the_host_name_is_the_trees_own(tmp_path: Path) -> None:
    node(tmp_path, 1)
    name = tmp_path / "proc/sys/kernel/hostname"
    name.parent.mkdir(parents=True)
    name.write_text("gtn-0101\n")
    assert {line["host"] for line in lines([tmp_path], None, ["host"])} == {"gtn-0101"}


class Broken:
    name, period_s, deadline_s, metrics = "broken", 1.0, 1.0, ()

    def read(self, tree: Tree, at_s: float) -> Reading:
        raise RuntimeError("no driver")


class Absurd:
    name, period_s, deadline_s, metrics = "absurd", 1.0, 1.0, ()

    def read(self, tree: Tree, at_s: float) -> Reading:
        return Reading([Sample("host", "x_ratio", float("nan")), Sample("host", "y_ratio", float("inf"))])


def test_a_broken_source_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sources.REGISTRY, "broken", f"{__name__}:Broken")
    monkeypatch.setitem(sources.REGISTRY, "absurd", f"{__name__}:Absurd")
    node(tmp_path, 1)
    found = lines([tmp_path], None, ["broken", "absurd", "host"])
    assert "no driver" in capsys.readouterr().err
    assert [(line["value"], line["quality"]) for line in found[:2]] == [(None, "out_of_range")] * 2
    assert len(found) > 10


def test_a_job_that_node_and_scheduler_tell_is_told_once_with_what_both_know() -> None:
    def job(**known: Any) -> Reading:
        return Reading((), [SourceEvent("job/7", "job", f"knows {len(known)}", attributes=known)])

    node_says = job(nodes=None, state="RUNNING", restarts=2)
    scheduler_says = job(nodes=4, state="COMPLETING", restarts=None, switch="leaf-1")
    other = Reading((), [SourceEvent("job/7/rank/0", "rank_map", "rank 0")] * 2)
    for readings in ([node_says, scheduler_says, other], [other, scheduler_says, node_says]):
        told = {event.kind: event for event in once.best_events(readings)}
        assert told["job"].message == "knows 4"
        assert told["job"].attributes == {
            "nodes": 4, "state": "COMPLETING", "restarts": 2, "switch": "leaf-1",
        }  # fmt: skip
        assert len(once.best_events(readings)) == 3


def test_pollers_are_looked_at_by_name_like_sources(tmp_path: Path) -> None:
    assert set(pollers.names()) < set(once.names())
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands/squeue_--json.json").write_text("no JSON")
    assert [line["kind"] for line in lines([tmp_path], None, ["slurm"])] == ["scheduler_error"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["once", "--stdout", "--sources", "nope"], 64, "no source 'nope'; there are clock, disks, "),
        (["once", "--root", "/does/not/exist", "--stdout"], 66, "/does/not/exist is no folder"),
        (["once", "--root", "/tmp", "--root", "/tmp", "--stdout"], 64, "need --interval-s"),
        (["fly"], 64, "invalid choice"),
        ([], 64, "required"),
        (["run"], 78, "set CLUSTERWATCH_GATEWAY_URL"),
    ],
)
def test_a_wrong_call_has_its_code_and_one_clear_line(
    arguments: list[str], code: int, words: str, tmp_path: Path
) -> None:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("CLUSTERWATCH_")}
    environment |= {"CLUSTERWATCH_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "collectors", *arguments],
        cwd=REPO, env=environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_agent_imports_nothing_of_the_server() -> None:
    code = (
        "import sys, collectors.__main__, collectors.agent, collectors.once, collectors.doctor\n"
        "heavy = {'clusterwatch', 'django', 'numpy', 'torch', 'multiprocessing'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True, timeout=30)


def test_a_fault_that_stands_is_not_told_beside_its_beginning() -> None:
    began = SourceEvent("gpu/a", "gpu_lost", "fell off the bus", t_ns=5)
    stands = SourceEvent("gpu/a", "gpu_lost", "is missing", standing=True)
    other = SourceEvent("gpu/b", "gpu_lost", "is missing", standing=True)
    assert once.best_events([Reading((), [stands, other]), Reading((), [other, began])]) == [other, began]


def test_a_link_that_leads_out_of_a_recorded_tree_is_not_there(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "secret").write_text("this machine")
    root.mkdir()
    (root / "file").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    (root / "own").write_text("recorded")
    (root / "alias").symlink_to("own")
    tree = Tree(root)
    for name in ("file", "folder/secret", "../outside/secret"):
        with pytest.raises(FileNotFoundError):
            tree.read_bytes(name)
        assert not tree.exists(name)
    assert tree.list("folder") == []
    assert tree.read_text("alias") == "recorded"


def test_after_a_reboot_no_counter_has_a_change(tmp_path: Path) -> None:
    for moment, (boot, count) in {"a": ("b1", 5), "b": ("b2", 9)}.items():
        write(
            tmp_path / moment,
            {
                "proc/sys/kernel/random/boot_id": boot,
                "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": f"{count}\n",
            },
        )
    out = io.StringIO()
    once.run([tmp_path / "a", tmp_path / "b"], 60.0, ["infiniband"], out)
    found = {
        line["metric"]: (line["value"], line["quality"])
        for line in map(json.loads, out.getvalue().splitlines())
    }
    assert found["symbol_error_total"] == (9, "ok")
    assert found["symbol_error_delta_count"] == (None, "reset")
