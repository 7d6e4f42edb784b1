"""Host lists: ranges with their zeros, several brackets, and lists that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.hostlist import HOSTS_MAX, expand, position


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gtn-0101", ["gtn-0101"]),
        ("gtn-[0101-0103,0120]", ["gtn-0101", "gtn-0102", "gtn-0103", "gtn-0120"]),
        ("gtn-[9-11]", ["gtn-9", "gtn-10", "gtn-11"]),
        ("gtn-[098-101]", ["gtn-098", "gtn-099", "gtn-100", "gtn-101"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("a[1,3].dc,b7", ["a1.dc", "a3.dc", "b7"]),
        ("", []),
        ("a[1-", []),
        ("a[x],b1", ["b1"]),
        ("a[5-3]", []),
        ("]],b1", ["b1"]),
    ],
)
def test_expands(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["a[0-999999999]", "a[0-9999][0-9999][0-9999]", "a[0-999999999][x]"])
def test_a_huge_range_is_cut(text: str) -> None:
    assert len(expand(text)) <= HOSTS_MAX


def test_a_host_is_found_with_and_without_its_domain() -> None:
    names = ["gtn-0101", "gtn-0102.dc.example"]
    assert position(names, "gtn-0101.dc.example") == 0
    assert position(names, "gtn-0102") == 1
    assert position(names, "gtn-010") is None


@given(st.text(alphabet="ab-[],.0123456789", max_size=60))
def test_garbage_gives_names_or_nothing(text: str) -> None:
    assert all(name and "[" not in name for name in expand(text))
