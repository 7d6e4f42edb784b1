"""The rank from the names of all files of a folder."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.readers import names


def ranks(files: list[str], decide: names.Decide | None = None) -> dict[str, int]:
    return {named.name: named.rank for named in names.assign(files, decide)}


def spread(shape: Callable[[int], str], count: int = 32) -> None:
    """Every file of ``shape`` gets the rank it was made with."""
    made = {shape(rank): rank for rank in range(count)}
    assert ranks(list(made)) == made


@pytest.mark.parametrize(
    "shape",
    [
        lambda r: f"nccl_trace_rank_{r}",
        lambda r: f"comm_lib_trace_rank_{r}.json",
        lambda r: f"_dump_{r}",
        lambda r: f"{r}",
        lambda r: f"run7-rank{r}.pickle",
        lambda r: f"nccl_trace_rank_gpu{r // 8:02d}.cluster.local_{r}",
        lambda r: f"nccl_trace_rank_ip-10-0-3-{17 + r // 8}.ec2.internal_{r}",
        lambda r: f"nccl_trace_rank_{r // 8}_{r}",
        lambda r: f"nccl_trace_rank_{r}_1790000{r:03d}",
        lambda r: f"rank_{r}_{51305 + 7 * r % 60}",
        lambda r: f"20261202_{51305 + r % 3}_nccl_trace_rank_{r}",
        lambda r: f"trace_rank_{r}_host-{r // 8}",
        lambda r: f"node{r // 8}/nccl_trace_rank_{r}",
        lambda r: f"node{r // 8}/rank{r}/fr_dump.json",
        lambda r: f"dumps.tar:node{r // 8}/rank_{r:05d}",
        lambda r: f"fr.rank={r}.bin",
        lambda r: f"nccl_trace_rank_{r:010d}",
        lambda r: f"job1_{r}",
        lambda r: f"{r:05d}-of-00032.trace",
        lambda r: f"NCCL_TRACE_RANK_{r}.PICKLE",
        lambda r: f"job4711_rank_{r}_attempt_1",
        lambda r: f"trace.{r}.2026-12-01T10:00:00",
        lambda r: f"dump_{r}_2026-12-01_10-00-{r % 3:02d}.pkl",
        lambda r: f"FR {r} copy.pkl",
        lambda r: f"dumps.tar:{r:02d}",
        lambda r: f"r{r}/fr.pkl",
        lambda r: f"rank_{r}/dump.pkl",
        lambda r: f"node{r // 8}/{r}/trace",
        lambda r: f"dumps.tar.gz:run7/{r:03d}/flight_recorder.json",
        lambda r: f"process-{r}/host-a/fr",
    ],
)
def test_reads_the_rank_from_any_shape_of_name(shape: Callable[[int], str]) -> None:
    spread(shape)


def test_a_counter_after_the_rank_is_no_rank() -> None:
    found = ranks([f"nccl_trace_rank_{r}_{n}" for r in range(16) for n in range(3)])
    assert all(rank == int(name.split("_")[3]) for name, rank in found.items())


def test_two_prefixes_are_read_each_in_its_own_way() -> None:
    made = {f"a_rank_{r}_host{r % 2}": r for r in range(8)} | {f"b_rank_host{r % 2}_{r}": r for r in range(8)}
    assert ranks(list(made)) == made


def test_dumps_decide_where_names_leave_it_open() -> None:
    files = ["rank_5_9", "rank_2_7", "rank_1_0"]
    seen: list[list[tuple[str, int]]] = []

    def decide(asked: object) -> int:
        assert isinstance(asked, list)
        seen.append(asked)
        return sum(rank in (5, 2, 1) for _, rank in asked)

    assert ranks(files, decide) == {"rank_5_9": 5, "rank_2_7": 2, "rank_1_0": 1}
    assert len(seen) == 2
    assert ranks(files, lambda asked: sum(rank in (9, 7, 0) for _, rank in asked))["rank_5_9"] == 9


def test_dumps_are_not_opened_where_names_say_it() -> None:
    def decide(asked: object) -> int:
        raise AssertionError("no file needs to be opened")

    assert len(ranks([f"rank_{r}" for r in range(8)], decide)) == 8


@pytest.mark.parametrize(
    "name",
    [
        "expected.json",
        "train_0.log",
        "log.txt.1",
        ".hidden_1",
        "rank_0.pipe",
        "README",
        "model_1.safetensors",
    ],
)
def test_other_files_are_no_dumps(name: str) -> None:
    assert ranks([name]) == {}


@pytest.mark.parametrize(
    "name", ["node5/trace", "attempt_2/dump", "run7/fr.pkl", "3/config", "20261202/trace"]
)
def test_folders_of_hosts_runs_and_days_tell_no_rank(name: str) -> None:
    assert ranks([name]) == {}


def test_files_of_one_host_are_one_series() -> None:
    files = [
        "h0/nccl_trace_rank_0",
        "h0/nccl_trace_rank_1",
        "h1/nccl_trace_rank_0",
        "h2/0/trace",
        "h2/1/trace",
    ]
    series = {named.name: named.series for named in names.assign(files)}
    assert series["h0/nccl_trace_rank_0"] == series["h0/nccl_trace_rank_1"] != series["h1/nccl_trace_rank_0"]
    assert series["h2/0/trace"] == series["h2/1/trace"] == "h2/"


@pytest.mark.parametrize(
    ("name", "sure"), [("nccl_trace_rank_3", True), ("_dump_3", True), ("core.3", False)]
)
def test_says_whether_the_name_promises_a_dump(name: str, sure: bool) -> None:
    assert [named.sure for named in names.assign([name])] == [sure]


@given(st.integers(1, 64), st.integers(1, 9), st.randoms(use_true_random=False))
def test_the_order_of_names_changes_nothing(count: int, per_host: int, order: random.Random) -> None:
    files = [f"h{r // per_host}/trace_rank_h{r // per_host}_{r}" for r in range(count)]
    shuffled = list(files)
    order.shuffle(shuffled)
    assert names.assign(shuffled) == names.assign(files)
    assert ranks(shuffled) == {name: number for number, name in enumerate(files)}


@given(st.lists(st.text(max_size=40), max_size=20))
def test_any_text_is_a_name(files: list[str]) -> None:
    assert {named.name for named in names.assign(files)} <= set(files)
