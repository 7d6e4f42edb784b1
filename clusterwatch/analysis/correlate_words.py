"""The join across layers in words, and put into the finding that it explains.

In: candidates, ``Joined``. Out: lines of ``why``, sentences, the ``Finding`` with its cause. Texts of nodes
come in capped; pages escape them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from clusterwatch.analysis import sentence as words
from clusterwatch.analysis.correlate_model import (
    VERSION,
    Candidate,
    Joined,
    Layer,
    Part,
    PartKind,
    Place,
    Vitals,
    World,
)
from clusterwatch.analysis.correlate_time import patience_words
from clusterwatch.analysis.correlate_vitals import Network, busy_ratio
from clusterwatch.analysis.model import Culprit, Finding, Owner
from clusterwatch.analysis.signals import Signal
from clusterwatch.analysis.verdicts import CATALOGUE

WHY_MAX: Final = 8
_NAMED_MAX: Final = 3
_CONFIDENCE_MAX: Final = 0.97
_HALF: Final = 0.5
"""How much a cause adds to the confidence of a verdict that names the rank by itself."""
_WAITS: Final = re.compile(r"; [^;]{1,20} ranks? waits?$")
_REASON: Final = re.compile(r"[a-z][a-z_]{2,40}")
_ACTION_OF: Final[Mapping[Layer, str]] = {
    Layer.GPU: "gpu_fault", Layer.NVLINK: "gpu_fault", Layer.LINK: "link_down", Layer.HOST: "node_fault",
    Layer.STORAGE: "storage_stalled", Layer.POWER: "power_fault",
}  # fmt: skip
_ACTION_OF_WORD: Final[Mapping[str, str]] = {
    "thermal_throttle": "cooling_fault", "xid_79": "gpu_lost", "gpu_lost": "gpu_lost",
    "link_degraded": "link_degraded", "optics_weak": "link_degraded", "link_flap": "link_degraded",
    "pcie_degraded": "link_degraded",
}  # fmt: skip
"""Rows of the catalogue whose action fits the cause."""


def clock(at_ns: int) -> str:
    """``12:03:10 UTC``."""
    return datetime.fromtimestamp(at_ns // 10**9, UTC).strftime("%H:%M:%S UTC")


def sentence_of(
    one: Candidate, first: Signal, part: Part | None, temperature_c: float | None, count: int
) -> str:
    """``GPU 3 of host-1: thermal throttle since 12:03:10 UTC (hw_thermal_slowdown), 84 C``."""
    where = part.label if part is not None else f"{count} parts, first {one.part.label}"
    over = "" if first.until_ns is None else f" to {clock(first.until_ns)}"
    verb = "at" if first.kind in ("xid", "sxid", "oom_kill", "kernel_panic") else "from" if over else "since"
    reasons = _REASON.findall(first.fields.get("reasons", "")[:200])[:2]
    detail = f" ({', '.join(reasons)})" if reasons else ""
    is_heat = one.cause.word == "thermal_throttle" and temperature_c is not None
    heat = f", {temperature_c:.0f} C" if is_heat else ""
    return f"{where}: {one.cause.says} {verb} {clock(first.at_ns)}{over}{detail}{heat}"


def hottest(ranks: Iterable[int], vitals: Mapping[int, Vitals]) -> float | None:
    """Highest temperature of these ranks' GPUs; None where none tells."""
    told = [vitals[rank].temperature_c for rank in ranks if rank in vitals]
    return max((one for one in told if one is not None), default=None)


def how(confidence: float, one: Candidate, rest: float) -> str:
    """How the confidence of a cause is made."""
    return (
        f"confidence of the cause {confidence:.2f} = {one.cause.worth:.2f} (its kind) "
        f"x {one.certainty:.2f} (its part and time) x {rest:.2f} (peers, other signals)"
    )


def too_little(one: Candidate, covered: Collection[int], relevant: Collection[int]) -> str:
    """Why a cause is not named that fits some of the ranks."""
    return (
        f"{one.part.label}: {one.cause.says} explains {len(covered)} of {len(relevant)} named ranks; "
        "a cause is named from 80 % on"
    )


def unsure(one: Candidate, confidence: float) -> str:
    """Why a part is not named that fits weakly."""
    return f"{one.part.label}: {one.cause.says}, too unsure to be named ({confidence:.2f})"


def later(root: Candidate, others: Sequence[Candidate]) -> str:
    """Who came after the root."""
    rest = [one for one in others if one is not root]
    told = ", ".join(f"{one.part.label} ({one.cause.says})" for one in rest[:_NAMED_MAX])
    more = f" and {len(rest) - _NAMED_MAX} more" if len(rest) > _NAMED_MAX else ""
    return f"later, or not enough to stop a job: {told}{more}"


def cannot_order(tied: Sequence[Candidate], domain: str) -> str:
    """Several parts told of a fault so close together that clocks do not tell which was first."""
    told = ", ".join(f"{one.part.label} ({one.cause.says})" for one in tied[:_NAMED_MAX])
    more = f" and {len(tied) - _NAMED_MAX} more" if len(tied) > _NAMED_MAX else ""
    return f"cannot tell which was first, clocks differ by as much: {told}{more}; they share {domain}"


def domain(places: Sequence[Place]) -> str:
    """The smallest thing that all these ranks share."""
    for name, values in (
        ("host", {place.host for place in places}),
        ("rack", {place.rack for place in places}),
        ("switch", {place.leaf for place in places}),
    ):
        if len(values) == 1 and (value := next(iter(values))):
            return f"{name} {value}"
    return f"no known part of {len({place.host for place in places})} hosts"


