"""Slow transfers: the part that all slow paths share, or nobody."""

from __future__ import annotations

import numpy as np
import pytest

from clusterwatch.analysis.slow import links
from clusterwatch.analysis.slow.steps import StepTable
from tests.analysis.slow.tables import bare, layout, ports, residual, transfers


def job(slow: dict[int, float], since: int = 25, steps: int = 60) -> StepTable:
    """Paths 0-3: data groups (stage, tensor rank); 4-11: pairs of ranks n - 4 and n + 4."""
    told = layout()
    paths, names, noise = ports(told, steps)
    for path, excess in slow.items():
        noise[since:, path] += excess
    work = np.exp(residual(steps))
    return bare(work, told, transfers=transfers(noise), paths=paths, path_names=names)


def named(table: StepTable) -> list[tuple[str, ...]]:
    return [tuple(part.name for part in one.parts) for one in links.find(table)]


def test_a_healthy_job_has_no_slow_path() -> None:
    assert links.find(job({})) == []


@pytest.mark.parametrize("excess", [0.22, 0.7, 1.4])
def test_a_port_is_named_where_its_group_and_its_pair_are_slow(excess: float) -> None:
    (found,) = links.find(job({2: excess, 4: excess}))  # rank 8: data group of stage 1, pair 0 and 8
    assert [(part.kind, part.name, part.ranks) for part in found.parts] == [("nic", "nic:n2:g0", (8,))]
    assert {path.onset for path in found.slow} == {25} and found.fit == 1.0


def test_a_leaf_is_named_where_all_its_ports_are_slow() -> None:
    rail = {
        0: 1.0,
        2: 1.0,
        4: 1.0,
        8: 1.0,
    }  # GPU 0 of every node: both data groups of tensor rank 0, two pairs
    assert named(job(rail)) == [("leaf-r0",)]


def test_one_slow_group_alone_names_nobody() -> None:
    (found,) = links.find(job({2: 1.0}))
    assert len(found.parts) != 1 or found.fit < 1.0


def test_bursts_of_congestion_open_nothing() -> None:
    told = layout()
    paths, names, noise = ports(told, 120)
    for start in range(10, 110, 20):
        noise[start : start + 4, start % 12] += 1.2
    table = bare(np.exp(residual(120)), told, transfers=transfers(noise), paths=paths, path_names=names)
    assert links.find(table) == []


def burst(since: int, rows: int, steps: int = 100) -> StepTable:
    """A data group and a pair of one rank, slow together for some steps."""
    told = layout()
    paths, names, noise = ports(told, steps)
    noise[since : since + rows, [2, 4]] += 1.0
    return bare(np.exp(residual(steps)), told, transfers=transfers(noise), paths=paths, path_names=names)


def test_a_burst_that_is_long_over_is_nobodys_fault() -> None:
    assert links.find(burst(60, 7)) == []


@pytest.mark.parametrize(("since", "rows"), [(93, 7), (60, 15)])
def test_a_slowness_that_lasts_or_has_just_come_is_told(since: int, rows: int) -> None:
    assert named(burst(since, rows)) == [("nic:n2:g0",)]


def test_where_there_are_no_others_a_path_is_weighed_against_its_start() -> None:
    told = layout()
    paths, names, noise = ports(told, 80)
    noise[40:, 0] += 0.9
    only = tuple(
        type(one)(one.op, one.size_bytes, True, one.groups[:1], one.time_s[:, :1], one.calls)
        for one in transfers(noise)[:1]
    )
    table = bare(np.exp(residual(80)), told, transfers=only, paths=paths, path_names=names)
    (path,) = links.slow_paths(table)
    assert (path.path, path.onset) == (0, 40)
