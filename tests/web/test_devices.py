"""Pages of devices: what is in trouble first, both ends of a cable, nothing unknown shown as fine."""

from __future__ import annotations

import pytest

from tests.api.test_device_views import PORT, know_port, leaf, tell, with_labels
from tests.web.conftest import SignIn
from tests.web.seed import Seeded
from tests.web.seed_nodes import Value, table_of
from tests.web.test_nodes import plain
from tests.web.test_pages import HOSTILE, text_of


def page(sign_in: SignIn, path: str) -> str:
    return plain(text_of(sign_in("vera").get(path)))


def ports(*rows: Value) -> list[Value]:
    return [(f"switchport/leaf-1/{port}", metric, value, quality) for port, metric, value, quality in rows]


def test_ports_in_trouble_stand_before_calm_and_unused_ones(seeded: Seeded, sign_in: SignIn) -> None:
    rows = ports(
        ("Eth1", "oper_up_count", 1, "ok"), ("Eth1", "tx_discards_delta_count", 0, "ok"),
        ("Eth2", "oper_up_count", 0, "ok"), ("Eth2", "admin_up_count", 1, "ok"),
        ("Eth2", "carrier_changes_total", 0, "ok"),
        ("Eth3", "oper_up_count", 1, "ok"), ("Eth3", "rx_errors_delta_count", 12, "ok"),
        ("Eth4", "oper_up_count", 0, "ok"), ("Eth4", "admin_up_count", 1, "ok"),
        ("Eth4", "carrier_changes_total", 3, "ok"),
        ("Eth10", "oper_up_count", None, "timeout"), ("Eth10", "rate_gbps", 400, "ok"),
    )  # fmt: skip
    tell(seeded.nodes[1], "switch", "leaf-1", table_of(*rows))
    told = page(sign_in, "/devices/switch/leaf-1")
    order = (
        "Ports in trouble", " Eth3 ", "rx errors", " Eth4 ", "down, and was in use",
        "Other ports in use", " Eth1 ", " Eth10 ", "Ports not in use", " Eth2 ",
    )  # fmt: skip
    places = [told.index(part) for part in order]
    assert places == sorted(places), told
    assert "+12" in told and "400 Gbit/s" in told and "timeout" in told


def test_a_switch_leads_to_the_node_and_the_node_to_the_switch(seeded: Seeded, sign_in: SignIn) -> None:
    know_port(seeded.nodes[0])
    tell(seeded.nodes[1], "switch", "leaf-1", leaf("node-a", "eth2"))
    html = text_of(sign_in("vera").get("/devices/switch/leaf-1"))
    assert f'href="/nodes/node-a?cluster={seeded.real.pk}"' in html
    node = text_of(sign_in("vera").get(f"/nodes/node-a?cluster={seeded.real.pk}"))
    assert f'href="/devices/switch/leaf-1?cluster={seeded.real.pk}"' in node
    assert "Far ends of its ports" in node and "eth2" in node


def test_a_node_shows_its_bmc_and_its_racks_power(seeded: Seeded, sign_in: SignIn) -> None:
    node = seeded.nodes[0]
    type(node).objects.filter(pk=node.pk).update(rack="r1")
    tell(node, "bmc", "bmc-7", table_of(("psu/bmc-7/1", "input_power_w", 2_750, "ok")), node_name="node-a")
    tell(node, "rack", "r1", table_of(("rack/r1", "power_w", None, "incomplete")))
    told = page(sign_in, f"/nodes/node-a?cluster={seeded.real.pk}")
    for part in ("Its BMC: bmc-7", "Power supplies", "2 750 W", "Power of its rack: r1"):
        assert part in told, part


def test_devices_that_gave_no_answer_come_first_and_are_not_fine(seeded: Seeded, sign_in: SignIn) -> None:
    bare = table_of(("switch/x", "uptime_s", 5, "ok"))
    tell(seeded.nodes[0], "switch", "leaf-1", bare)
    tell(seeded.nodes[0], "switch", "leaf-2", bare, state="timeout")
    told = page(sign_in, "/devices")
    assert told.index("leaf-2") < told.index("leaf-1") and "2 devices" in told
    assert "leaf-1" not in page(sign_in, "/devices?show=failed")
    assert "no answer at the last look: timeout" in page(sign_in, "/devices/switch/leaf-2")


@pytest.mark.parametrize("path", ["/devices", "/devices?kind=bmc&q=x", "/devices?show=failed"])
def test_without_devices_the_page_says_how_to_get_them(path: str, seeded: Seeded, sign_in: SignIn) -> None:
    told = page(sign_in, path)
    assert "CLUSTERWATCH_POLLERS_FILE" in told or "Every device answers" in told


def test_what_a_device_says_is_text(seeded: Seeded, sign_in: SignIn) -> None:
    told = with_labels(table_of((PORT, "neighbour_count", 1, "ok")), {"peer": HOSTILE, "peer_port": HOSTILE})
    tell(seeded.nodes[0], "switch", "a/b", told, state=HOSTILE)
    for path in ("/devices", "/devices/switch/a/b"):
        assert HOSTILE not in text_of(sign_in("vera").get(path))
    assert sign_in("vera").get("/devices/switch/none").status_code == 404


def test_search_finds_a_device_by_a_part_of_its_name(seeded: Seeded, sign_in: SignIn) -> None:
    tell(seeded.nodes[0], "switch", "leaf/17", table_of(("switch/x", "uptime_s", 5, "ok")))
    answer = sign_in("vera").get("/search", {"q": "EAF/1"})
    assert answer["Location"] == f"/devices/switch/leaf%2F17?cluster={seeded.real.pk}"
