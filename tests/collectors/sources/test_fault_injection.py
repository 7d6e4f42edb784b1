"""Every file of a node, broken in every way: no source raises, and nobody loses what was not in that file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collectors import sources
from collectors.sources.base import Reading
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import full_node

ERRORS = ("EIO", "EACCES", "ENOENT", "EINVAL", "EOPNOTSUPP", "ENODEV", "EAGAIN")
GARBAGE = (b"", b"\0" * 100, b"\xff\xfe{[,;:\n" * 50, b"9" * 70_000, b"-1\n", b"\xe2\x80\xae\n")


class Spied(Tree):
    """Remembers what was read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.names: set[str] = set()

    def read_bytes(self, name: str, *more: Any, **named: Any) -> bytes:
        self.names.add(name)
        return super().read_bytes(name, *more, **named)

    def open(self, name: str) -> int:
        self.names.add(name)
        return super().open(name)


def looks(root: Path) -> tuple[dict[str, Reading], dict[str, set[str]]]:
    """Source -> second reading, and source -> files it has read."""
    readings, read = {}, {}
    for name in sources.names():
        source, tree = sources.make(name), Spied(root)
        source.read(tree, 0.0)
        readings[name] = source.read(tree, 10.0)
        read[name] = tree.names
    return readings, read


def known(reading: Reading) -> set[tuple[str, str, float | None]]:
    return {(sample.entity, sample.metric, sample.value) for sample in reading.samples}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return full_node(tmp_path)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def others_are_whole(root: Path, broken: str, before: dict[str, Reading], read: dict[str, set[str]]) -> None:
    after, _ = looks(root)
    for name, reading in after.items():
        for sample in reading.samples:
            assert sample.value is not None or sample.quality != "ok", (broken, sample)
        if broken not in read[name]:
            assert known(reading) == known(before[name]), (broken, name)
    if broken.startswith("sys/class/infiniband/mlx5_0"):
        kept = {one for one in known(after["infiniband"]) if one[0] == "port/mlx5_1/1"}
        assert kept == {one for one in known(before["infiniband"]) if one[0] == "port/mlx5_1/1"}


@pytest.mark.parametrize("error", ERRORS)
def test_a_file_that_cannot_be_read(node: Path, error: str) -> None:
    before, read = looks(node)
    for broken in files(node):
        # Under a name of its own: a path that gave EINVAL is not opened again by this process.
        own = node.rename(node.with_name(f"{node.name}-{abs(hash(broken))}"))
        (own / "read_errors.json").write_text(json.dumps({broken: error}))
        others_are_whole(own, broken, before, read)
        (own / "read_errors.json").unlink()
        own.rename(node)


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_a_file_of_garbage(node: Path, content: bytes) -> None:
    before, read = looks(node)
    for broken in files(node):
        whole = (node / broken).read_bytes()
        (node / broken).write_bytes(content)
        others_are_whole(node, broken, before, read)
        (node / broken).write_bytes(whole)


def test_a_file_that_is_cut_off(node: Path) -> None:
    before, read = looks(node)
    for broken in files(node):
        whole = (node / broken).read_bytes()
        (node / broken).write_bytes(whole[: len(whole) // 2])
        others_are_whole(node, broken, before, read)
        (node / broken).write_bytes(whole)


def test_the_node_is_read_by_more_than_host(node: Path) -> None:
    readings, _ = looks(node)
    silent = {name for name, reading in readings.items() if not reading.samples and not reading.events}
    # No file of this node is theirs.
    never = {
        "edac", "fabric_manager", "gpu_amd", "job_logs", "kubernetes_pods", "lustre", "mount_probe",
        "nccl_inspector", "nfs_servers", "optics", "weka",
    }  # fmt: skip
    assert silent <= {"expected", "kernel_log", "nvlink", "scheduler_env", "slurm", "ib_fabric"} | never
