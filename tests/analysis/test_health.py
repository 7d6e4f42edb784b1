"""One fault for each part, or for what many nodes share; nobody for what is expected."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from clusterwatch.analysis.health import HealthFault, judge
from clusterwatch.analysis.health_places import Cast, NodePlace, RankPlace
from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.signals import Signal
from clusterwatch.analysis.standing import Held

S = 10**9
WARNING, INFO = Severity.WARNING, Severity.INFO
BRAKE, HOT = {"mask": str(0x88)}, {"mask": str(0x48)}


def signal(kind: str, node: int | None = 1, part: str = "host", **more: Any) -> Signal:
    told: dict[str, Any] = {
        "at_ns": 100 * S, "until_ns": None, "host": f"n{node}", "severity": Severity.CRITICAL,
        "text": f"{kind} told", "source": "test", "teller_id": node,
    }  # fmt: skip
    return Signal(kind=kind, node_id=node, part=part, **(told | more))


def xid(code: int, node: int = 1, gpu: int = 3, **more: Any) -> Signal:
    return signal("xid", node, f"gpu/GPU-{node}-{gpu}", code=code, text=f"Xid {code}: told", **more)


def place(node: int, **more: Any) -> NodePlace:
    return NodePlace(f"n{node}", gpus={f"GPU-{node}-{index}": index for index in range(8)}, **more)


def ranks_of(node: int, job: str = "1204") -> list[RankPlace]:
    return [RankPlace(job, 1, f"GPU-{node}-{gpu}", gpu) for gpu in range(8)]


def cast_of(nodes: int = 40, *, with_ranks: bool = False, **more: Any) -> Cast:
    """Nodes 1 to ``nodes`` of one rack and one leaf."""
    places = {node: place(node, **({"rack": "A12", "leaf": "leaf-3"} | more)) for node in range(1, nodes + 1)}
    ranks = {node: ranks_of(node) for node in places} if with_ranks else {}
    return Cast(places, ranks, {"A12": nodes}, {"leaf-3": nodes})


LONE = cast_of(1, rack="", leaf="")
LONE_BUSY = cast_of(1, rack="", leaf="", with_ranks=True)


def judged(*signals: Signal, cast: Cast = LONE, live: tuple[str, ...] = ()) -> list[HealthFault]:
    return judge([Held(one, one.at_ns) for one in signals], cast, live)


def only(*signals: Signal, cast: Cast = LONE, live: tuple[str, ...] = ()) -> HealthFault:
    (fault,) = judged(*signals, cast=cast, live=live)
    return fault


# --- GPUs ------------------------------------------------------------------------------------------------


def test_a_gpu_that_fell_off_the_bus_is_one_fault_with_its_echoes() -> None:
    fault = only(
        xid(79), xid(119), xid(45, severity=INFO), signal("gpu_lost", part="gpu/GPU-1-3"),
        signal("pcie_error", part="gpu/GPU-1-3"), signal("link_down", part="nvlink/GPU-1-3/4"),
        cast=LONE_BUSY,
    )  # fmt: skip
    found = fault.finding
    assert (found.verdict, found.decisive, found.cause, fault.key) == ("gpu_lost", True, "xid_79", "gpu/n1/3")
    assert found.summary == "GPU 3 of n1 fell off the bus (Xid 45, 79, 119); job 1204 has 1 rank on it"
    assert [(one.host, one.gpu, one.gpu_uuid) for one in found.culprits] == [("n1", 3, "GPU-1-3")]
    assert (found.node, fault.node_id, fault.rank_count, len(found.why)) == ("n1", 1, 1, 6)
    assert "Xid 45" in found.why[-1], "echoes come last"


def test_an_echo_on_another_gpu_goes_with_its_root() -> None:
    root = {"root_entity": "gpu/GPU-1-3", "root_code": "79"}
    fault = only(xid(79), xid(45, gpu=5, severity=INFO, fields=root), xid(119, gpu=5, fields=root))
    assert fault.key == "gpu/n1/3" and [one.gpu for one in fault.finding.culprits] == [3]


def test_a_gpu_is_known_by_its_address_too() -> None:
    cast = cast_of(1, uuids={"0000:9b:00.0": "GPU-1-6"}, rack="", leaf="")
    at_address = signal("xid", part="pci/0000:9b:00.0", code=79)
    fault = only(at_address, signal("gpu_lost", part="gpu/GPU-1-6"), cast=cast)
    assert (fault.key, fault.finding.culprits[0].gpu_uuid) == ("gpu/n1/6", "GPU-1-6")
    stray = signal("pcie_error", part="pci/0000:aa:00.0", severity=WARNING)
    assert only(xid(79), stray).finding.summary.startswith("GPU 3 of n1 fell")


def test_two_gpus_are_two_faults_and_the_worst_comes_first() -> None:
    faults = judged(signal("ecc", part="gpu/GPU-1-2", severity=WARNING), xid(95, gpu=5), cast=LONE_BUSY)
    assert [(one.finding.verdict, one.finding.severity) for one in faults] == [
        ("gpu_fault", Severity.CRITICAL), ("gpu_fault", WARNING),
    ]  # fmt: skip
    assert [one.finding.summary for one in faults] == [
        "GPU 5 of n1: told (Xid 95); job 1204 has 1 rank on it",
        "GPU 2 of n1: ecc told; job 1204 has 1 rank on it",
    ]
    assert not faults[1].finding.decisive


def test_a_jobs_own_xid_is_no_fault_of_the_gpu_unless_the_driver_asks_for_a_repair() -> None:
    assert judged(xid(13, severity=WARNING)) == [] and judged(xid(43, severity=INFO)) == []
    asked = xid(13, severity=WARNING, fields={"recovery_action": "GPU_RESET"})
    assert only(asked).finding.verdict == "gpu_fault"


def test_where_nobody_tells_which_rank_has_which_gpu_the_host_is_said() -> None:
    cast = replace(LONE, ranks={1: [RankPlace("1204", 1, count=8)]})
    assert only(xid(79), cast=cast).finding.summary.endswith("; job 1204 has 8 ranks on this host")


def test_a_job_of_a_team_is_counted_and_not_named() -> None:
    cast = replace(LONE, ranks={1: [RankPlace("", 1, "GPU-1-3", 3)]})
    assert only(xid(79), cast=cast).finding.summary.endswith("; a job has 1 rank on it")


# --- links -----------------------------------------------------------------------------------------------


def down(node: int = 1, port: str = "mlx5_2/1", **more: Any) -> Signal:
    return signal("link_down", node, f"port/{port}", severity=WARNING, **more)


def port_down(node: int, port: str = "Ethernet1/7", switch: str = "leaf-3", **more: Any) -> Signal:
    host = f"switch/{switch}"
    fields = {"switch": switch, "switch_port": port, "peer": f"n{node}.lab", "device": host} | more
    part = f"switchport/{switch}/{port}"
    return signal("port_down", None, part, severity=WARNING, host=host, fields=fields)


def test_a_port_is_as_bad_as_what_runs_over_it() -> None:
    idle, busy = only(down()), only(down(), cast=LONE_BUSY)
    assert (idle.finding.severity, busy.finding.severity) == (WARNING, Severity.CRITICAL)
    assert idle.finding.summary == "Port mlx5_2/1 of n1 is down; no running job has a rank there"
    assert busy.finding.summary == "Port mlx5_2/1 of n1 is down; job 1204 has 8 ranks on this host"
    assert (busy.finding.node, busy.finding.link) == ("n1", "port/mlx5_2/1") and not busy.finding.decisive


def test_a_network_device_and_its_rdma_device_are_one_link() -> None:
    nic = signal("link_down", part="nic/eth2", fields={"rdma_device": "mlx5_2"}, severity=WARNING)
    assert only(down(), nic).key == "link/n1/mlx5_2/1"


@pytest.mark.parametrize(
    "told", [{"peer_port": "mlx5_2"}, {"peer_port": "eth2"}, {}, {"peer_port": "02:00:aa"}]
)
def test_both_ends_of_a_link_are_one_fault_that_names_both(told: dict[str, str]) -> None:
    nic = signal("link_down", part="nic/eth2", fields={"rdma_device": "mlx5_2"}, severity=WARNING)
    fault = only(nic, port_down(1, **told), cast=LONE_BUSY)
    assert fault.finding.summary == (
        "Port mlx5_2/1 of n1, at its far end leaf-3 Ethernet1/7, is down; job 1204 has 8 ranks on this host"
    )
    assert (fault.finding.node, fault.finding.switch, fault.key) == ("n1", "leaf-3", "link/n1/mlx5_2/1")


def test_ends_that_cannot_be_told_apart_are_not_joined_by_guess() -> None:
    faults = judged(down(port="mlx5_0/1"), down(port="mlx5_1/1"), port_down(1))
    assert {one.key for one in faults} == {
        "link/n1/mlx5_0/1", "link/n1/mlx5_1/1", "link/n1/leaf-3 Ethernet1/7",
    }  # fmt: skip


def test_a_switch_port_whose_host_tells_nothing_is_named_with_the_host() -> None:
    found = only(port_down(1)).finding
    assert found.summary == "Port leaf-3 Ethernet1/7 toward n1 is down; no running job has a rank there"


def test_a_link_that_comes_and_goes_is_one_unstable_link() -> None:
    held = Held(down(), 100 * S, begins_ns=(40 * S, 60 * S, 80 * S, 100 * S), over_ns=104 * S)
    (fault,) = judge([held], LONE_BUSY)
    assert fault.finding.verdict == "link_down"
    assert "Port mlx5_2/1 of n1 is unstable: it went down 4 times within 30 min" in fault.finding.summary


def leaf_down(nodes: int, ports: int = 8) -> list[Signal]:
    return [down(node, f"mlx5_{port}/1") for node in range(1, nodes + 1) for port in range(ports)]


def test_a_leaf_whose_links_are_down_is_named_and_its_nodes_wait_behind_it() -> None:
    fault = only(*leaf_down(16), cast=cast_of(16, with_ranks=True))
    found = fault.finding
    assert found.summary == (
        "Switch leaf-3: 16 of its 16 nodes lost their link to it; job 1204 has 128 ranks behind it"
    )
    assert (found.switch, found.link, found.node, fault.node_id) == ("leaf-3", None, None, None)
    assert (found.downstream.ranks, found.confidence, len(fault.absorbs)) == (128, 0.9, 128)


def test_one_port_on_each_of_some_nodes_is_no_fault_of_the_leaf() -> None:
    assert len(judged(*leaf_down(3, ports=1), cast=cast_of(16))) == 3
    assert len(judged(*leaf_down(2, ports=1), cast=cast_of(2))) == 2, "two of sixteen links"


def test_links_that_went_down_days_apart_are_their_own_faults() -> None:
    apart = [replace(one, at_ns=one.at_ns + number * 86_400 * S) for number, one in enumerate(leaf_down(2))]
    assert len(judged(*apart, cast=cast_of(2))) == 16


def test_a_leaf_that_comes_back_bit_by_bit_stays_one_fault() -> None:
    last = only(down(4, "mlx5_0/1"), cast=cast_of(16), live=("link/switch leaf-3",))
    assert last.key == "link/switch leaf-3"


def test_rails_are_named_by_what_switches_tell() -> None:
    cast = cast_of(32, leaf="")
    told = [port_down(node, f"Ethernet1/{node}", "rail-2") for node in range(1, 33)]
    hosts = [down(node) for node in range(1, 33)]
    fault = only(*told, *hosts, cast=cast)
    assert fault.finding.switch == "rail-2" and len(fault.finding.why) == 10


# --- power, cooling, storage, hosts ----------------------------------------------------------------------


def test_a_rack_that_brakes_is_one_power_fault() -> None:
    told = [
        signal("throttle", node, f"gpu/GPU-{node}-{gpu}", fields=BRAKE, severity=WARNING)
        for node in range(1, 17)
        for gpu in range(8)
    ]
    fault = only(*told, cast=cast_of(16, with_ranks=True))
    assert fault.finding.summary == (
        "Rack A12: a power brake holds down the GPUs of 16 of its 16 nodes; job 1204 has 128 ranks behind it"
    )
    assert (fault.finding.verdict, fault.finding.severity) == ("power_fault", Severity.CRITICAL)


def test_a_rack_that_tells_of_itself_takes_its_nodes_along() -> None:
    shelf = signal("on_battery", None, "bbu/shelf/1", host="rack/A12", severity=WARNING)
    fault = only(shelf, signal("throttle", 3, "gpu/GPU-3-0", fields=BRAKE), cast=cast_of(16))
    assert fault.key == "power/rack A12"


def test_one_failed_supply_is_its_nodes_own() -> None:
    fault = only(signal("psu_failed", 4, "psu/bmc-4/2", severity=WARNING), cast=cast_of(16))
    assert fault.finding.summary == "n4: psu_failed told; no running job has a rank there"
    assert (fault.finding.severity, fault.node_id) == (WARNING, 4)


def test_heat_is_a_cooling_fault_and_a_power_cap_is_none() -> None:
    hot = signal("throttle", part="gpu/GPU-1-0", fields=HOT, severity=WARNING)
    assert only(hot).finding.verdict == "cooling_fault"
    assert [judged(replace(hot, fields={"mask": mask})) for mask in ("4", "x", "")] == [[], [], []]


def stall(node: int, server: str = "10.0.0.9", kind: str = "mount_stall") -> Signal:
    return signal(kind, node, "mount/data", fields={"server": server})


def test_a_storage_server_that_many_wait_for_is_one_fault_of_the_server() -> None:
    fault = only(*[stall(node) for node in range(1, 40)], cast=cast_of(40))
    found = fault.finding
    assert found.summary == (
        "Storage server 10.0.0.9 does not answer 39 nodes; no running job has a rank there"
    )
    assert (fault.node_id, found.why[0]) == (
        None, "39 nodes told of it within 0 s: what they share is named, not they",
    )  # fmt: skip
    assert found.why[-1] == "and 31 more signals of 39 nodes"


def test_of_one_or_two_clients_it_is_not_said_who_is_to_blame() -> None:
    one, two = only(stall(1)), only(stall(1), stall(2), cast=cast_of(2))
    assert one.finding.summary.startswith("n1 waits for storage server 10.0.0.9;")
    assert two.finding.summary.startswith("n1 and n2 wait for storage server 10.0.0.9;")
    assert one.key == two.key == "storage/server 10.0.0.9", "more clients sharpen the same incident"
    assert one.finding.confidence == 0.5


def test_a_host_that_is_gone_takes_its_parts_along() -> None:
    dead = signal("node_down", 1, "node/n1", text="n1 is down: Not responding")
    fault = only(dead, port_down(1), xid(79), cast=LONE_BUSY)
    assert (fault.finding.verdict, fault.key) == ("node_fault", "node/n1")
    assert fault.finding.summary == "n1: n1 is down: Not responding; job 1204 has 8 ranks on this host"


def test_what_the_scheduler_has_drained_pages_nobody() -> None:
    cast = cast_of(1, drained="bad fan", rack="", leaf="")
    fault = only(xid(79), cast=cast)
    assert fault.is_expected and not fault.finding.decisive and fault.finding.severity is INFO
    assert fault.finding.summary.endswith("; drained by the scheduler: bad fan")


def test_a_paused_gpu_answers_nobody_and_that_is_no_fault() -> None:
    hung = signal("gpu_read_hung", part="gpu/GPU-1-0")
    assert judged(hung, cast=cast_of(1, is_paused=True)) == []
    assert only(hung).finding.verdict == "gpu_fault"


def test_words_are_bounded_however_long_the_names() -> None:
    long = replace(place(1), host="h" * 250)
    told = [signal("fan_failed", text="t" * 300), signal("link_down", part="port/" + "p" * 250)]
    for fault in judged(*told, cast=Cast({1: long})):
        assert len(fault.finding.summary) <= 200 and max(map(len, fault.finding.why)) <= 300


def test_a_storm_of_a_whole_cluster_is_one_fault() -> None:
    """16,384 signals of 24,576 GPUs; prints what it costs."""
    nodes = 3_072
    cast = cast_of(nodes, with_ranks=True, rack="", leaf="")
    storm = [replace(stall(node % nodes + 1), part=f"mount/d{node // nodes}") for node in range(16_384)]
    held = [Held(one, one.at_ns) for one in storm]
    began_s = time.process_time()
    (fault,) = judge(held, cast)
    print(f"16,384 signals judged in {time.process_time() - began_s:.2f} s of processor time")
    assert fault.finding.summary == (
        "Storage server 10.0.0.9 does not answer 3,072 nodes; job 1204 has 24,576 ranks behind it"
    )
