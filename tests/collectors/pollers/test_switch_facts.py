"""Names, counters and numbers as switches tell them, checked before anything is made of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.pollers.switch_facts import (
    SwitchFacts,
    count_of,
    mac_of,
    name_of,
    narrow_bytes,
    number_of,
    priority_of,
)
from collectors.sources.counters import Count


@pytest.mark.parametrize("raw", ["", "  ", "a\nb", "a\x00", "x" * 129, None, 7, b"Ethernet1"])
def test_a_bad_name_is_no_name(raw: object) -> None:
    assert name_of(raw) == ""
    assert SwitchFacts().port(raw) is None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("18446744073709551615", Count(2**64 - 1)),
        (7, Count(7)),
        (7.0, Count(7)),
        (-1, Count(None, "out_of_range")),
        ("18446744073709551616", Count(None, "out_of_range")),
        ("", Count(None, "empty")),
        ("N/A", Count(None, "not_available")),
        (True, Count(None, "unreadable")),
        ([], Count(None, "unreadable")),
        (None, None),
    ],
)
def test_counters_of_json_are_numbers_or_their_digits(raw: object, expected: Count | None) -> None:
    assert count_of(raw) == expected


def test_32_bits_of_bytes_are_unusable_on_a_fast_port_and_on_one_of_unknown_rate() -> None:
    assert narrow_bytes(Count(5), 400.0) == Count(None, "too_narrow")
    assert narrow_bytes(Count(5), None) == Count(None, "too_narrow")
    assert narrow_bytes(Count(5), 0.01) == Count(5)
    assert narrow_bytes(None, 400.0) is None


@pytest.mark.parametrize(
    ("raw", "priority"),
    [("Ethernet68:3", 3), ("UC3", 3), ("3", 3), (3, 3), ("tc-5", 5), ("queue2.rdma", 2), ("MC3", None),
     ("Ethernet68:10", None), ("", None), (None, None), (True, None), ("Ethernet1:3:periodic", 3)],
)  # fmt: skip
def test_a_queue_names_its_priority(raw: object, priority: int | None) -> None:
    assert priority_of(raw) == priority


def test_addresses_have_one_spelling() -> None:
    assert mac_of("AABB.CC00.0001") == mac_of("aa-bb-cc-00-00-01") == mac_of("AA:BB:CC:00:00:01")
    assert mac_of("mlx5_0") == mac_of(None) == ""


@given(
    st.one_of(
        st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.binary(), st.lists(st.none())
    )
)
def test_nothing_that_a_switch_may_say_raises(raw: object) -> None:
    name_of(raw), mac_of(raw), priority_of(raw)
    count = count_of(raw)
    assert count is None or count.value is None or 0 <= count.value < 2**64
    number = number_of(raw)
    assert number is None or number < math.inf
