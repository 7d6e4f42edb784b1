"""Faults of a cluster's parts, with or without a job: signals are joined to one finding for each fault.

In: signals that stand, in their places. Out: ``HealthFault``s. A GPU's many signals are one fault; many nodes
of one rack, leaf or storage server with the same trouble at the same time are one fault of what they share,
and the nodes are whom it hits. Rules: DESIGN section 4, class ``health``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis import health_kinds as kinds
from clusterwatch.analysis import health_words as words
from clusterwatch.analysis.health_places import Case, Cast, RankPlace, placed, uuid_of
from clusterwatch.analysis.model import Coverage, Culprit, Diagnosis, Downstream, Finding, Owner, Severity
from clusterwatch.analysis.standing import Held
from clusterwatch.analysis.verdicts import CATALOGUE

VERSION: Final = "v2"
RACK_MIN, MOUNT_MIN, LEAF_MIN = 2, 3, 2
"""Nodes: fewer are their own faults. A rack holds two where racks are as published."""
SHARE_MIN_RATIO: Final = 0.5
"""of the nodes of a rack, and of the links of a leaf"""
LEAF_UNKNOWN_MIN: Final = 8
"""Nodes whose ports lead to one leaf, where nobody told how many it has."""
TOGETHER_NS: Final = 300 * 10**9
"""What begins further apart has no cause in common. Clocks of nodes may be off by some of it."""
_SEVERITY_ORDER: Final = (Severity.INFO, Severity.UNKNOWN, Severity.WARNING, Severity.CRITICAL)


@dataclass(frozen=True, slots=True)
class HealthFault:
    """One fault.

    Attributes:
        key: what makes it the same fault at the next look.
        absorbs: keys of faults that its signals would be if nothing was shared.
        is_expected: a person knows: the scheduler gives its node no work. Nobody is paged.
        cases: its signals, the oldest first.
    """

    key: str
    finding: Finding
    since_ns: int
    node_id: int | None
    rank_count: int
    absorbs: frozenset[str] = frozenset()
    is_expected: bool = False
    cases: tuple[Case, ...] = ()


def judge(held: Iterable[Held], cast: Cast, live: Collection[str] = ()) -> list[HealthFault]:
    """Independent faults, worst first. Cost: linear in the signals, but for sorting them.

    Args:
        live: keys of the faults of the look before: what nodes share is shared until the last one is well.
    """
    cases = sorted(placed(held, cast), key=lambda one: (one.signal.at_ns, one.host, one.signal.kind))
    groups = _shared(cases, cast, live)
    taken = {id(one) for group in groups for one in group.cases}
    groups += _single([one for one in cases if id(one) not in taken])
    faults = [_fault(group, cast) for group in groups]
    return sorted(faults, key=lambda one: (-_SEVERITY_ORDER.index(one.finding.severity), one.key))


# --- what many nodes share -------------------------------------------------------------------------------


def _shared(cases: Sequence[Case], cast: Cast, live: Collection[str]) -> list[words.Group]:
    found: list[words.Group] = []
    for families, place_of, is_enough in (
        (("storage",), _server, _any_client),
        (("storage",), _mount, _enough_mounts),
        (("power", "cooling"), _rack, _enough_of_rack),
        (("link",), _leaf, _enough_of_leaf),
    ):
        taken = {id(one) for group in found for one in group.cases}
        mine = [one for one in cases if one.family in families and one.verdict and id(one) not in taken]
        found += _by_place(mine, cast, live, place_of, is_enough)
    return found


def _by_place(
    cases: Sequence[Case],
    cast: Cast,
    live: Collection[str],
    place_of: Callable[[Case, Cast], str],
    is_enough: Callable[[Sequence[Case], str, Cast], bool],
) -> Iterable[words.Group]:
    by_place: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for one in cases:
        if shared := place_of(one, cast):
            by_place[one.family, shared].append(one)
    for (family, shared), mine in by_place.items():
        key = f"{family}/{shared}"
        together = mine if key in live else _together(mine)
        if key in live or is_enough(together, shared, cast):
            yield words.Group(words.verdict_of(together), key, tuple(together), shared)


def _together(cases: Sequence[Case]) -> list[Case]:
    """The most that began within ``TOGETHER_NS``; they come in the order of their times."""
    best, first = (0, 0), 0
    for last, one in enumerate(cases):
        while one.signal.at_ns - cases[first].signal.at_ns > TOGETHER_NS:
            first += 1
        if last + 1 - first > best[1] - best[0]:
            best = first, last + 1
    return list(cases[best[0] : best[1]])


def _hosts(cases: Iterable[Case]) -> set[str]:
    return {one.host for one in cases if one.node_id is not None}


def _server(case: Case, __: Cast) -> str:
    """Requests that wait are the server's matter, however few clients tell of it."""
    told = case.signal.fields.get("server", "")
    kind, _, name = case.signal.part.partition("/")
    name = told or (name if kind == "nfs_server" else "")
    return f"server {name}" if name else ""


