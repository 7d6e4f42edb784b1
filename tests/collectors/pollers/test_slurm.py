"""Slurm: every dialect of squeue's JSON says the same job; only jobs that hold this node are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.pollers.slurm import SlurmPoller
from collectors.pollers.slurm_jobs import gpus, number, parse
from collectors.sources.base import SourceEvent
from collectors.sources.slurm_topology import leaf_in
from tests.collectors.sources.trees import given_lines, look, write

HOST = "gtn-0102"
SAID = {
    "nodes": 3, "gpus": 24, "restarts": 1, "state": "RUNNING", "node_index": 1, "time_limit_s": 43_200,
    "switch": "leaf-a01",
}  # fmt: skip


def boxed(value: int | None) -> dict[str, Any]:
    """A number as newer dialects write it; None: no limit."""
    return {"set": value is not None, "infinite": value is None, "number": value or 0}


OLD: dict[str, Any] = {
    "job_id": 55012, "name": "tune-8b", "job_state": "RUNNING", "time_limit": 720, "restart_cnt": 1,
    "node_count": 3, "nodes": "gtn-[0101-0103]", "tres_alloc_str": "cpu=96,mem=1T,node=3,gres/gpu=24",
    "gres_detail": ["gpu:h100:8(IDX:0-7)"] * 3,
    "job_resources": {
        "nodes": "gtn-[0101-0103]", "allocated_cores": 96, "allocated_hosts": 3,
        "allocated_nodes": {"0": {"nodename": "gtn-0101"}},
    },
}  # fmt: skip
MIDDLE = OLD | {
    "time_limit": boxed(720),
    "node_count": boxed(3),
    "job_state": ["RUNNING"],
    "job_resources": {"nodes": "gtn-[0101-0103]", "allocated_nodes": [{"nodename": "gtn-0101"}]},
}
NEW = MIDDLE | {
    "job_resources": {
        "nodes": {
            "count": 3, "list": "gtn-[0101-0103]", "whole": True,
            "allocation": [{"index": n, "name": f"gtn-010{n + 1}"} for n in (2, 0, 1)],
        }
    },
}  # fmt: skip
DIALECTS = {
    "v0.0.37": {"meta": {"plugin": {"type": "openapi/v0.0.37"}}, "errors": [], "jobs": [OLD]},
    "v0.0.39": {"meta": {"plugin": {"data_parser": "v0.0.39"}}, "errors": [], "jobs": [MIDDLE]},
    "v0.0.42": {"meta": {"plugin": {"data_parser": "data_parser/v0.0.42"}}, "errors": [], "jobs": [NEW]},
    "no meta": {"jobs": [NEW | {"nodes": ""}]},
    "nodes of the allocation only": {
        "jobs": [
            NEW | {"nodes": None, "job_resources": {"nodes": NEW["job_resources"]["nodes"] | {"list": ""}}}
        ]
    },
}


def told(root: Path, queue: Any, host: str = HOST) -> list[SourceEvent]:
    write(
        root,
        {
            "proc/sys/kernel/hostname": f"{host}\n",
            "commands/squeue_--json.json": queue if isinstance(queue, str) else json.dumps(queue),
            "etc/slurm/topology.conf": "SwitchName=leaf-a01 Nodes=gtn-[0101-0116]\n",
        },
    )
    return look(SlurmPoller(), root)[1]


def attributes(root: Path, **changed: Any) -> dict[str, Any]:
    (event,) = told(root, {"jobs": [NEW | changed]})
    return dict(event.attributes)


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "nodes of the allocation only"])
def test_each_dialect_says_the_same(tmp_path: Path, dialect: str) -> None:
    (event,) = told(tmp_path, DIALECTS[dialect])
    assert (event.entity, event.kind, event.severity) == ("job/55012", "job", "info")
    assert event.message == "tune-8b running on 3 nodes"
    assert event.attributes == SAID


def test_the_index_is_the_one_that_slurm_tells(tmp_path: Path) -> None:
    (event,) = told(tmp_path, DIALECTS["nodes of the allocation only"])
    assert event.attributes == SAID


def test_indices_of_the_whole_cluster_are_not_taken_for_the_jobs_own(tmp_path: Path) -> None:
    allocation = [{"index": 700 + n, "name": f"gtn-010{n + 1}"} for n in range(3)]
    nodes = {"count": 3, "list": "gtn-[0101-0103]", "allocation": allocation}
    assert attributes(tmp_path, job_resources={"nodes": nodes})["node_index"] == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"job_state": ["PENDING"], "nodes": "", "job_resources": None},
        {"job_state": "PENDING"},
        {"job_state": ["COMPLETED"]},
        {"job_state": ["CANCELLED"]},
        {"job_id": None},
        {"nodes": "gtn-[0201-0203]", "job_resources": {}},
        {"nodes": "gtn-01020", "job_resources": {}},
    ],
)
def test_a_job_that_does_not_hold_this_node_is_not_told(tmp_path: Path, changed: dict[str, Any]) -> None:
    assert told(tmp_path, {"jobs": [NEW | changed]}) == []


def test_a_job_that_is_completing_still_holds_its_nodes(tmp_path: Path) -> None:
    assert attributes(tmp_path, job_state=["CANCELLED", "COMPLETING"])["state"] == "CANCELLED"


def test_a_state_that_is_not_told_is_null(tmp_path: Path) -> None:
    assert attributes(tmp_path, job_state=[])["state"] is None


def test_each_job_is_told_once_and_one_node_is_no_plural(tmp_path: Path) -> None:
    one = {"job_id": 7, "name": "n\nb\u202e", "job_state": "RUNNING", "nodes": HOST}
    events = told(tmp_path, {"jobs": [one, one, NEW]}, host=f"{HOST}.dc.example")
    assert [event.entity for event in events] == ["job/7", "job/55012"]
    assert events[0].message == "n?b? running on 1 node"


@pytest.mark.parametrize("limit", [boxed(None), {"set": False, "number": 0}, 2**32 - 1, 2**32 - 2, None, "x"])
def test_no_limit_is_null(tmp_path: Path, limit: Any) -> None:
    assert attributes(tmp_path, time_limit=limit)["time_limit_s"] is None


@pytest.mark.parametrize(
    ("tres", "details", "count"),
    [
        ("cpu=1,gres/gpu=16,gres/gpu:h100=16", [], 16),
        ("cpu=1,gres/gpu:h100=4,gres/gpu:a100=2", [], 6),
        ("cpu=1", ["gpu:h100:8(IDX:0-7)", "gpu:h100:4(IDX:0-1,6-7)"], 12),
        ("", ["gpu:8(IDX:0-7)", "gpu:1g.10gb:2(IDX:0,3),shard:4(IDX:1)"], 10),
        ("cpu=1", [], 0),
        ("cpu=1", None, None),
        (None, [], None),
        (None, "gpu:8", None),
    ],
)
def test_gpus_of_an_allocation(tres: Any, details: Any, count: int | None) -> None:
    assert gpus(tres, details) == count


def test_a_queue_that_says_what_went_wrong_is_no_empty_queue(tmp_path: Path) -> None:
    errors = [{"error": "Unable to contact slurm controller", "error_number": 1}]
    (event,) = told(tmp_path, {"jobs": [], "errors": errors})
    assert (event.entity, event.kind) == ("host", "scheduler_error")
    assert "Unable to contact" in event.message


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: x", "[]", "{}", '{"jobs": 3}', "[" * 100_000])
def test_what_is_no_queue_is_an_event(tmp_path: Path, text: str) -> None:
    assert [event.kind for event in told(tmp_path, text)] == ["scheduler_error"]


def test_without_slurm_there_is_nothing(tmp_path: Path) -> None:
    assert look(SlurmPoller(), tmp_path) == ({}, [])


@pytest.mark.parametrize(
    ("text", "leaf"),
    [
        ("SwitchName=l1 Nodes=gtn-[0101-0116,0120]\nSwitchName=s1 Switches=l1", "l1"),
        ("# SwitchName=l0 Nodes=gtn-0120\nswitchname=l2  nodes=gtn-01[18-21] LinkSpeed=1", "l2"),
        ("SwitchName=l3 \\\n Nodes=a,gtn-0120", "l3"),
        ("BlockName=b1 Nodes=gtn-[0101-0136]", "b1"),
        ("SwitchName=s1 Switches=gtn-0120", None),
        ("SwitchName=l1 Nodes=gtn-[0101-0119]", None),
        ("", None),
    ],
)
def test_the_leaf_switch_of_a_node(text: str, leaf: str | None) -> None:
    assert leaf_in(text, "gtn-0120") == leaf


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(NEW)), ANY))
def test_any_field_may_be_anything(changed: dict[str, Any]) -> None:
    for job in parse(json.dumps({"jobs": [NEW | changed]})).jobs:
        assert job.index_of(HOST) is None or HOST in job.hosts


@given(ANY)
def test_a_number_is_a_number_or_unknown(value: Any) -> None:
    found = number(value)
    assert found is None or (isinstance(found, int) and found >= 0)


def test_gives_the_expected_lines_of_the_sample_node() -> None:
    assert [line for line in given_lines(SlurmPoller(), "job/55012") if '"rank_map"' not in line] == []
