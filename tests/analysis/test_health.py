"""One fault for each part, or for what many nodes share; nobody for what is expected."""

from __future__ import annotations

from typing import Any

from clusterwatch.analysis.health import HealthFault, NodePlace, RankPlace, judge
from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.signals import Signal
from clusterwatch.analysis.standing import GPU_HOLDS_NS, HOLDS_NS, TOLD_AGAIN_NS, Standing

S = 10**9


def signal(kind: str, node: int = 1, part: str = "host", **more: Any) -> Signal:
    told: dict[str, Any] = {
        "kind": kind, "at_ns": 100 * S, "until_ns": None, "node_id": node, "host": f"n{node}", "part": part,
        "severity": Severity.CRITICAL, "text": f"{kind} of n{node}", "source": "test",
    }  # fmt: skip
    return Signal(**(told | more))


def place(node: int, **more: Any) -> NodePlace:
    return NodePlace(f"n{node}", gpus={f"GPU-{node}-{index}": index for index in range(8)}, **more)


def judged(
    *signals: Signal, ranks: dict[int, list[RankPlace]] | None = None, **more: Any
) -> list[HealthFault]:
    places = {one.node_id: place(one.node_id, **more) for one in signals if one.node_id is not None}
    return judge(signals, places, ranks or {})


def test_a_gpu_that_fell_off_the_bus_is_one_fault_with_its_echoes() -> None:
    ranks = {1: [RankPlace(rank, "1204", f"GPU-1-{rank}") for rank in range(8)]}
    (fault,) = judged(
        signal("xid", part="gpu/GPU-1-3", code=79), signal("gpu_lost", part="gpu/GPU-1-3"),
        signal("xid", part="gpu/GPU-1-3", code=119), ranks=ranks,
    )  # fmt: skip
    found = fault.finding
    assert (found.verdict, found.decisive, found.cause) == ("gpu_lost", True, "xid_79")
    assert found.summary == (
        "GPU 3 of n1 is lost: the driver does not see it any more (Xid 79, 119); job 1204 has 1 rank there"
    )
    assert [(one.host, one.gpu, one.gpu_uuid) for one in found.culprits] == [("n1", 3, "GPU-1-3")]
    assert fault.rank_count == 1 and len(found.why) == 3


def test_two_gpus_are_two_faults_and_the_worst_comes_first() -> None:
    warning = signal("ecc", part="gpu/GPU-1-2", severity=Severity.WARNING)
    faults = judged(warning, signal("xid", part="gpu/GPU-1-5", code=95))
    assert [(one.finding.verdict, one.finding.severity) for one in faults] == [
        ("gpu_fault", Severity.CRITICAL), ("gpu_fault", Severity.WARNING),
    ]  # fmt: skip
    assert "GPU 5 of n1" in faults[0].finding.summary and not faults[1].finding.decisive


def test_a_storage_server_that_many_wait_for_is_one_fault_of_the_server() -> None:
    stalls = [
        signal("mount_stall", node, f"mount/d{node}", fields={"server": "10.0.0.9"}) for node in range(1, 40)
    ]
    (fault,) = judged(*stalls)
    assert fault.finding.summary == (
        "Server 10.0.0.9 answers no storage request; 39 nodes have it; no running job has a rank there"
    )
    assert fault.node_id is None and fault.finding.why[-1] == "and 31 more signals of 39 nodes"


def test_few_clients_are_their_own_faults() -> None:
    stalls = [signal("mount_stall", node, "mount/data", fields={"server": "10.0.0.9"}) for node in (1, 2, 3)]
    assert [fault.node_id for fault in judged(*stalls)] == [1, 2, 3]


def test_a_rack_and_a_leaf_are_named_for_what_their_nodes_share() -> None:
    (rack,) = judged(signal("psu_failed", 1), signal("power_brake", 2), rack="A12")
    assert rack.finding.summary.startswith("Rack A12 has a power fault; 2 nodes have it")
    downs = [signal("link_down", node, "port/mlx5_0/1") for node in range(1, 6)]
    (leaf,) = judged(*downs, leaf="leaf-3")
    assert (leaf.finding.switch, leaf.finding.link, leaf.finding.node) == ("leaf-3", None, None)


def test_one_port_is_named_by_its_host_and_name() -> None:
    (fault,) = judged(signal("link_down", 1, "port/mlx5_2/1"))
    assert (fault.finding.node, fault.finding.link) == ("n1", "port/mlx5_2/1")
    assert fault.finding.summary.startswith("port mlx5_2/1 of n1 has no link")


def test_a_paused_gpu_information_and_unknown_kinds_are_no_fault() -> None:
    assert judged(signal("gpu_read_hung"), is_paused=True) == []
    assert judged(signal("xid", severity=Severity.INFO), signal("hung_task"), signal("from_the_future")) == []
    assert len(judged(signal("gpu_read_hung"))) == 1


def test_a_storm_is_judged_in_one_go() -> None:
    storm = [signal("mount_stall", node % 3_072, "mount/d", fields={"server": "s"}) for node in range(16_384)]
    assert len(judged(*storm)) == 1


def standing(*signals: Signal) -> Standing:
    found = Standing.empty()
    found.take(signals)
    return found


def test_what_stands_ends_when_it_is_told_as_over() -> None:
    down = signal("link_down", part="port/mlx5_0/1")
    assert len(standing(down).signals) == 1
    assert standing(down, signal("link_down", part="port/mlx5_0/1", fields={"over": "true"})).signals == []
    assert len(standing(down, signal("link_down", 2, "port/mlx5_0/1", fields={"over": "true"})).signals) == 1
    assert standing(down, signal("link_up", part="port/mlx5_0/1")).signals == []


def test_it_began_when_it_was_told_first() -> None:
    (one,) = standing(signal("link_down"), signal("link_down", at_ns=900 * S)).signals
    assert one.at_ns == 100 * S


def test_lines_hold_for_a_while_and_fatal_ones_of_a_gpu_for_hours() -> None:
    found = standing(signal("lockup"), signal("xid", part="gpu/GPU-1-3", code=79))
    found.forget(100 * S + HOLDS_NS)
    assert len(found.signals) == 2
    found.forget(100 * S + HOLDS_NS + S)
    assert [one.kind for one in found.signals] == ["xid"]
    found.forget(100 * S + GPU_HOLDS_NS + S)
    assert found.signals == []


def test_an_agent_that_starts_again_tells_what_stands_or_it_is_over() -> None:
    found = standing(signal("psu_failed"), signal("agent_started", at_ns=200 * S))
    found.forget(200 * S + TOLD_AGAIN_NS)
    assert len(found.signals) == 1
    found.take([signal("psu_failed", at_ns=300 * S)])
    found.forget(900 * S)
    assert len(found.signals) == 1
    found.take([signal("agent_started", at_ns=1_000 * S)])
    found.forget(1_000 * S + TOLD_AGAIN_NS + S)
    assert found.signals == []
