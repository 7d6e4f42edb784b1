"""Transfers of a simulated world: rings have the pace of their slowest member, and somebody comes last."""

from __future__ import annotations

import numpy as np

from clusterwatch.ingest.checks import check
from clusterwatch.simulate import scenario, topology
from clusterwatch.simulate.edges import Fabric, LinkPace, is_told, link_of, slowdown
from clusterwatch.simulate.steps import finished, step_times
from clusterwatch.simulate.world import World
from collectors.wire import codec
from collectors.wire.records import Edges, Lane

BEGUN_NS = 1_790_000_000 * 10**9
MINUTE_NS = 60 * 10**9
SCENE = scenario.build(512, 3, topology.Shape(), 0, BEGUN_NS - 3_600 * 10**9, BEGUN_NS, 4)
WORLD = next(w for w in SCENE.worlds if w.plan.layout.pipeline > 1 and w.plan.layout.data > 1)
SILICON = np.zeros(8, np.float32)


def told(world: World, node: int, *paces: LinkPace) -> list[Edges]:
    """What the ranks of a node of the world tell of one minute."""
    ranks = world.plan.ranks_of(world.plan.first_node + node)
    times = step_times(world, finished(world, BEGUN_NS, BEGUN_NS + MINUTE_NS), ranks, SILICON, (), 3)
    return list(Fabric(world, 1, 3).records(ranks, times, paces, BEGUN_NS + MINUTE_NS, 0))


def least(role: str, *paces: LinkPace, op: str | None = None) -> dict[tuple[int, ...], float]:
    """Members of each group of a role -> the shortest p10 of a call, over the told steps."""
    layout = WORLD.plan.layout
    number, found = layout.roles.index(role), {}
    for node in range(WORLD.plan.node_count):
        for record in told(WORLD, node, *paces):
            key = layout.peers(role, record.id.rank)
            mine = [
                p10 for p10, group, its in zip(record.p10_s, record.group, record.op, strict=True)
                if group == number and op in (None, record.ops[its])
            ]  # fmt: skip
            found[key] = min(found.get(key, 9e9), *mine)
    return found


def pace(rank: int, link: str, ratio: float) -> LinkPace:
    return LinkPace((rank,), link, ratio, BEGUN_NS, None)  # type: ignore[arg-type]


def test_told_steps_are_the_same_on_all_ranks_and_pass_the_gateways_check() -> None:
    records = [record for node in range(WORLD.plan.node_count) for record in told(WORLD, node)]
    assert len(records) == WORLD.plan.size
    assert len({tuple(record.step) for record in records}) == 1 and len({tuple(r.ops) for r in records}) == 1
    first = records[0]
    lane: Lane = "bulk"
    retention = {"edges": 2**62}
    checked = check(lane, 1, codec.encode(first), BEGUN_NS + MINUTE_NS, retention)
    assert checked.reason == "" and checked.record is not None


def test_only_the_group_of_a_slow_port_is_slow() -> None:
    healthy, sick = least("dp"), least("dp", pace(5, "nic", 0.25))
    ratio = {key: sick[key] / healthy[key] for key in healthy}
    mine = WORLD.plan.layout.peers("dp", 5)
    assert 3.5 < ratio.pop(mine) < 4.2
    assert all(0.99 < other < 1.01 for other in ratio.values())
    inside = least("tp", pace(5, "nic", 0.25))
    assert all(0.98 < inside[key] / other < 1.02 for key, other in least("tp").items())


def test_a_slow_nvlink_is_seen_by_its_tensor_group_alone() -> None:
    healthy, sick = least("tp"), least("tp", pace(5, "nvlink", 0.33))
    ratio = {key: sick[key] / healthy[key] for key in healthy}
    assert ratio.pop(WORLD.plan.layout.peers("tp", 5)) > 2.5
    assert all(0.99 < other < 1.01 for other in ratio.values())


def test_a_transfer_takes_no_longer_than_its_share_and_calls_hold_waiting() -> None:
    record = told(WORLD, 0)[0]
    assert all(a <= b <= c for a, b, c in zip(record.min_s, record.p10_s, record.p50_s, strict=True))
    assert sum(record.sum_s) / len(set(record.step)) < 0.4 * WORLD.plan.step_s


def test_told_are_the_first_steps_and_then_one_in_about_eight_seconds() -> None:
    assert is_told(3, 1.0) and is_told(32, 1.0) and is_told(40, 1.0) and is_told(41, 9.0)
    assert not is_told(33, 1.0) and not is_told(36, 1.0)


def test_a_step_gets_longer_by_what_its_transfers_do() -> None:
    plan = WORLD.plan
    assert (link_of(plan, "tp", 1), link_of(plan, "dp", 1)) == ("nvlink", "nic")
    assert slowdown(plan, "nic", 1.0, 1) == 1.0
    assert 1.2 < slowdown(plan, "nic", 0.25, 1) < 1.6
