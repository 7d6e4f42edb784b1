"""Which processes are ranks, read once and shared by those who ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collectors.sources import rank_processes
from collectors.sources.rank_processes import ProcessTable, job_processes, rank_entity
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import write

SLURM = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"


class Live(Tree):
    """A recorded tree that behaves as this machine does."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []

    @property
    def is_live(self) -> bool:
        return True

    def read_bytes(self, name: str, *more: Any, **named: Any) -> bytes:
        self.read.append(name)
        return super().read_bytes(name, *more, **named)


def stat(pid: int, parent: int, start: int) -> str:
    return f"{pid} (a (b) c) S {parent} {'0 ' * 17}{start} 0\n"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return write(
        tmp_path,
        {
            "proc/10/environ": b"SLURM_JOB_ID=7\0",
            "proc/10/cgroup": SLURM,
            "proc/11/environ": b"SLURM_JOB_ID=7\0RANK=4\0LOCAL_RANK=0\0AWS_SECRET_ACCESS_KEY=x\0",
            "proc/11/cgroup": SLURM,
            "proc/11/stat": stat(11, 10, 100),
            "proc/12/environ": b"SLURM_JOB_ID=7\0RANK=4\0LOCAL_RANK=0\0",
            "proc/12/stat": stat(12, 11, 101),
            "proc/13/environ": b"HOME=/root\0",
            "proc/self/environ": b"SLURM_JOB_ID=8\0RANK=0\0",
        },
    )


def test_a_rank_is_the_parent_of_its_workers_and_a_launcher_is_none(node: Path) -> None:
    found = job_processes(Tree(node), 0.0)
    assert [(rank_entity(one), one.process.pid) for one in found.ranks] == [("job/7/rank/4", 11)]
    assert [process.pid for process in found.all] == [10, 11, 12]


def test_no_secret_is_kept(node: Path) -> None:
    assert "AWS_SECRET_ACCESS_KEY" not in str(job_processes(Tree(node), 0.0))


def test_what_was_read_twice_is_not_read_again_while_the_process_lives(node: Path) -> None:
    tree, table = Live(node), ProcessTable()
    for _ in range(2):
        table.look(tree)
    tree.read.clear()
    found = table.look(tree)
    assert [one.process.pid for one in found.ranks] == [11]
    assert not any(name.endswith(("environ", "cgroup")) for name in tree.read)
    write(
        node, {"proc/11/environ": b"SLURM_JOB_ID=9\0RANK=0\0LOCAL_RANK=0\0", "proc/11/stat": stat(11, 1, 9)}
    )
    assert ("9", 0) in [(one.job, one.rank) for one in table.look(tree).ranks]


def test_one_look_serves_all_who_ask_soon_after(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_processes, "_shared", rank_processes._Shared())
    tree = Live(node)
    first = job_processes(tree, 100.0)
    tree.read.clear()
    assert job_processes(tree, 105.0) is first
    assert not tree.read
    assert job_processes(tree, 111.0) == first
    assert tree.read


def test_who_asks_while_another_waits_for_proc_gets_what_was_known(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = rank_processes._Shared()
    monkeypatch.setattr(rank_processes, "_shared", shared)
    assert shared._lock.acquire(blocking=False)
    assert job_processes(Live(node), 0.0).ranks == ()
    shared._lock.release()
    known = job_processes(Live(node), 0.0)
    assert shared._lock.acquire(blocking=False)
    assert job_processes(Live(node), 60.0) is known
