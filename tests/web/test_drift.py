"""The page of nodes that differ from their peers, and what a node's own page says of it."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from clusterwatch.detect import drift
from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.jobs.models import DriftRun, Job
from clusterwatch.web import drift_page
from tests.web.conftest import SignIn
from tests.web.seed import Seeded, query_count_of
from tests.web.seed_drift import fleet, rank_facts, tell
from tests.web.test_nodes import plain
from tests.web.test_pages import HOSTILE, text_of


def lab(seeded: Seeded, count: int = 40) -> list[Node]:
    """More nodes of the real cluster, told of by nobody yet."""
    return fleet(seeded.real, count)


def compare(cluster: Cluster) -> None:
    drift.compare(cluster.pk, time.time_ns())


def page(sign_in: SignIn, path: str = "/drift", who: str = "vera") -> str:
    return plain(text_of(sign_in(who).get(path)))


def test_the_sentence_is_on_the_page_with_what_it_rests_on(seeded: Seeded, sign_in: SignIn) -> None:
    for number, node in enumerate(lab(seeded)):
        tell(node, {"host": {"nvidia.driver": "535.183.01"}} if number == 17 else {})
    compare(seeded.real)
    told = page(sign_in)
    for part in (
        "39 of 40 nodes have nvidia.driver 550.90.07; gtn-0017 has 535.183.01",
        "1 node differs from nearly all others of their kind or job",
        "40 of 44 nodes compared, 4 tell no facts",
        "Nodes with 8 × NVIDIA H100 80GB HBM3",
        "40 of 40",
    ):
        assert part in told, part
    html = text_of(sign_in("vera").get("/drift"))
    assert f'href="/nodes/gtn-0017?cluster={seeded.real.pk}"' in html
    assert 'href="/drift"' in text_of(sign_in("vera").get("/collectors"))


def test_a_nodes_page_says_how_it_differs_and_which_others_do_not(seeded: Seeded, sign_in: SignIn) -> None:
    nodes = lab(seeded)
    job = Job.objects.create(cluster=seeded.real, key="run-7", started_at=timezone.now())
    for number, node in enumerate(nodes):
        net = rank_facts("run-7", number, nccl_net="Socket" if number == 3 else "IB")
        tell(node, {"host": {"kernel": "old"}} if number == 3 else {}, net)
    compare(seeded.real)
    told = page(sign_in, f"/nodes/gtn-0003?cluster={seeded.real.pk}")
    assert "39 of 40 nodes have kernel 6.8.0-45-generic; gtn-0003 has old" in told
    assert "39 of 40 nodes have nccl.net IB; gtn-0003 has Socket in job run-7" in told
    assert f'href="/jobs/{job.pk}"' in text_of(sign_in("vera").get("/nodes/gtn-0003"))
    assert "In nothing that enough nodes tell does it stand alone." in page(sign_in, "/nodes/gtn-0004")
    assert "Part Fact Value" in told and "fact count" not in told


def test_camps_are_told_and_nobody_is_odd(seeded: Seeded, sign_in: SignIn) -> None:
    for number, node in enumerate(lab(seeded)):
        tell(node, {"host": {"kernel": "new"}} if number < 12 else {})
    compare(seeded.real)
    told = page(sign_in)
    assert "Large groups of nodes differ, as in a rollout; no single node does" in told
    assert "kernel : 28 have 6.8.0-45-generic, 12 have new" in told
    assert "gtn-0003" not in told


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "so nothing can be said"),
        (3, "fewer than 4 nodes of a kind tell this"),
        (5, "No node stands alone"),
    ],
)
def test_what_is_said_when_there_is_nothing_to_tell(
    count: int, words: str, seeded: Seeded, sign_in: SignIn
) -> None:
    for node in lab(seeded, count):
        tell(node)
    assert "Not compared yet" in page(sign_in)
    compare(seeded.real)
    assert words in page(sign_in)


def test_an_old_comparison_is_not_drawn_as_fine(seeded: Seeded, sign_in: SignIn) -> None:
    for node in lab(seeded, 6):
        tell(node)
    compare(seeded.real)
    assert "Alike" in page(sign_in)
    DriftRun.objects.update(ran_at=timezone.now() - timedelta(minutes=10))
    told = page(sign_in)
    assert "Alike" not in told and "Everything below is old" in told
    assert "too old to say anything" in page(sign_in, "/nodes/gtn-0000")


def test_a_node_that_was_not_compared_is_not_like_its_peers(seeded: Seeded, sign_in: SignIn) -> None:
    nodes = lab(seeded, 6)
    assert "No comparison ran yet" in page(sign_in, "/nodes/gtn-0000")
    for node in nodes[1:]:
        tell(node)
    compare(seeded.real)
    assert "so it was not compared" in page(sign_in, "/nodes/gtn-0000")


def test_what_a_node_says_is_text(seeded: Seeded, sign_in: SignIn) -> None:
    for number, node in enumerate(lab(seeded)):
        facts = {"host": {HOSTILE: HOSTILE if number == 3 else "a", "camp": HOSTILE if number % 2 else "b"}}
        tell(node, facts, rank_facts(HOSTILE, number, nccl_net="IB"))
    compare(seeded.real)
    for path in ("/drift", "/nodes/gtn-0003"):
        html = text_of(sign_in("olga").get(path))
        assert "<img src=x" not in html and "&lt;img src=x" in html


def test_a_group_with_very_many_findings_is_cut(
    seeded: Seeded, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift_page, "ROWS_MAX", 2)
    for number, node in enumerate(lab(seeded)):
        tell(node, {"host": {f"fact-{n}": str(number == 3) for n in range(5)}})
    compare(seeded.real)
    told = page(sign_in)
    assert told.count("gtn-0003 has True") == 2 and "3 more are in the JSON" in told


def test_queries_do_not_grow_with_what_was_found(seeded: Seeded, sign_in: SignIn) -> None:
    nodes = lab(seeded, 60)
    for node in nodes:
        tell(node)
    compare(seeded.real)
    client = sign_in("olga")
    few = query_count_of(lambda: client.get("/drift"))
    for number, node in enumerate(nodes):
        tell(node, {"host": {f"fact-{n}": str(number == n) for n in range(30)}})
    compare(seeded.real)
    assert query_count_of(lambda: client.get("/drift")) <= few + 1
