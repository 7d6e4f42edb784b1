"""Many switches at once, whatever they answer; and walks of tables that an agent makes endless."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.pollers.switch_facts import Port, SwitchError, SwitchFacts
from collectors.pollers.switch_poller import Look, Settings, SwitchPoller, Target
from collectors.pollers.switch_snmp_walk import Oid, Session
from collectors.sources.counters import Count
from tests.collectors.fakes import FakeClock


class FakeAsker:
    """Answers as the name says, and counts how many are asked at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.asked: list[str] = []
        self.closed = False

    async def ask(self, target: Target, look: Look) -> SwitchFacts:
        self.asked.append(target.name)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(60 if target.name.startswith("hung") else 0)
        finally:
            self.now -= 1
        facts = SwitchFacts({"1": Port("1", oper_up=True)})
        match target.name.split("-")[0]:
            case "refusing":
                raise SwitchError("refused\x1b[2J")
            case "lying":
                raise RecursionError("deep in a library")
            case "empty":
                return SwitchFacts()
            case "slow":
                await look.optional(asyncio.sleep(60), "neighbours", facts.missing)
        return facts

    async def close(self) -> None:
        self.closed = True


def poller(asker: FakeAsker, *names: str, concurrency: int = 4, look_s: float = 0.05) -> SwitchPoller:
    targets = [Target(name, name, 1) for name in names]
    return SwitchPoller("switch_test", Settings(targets, 15.0, look_s, concurrency), asker)


def test_each_switch_answers_once_and_for_itself() -> None:
    asker = FakeAsker()
    one = poller(asker, "hung", "refusing", "lying", "empty", "good")
    states = {answer.device.name: answer.state for answer in one.poll(0.0)}
    one.close()
    assert states == {
        "hung": "timeout",
        "refusing": "refused?[2J",
        "lying": "unreadable: RecursionError",
        "empty": "no_ports",
        "good": "ok",
    }
    assert asker.closed


def test_no_more_than_so_many_are_asked_at_once() -> None:
    asker = FakeAsker()
    one = poller(asker, *[f"good-{at}" for at in range(50)], concurrency=7, look_s=5.0)
    assert len(list(one.poll(0.0))) == 50
    one.close()
    assert 1 < asker.most <= 7


def test_switches_that_failed_are_asked_last() -> None:
    asker = FakeAsker()
    one = poller(asker, "hung-1", "hung-2", "good", concurrency=1)
    list(one.poll(0.0))
    asker.asked.clear()
    list(one.poll(15.0))
    one.close()
    assert asker.asked == ["good", "hung-1", "hung-2"]


def test_a_part_that_takes_too_long_costs_that_part() -> None:
    asker = FakeAsker()
    one = poller(asker, "slow", look_s=0.2)
    (answer,) = one.poll(0.0)
    one.close()
    assert answer.state == "ok"
    (event,) = answer.reading.events
    assert (event.kind, event.standing) == ("switch_incomplete", True)
    assert event.attributes["missing"] == ["neighbours: timeout"]


def test_a_poll_that_is_given_up_leaves_nobody_waiting() -> None:
    asker = FakeAsker()
    one = poller(asker, "good", "hung", look_s=60.0)
    polling = one.poll(0.0)
    assert next(polling).device.name == "good"
    polling.close()
    assert asker.now == 0
    one.close()


def test_rates_are_of_when_the_switch_answered() -> None:
    class Counting(FakeAsker):
        async def ask(self, target: Target, look: Look) -> SwitchFacts:
            facts = await super().ask(target, look)
            facts.ports["1"].counters["tx_discards"] = Count(100 * len(self.asked))
            clock.advance(0.0 if len(self.asked) == 1 else 10.0)
            return facts

    clock = FakeClock()
    one = SwitchPoller("switch_test", Settings([Target("a", "a", 1)], 10.0), Counting(), clock.monotonic_s)
    list(one.poll(0.0))
    (answer,) = one.poll(10.0)
    one.close()
    (per_s,) = [s.value for s in answer.reading.samples if s.metric == "tx_discards_per_s"]
    assert per_s == 5.0, "100 within 20 s: it answered 10 s late"


COLUMN: Oid = (1, 3, 6)


class FakeAgent:
    """Stands for pysnmp: answers each GETBULK with the next rows of a script, then with nothing new."""

    ContextData = staticmethod(lambda: None)
    ObjectIdentity = staticmethod(lambda oid: oid)
    ObjectType = staticmethod(lambda oid: oid)

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = 0

    async def bulk_cmd(self, *args: Any, **_: Any) -> tuple[None, int, int, list[Any]]:
        self.asked += 1
        return None, 0, 0, self.answer(args[5], args[6:])


def walked(answer: Any, rows_max: int = 100) -> tuple[dict[Oid, Any], int]:
    agent = FakeAgent(answer)
    session = Session(agent, None, None, None)  # type: ignore[arg-type] # a fake module
    return asyncio.run(session.columns([COLUMN], rows_max))[COLUMN], agent.asked


def test_a_walk_of_an_endless_table_ends_at_its_bound() -> None:
    def endless(repetitions: int, oids: tuple[Oid, ...]) -> list[Any]:
        last = oids[0][3] if len(oids[0]) > 3 else 0
        return [((*COLUMN, last + step), step) for step in range(1, repetitions + 1)]

    rows, asked = walked(endless)
    assert len(rows) == 100
    assert asked == 5


@pytest.mark.parametrize(
    "answer",
    [
        lambda *_: [((*COLUMN, 1), 7)],
        lambda *_: [((*COLUMN, 1), 7), ((*COLUMN, 1), 7), ((*COLUMN, 0), 7)],
        lambda *_: [((*COLUMN, 1), 7), ((1, 3, 7, 1), 7)],
        lambda *_: [((*COLUMN, 1), 7)] * 9_000,
    ],
)
def test_an_agent_that_goes_in_circles_is_left(answer: Any) -> None:
    rows, asked = walked(answer)
    assert rows == {(1,): 7}
    assert asked <= 2


def test_an_agent_without_the_table_gives_an_empty_column() -> None:
    assert walked(lambda *_: [])[0] == {}
    assert walked(lambda *_: [((1, 3, 7), SimpleNamespace())])[0] == {}
