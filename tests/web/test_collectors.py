"""The collectors page says what gateways say: whether they can store, and whom they keep out."""

from __future__ import annotations

import time

import numpy as np

from clusterwatch.store import gateway_notes, hot, hot_writes, valkey
from clusterwatch.store.gateway_notes import GatewayNotes, NodeNote, StoringNote
from tests.web.conftest import SignIn
from tests.web.seed import Seeded
from tests.web.test_pages import text_of


def say(cluster: str, state: gateway_notes.Storing) -> None:
    """One gateway writes its notes."""
    now_ms = time.time_ns() // 1_000_000
    note = NodeNote(cluster, "twin", "duplicate_node", "it <b>speaks</b>", "10.0.0.9", 4, 1, now_ms)
    storing = StoringNote(state, now_ms, "could not extend file", 12, 0)
    hot_writes.write_gateway("noted", time.time_ns(), hot.empty_nodes(), {}, {})
    gateway_notes.write("noted", GatewayNotes(storing, [note], 4))


def test_a_full_disk_and_a_node_kept_out_are_said_with_words(seeded: Seeded, sign_in: SignIn) -> None:
    say(seeded.real.name, "disk_full")
    html = text_of(sign_in("vera").get(f"/collectors?cluster={seeded.real.pk}"))
    assert "disk is full" in html and "could not extend file" in html and "12 records wait" in html
    assert "twin" in html and "duplicate_node" in html and "10.0.0.9" in html
    assert "&lt;b&gt;speaks" in html, "words that came from a node are never markup"


def test_all_well_says_nothing_and_another_clusters_node_is_not_shown(
    seeded: Seeded, sign_in: SignIn
) -> None:
    say("elsewhere", "ok")
    html = text_of(sign_in("vera").get(f"/collectors?cluster={seeded.real.pk}"))
    assert 'id="storing"' not in html and 'id="doubts"' not in html


def test_nodes_of_a_gateway_that_died_are_not_called_silent_themselves(
    seeded: Seeded, sign_in: SignIn
) -> None:
    node, died_ns = seeded.real.nodes.order_by("name")[0], time.time_ns() - 10 * 10**9
    one, seen = np.array([node.pk]), np.array([died_ns])
    states = hot.NodeStates(one, np.array([seeded.real.pk]), seen, np.zeros(1, np.uint8), seen)
    valkey.client().flushall()
    hot_writes.write_gateway("died", died_ns, states, {}, {})
    html = text_of(sign_in("vera").get(f"/collectors?cluster={seeded.real.pk}"))
    assert "Gateway silent" in html and ">Silent<" not in html
