"""Faults of ports, cables and switches."""

from __future__ import annotations

from collections.abc import Iterator

from clusterwatch.simulate.faults import places
from clusterwatch.simulate.faults.effects import S, link_event, shift, slow_links, slow_world, stall
from clusterwatch.simulate.faults.places import Case, Place
from clusterwatch.simulate.faults.truth import Truth
from clusterwatch.simulate.topology import SimulatedNode
from clusterwatch.simulate.traces import Fault, Kind
from clusterwatch.simulate.world import World

_FLAP_S = 4
_BETWEEN_FLAPS_S = 20
_FLAPS_MAX = 6
_RATES = ("nic_tx_mib_per_s", "nic_rx_mib_per_s")


def _has_network(of: World) -> bool:
    """Some group of the world crosses nodes."""
    return of.plan.node_count > 1 and of.plan.layout.data > 1


def _truth(case: Case, place: Place, kind: str, fault_class: str = "health", **more: object) -> Truth:
    made: dict[str, object] = {
        "job": place.world.plan.job,
        "world": place.world.plan.world,
        "culprit_ranks": (place.rank,),
        "acceptable": ((place.rank,), ()),
        "node": place.node.name,
        "gpu": place.gpu,
        "gpu_uuid": place.uuid,
        "link": place.nic,
        "switch": place.node.leaves[place.gpu],
        "end_ns": case.end_ns,
    }
    return Truth(case.name, kind, fault_class, case.start_ns, **(made | more))  # type: ignore[arg-type]


def _cut(case: Case, place: Place, start_ns: int, end_ns: int | None) -> int:
    """The port is down: all ranks of its groups are in their calls and none ends. Returns the step."""
    down = Case(case.scene, case.request, start_ns, end_ns, case.random)
    for metric in _RATES:
        shift(down, (place.node.place,), metric, "set", 0.0, (place.gpu,))
    link_event(case, place, start_ns, up=False)
    if end_ns is not None:
        link_event(case, place, end_ns, up=True)
    stuck = Fault(Kind.ALL_JOINED_NOT_FINISHED, place.rank, "dp")
    return stall(case, place.world, (stuck,), start_ns, end_ns).step


def nic_down(case: Case) -> Truth:
    """A port goes down and stays down."""
    place = places.gpu(case, _has_network)
    step = _cut(case, place, case.start_ns, case.end_ns)
    return _truth(case, place, "link_down", step=step, acceptable_kinds=("all_joined_not_finished",))


def link_flap(case: Case) -> Truth:
    """A port goes down for four seconds, again and again."""
    place = places.gpu(case, _has_network)
    for start_ns in _flaps(case):
        _cut(case, place, start_ns, start_ns + _FLAP_S * S)
        after = Case(
            case.scene, case.request, start_ns + _FLAP_S * S, start_ns + (_FLAP_S + 2) * S, case.random
        )
        shift(after, (place.node.place,), "nic_out_of_sequence_total", "grow", 900.0, (place.gpu,))
    return _truth(
        case, place, "link_degraded", acceptable_kinds=("link_down", "all_joined_not_finished"),
        severity={"down_s": float(_FLAP_S)},
    )  # fmt: skip


def _flaps(case: Case) -> Iterator[int]:
    last_ns = case.end_ns if case.end_ns is not None else case.start_ns + _FLAPS_MAX * _BETWEEN_FLAPS_S * S
    yield case.start_ns
    yield from range(case.start_ns + _BETWEEN_FLAPS_S * S, last_ns - _FLAP_S * S, _BETWEEN_FLAPS_S * S)


def nic_slow(case: Case) -> Truth:
    """A port carries a quarter of what it should, and tells no error."""
    place, ratio = places.gpu(case, _has_network), 0.25
    for metric in _RATES:
        shift(case, (place.node.place,), metric, "scale", ratio, (place.gpu,))
    slow_links(case, place.world, [place.rank], "nic", ratio)
    return _truth(case, place, "slow_nic", "hardware", severity={"bandwidth_ratio": ratio})


