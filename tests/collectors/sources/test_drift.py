"""How NCCL is set and what it chose, per rank, and that nothing else of an environment or a log travels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.readings import may_travel
from collectors.sources import drift
from collectors.sources.base import Reading, Sample
from collectors.sources.drift import DriftSource
from collectors.sources.nccl_environment import (
    asked_for,
    config,
    environment,
    is_multi_node,
    log_pattern,
    told,
)
from collectors.sources.tree import Tree
from tests.collectors.sources.test_job_logs import append, node
from tests.collectors.sources.test_nvml_live import Live
from tests.collectors.sources.test_scheduler_env import rank
from tests.collectors.sources.trees import write

RANK = "job/7/rank/0"
HEAD = "gtn-1:{pid}:4711 [0] NCCL INFO "


def said(pid: int, *lines: str) -> str:
    return "".join(f"{HEAD.format(pid=pid)}{line}\n" for line in lines)


START = (
    "NCCL version 2.27.6+cuda13.0",
    "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.7<0>",
    "Using network IB",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
)
CHOSEN = {
    "nccl.gdr": "yes",
    "nccl.hca": "RoCE mlx5_0:1 mlx5_1:1",
    "nccl.net": "IB",
    "nccl.transport_inter": "NET/IB",
    "nccl.transport_intra": "P2P/CUMEM",
    "nccl.version": "2.27.6+cuda13.0",
}


def facts(reading: Reading, entity: str = RANK) -> dict[str, str]:
    of_entity = [one for one in reading.samples if one.entity == entity]
    assert all(one.metric == "fact_count" and one.value == 1 and may_travel(one) for one in of_entity)
    return {one.labels["fact"]: one.labels["value"] for one in of_entity}


def chosen(reading: Reading, entity: str = RANK) -> dict[str, str]:
    return {fact: value for fact, value in facts(reading, entity).items() if fact.startswith("nccl.")}


def test_what_nccl_chose_is_told_again_at_each_look(tmp_path: Path) -> None:
    log, source, tree = node(tmp_path, said(4_000, *START)), DriftSource(), Live(tmp_path)
    assert chosen(source.read(tree, 0.0)) == CHOSEN
    append(log, "step 1 loss 2.5\n" * 1_000)
    assert chosen(source.read(tree, 61.0)) == CHOSEN
    append(log, said(4_000, "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0"))
    assert chosen(source.read(tree, 122.0)) == CHOSEN | {"nccl.gdr": "no, yes"}


def test_an_agent_that_starts_again_finds_the_same_in_the_log(tmp_path: Path) -> None:
    log = node(tmp_path, said(4_000, *START))
    append(log, "step 1 loss 2.5\n" * 100_000)
    for _ in range(2):
        assert chosen(DriftSource().read(Live(tmp_path), 0.0)) == CHOSEN


def test_ranks_that_share_a_log_are_told_apart_and_another_process_is_nobody(tmp_path: Path) -> None:
    text = said(4_000, *START) + said(4_001, "Using network Socket") + said(9, "Using network Else")
    node(tmp_path, text, ranks=2)
    found = DriftSource().read(Live(tmp_path), 0.0)
    assert chosen(found) == CHOSEN
    assert chosen(found, "job/7/rank/1") == {"nccl.net": "Socket"}


def test_a_rank_in_a_container_prints_the_number_that_it_has_there(tmp_path: Path) -> None:
    node(tmp_path, said(65, "Using network IB"))
    write(tmp_path, {"proc/4000/status": "Name:\tpython\nNSpid:\t4000\t65\n"})
    assert chosen(DriftSource().read(Live(tmp_path), 0.0)) == {"nccl.net": "IB"}


def test_nccls_own_log_is_found_among_the_descriptors(tmp_path: Path) -> None:
    node(tmp_path)
    own = tmp_path / "nccl-gtn-1-65.log"
    own.write_text(said(4_000, *START))
    write(tmp_path, rank(4_000, 0, 0, NCCL_DEBUG_FILE=f"{tmp_path}/nccl-%h-%p.log"))
    (tmp_path / "proc/4000/fd/33").symlink_to(own)
    write(tmp_path, {"proc/4000/fdinfo/33": "pos:\t0\nmnt_id:\t29\n"})
    assert chosen(DriftSource().read(Live(tmp_path), 0.0)) == CHOSEN


def test_a_log_on_a_network_mount_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node(tmp_path, said(4_000, *START), mount=30)
    monkeypatch.setattr(drift, "regular", lambda *_: pytest.fail("the file was touched"))
    found = DriftSource().read(Live(tmp_path), 0.0)
    assert chosen(found) == {} and facts(found) == {"env.read": "yes"}


def test_a_new_life_of_a_rank_begins_with_nothing(tmp_path: Path) -> None:
    node(tmp_path, said(4_000, *START))
    source, tree = DriftSource(), Live(tmp_path)
    source.read(tree, 0.0)
    (tmp_path / "proc/4000").rename(tmp_path / "proc/4005")
    write(tmp_path, rank(4_005, 0, 0))
    assert chosen(source.read(tree, 61.0)) == {}


def test_settings_are_told_and_nothing_else_of_an_environment(tmp_path: Path) -> None:
    node(tmp_path)
    write(tmp_path, rank(4_000, 0, 0, NCCL_IB_TC="106", NCCL_SECRET="do-not-print-this", NCCL_ALGO=""))
    found = DriftSource().read(Live(tmp_path), 0.0)
    assert facts(found) == {"env.read": "yes", "env.NCCL_ALGO": "", "env.NCCL_IB_TC": "106"}
    assert "do-not-print-this" not in str(found)


def test_a_process_that_becomes_the_trainer_is_read_again(tmp_path: Path) -> None:
    node(tmp_path)
    source, tree = DriftSource(), Live(tmp_path)
    source.read(tree, 0.0)
    write(tmp_path, rank(4_000, 0, 0, NCCL_IB_TC="106"))
    assert facts(source.read(tree, 61.0))["env.NCCL_IB_TC"] == "106"


def test_an_environment_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    root = write(tmp_path, rank(4_000, 0, 0))
    source = DriftSource()
    assert facts(source.read(Tree(root), 0.0)) == {"env.read": "yes"}
    write(root, {"read_errors.json": json.dumps({"proc/4000/environ": "EACCES"})})
    assert facts(DriftSource().read(Tree(root), 0.0)) == {}


def test_the_nodes_own_settings(tmp_path: Path) -> None:
    assert DriftSource().read(Tree(tmp_path), 0.0) == Reading([], [])
    write(tmp_path, {"sys/class/infiniband/mlx5_0/fw_ver": "28.39\n"})
    assert facts(DriftSource().read(Tree(tmp_path), 0.0), "host") == {"nccl_conf": "none"}
    write(tmp_path, {"etc/nccl.conf": "# ours\nNCCL_IB_TC=106\nNCCL_IB_TC = 104\nTOKEN=x\n"})
    assert facts(DriftSource().read(Tree(tmp_path), 0.0), "host") == {
        "nccl_conf": "there", "nccl_conf.NCCL_IB_TC": "104",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "values", "fell", "wish"),
    [
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0", {}, True, None),
        ("Using network Socket", {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, True, None),
        ("Using network Socket", {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, False, None),
        ("Using network Socket", {}, False, None),
        ("Channel 00/0 : 0[0] -> 8[0] via NET/Socket/0", {"NCCL_IB_DISABLE": "1"}, True, "NCCL_IB_DISABLE=1"),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA", {}, False, None),
    ],
)
def test_sockets_between_nodes_that_have_rdma(
    tmp_path: Path, line: str, values: dict[str, str], fell: bool, wish: str | None
) -> None:
    node(tmp_path, said(4_000, line))
    write(tmp_path, rank(4_000, 0, 0, **values))
    assert not DriftSource().read(Live(tmp_path), 0.0).events, (
        "a node without RDMA has nothing to fall back from"
    )
    write(tmp_path, {"sys/class/infiniband/mlx5_0/fw_ver": "28.39\n"})
    events = DriftSource().read(Live(tmp_path), 0.0).events
    assert [(one.entity, one.kind, one.standing) for one in events] == [
        ("job/7", "nccl_fell_back", True)
    ] * fell
    assert [one.attributes["asked_by"] for one in events] == [wish] * fell


def test_a_huge_log_costs_one_look_no_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "FILE_MAX_BYTES", 20_000)
    log = node(tmp_path, said(4_000, *START))
    append(log, b"x" * 3_000_000)
    taken: list[bytes] = []
    monkeypatch.setattr("collectors.formats.nccl_log.ProcessChoices.take", lambda _, line: taken.append(line))
    DriftSource().read(Live(tmp_path), 0.0)
    assert sum(map(len, taken)) < 20_000


@given(st.binary(max_size=300))
def test_any_environment_and_configuration(data: bytes) -> None:
    for values in (environment(data), config(data), environment(b"NCCL_IB_HCA=" + data)):
        for name, value in told(values).items():
            assert may_travel(Sample("host", "fact_count", 1, labels={"fact": name, "value": value}))
        assert is_multi_node(values) in (True, False) and isinstance(asked_for(values), str)


@given(st.text(max_size=60))
def test_any_name_of_a_log(text: str) -> None:
    pattern = log_pattern(f"/tmp/{text}-%h.%p")
    assert pattern is not None and pattern.fullmatch(f"/tmp/{text}-gtn-1.77")
    assert log_pattern(f"relative{text}") is None
