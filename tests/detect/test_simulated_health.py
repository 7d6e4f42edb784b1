"""Injected faults of parts, told as their nodes would: each is one fault that names the right part."""

from __future__ import annotations

import pytest

from clusterwatch.analysis.health import HealthFault, judge
from clusterwatch.analysis.health_places import Cast, NodePlace, RankPlace
from clusterwatch.analysis.standing import Standing
from clusterwatch.detect.signals import signal_of
from clusterwatch.store.queries import StoredEvent
from collectors.wire import records
from tests.simulate.faults.lived import Lived

START = 30.0
KINDS = ("xid", "link_down", "link_up", "nfs_not_responding", "nfs_ok", "power_supply_lost", "fault_over")


def stored(node: int, event: records.Event) -> StoredEvent:
    return StoredEvent(
        event.t_ns, node + 1, event.source, event.kind, event.severity, event.text, event.fields, None, None,
        None, None,
    )  # fmt: skip


def judged(fault: str) -> tuple[Lived, list[HealthFault]]:
    """What is found of a fault when all its events have come."""
    lived = Lived(fault)
    world = lived.world if lived.truth.job else lived.scene.worlds[0]
    nodes, plan = lived.scene.nodes, world.plan
    places = {
        number + 1: NodePlace(
            node.name, node.rack, node.leaf or "", {gpu.uuid or "": at for at, gpu in enumerate(node.gpus)}
        )
        for number, node in enumerate(nodes)
    }
    ranks = {
        number + 1: [RankPlace(plan.job, 1, nodes[number].gpus[gpu].uuid or "", gpu) for gpu in range(8)]
        for number in range(plan.first_node, plan.end_node)
    }
    racks: dict[str, int] = {}
    for node in nodes:
        racks[node.rack] = racks.get(node.rack, 0) + 1
    told = [stored(*one) for kind in KINDS for one in lived.events(kind)]
    standing = Standing.empty()
    signals = [signal_of(one, nodes[one.node_id - 1].name, {}) for one in told]
    standing.take(sorted(signals, key=lambda one: one.at_ns))
    return lived, judge(standing.faults, Cast(places, ranks, racks, {}))


@pytest.mark.parametrize("fault", ["gpu_off_bus", "hbm_error", "nic_down", "nfs_hung", "psu_lost"])
def test_a_fault_of_a_part_is_one_fault_with_the_verdict_and_the_part_of_the_truth(fault: str) -> None:
    lived, faults = judged(f"{fault}@{START}")
    (found,) = [one.finding for one in faults]
    truth = lived.truth
    assert (found.verdict, found.node) == (truth.kind, truth.node)
    if found.verdict.startswith("gpu"):
        assert [(one.host, one.gpu, one.gpu_uuid) for one in found.culprits] == [
            (truth.node, truth.gpu, truth.gpu_uuid)
        ]
        assert found.summary.endswith(f"; job {truth.job} has 1 rank on it") and found.decisive
    if found.verdict == "link_down":
        assert (found.link, found.switch) == (f"port/mlx5_{truth.gpu}/1", truth.switch)


def test_a_link_that_flaps_is_one_unstable_link() -> None:
    lived, (fault,) = judged(f"link_flap@{START}+60")
    assert (fault.finding.verdict, fault.finding.node) == ("link_down", lived.truth.node)
    assert "is unstable: it went down 3 times" in fault.finding.summary


@pytest.mark.parametrize("fault", ["nic_down", "nfs_hung", "psu_lost"])
def test_nothing_is_left_when_the_fault_is_over(fault: str) -> None:
    assert judged(f"{fault}@{START}+20")[1] == []


@pytest.mark.parametrize("fault", ["slow_gpu", "cpu_hog", "stage_imbalance", "rank_stuck", "nvlink_degraded"])
def test_what_is_no_fault_of_a_part_makes_none(fault: str) -> None:
    assert judged(f"{fault}@{START}")[1] == []
