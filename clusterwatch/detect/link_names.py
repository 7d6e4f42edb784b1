"""Names of a world's ports and leaf switches, asked for while some of its links stand out.

In: the ranks of a world, what agents told of their nodes. Out: ``Names``. A port is known by what its node's
agent told when the rank began, a leaf by its agent or scheduler, else by the switch that sees the port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from clusterwatch.analysis.model import Finding
from clusterwatch.analysis.slow.link_findings import UNNAMED
from clusterwatch.detect import ports
from clusterwatch.detect.ports import FarEnd
from clusterwatch.jobs.models import Job, Rank
from clusterwatch.store.device_readings import host_of

AGAIN_NS: Final = 60 * 10**9
"""Cables are moved, and pollers begin later than jobs."""
_KEPT_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Names:
    """By rank number; empty where a rank is not known, and a leaf where nobody told it.

    Attributes:
        nic: the port nearest to its GPU; ranks that share one have one name on their node.
        far_ends: what switches tell, by ``host_of`` a host's name.
    """

    nic: tuple[str, ...]
    leaf: tuple[str, ...]
    far_ends: Mapping[str, Sequence[FarEnd]]

    def with_far_end(self, found: Finding) -> Finding:
        """A port's finding with the switch and its port at the other end, where exactly one tells of it."""
        hosts = {one.host for one in found.culprits}
        host = hosts.pop() if len(hosts) == 1 else None
        if found.link is None or host is None or found.verdict != "slow_nic":
            return found
        end = ports.far_end_of(self.far_ends.get(host_of(host), ()), found.link)
        if end is None:
            return found
        line = f"at the far end of its cable: port {end.port} of switch {end.switch}"
        return replace(found, switch=end.switch, why=(*found.why, line))


_names_of: dict[tuple[int, int, str, int], tuple[int, Names]] = {}


def names(
    cluster_id: int, job_id: int, world: str, ranks: Sequence[Rank | None], leaf: Sequence[str], now_ns: int
) -> Names:
    """Args: ``ranks`` by number, ``leaf`` as their agents told it. Read again after ``AGAIN_NS``.

    Cost: a query per 5,000 ranks and two more.
    """
    newest = max((rank.pk for rank in ranks if rank is not None), default=0)
    key = (cluster_id, job_id, world, newest)
    held = _names_of.get(key)
    if held is None or not 0 <= now_ns - held[0] < AGAIN_NS:
        while len(_names_of) >= _KEPT_MAX:
            _names_of.pop(next(iter(_names_of)))
        held = _names_of[key] = (now_ns, _read(cluster_id, job_id, ranks, leaf))
    return held[1]


def _read(cluster_id: int, job_id: int, ranks: Sequence[Rank | None], leaf: Sequence[str]) -> Names:
    known = [rank for rank in ranks if rank is not None]
    job_key = str(Job.objects.values_list("key", flat=True).get(pk=job_id))
    told = ports.of_job(cluster_id, job_key, known) if known else {}
    ends = ports.far_ends(cluster_id, {rank.host for rank in known})
    nic = tuple(
        "" if rank is None else told.get(number, f"{UNNAMED}{number}") for number, rank in enumerate(ranks)
    )
    behind = (
        of_agent or ("" if rank is None else ports.leaf_of(ends.get(host_of(rank.host), ()), port))
        for rank, port, of_agent in zip(ranks, nic, leaf, strict=True)
    )
    return Names(nic, tuple(behind), ends)
