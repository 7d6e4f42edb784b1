"""Faults of our own eyes: the jobs are well."""

from __future__ import annotations

from clusterwatch.simulate.faults import places
from clusterwatch.simulate.faults.places import Case
from clusterwatch.simulate.faults.truth import Truth
from clusterwatch.simulate.scenario import AgentFault

_LAG_S = 2.0
_CLOCK_AHEAD_S = 300.0


def agent_dead(case: Case) -> Truth:
    """The agent of a node is gone and its connection broken; its ranks go on unseen."""
    place = places.node(case)
    case.scene.agents.append(AgentFault(place.node.place, "dead", case.start_ns, case.end_ns))
    return Truth(
        case.name, "agents_silent", "blind", case.start_ns, case.end_ns, job=place.world.plan.job,
        world=place.world.plan.world, acceptable=((), place.node_ranks), node=place.node.name,
    )  # fmt: skip


def agent_lagging(case: Case) -> Truth:
    """Frames of a node come every second second, its blocks late: nobody may be accused."""
    place = places.node(case)
    case.scene.agents.append(AgentFault(place.node.place, "lagging", case.start_ns, case.end_ns, _LAG_S))
    return Truth(case.name, "no_fault", "none", case.start_ns, case.end_ns, node=place.node.name)


def clock_stepped(case: Case) -> Truth:
    """A node's clock jumps five minutes ahead: nobody may be accused."""
    place = places.node(case)
    case.scene.agents.append(
        AgentFault(place.node.place, "clock", case.start_ns, case.end_ns, _CLOCK_AHEAD_S)
    )
    return Truth(
        case.name, "no_fault", "none", case.start_ns, case.end_ns, node=place.node.name,
        severity={"ahead_s": _CLOCK_AHEAD_S},
    )  # fmt: skip