def of_vitals(ranks: Collection[int], vitals: Mapping[int, Vitals], state: Network) -> list[str]:
    """What GPUs and ports do while nothing moves; empty where it is not known."""
    busy = busy_ratio(ranks, vitals)
    if state is Network.UNKNOWN and busy is None:
        return []
    net = {Network.IDLE: "RDMA idle", Network.BUSY: "RDMA busy", Network.UNKNOWN: "RDMA not known"}[state]
    gpus = "GPUs not known" if busy is None else f"{busy:.0%} of GPUs busy"
    spins = "; they spin in the call and move nothing" if state is Network.IDLE and (busy or 0) >= 0.9 else ""
    return [f"{net}, {gpus}{spins}"]


def rests(rank: int, place: Place | None, count: int) -> str:
    """Of the one GPU that does not do what its peers do."""
    where = f" of {place.host}" if place is not None and place.host else ""
    gpu = f"GPU {place.gpu}" if place is not None and place.gpu is not None else "the GPU"
    return f"{gpu}{where} (rank {rank}) rests while the GPUs of the {count - 1} other ranks spin in the call"


def looked_at(signals: int, ranks: int, unread: str) -> str:
    """What a join without a name rests on."""
    told = (
        f"{words.count(signals, 'signal')} of GPUs, links, hosts and mounts looked at for "
        f"{words.count(ranks, 'rank')}"
    )
    return f"{told}; {unread}" if unread else told


def of_layer(one: Candidate, world: World) -> list[str]:
    """What else belongs to a cause of this layer."""
    if one.cause.layer is Layer.LINK and one.cause.fatal and one.first.until_ns is not None:
        return [patience_words(world.retries)]
    return []


def with_suspects(joined: Joined, ranks: Sequence[int], confidence: float = 0.0) -> Joined:
    """Nothing is named, and these are whom to look at."""
    return replace(joined, suspects=tuple(ranks), confidence=confidence)


# --- into the finding ------------------------------------------------------------------------------------


def explained(finding: Finding, joined: Joined, places: Mapping[int, Place]) -> Finding:
    """The finding with its cause, owner and part; without a cause, with what was looked at."""
    why = (*finding.why, *(line[:300] for line in (*joined.why, joined.looked) if line))
    if joined.cause is None:
        narrowed = not finding.culprit_ranks and joined.suspects
        suspects = joined.suspects if narrowed else finding.suspect_ranks
        return replace(finding, why=why, suspect_ranks=tuple(suspects))
    named = finding.culprit_ranks or joined.ranks
    if finding.cause is not None and finding.cause != joined.cause:
        why = (*why, f"by its own process or stack: {finding.cause}")
    return replace(
        finding,
        why=why,
        cause=joined.cause,
        owner=finding.owner if joined.owner is Owner.UNKNOWN else joined.owner,
        summary=_summary(finding, joined),
        culprit_ranks=named,
        suspect_ranks=() if named else joined.suspects,
        culprits=finding.culprits or tuple(_culprit(rank, places.get(rank)) for rank in joined.ranks),
        confidence=_confidence(finding, joined),
        rule=f"{finding.rule}; cause.{joined.cause} {VERSION}",
        recommended_action=_action(joined, finding),
        decisive=finding.decisive or joined.decisive,
        link=_name(joined.part, PartKind.PORT, PartKind.SOME_PORT) or finding.link,
        switch=_name(joined.part, PartKind.LEAF) or finding.switch,
        node=finding.node or (joined.part.host if joined.part is not None else None) or None,
    )


def _name(part: Part | None, *kinds: PartKind) -> str | None:
    return part.name if part is not None and part.kind in kinds else None


def _culprit(rank: int, place: Place | None) -> Culprit:
    if place is None:
        return Culprit(rank)
    return Culprit(rank, place.host or None, place.gpu, place.gpu_uuid or None, place.pid)


def _confidence(finding: Finding, joined: Joined) -> float:
    if not finding.culprit_ranks:
        return joined.confidence
    return min(_CONFIDENCE_MAX, 1.0 - (1.0 - finding.confidence) * (1.0 - _HALF * joined.confidence))


def _summary(finding: Finding, joined: Joined) -> str:
    """Which job, who, and the cause; how many wait is left out where that does not fit.

    Where nobody was named the part stands in the place of the call that all have joined.
    """
    base = finding.summary.removesuffix(words.cause_tail(finding.cause)).rstrip(". ")
    cause = f"Cause: {joined.sentence}."
    if finding.culprit_ranks:
        full = words.sentence(f"{base}.", cause)
        return full if cause in full else words.sentence(f"{_WAITS.sub('', base)}.", cause)
    head, colon, rest = base.partition(": ")
    if colon and head.startswith("Job "):
        part = joined.sentence.replace(": ", ", ", 1)
        return words.sentence(f"{head}: {part}.", f"{rest[:1].upper()}{rest[1:]}.")
    return words.sentence(f"{joined.sentence[0].upper()}{joined.sentence[1:]}.", f"{base}.")


def _action(joined: Joined, finding: Finding) -> str:
    if joined.owner is Owner.UNKNOWN or joined.layer is None:
        return finding.recommended_action
    return CATALOGUE[_ACTION_OF_WORD.get(joined.cause or "") or _ACTION_OF[joined.layer]].action