def dirty_optics(case: Case) -> Truth:
    """FEC repairs a thousand times as much as on a clean fibre; some packets are lost all the same."""
    place = places.gpu(case, _has_network)
    where, gpus = (place.node.place,), (place.gpu,)
    shift(case, where, "nic_fec_corrected_total", "grow", 240_000.0, gpus)
    shift(case, where, "nic_out_of_sequence_total", "grow", 35.0, gpus)
    for metric in _RATES:
        shift(case, where, metric, "scale", 0.7, gpus)
    slow_links(case, place.world, [place.rank], "nic", 0.7)
    return _truth(case, place, "link_degraded", acceptable_kinds=("slow_nic",))


def pfc_storm(case: Case) -> Truth:
    """One host cannot drain and pauses its leaf; ports behind the same leaf are held up."""
    place = places.gpu(case, _has_network)
    leaf = place.node.leaves[place.gpu]
    victims = tuple(n.place for n in case.scene.nodes if leaf in n.leaves)
    for node in victims:
        gpus = tuple(
            gpu for gpu, name in enumerate(case.scene.nodes[node].leaves)
            if name == leaf and (node, gpu) != (place.node.place, place.gpu)
        )  # fmt: skip
        shift(case, (node,), "nic_pfc_pause_us_total", "grow", 310_000.0, gpus)
        for metric in _RATES:
            shift(case, (node,), metric, "scale", 0.69, gpus)
    for metric in _RATES:
        shift(case, (place.node.place,), metric, "scale", 0.25, (place.gpu,))
    for of in _worlds_on(case, victims):
        slow_world(case, of, 1.45)
    slow_links(case, place.world, [place.rank], "nic", 0.25, slows_job=False)
    return _truth(case, place, "link_degraded", acceptable_kinds=("slow_nic",))


def _worlds_on(case: Case, nodes: tuple[int, ...]) -> tuple[World, ...]:
    found = {id(of): of for node in nodes if (of := case.scene.world_at(node)) is not None}
    return tuple(found.values())


def _switch_truth(case: Case, switch: str, ranks: dict[int, tuple[int, ...]], ratio: float) -> Truth:
    """``ranks`` by world; the truth names those of the world with most of them."""
    first = max(ranks, key=lambda key: len(ranks[key]))
    of = next(w for w in case.scene.worlds if w.plan.first_node == first)
    return Truth(
        case.name, "slow_switch", "hardware", case.start_ns, case.end_ns, job=of.plan.job,
        world=of.plan.world, culprit_ranks=ranks[first], acceptable=(ranks[first], ()), switch=switch,
        severity={"bandwidth_ratio": ratio},
    )  # fmt: skip


def leaf_slow(case: Case) -> Truth:
    """All ports behind one leaf have 40 % of their bandwidth."""
    leaf, nodes = places.nodes_where(case, "leaf switch", lambda n: n.leaves)

    def behind(node: int) -> tuple[int, ...]:
        return tuple(gpu for gpu, name in enumerate(case.scene.nodes[node].leaves) if name == leaf)

    for node in nodes:
        for metric in _RATES:
            shift(case, (node,), metric, "scale", 0.4, behind(node))
    ranks = places.ranks_on(case, nodes, behind)
    for of in _worlds_on(case, nodes):
        slow_links(case, of, ranks[of.plan.first_node], "nic", 0.4)
    return _switch_truth(case, leaf, ranks, 0.4)


def spine_hash(case: Case) -> Truth:
    """Too many flows of a pod are hashed to one spine: ports share what is left, and are paused."""
    spine, nodes = places.nodes_where(case, "spine switch", _spines)

    def every(node: int) -> tuple[int, ...]:
        return tuple(range(len(case.scene.nodes[node].gpus)))

    hot = tuple(node for node in nodes if node % 2 == 0)  # every second node's flows meet there
    for metric in _RATES:
        shift(case, hot, metric, "scale", 0.6)
    shift(case, hot, "nic_pfc_pause_us_total", "grow", 140_000.0)
    crowded = places.ranks_on(case, hot, every)
    for of in _worlds_on(case, hot):
        slow_links(case, of, crowded[of.plan.first_node], "nic", 0.6)
    return _switch_truth(case, spine, places.ranks_on(case, hot, every), 0.6)


def _spines(node: SimulatedNode) -> tuple[str, ...]:
    return node.spines
