"""Host lists: ranges with their zeros, several brackets, and lists that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.hostlist import HOSTS_MAX, expand, holds, position


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


@given(
    st.lists(
        st.builds(
            "{}{}{}{}".format,
            st.sampled_from(["gtn-", "a", "", "r1n"]),
            st.sampled_from(["[1-12]", "[001-003,7]", "[08-11]", "5", "[3-1]", "[x]"]),
            st.sampled_from(["", "-", "b[1-3]", "[0-9]", ".dc1"]),
            st.sampled_from(["", ".dc1"]),
        ),
        max_size=4,
    ).map(",".join)
)
def test_a_list_holds_exactly_the_hosts_it_expands_to(text: str) -> None:
    names = expand(text)
    near = (
        {f"{name}0" for name in names[:20]}
        | {name[:-1] for name in names[:20]}
        | {"gtn-1", "a2b3", "7", "zz"}
    )
    for host in {*names[:60], *near} - {""}:
        assert holds(text, host) == (position(names, host) is not None), (text, host)


def test_a_long_list_is_not_expanded_to_find_one_host() -> None:
    text = ",".join(f"gtx-[000000001-999999999]-{number}" for number in range(20_000))
    assert holds(text, "gtx-000004096-19999")
    assert not holds(text, "gtx-000004096-20000")
