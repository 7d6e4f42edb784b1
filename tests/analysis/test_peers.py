"""Facts of nodes by class and by job, ready to be compared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.analysis.odd_ones import odd_ones
from clusterwatch.analysis.peers import (
    FACTS_MAX,
    JOBS_OF_NODE_MAX,
    NOT_SET,
    VALUE_MAX_CHARS,
    Facts,
    Gathering,
    Group,
    comparable,
    different_parts,
    name_of,
)


def gathered(*nodes: Facts, kinds: tuple[str, ...] = ()) -> dict[str, Group]:
    gathering = Gathering()
    for number, facts in enumerate(nodes):
        gathering.add(f"n{number}", kinds[number] if kinds else "all", facts)
    return {group.name: group for group in gathering.groups()}


def test_nodes_of_different_classes_are_no_peers() -> None:
    groups = gathered({"host": {"os": "a"}}, {"host": {"os": "b"}}, kinds=("8 GPUs", "none"))
    assert {name: list(group.facts) for name, group in groups.items()} == {"8 GPUs": ["n0"], "none": ["n1"]}


def test_parts_that_are_alike_are_one_value_however_many_there_are() -> None:
    eight = {f"gpu/{n}": {"vbios": "96"} for n in range(8)}
    seven = {f"gpu/x{n}": {"vbios": "96"} for n in range(7)}
    facts = gathered(eight, seven)["all"].facts
    assert facts["n0"] == facts["n1"] == {"gpu\tvbios": "96"}
    assert name_of("gpu\tvbios") == ("gpu", "vbios") and name_of("os") == ("", "os")


def test_one_part_that_differs_makes_its_node_odd_and_is_named() -> None:
    alike: Facts = {f"port/mlx5_{n}/1": {"fw": "28.39" if n < 8 else "26.1"} for n in range(9)}
    other = {**alike, "port/mlx5_3/1": {"fw": "28.3"}}
    group = gathered(*[alike] * 30, other)["all"]
    assert group.facts["n0"] == {"port\tfw": "8 × 28.39, 1 × 26.1"}
    (one,) = odd_ones(group.facts).odd
    assert one.node == "n30"
    assert different_parts(group, one.node, one.fact, one.usual) == ["port/mlx5_3/1"]
    assert different_parts(group, "n0", "port\tfw", one.usual) == []


def test_facts_of_a_job_are_compared_within_it_only() -> None:
    groups = gathered({"job/7/rank/0": {"nccl.net": "IB"}}, {"job/8/rank/0": {"nccl.net": "Socket"}})
    assert groups["7"].facts == {"n0": {"nccl.net": "IB"}} and groups["8"].facts == {
        "n1": {"nccl.net": "Socket"}
    }
    assert groups["all"].facts == {"n0": {}, "n1": {}}


def test_ranks_of_a_node_are_a_set() -> None:
    ranks: Facts = {f"job/7/rank/{n}": {"nccl.net": "Socket" if n == 5 else "IB"} for n in range(8)}
    group = gathered(ranks)["7"]
    assert group.facts == {"n0": {"nccl.net": "IB, Socket"}}
    assert different_parts(group, "n0", "nccl.net", "IB") == ["rank 5"]


def test_a_setting_that_is_missing_on_one_node_is_not_set_there() -> None:
    read = {"env.read": "yes"}
    groups = gathered(
        {"job/7/rank/0": {**read, "env.NCCL_IB_TC": "106"}},
        {"job/7/rank/1": read},
        {"job/7/rank/2": {"nccl.net": "IB"}},
        {"job/7/rank/3": read, "job/7/rank/4": {**read, "env.NCCL_IB_TC": "106"}},
    )
    facts = groups["7"].facts
    assert facts["n0"] == {"env.NCCL_IB_TC": "106"} and facts["n1"] == {"env.NCCL_IB_TC": NOT_SET}
    assert facts["n2"] == {"nccl.net": "IB"}, "its environment was not read: nothing is known"
    assert facts["n3"] == {"env.NCCL_IB_TC": f"106, {NOT_SET}"}


def test_what_few_nodes_tell_costs_no_column() -> None:
    alone: Facts = {"host": {f"made-up-{n}": "x" for n in range(3_000)} | {"os": "a"}}
    group = gathered(alone, *[{"host": {"os": "a"}}] * 3)["all"]
    assert comparable(group, 4)["n0"] == {"os": "a"}
    many = gathered(*[alone] * 4)["all"]
    assert len(comparable(many, 4)["n0"]) == FACTS_MAX


def test_a_node_cannot_invent_jobs_without_end() -> None:
    groups = gathered({f"job/{n}/rank/0": {"nccl.net": "IB"} for n in range(500)})
    assert len(groups) == 1 + JOBS_OF_NODE_MAX


_words = st.text(max_size=12)
_entities = st.one_of(
    st.sampled_from(["host", "gpu/a", "gpu/b", "job/7/rank/0", "job/7/rank/1", "job/", "job", "/", ""]),
    _words,
)


@given(
    st.lists(st.dictionaries(_entities, st.dictionaries(_words, _words, max_size=4), max_size=5), max_size=5)
)
def test_any_names_are_grouped_and_judged_the_same_in_any_order(nodes: list[Facts]) -> None:
    groups = gathered(*nodes)
    for group in groups.values():
        assert all(len(text) <= VALUE_MAX_CHARS for facts in group.facts.values() for text in facts.values())
        turned = Group(group.kind, group.name, dict(reversed(group.facts.items())))
        assert odd_ones(comparable(group, 4)) == odd_ones(comparable(turned, 4))
