"""Nodes full of traps, through ``once``: the right lines, no others in their place, no failure."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from collectors import once
from tests.collectors.sources.trees import write
from tests.collectors.trap_nodes import (
    INTERVAL_S,
    Node,
    gpu_node,
    hostile_node,
    infiniband_node,
    jobs_node,
    kernel_node,
    lost_gpu_node,
    roce_node,
    storage_node,
)

NODES = {
    "infiniband": infiniband_node.node,
    "roce": roce_node.node,
    "gpu": gpu_node.node,
    "lost_gpu": lost_gpu_node.node,
    "kernel": kernel_node.node,
    "jobs": jobs_node.node,
    "storage": storage_node.node,
}


def printed(roots: list[Path]) -> list[dict[str, Any]]:
    out = io.StringIO()
    assert once.run(roots, INTERVAL_S, once.names(), out) == 0
    return [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().splitlines()]


@pytest.fixture(scope="module", params=NODES)
def looked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Node, list[dict[str, Any]]]:
    node = NODES[request.param]()
    root = tmp_path_factory.mktemp(request.param)
    return node, printed([write(root / "a", node.before), write(root / "b", node.after)])


def told(lines: list[dict[str, Any]]) -> dict[str, tuple[float | None, str]]:
    """ "entity metric" -> (value, quality) of the samples without labels."""
    return {
        f"{one['entity']} {one['metric']}": (one["value"], one["quality"])
        for one in lines
        if one["type"] == "sample" and "labels" not in one
    }


def fits(wanted: Mapping[str, Any], line: Mapping[str, Any]) -> bool:
    """Whether a printed event has all that is wanted of it."""
    own = {key: value for key, value in wanted.items() if key != "attributes"}
    attributes = line.get("attributes", {})
    return all(line.get(key) == value for key, value in own.items()) and all(
        key in attributes and attributes[key] == value if value is not ... else key not in attributes
        for key, value in wanted.get("attributes", {}).items()
    )


def test_each_sample_is_right(looked: tuple[Node, list[dict[str, Any]]]) -> None:
    node, lines = looked
    found = told(lines)
    wrong = {key: found.get(key) for key, value in node.samples.items() if found.get(key) != value}
    assert wrong == {}


def test_each_instance_has_its_own_value(looked: tuple[Node, list[dict[str, Any]]]) -> None:
    node, lines = looked
    found: dict[str, dict[str, float]] = {}
    for one in lines:
        if one["type"] == "sample" and "gpu_instance" in one.get("labels", {}):
            instances = found.setdefault(f"{one['entity']} {one['metric']}", {})
            instances[one["labels"]["gpu_instance"]] = one["value"]
    assert {key: found.get(key) for key in node.labelled} == node.labelled


def test_what_is_unknown_has_no_value(looked: tuple[Node, list[dict[str, Any]]]) -> None:
    node, lines = looked
    found = told(lines)
    assert {key: found[key] for key in node.silent if key in found and found[key][0] is not None} == {}


def test_each_event_is_told_once(looked: tuple[Node, list[dict[str, Any]]]) -> None:
    node, lines = looked
    events = [one for one in lines if one["type"] == "event"]
    counts = [(sum(fits(wanted, one) for one in events), wanted) for wanted in node.events]
    assert [wanted for count, wanted in counts if count != 1] == []


def test_nothing_is_told_that_is_no_fault(looked: tuple[Node, list[dict[str, Any]]]) -> None:
    node, lines = looked
    events = [one for one in lines if one["type"] == "event"]
    assert [one for one in events if any(rule(one) for rule in node.unless)] == []


def test_an_unknown_value_has_a_reason_and_nothing_is_told_twice(
    looked: tuple[Node, list[dict[str, Any]]],
) -> None:
    _, lines = looked
    samples = [one for one in lines if one["type"] == "sample"]
    assert [one for one in samples if one["value"] is None and one["quality"] in ("ok", "")] == []
    keys = [(one["entity"], one["metric"], json.dumps(one.get("labels"))) for one in samples]
    assert len(keys) == len(set(keys))


def test_a_broken_tree_costs_only_what_is_broken(tmp_path: Path) -> None:
    lines = printed([hostile_node.broken(tmp_path / "node")])
    text = json.dumps(lines, ensure_ascii=False)
    assert hostile_node.SECRET not in text
    assert all(char.isprintable() for char in text)
    found = told(lines)
    assert {key: found.get(f"port/mlx5_1/1 {key}_total") for key in ("symbol_error", "port_rcv_errors")} == {
        "symbol_error": (None, "unreadable"),
        "port_rcv_errors": (None, "out_of_range"),
    }
    assert found["port/mlx5_1/1 link_downed_total"][0] is None
    assert {one["host"] for one in lines} == {"gtn-0700"}
    assert [one["code"] for one in lines if one.get("kind") == "xid"] == [94]
    assert not any(key.startswith("port/mlx5_2") and "symbol_error" in key for key in found)


def test_an_empty_tree_and_none_at_all_are_no_failure(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert [one for one in printed([tmp_path / "empty"]) if one["type"] == "event"] == []
    assert [one for one in printed([tmp_path / "missing"]) if one["type"] == "event"] == []