def _any_client(cases: Sequence[Case], _: str, __: Cast) -> bool:
    return bool(cases)


def _mount(case: Case, _: Cast) -> str:
    return case.signal.part if case.signal.part.startswith(("mount/", "weka/")) else ""


def _enough_mounts(cases: Sequence[Case], _: str, __: Cast) -> bool:
    return len(_hosts(cases)) >= MOUNT_MIN


def _rack(case: Case, cast: Cast) -> str:
    place = cast.places.get(case.node_id or 0)
    if place is not None:
        return f"rack {place.rack}" if place.rack else ""
    kind, _, name = case.host.partition("/")
    return f"rack {name}" if kind == "rack" and name else ""


def _enough_of_rack(cases: Sequence[Case], shared: str, cast: Cast) -> bool:
    """A rack's own word, or most of its nodes; one bad supply in each of many months is none."""
    count = len(_hosts(cases))
    told_itself = any(one.node_id is None for one in cases)
    whole = cast.rack_nodes.get(shared.removeprefix("rack "), 0)
    return told_itself or count >= max(RACK_MIN, whole * SHARE_MIN_RATIO)


def _leaf(case: Case, cast: Cast) -> str:
    if case.verdict != "link_down" or case.held.is_unstable:
        return ""
    fields, place = case.signal.fields, cast.places.get(case.node_id or 0)
    told = case.far_switch or fields.get("switch") or fields.get("leaf")
    name = told or (place.leaf if place is not None else "")
    return f"switch {name}" if name else ""


def _enough_of_leaf(cases: Sequence[Case], shared: str, cast: Cast) -> bool:
    """Most links that lead to it: as many of each node as it has GPUs."""
    nodes = {one.node_id: one.host for one in cases if one.node_id is not None}
    if len(nodes) < LEAF_MIN:
        return False
    name = shared.removeprefix("switch ")
    whole = cast.leaf_nodes.get(name, 0)
    if not whole:
        return len(nodes) >= LEAF_UNKNOWN_MIN
    links = {(one.host, one.part) for one in cases}
    of_node = max(max(1, len(cast.places[node].gpus)) for node in nodes if node in cast.places)
    return len(links) >= whole * of_node * SHARE_MIN_RATIO


# --- one part --------------------------------------------------------------------------------------------


def _single(cases: Sequence[Case]) -> list[words.Group]:
    by_key: dict[str, list[Case]] = defaultdict(list)
    for one in cases:
        by_key[one.key].append(one)
    for host in {one.host for one in cases if one.signal.kind in kinds.DEAD}:
        _fold_into_host(by_key, host)
    _fold_echoes(by_key)
    return [
        words.Group(words.verdict_of(mine), key, tuple(mine))
        for key, mine in by_key.items()
        if any(one.verdict for one in mine)
    ]


def _fold_into_host(by_key: dict[str, list[Case]], host: str) -> None:
    """A host that is gone takes its parts along: they are not faults of their own."""
    whole = f"node/{host}"
    for key in [key for key, mine in by_key.items() if key != whole and mine[0].host == host]:
        by_key[whole] += by_key.pop(key)


def _fold_echoes(by_key: dict[str, list[Case]]) -> None:
    """An echo whose part is not known goes with its host's only faulty GPU."""
    at_host: dict[str, list[str]] = defaultdict(list)
    for key, mine in by_key.items():
        if mine[0].family == "gpu" and any(one.verdict for one in mine):
            at_host[mine[0].host].append(key)
    for key in [key for key, mine in by_key.items() if not any(one.verdict for one in mine)]:
        one = by_key[key][0]
        if one.family == "gpu" and not one.part.isdecimal() and len(at_host[one.host]) == 1:
            by_key[at_host[one.host][0]] += by_key.pop(key)


# --- findings --------------------------------------------------------------------------------------------


