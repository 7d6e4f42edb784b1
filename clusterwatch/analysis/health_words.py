"""Sentences of faults of parts: one that an engineer would sign, and the lines that it rests on.

In: a ``Group`` of signals in their places. Out: words. Names come from nodes: they are short and printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis import health_kinds as kinds
from clusterwatch.analysis.health_places import Case, Cast, RankPlace

WHY_MAX: Final = 8
NAME_MAX_CHARS: Final = 64
SENTENCE_MAX_CHARS: Final = 200
SERVER_CLIENTS_MIN: Final = 3
"""Of fewer it cannot be told whether they or the server are to blame."""


@dataclass(frozen=True, slots=True)
class Group:
    """Signals of one fault, the oldest first. ``shared``: ``rack A12``, ``switch leaf-3``, ``server s1``."""

    verdict: str
    key: str
    cases: tuple[Case, ...]
    shared: str = ""

    @property
    def hosts(self) -> list[str]:
        return sorted({one.host for one in self.cases if one.node_id is not None})


def verdict_of(cases: Sequence[Case]) -> str:
    """The worst that its signals say: a GPU that is lost has Xids, too."""
    found = {one.verdict for one in cases if one.verdict}
    return min(found, key=kinds.ORDER.index) if found else ""


def cause(told: Sequence[Case]) -> str:
    """The Xid, where there is one; else the kind that was told first."""
    xids = [one.signal for one in told if one.signal.kind in ("xid", "sxid") and one.signal.code is not None]
    if not xids:
        return told[0].signal.kind
    first = next((one for one in xids if one.code == kinds.LOST_XID), xids[0])
    return f"{first.kind}_{first.code}"


def switch_of(group: Group) -> str | None:
    """The switch that is named, or that is at the far end of the link."""
    if group.shared:
        return group.shared.removeprefix("switch ") if group.shared.startswith("switch ") else None
    if not group.verdict.startswith("link"):
        return None
    fields = (one.signal.fields for one in group.cases)
    return next((name for one in fields if (name := one.get("switch") or one.get("leaf"))), None)


def sentence(group: Group, cast: Cast, hit: Sequence[RankPlace], is_exact: bool) -> str:
    """One sentence. ``is_exact``: ``hit`` are the ranks on the part itself, not all of its host."""
    said = _shared_words(group, cast) if group.shared else _part_words(group)
    tail = _hit_words(hit, "on it" if is_exact else "behind it" if group.shared else "on this host")
    drained = _drained_words(group, cast)
    room = SENTENCE_MAX_CHARS - len(tail) - len(drained) - 2
    return f"{said[:room]}; {tail}{drained}"[:SENTENCE_MAX_CHARS]


def why(group: Group) -> Iterable[str]:
    """The lines it rests on: faults first, then what goes with them."""
    lines = sorted(group.cases, key=lambda one: (one.verdict is None, one.signal.at_ns))
    if group.shared and len(group.hosts) > 1:
        at_s = [one.signal.at_ns / 1e9 for one in group.cases]
        yield (
            f"{len(group.hosts):,} nodes told of it within {max(at_s) - min(at_s):.0f} s: "
            "what they share is named, not they"
        )
    for one in lines[:WHY_MAX]:
        yield f"{_name(one.signal.host or one.host)}: {one.signal.text}"[:300]
    if len(lines) > WHY_MAX:
        yield f"and {len(lines) - WHY_MAX:,} more signals of {len(group.hosts):,} nodes"


# --- what is shared ----------------------------------------------------------------------------------------


def _shared_words(group: Group, cast: Cast) -> str:
    what, _, name = group.shared.partition(" ")
    count = len(group.hosts)
    if group.verdict == "storage_stalled":
        return _storage_words(group, count)
    whole = (cast.rack_nodes if what == "rack" else cast.leaf_nodes).get(name)
    of = f"{count:,} of its {whole:,} nodes" if whole else _nodes(count)
    subject = f"{what.capitalize()} {_name(name)}"
    if what == "switch":
        return f"{subject}: {of} lost their link to it"
    if any(kinds.is_power_brake(one.signal) for one in group.cases):
        return f"{subject}: a power brake holds down the GPUs of {of}"
    own = next((one.signal.text for one in group.cases if one.node_id is None), "")
    return f"{subject}: {own or _first_text(group)}{f'; {of} tell of it' if count else ''}"


def _storage_words(group: Group, count: int) -> str:
    what, _, name = group.shared.partition(" ")
    subject = f"Storage server {_name(name)}" if name else f"Mount {_name(what.partition('/')[2])}"
    if count >= SERVER_CLIENTS_MIN or not name:
        return f"{subject} does not answer {_nodes(count)}"
    waiting = " and ".join(map(_name, group.hosts)) or _name(group.cases[0].host)
    return f"{waiting} {'wait' if count > 1 else 'waits'} for {subject[0].lower()}{subject[1:]}"


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"


# --- one part ----------------------------------------------------------------------------------------------


def _part_words(group: Group) -> str:
    host = _name(group.cases[0].host)
    if group.verdict in ("gpu_lost", "gpu_fault") or group.cases[0].family == "gpu":
        return _gpu_words(group, host)
    if group.verdict.startswith("link"):
        return _link_words(group, host)
    return f"{host}: {_first_text(group)}"


def _gpu_words(group: Group, host: str) -> str:
    part = group.cases[0].part
    subject = f"GPU {_name(part)} of {host}" if part else f"A GPU of {host}"
    codes = sorted({one.signal.code for one in group.cases if one.signal.kind == "xid" and one.signal.code})
    xids = f" (Xid {', '.join(map(str, codes[:4]))})" if codes else ""
    if group.verdict == "gpu_lost":
        fell = kinds.LOST_XID in codes or "off the bus" in _first_text(group)
        return f"{subject} {'fell off the bus' if fell else 'is lost: the driver does not list it'}{xids}"
    text = _first_text(group)
    head, _, rest = text.partition(": ")
    if head.startswith("Xid ") and rest:
        text = rest
    elif text.startswith("NVRM:"):
        text = "the driver reports a fault that needs a repair"
    return f"{subject}: {text}{xids}"


def _link_words(group: Group, host: str) -> str:
    link = next((one for one in group.cases if one.verdict), group.cases[0])
    far_end = next((one.far_end for one in group.cases if one.far_end), "")
    is_far_only = far_end and link.part == far_end
    name = f"Port {_name(far_end)} toward {host}" if is_far_only else f"Port {_name(link.part)} of {host}"
    other = f", at its far end {_name(far_end)}," if far_end and not is_far_only else ""
    unstable = next((one.held for one in group.cases if one.held.is_unstable), None)
    if unstable is not None:
        return f"{name}{other} is unstable: it went down {len(unstable.begins_ns)} times within 30 min"
    if group.verdict == "link_down":
        missing = link.signal.kind.endswith("missing")
        return f"{name}{other} is {'missing' if missing else 'down'}"
    return f"{name}{other}: {link.signal.text}"


def _first_text(group: Group) -> str:
    """Of what makes the verdict the first that was told."""
    mine = [one for one in group.cases if one.verdict == group.verdict] or list(group.cases)
    return mine[0].signal.text


def _hit_words(hit: Sequence[RankPlace], where: str) -> str:
    count = sum(rank.count for rank in hit)
    if not count:
        return "no running job has a rank there"
    jobs = {rank.job_id: rank.job_key for rank in hit}
    keys = list(jobs.values())
    one = f"job {_name(keys[0])}" if keys[0] else "a job"
    named = f"{len(jobs)} jobs have" if len(jobs) > 1 else f"{one} has"
    return f"{named} {count:,} rank{'' if count == 1 else 's'} {where}"


def _drained_words(group: Group, cast: Cast) -> str:
    nodes = {one.node_id for one in group.cases if one.node_id is not None}
    reasons = [cast.places[node].drained for node in nodes if node in cast.places]
    if not reasons or any(reason is None for reason in reasons):
        return ""
    return f"; drained by the scheduler{f': {reasons[0]}'[:60] if reasons[0] and len(nodes) == 1 else ''}"


def _name(text: str) -> str:
    return text[:NAME_MAX_CHARS]
