"""Odd ones are few among many; two camps are no fault of anybody."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterwatch.analysis.odd_ones import Camps, odd_ones


def fleet(count: int, **odd: str) -> dict[str, dict[str, str]]:
    """Nodes that all have driver 550; those that are named have another."""
    names = [f"node-{number}" for number in range(count)]
    return {name: {"driver": odd.get(name.replace("-", "_"), "550")} for name in names}


def test_the_one_that_differs_is_named_with_the_counts() -> None:
    found = odd_ones(fleet(3_072, node_7="535", node_9="545"))
    assert [(one.node, one.value, one.usual) for one in found.odd] == [
        ("node-7", "535", "550"),
        ("node-9", "545", "550"),
    ]
    assert found.odd[0].sentence == "3,070 of 3,072 have driver 550; node-7 has 535"
    assert found.odd[0].confidence > 0.99
    assert found.camps == ()


def test_of_a_few_nodes_one_may_be_odd_with_less_confidence() -> None:
    small, large = odd_ones(fleet(4, node_1="535")).odd[0], odd_ones(fleet(400, node_1="535")).odd[0]
    assert small.confidence < 0.5 < large.confidence


@pytest.mark.parametrize("count", [1, 2, 3])
def test_too_few_to_judge_by_tell_nothing(count: int) -> None:
    found = odd_ones(fleet(count, node_0="535"))
    assert (found.odd, found.camps, found.compared_count) == ((), (), 0)


def test_two_camps_are_told_and_nobody_is_odd() -> None:
    nodes = {f"n{number}": {"kernel": "6.8" if number < 40 else "6.5"} for number in range(100)}
    found = odd_ones(nodes)
    assert found.odd == ()
    assert found.camps == (Camps("kernel", (("6.5", 60), ("6.8", 40)), 100),)


def test_a_rollout_that_has_begun_is_neither_odd_nor_a_camp() -> None:
    nodes = {f"n{number}": {"kernel": "6.8" if number < 7 else "6.5"} for number in range(100)}
    found = odd_ones(nodes)
    assert (found.odd, found.camps, found.compared_count) == ((), (), 1)


def test_what_every_node_has_for_itself_tells_nothing() -> None:
    found = odd_ones({f"n{number}": {"serial": str(number)} for number in range(50)})
    assert (found.odd, found.camps) == ((), ())


def test_a_fact_that_few_know_is_judged_among_those_and_says_so() -> None:
    nodes = fleet(100)
    for number in range(10):
        nodes[f"node-{number}"]["vbios"] = "96.00" if number else "95.00"
    (one,) = odd_ones(nodes).odd
    assert (one.known_count, one.usual_count, one.coverage) == (10, 9, 0.1)


def test_who_does_not_know_a_fact_is_not_odd_in_it() -> None:
    nodes = fleet(20)
    del nodes["node-3"]["driver"]
    assert odd_ones(nodes).odd == ()


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.integers(0, 40).map(str), st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"))
    ),
    st.randoms(),
)
def test_the_order_of_nodes_and_facts_changes_nothing(
    nodes: dict[str, dict[str, str]], chance: random.Random
) -> None:
    names = list(nodes)
    chance.shuffle(names)
    shuffled = {name: dict(reversed(list(nodes[name].items()))) for name in names}
    found = odd_ones(nodes)
    assert odd_ones(shuffled) == found
    for one in found.odd:
        assert nodes[one.node][one.fact] == one.value != one.usual
        assert one.usual_count + one.same_count <= one.known_count <= one.peer_count
