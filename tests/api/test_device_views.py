"""Devices over REST: a switch with its cables both ways, a node's BMC and rack, and who may see them."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from django.test import Client

from clusterwatch.fleet.models import Node
from clusterwatch.store import device_readings
from clusterwatch.store.device_readings import DeviceRow
from collectors.wire import readings
from tests.api.conftest import Caller
from tests.web.seed import Seeded
from tests.web.seed_nodes import know, table_of

MAC = "aa:bb:cc:00:00:01"
PORT = "switchport/leaf-1/Eth1/1"


def get(client: Client, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == status, answer.content[:500]
    return answer.json()


def with_labels(table: readings.Table, *labels: dict[str, str]) -> readings.Table:
    """The n-th value of ``table`` has the n-th set of labels."""
    return msgspec.structs.replace(
        table, labels=[{}, *labels], label=[place + 1 if one else 0 for place, one in enumerate(labels)]
    )


def tell(node: Node, kind: str, name: str, table: readings.Table, **changes: object) -> None:
    now_ns = time.time_ns()
    row = DeviceRow(
        node.cluster_id, kind, name, node.pk, "poller", "ok", "", now_ns, "e1", now_ns, readings.pack(table)
    )
    device_readings.put([row._replace(**changes)], now_ns)


def leaf(peer: str, peer_port: str = "", mac: str = "") -> readings.Table:
    table = table_of((PORT, "tx_discards_total", 7, "ok"), (PORT, "neighbour_count", 1, "ok"))
    return with_labels(table, {}, {"peer": peer, "peer_port": peer_port, "peer_mac": mac})


def know_port(node: Node) -> None:
    table = table_of(("nic/eth2", "link_up_count", 1, "ok"), ("nic/eth2", "address_count", 1, "ok"))
    know(node, with_labels(table, {}, {"mac": MAC}))


def links(client: Client, name: str = "node-a") -> list[tuple[str | None, str, str]]:
    told = get(client, f"/nodes/{name}")["links"]
    return [(link["port"], link["device_port"], link["doubt"]) for link in told]


def test_a_switch_tells_its_values_and_the_node_at_the_far_end(seeded: Seeded, as_token: Caller) -> None:
    tell(seeded.nodes[1], "switch", "leaf-1", leaf("node-a.dc1", "eth2"))
    told = get(as_token(), "/devices/switch/leaf-1")
    assert told["device"]["polled_from"] == "node-b" and told["device"]["state"] == "ok"
    assert told["readings"][PORT][0]["value"] == 7
    (seen,) = told["neighbours"]
    assert (seen["node"], seen["device"], seen["peer_port"], seen["doubt"]) == ("node-a", None, "eth2", "")


def test_a_port_is_joined_by_its_address_though_the_switch_knows_another_name(
    seeded: Seeded, as_token: Caller
) -> None:
    know_port(seeded.nodes[0])
    tell(seeded.nodes[1], "switch", "leaf-1", leaf("localhost", "whatever", MAC.upper()))
    assert links(as_token()) == [("nic/eth2", PORT, "")]
    values = get(as_token(), "/nodes/node-a")["links"][0]["values"]
    assert values[0]["metric"] == "tx_discards_total" and values[0]["value"] == 7


def test_a_port_of_infiniband_is_joined_by_its_adapters_guid(seeded: Seeded, as_token: Caller) -> None:
    table = table_of(("port/mlx5_4/2", "link_up_count", 1, "ok"), ("port/mlx5_4/2", "address_count", 1, "ok"))
    know(seeded.nodes[0], with_labels(table, {}, {"guid": "e8ebd30300771a40"}))
    told = table_of((PORT, "tx_discards_total", 7, "ok"), (PORT, "neighbour_count", 1, "ok"))
    far = {"peer": "e8ebd30300771a40", "peer_port": "2", "peer_mac": "", "peer_guid": "e8ebd30300771a40/2"}
    tell(seeded.nodes[1], "switch", "ib-leaf-1", with_labels(told, {}, far))
    assert links(as_token()) == [("port/mlx5_4/2", PORT, "")]
    other = far | {"peer_guid": "e8ebd30300771a40/1"}
    tell(seeded.nodes[1], "switch", "ib-leaf-1", with_labels(told, {}, other))
    assert links(as_token()) == []


def test_a_port_is_joined_by_host_and_port_name(seeded: Seeded, as_token: Caller) -> None:
    know_port(seeded.nodes[0])
    tell(seeded.nodes[1], "switch", "leaf-1", leaf("NODE-A.dc1", "eth2"))
    assert links(as_token()) == [("nic/eth2", PORT, "")]
    assert links(as_token(), "node-b") == []


def test_a_port_that_is_not_told_is_not_guessed(seeded: Seeded, as_token: Caller) -> None:
    know_port(seeded.nodes[0])
    tell(seeded.nodes[1], "switch", "leaf-1", leaf("node-a", "Ethernet controller"))
    ((port, device_port, doubt),) = links(as_token())
    assert port is None and device_port == PORT and "which port" in doubt


def test_a_name_that_two_nodes_bear_is_not_joined(seeded: Seeded, as_token: Caller) -> None:
    twin = Node.objects.create(cluster=seeded.nodes[0].cluster, name="node-a.dc2", machine_id="m9")
    know_port(seeded.nodes[0])
    tell(seeded.nodes[1], "switch", "leaf-1", leaf("node-a.dc1", "eth2"))
    told = get(as_token(), "/devices/switch/leaf-1")["neighbours"][0]
    assert told["node"] == "node-a", "the other one has another domain"
    tell(seeded.nodes[1], "switch", "leaf-1", leaf("node-a", "eth2"))
    told = get(as_token(), "/devices/switch/leaf-1")["neighbours"][0]
    assert told["node"] is None and told["doubt"]
    assert links(as_token(), twin.name) == [(None, PORT, "several nodes have this name")]


def test_a_cable_between_switches_has_both_ends(seeded: Seeded, as_token: Caller) -> None:
    tell(seeded.nodes[0], "switch", "leaf-1", leaf("spine-1", "Eth9"))
    tell(seeded.nodes[0], "switch", "spine-1", table_of(("switch/spine-1", "uptime_s", 5, "ok")))
    assert get(as_token(), "/devices/switch/leaf-1")["neighbours"][0]["device"]["name"] == "spine-1"
    (seen,) = get(as_token(), "/devices/switch/spine-1")["seen_from"]
    assert (seen["device"]["name"], seen["port"], seen["own_port"]) == ("leaf-1", PORT, "Eth9")


def test_a_node_has_its_bmc_and_the_power_of_its_rack(seeded: Seeded, as_token: Caller) -> None:
    Node.objects.filter(pk=seeded.nodes[0].pk).update(rack="r1")
    poller = seeded.nodes[1]
    tell(poller, "bmc", "bmc-7", table_of(("bmc/bmc-7", "power_w", 9_000, "ok")), node_name="NODE-A.dc1")
    tell(poller, "rack", "r1", table_of(("rack/r1", "power_w", 40_000, "ok")))
    tell(poller, "rack", "r2", table_of(("rack/r2", "power_w", 40_001, "ok")))
    told = get(as_token(), "/nodes/node-a")["devices"]
    assert [(one["device"]["kind"], one["device"]["name"]) for one in told] == [
        ("bmc", "bmc-7"),
        ("rack", "r1"),
    ]
    assert told[1]["readings"]["rack/r1"][0]["value"] == 40_000


def test_devices_are_listed_by_kind_state_and_host(seeded: Seeded, as_token: Caller) -> None:
    node = seeded.nodes[0]
    bare = table_of(("switch/x", "uptime_s", 5, "ok"))
    for name, state in (("leaf-1", "ok"), ("leaf-2", "timeout"), ("leaf-3", "ok")):
        tell(node, "switch", name, bare, state=state)
    tell(node, "bmc", "bmc-7", bare, node_name="node-a")

    def names(query: str) -> list[str]:
        return [one["name"] for one in get(as_token(), f"/devices?{query}")["results"]]

    assert names("kind=switch") == ["leaf-1", "leaf-2", "leaf-3"]
    assert names("state=failed") == ["leaf-2"] and names("node=node-a.dc1") == ["bmc-7"]
    first = get(as_token(), "/devices?limit=3")
    assert len(first["results"]) == 3
    rest = as_token().get(first["next"]).json()
    assert [one["name"] for one in rest["results"]] == ["leaf-3"] and rest["next"] is None
    get(as_token(), "/devices?state=bad", 400)


def test_a_token_of_another_cluster_sees_no_device(seeded: Seeded, as_token: Caller) -> None:
    tell(seeded.nodes[0], "switch", "leaf-1", leaf("node-a"))
    other = as_token(cluster=seeded.simulated.name)
    assert get(other, "/devices")["results"] == []
    get(other, "/devices/switch/leaf-1", 404)
    get(as_token(), "/devices/switch/leaf-9", 404)
