"""Members of a process group travel in their shortest form and arrive as they were."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from collectors.wire.records import GroupInfo, group_info

MEMBERS = st.one_of(
    st.lists(st.integers(0, 2**20), unique=True, max_size=20),
    st.builds(
        lambda a, d, n: list(range(a, a + d * n, d)),
        st.integers(0, 99),
        st.integers(1, 64),
        st.integers(0, 50),
    ),
)


@given(MEMBERS)
def test_members_arrive_in_their_order(members: list[int]):
    sent = msgspec.msgpack.encode(group_info(0, "0", "dp", "nccl", members, 3))
    assert list(msgspec.msgpack.decode(sent, type=GroupInfo).members) == members


def test_a_world_of_any_size_takes_a_few_bytes():
    group = group_info(0, "0", "default_pg", "nccl", range(16_384))
    assert group.span == (0, 1, 16_384) and len(msgspec.msgpack.encode(group)) < 70


def test_members_without_a_common_distance_are_listed():
    assert group_info(0, "0", "mp", "nccl", [0, 1, 8, 9]).span is None
    assert group_info(0, "0", "dp", "nccl", [6, 4, 2, 0]).ranks == [6, 4, 2, 0]
