"""Nodes that are kept out or not trusted: told with words, counted, and bounded."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from clusterwatch.ingest import quarantine
from clusterwatch.ingest.hub import Gateway
from clusterwatch.ingest.quarantine import Quarantine, clock_step_words, doubt_about_clock
from clusterwatch.store import gateway_notes
from clusterwatch.store.gateway_notes import GatewayNotes, NodeNote, StoringNote
from collectors.wire import records
from tests.ingest.client import Node, hello, refusal

YEAR_NS = 365 * 86_400 * 10**9
MINUTE_NS = 60 * 10**9


def test_a_cause_given_again_is_counted_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "NOTES_MAX", 2)
    kept = Quarantine()
    for number, node in enumerate(("a", "b", "a", "c")):
        kept.note("alpha", node, "revoked", "words", "10.0.0.1", number)
    assert [(note.node, note.count, note.first_ms, note.last_ms) for note in kept.notes(4)] == [
        ("a", 2, 0, 2), ("c", 1, 3, 3),
    ]  # fmt: skip
    assert kept.total == 4
    assert kept.notes(2 * gateway_notes.NOTE_KEPT_S * 1000) == []


def test_two_machines_in_turn_are_told_from_one_that_reconnects() -> None:
    kept = Quarantine()
    assert [kept.takes_turns(1, second) for second in (0, 5, 10, 15)] == [False, False, False, True]
    assert [kept.takes_turns(2, second) for second in (0, 30, 60, 90)] == [False] * 4


@pytest.mark.parametrize(
    ("off_ns", "code", "words"),
    [(YEAR_NS, "clock_ahead", "365 days ahead"), (-YEAR_NS, "clock_behind", "365 days behind")],
)
def test_a_clock_far_off_is_said_how_far(off_ns: int, code: str, words: str) -> None:
    now_ns = time.time_ns()
    found = doubt_about_clock(hello(t_ns=now_ns + off_ns), now_ns)
    assert found is not None and found[0] == code and words in found[1]
    assert doubt_about_clock(hello(t_ns=now_ns + MINUTE_NS), now_ns) is None


def test_a_step_says_its_way() -> None:
    assert clock_step_words(7_200 * 10**9).startswith("its clock was set forward by 2 hours")
    assert clock_step_words(-30 * 10**9).startswith("its clock was set back by 30 s")


def storing(state: Any, reason: str = "") -> GatewayNotes:
    return GatewayNotes(StoringNote(state, 0, reason, 7, 0), [], 0)


def test_the_worst_gateway_speaks() -> None:
    assert gateway_notes.storing_words([]) == gateway_notes.storing_words([storing("ok")]) == ""
    words = gateway_notes.storing_words([storing("slow", "x"), storing("disk_full", "could not extend file")])
    assert "disk is full" in words and "could not extend file" in words and "7 records" in words


async def notes_of(code: str) -> NodeNote:
    """The note with this code, once a gateway has written it."""
    async with asyncio.timeout(20):
        while True:
            for notes in await asyncio.to_thread(gateway_notes.read):
                for note in notes.nodes:
                    if note.code == code:
                        return note
            await asyncio.sleep(0.1)


async def test_an_agent_of_another_major_version_is_refused_and_shown(
    gateway: Gateway, enrolment: str
) -> None:
    answer = await refusal(gateway.url, hello(version="2.0", enrolment_token=enrolment))
    note = await notes_of(answer.code)
    assert (note.cluster, note.node, note.count) == ("alpha", "n1", 1)
    assert "upgrade the older one" in note.reason


async def test_an_agent_from_next_year_is_admitted_and_shown(gateway: Gateway, enrolment: str) -> None:
    node = await Node.connect(gateway.url, hello(t_ns=time.time_ns() + YEAR_NS, enrolment_token=enrolment))
    assert "365 days ahead" in (await notes_of("clock_ahead")).reason
    await node.close()


async def test_a_clock_that_is_set_back_is_shown(gateway: Gateway, node: Node) -> None:
    now_ns = time.time_ns()
    for t_ns in (now_ns, now_ns - 10 * MINUTE_NS):
        await node.send(records.HotFrame(t_ns=t_ns))
    assert "set back by 10 minutes" in (await notes_of("clock_stepped")).reason


async def test_of_two_machines_with_one_credential_the_newer_is_kept_out(
    gateway: Gateway, node: Node
) -> None:
    proof = {"credential": node.welcome.credential}
    again = [await Node.connect(gateway.url, hello(**proof)) for _ in range(quarantine.TURNS_MAX)]
    await again[-1].send(records.HotFrame(t_ns=time.time_ns()))
    answer = await refusal(gateway.url, hello(**proof))
    assert answer.code == "duplicate_node" and "name and a spool folder of its own" in answer.reason
    assert (await notes_of("duplicate_node")).node == "n1"
    for one in again:
        await one.close()
