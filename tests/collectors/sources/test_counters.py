"""What changed between two looks at a counter, and when that is not known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.base import Sample
from collectors.sources.counters import Change, Count, Counter, CounterGroup, parsed, samples

KINDS = {
    "eight": Counter(8, saturates=True),
    "queue": Counter(32, wraps=True),
    "peer": Counter(32, wraps=True),
}


def second(before: dict[str, int], after: dict[str, int], passed_s: float = 10.0) -> dict[str, Change]:
    group = CounterGroup(KINDS)
    group.update({name: Count(value) for name, value in before.items()}, 0.0)
    return group.update({name: Count(value) for name, value in after.items()}, passed_s)


def test_a_first_look_has_no_rate() -> None:
    assert CounterGroup(KINDS).update({"a": Count(5)}, 0.0) == {"a": Change(None, None, "first_sample")}


@pytest.mark.parametrize(
    ("name", "before", "after", "wanted"),
    [
        ("a", 5, 25, Change(20, 2.0)),
        ("a", 5, 5, Change(0, 0.0)),
        ("a", 5, 4, Change(None, None, "reset")),
        ("a", 2**64 - 1, 3, Change(None, None, "reset")),
        ("eight", 250, 255, Change(None, None, "saturated")),
        ("eight", 255, 255, Change(None, None, "saturated")),
        ("eight", 255, 3, Change(None, None, "reset")),
        ("eight", 300, 310, Change(10, 1.0)),
        ("queue", 2**32 - 10, 10, Change(20, 2.0)),
        ("queue", 2**31 - 1, 10, Change(None, None, "reset")),
        ("queue", 2**32 + 5, 10, Change(None, None, "reset")),
    ],
)
def test_change(name: str, before: int, after: int, wanted: Change) -> None:
    assert second({name: before}, {name: after}) == {name: wanted}


def test_two_that_fall_together_were_set_back() -> None:
    before, after = {"queue": 2**32 - 10, "peer": 2**32 - 9}, {"queue": 10, "peer": 10}
    assert {change.quality for change in second(before, after).values()} == {"reset"}


def test_the_ones_that_were_set_back_are_named() -> None:
    group = CounterGroup(KINDS)
    group.update({"a": Count(9), "b": Count(9)}, 0.0)
    group.update({"a": Count(1), "b": Count(10)}, 1.0)
    assert group.fell == ("a",)


def test_a_counter_that_could_not_be_read_in_between_has_no_change_when_it_is_back() -> None:
    group = CounterGroup(KINDS)
    group.update({"a": Count(9)}, 0.0)
    assert group.update({"a": Count(None, "eio")}, 1.0)["a"] == Change(None, None, "eio")
    assert group.update({"a": Count(12)}, 2.0)["a"].quality == "first_sample"


def test_all_ones_are_shown_as_unknown() -> None:
    group = CounterGroup(KINDS)
    counts = {"eight": Count(255), "VL_x": Count(3)}
    found = list(samples("port/a/1", group, counts, group.update(counts, 0.0)))
    assert found[0] == Sample("port/a/1", "eight_total", None, "saturated")
    assert found[3] == Sample("port/a/1", "vl_x_total", 3)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("12\n", Count(12)),
        ("", Count(None, "empty")),
        ("N/A (no PMA)", Count(None, "not_available")),
        ("[N/A]", Count(None, "not_available")),
        ("-1", Count(None, "unreadable")),
        ("0x10", Count(None, "unreadable")),
        ("١٢", Count(None, "unreadable")),
        (str(2**64), Count(None, "out_of_range")),
        (str(2**64 - 1), Count(2**64 - 1)),
        ("9" * 5_000, Count(None, "out_of_range")),
    ],
)
def test_parsed(text: str, wanted: Count) -> None:
    assert parsed(text) == wanted


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=20))
def test_a_change_is_never_negative_and_never_more_than_the_counter_holds(values: list[int]) -> None:
    group = CounterGroup(KINDS)
    for at_s, value in enumerate(values):
        for change in group.update({name: Count(value) for name in KINDS}, float(at_s)).values():
            assert change.delta is None or 0 <= change.delta < 2**64
            assert (change.delta is None) == (change.quality != "ok")


def test_a_counter_that_stands_has_a_change_of_0_and_one_at_all_ones_has_none() -> None:
    group = CounterGroup({"full": Counter(8, saturates=True)})
    counts = {"still": Count(7), "full": Count(255), "unread": Count(None, "eperm")}
    group.update(counts, 0.0)
    changes = group.update(counts, 10.0)
    assert [(one.metric, one.value, one.quality) for one in samples("port/x/1", group, counts, changes)] == [
        ("still_total", 7, "ok"), ("still_delta_count", 0, "ok"), ("still_per_s", 0.0, "ok"),
        ("full_total", None, "saturated"), ("full_delta_count", None, "saturated"),
        ("full_per_s", None, "saturated"),
        ("unread_total", None, "eperm"), ("unread_delta_count", None, "eperm"),
        ("unread_per_s", None, "eperm"),
    ]  # fmt: skip


def test_a_second_look_at_the_same_moment_has_no_rate() -> None:
    group = CounterGroup({})
    group.update({"still": Count(7)}, 5.0)
    assert group.update({"still": Count(7)}, 5.0)["still"] == Change(None, None, "first_sample")