def _fault(group: words.Group, cast: Cast) -> HealthFault:
    nodes = sorted({one.node_id for one in group.cases if one.node_id is not None})
    hit = [rank for node in nodes for rank in cast.ranks.get(node, ())]
    on_gpu = _on_gpu(group, cast, hit) if group.verdict.startswith("gpu") else None
    drained = [cast.places[node].drained for node in nodes if node in cast.places]
    is_expected = bool(drained) and all(reason is not None for reason in drained)
    return HealthFault(
        key=group.key,
        finding=_finding(group, cast, hit if on_gpu is None else on_gpu, on_gpu is not None, is_expected),
        since_ns=min(one.signal.at_ns for one in group.cases if one.verdict),
        node_id=nodes[0] if len(nodes) == 1 else None,
        rank_count=sum(one.count for one in (hit if on_gpu is None else on_gpu)),
        absorbs=frozenset(one.key for one in group.cases if one.key != group.key),
        is_expected=is_expected,
        cases=group.cases,
    )


def _on_gpu(group: words.Group, cast: Cast, hit: Sequence[RankPlace]) -> list[RankPlace] | None:
    """Ranks on the GPU itself; None where nobody tells which rank has which GPU."""
    if not hit or not any(rank.gpu_uuid or rank.gpu_index is not None for rank in hit):
        return None
    places = [cast.places.get(one.node_id or 0) for one in group.cases]
    uuids = {uuid_of(one.signal, place) for one, place in zip(group.cases, places, strict=True)} - {""}
    part = group.cases[0].part
    return [
        rank
        for rank in hit
        if (rank.gpu_uuid in uuids if rank.gpu_uuid else part == str(rank.gpu_index)) and (uuids or part)
    ]


def _finding(
    group: words.Group, cast: Cast, hit: Sequence[RankPlace], is_exact: bool, is_expected: bool
) -> Finding:
    row = CATALOGUE[group.verdict]
    told = [one for one in group.cases if one.verdict]
    hosts = sorted(_hosts(group.cases))
    severity = _severity(group, hit, is_expected)
    is_decisive = group.verdict.startswith("gpu") and severity is Severity.CRITICAL
    link = next((one.signal.part for one in told if one.node_id is not None), told[0].signal.part)
    return Finding(
        verdict=group.verdict,
        fault_class=row.fault_class,
        severity=severity,
        summary=words.sentence(group, cast, hit, is_exact),
        rule=f"health.{group.verdict} {VERSION}",
        confidence=_confidence(group, cast, severity),
        cause=words.cause(told),
        owner=Owner.INFRA,
        culprits=tuple(_culprits(group, cast)) if group.verdict.startswith("gpu") else (),
        node=hosts[0] if len(hosts) == 1 else None,
        link=link if group.verdict.startswith("link") and not group.shared else None,
        switch=words.switch_of(group),
        downstream=Downstream(0, sum(rank.count for rank in hit)),
        why=tuple(words.why(group)),
        recommended_action=row.action,
        decisive=is_decisive and not is_expected,
    )


def _severity(group: words.Group, hit: Sequence[RankPlace], is_expected: bool) -> Severity:
    """A link is as bad as what runs over it; of the rest the worst that was told."""
    if is_expected:
        return Severity.INFO
    if group.verdict == "link_down":
        return Severity.CRITICAL if hit else Severity.WARNING
    told = [Severity.CRITICAL if kinds.is_power_brake(one.signal) else one.signal.severity
            for one in group.cases if one.verdict]  # fmt: skip
    return max(told, key=_SEVERITY_ORDER.index)


def _confidence(group: words.Group, cast: Cast, severity: Severity) -> float:
    """0.9 for what the part's own driver or state says, 0.7 for warnings; of what is shared its share."""
    if not group.shared:
        return 0.9 if severity is Severity.CRITICAL else 0.7
    name = group.shared.partition(" ")[2]
    whole = cast.rack_nodes.get(name) or cast.leaf_nodes.get(name)
    count = len(_hosts(group.cases))
    if whole:
        return round(0.6 + 0.3 * min(1.0, count / whole), 2)
    return 0.8 if count >= MOUNT_MIN else 0.5


def _culprits(group: words.Group, cast: Cast) -> Iterable[Culprit]:
    seen: set[tuple[str, str]] = set()
    for one in group.cases:
        place = cast.places.get(one.node_id or 0)
        uuid = uuid_of(one.signal, place)
        if one.verdict and (one.host, uuid) not in seen and (uuid or one.part):
            seen.add((one.host, uuid))
            index = int(one.part) if one.part.isdecimal() else None
            yield Culprit(None, one.host, index, uuid or None)


def diagnosis(fault: HealthFault, node_count: int, heard_count: int) -> Diagnosis:
    """The fault as an incident tells it; its coverage counts nodes, not ranks."""
    return Diagnosis((fault.finding,), Coverage(expected=node_count, reported=heard_count))
