"""An incident as its page shows it: from rows and the diagnosis JSON to a sentence, figures and cards.

Everything here is arrangement; what is true was decided by the analysis and is shown as it says. The
diagnosis outlives the job, so the page needs nothing else to stand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from clusterwatch.analysis.verdicts import SLOW_CLASSES
from clusterwatch.incidents.models import LIVE_STATES, Incident, IncidentChange, Note
from clusterwatch.incidents.queries import EvidenceView, lost_gpu_hours, lost_gpus, open_evidence
from clusterwatch.web import verdict_docs
from clusterwatch.web.numbers import grouped, rank_runs
from clusterwatch.web.words import Badge, incident_badge, verdict_badge

_SAFE_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""Only names made of these may stand in a command that somebody copies into a shell."""
STACKS_MAX = 12
_TOLD_BY_WHY = SLOW_CLASSES | {"health", "blind"}
_ENDS = {
    "health": "Its source tells that it is over, or tells of it no more for as long as such a fault lasts.",
    "blind": "Enough is heard again: the incident resolves by itself.",
}
_COUNTED = {
    "agents_silent": "agents heard",
    "stalled_unnamed": "GPUs with values",
    "ingest_down": "gateways known",
}
"""What coverage counts where it is not ranks, nor nodes as of faults of parts."""

_ROOT_WORDS = {
    "missing_rank": "never issued {call}",
    "dead_rank": "its process is gone; it never issued {call}",
    "dead_node": "its node is gone; it never issued {call}",
    "queued_not_started": "issued {call}, which never started there",
    "op_mismatch": "issued another operation where its peers issued {call}",
    "order_mismatch": "issued {call} and its neighbour in the other order",
    "size_mismatch": "issued {call} with another size",
    "dtype_mismatch": "issued {call} with another type",
    "suspect_no_dump": "gave no trace; its peers wait in {call}",
    "suspect_stale_dump": "its trace is older than its peers'",
    "rank_failed": "was the first to fail",
    "out_of_memory": "ran out of memory",
}


@dataclass(frozen=True, slots=True)
class Link:
    """One step of who waits for whom."""

    label: str
    title: str
    text: str
    root: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """Ranks that stand at one place of the code; innermost frame last."""

    count: str
    ranks: str
    role: str
    state: str
    frames: tuple[str, ...]
    source: str

    @property
    def tail(self) -> str:
        """The innermost calls by name, the last one with its place."""
        names = [frame.partition(" (")[0] for frame in self.frames[-4:-1]]
        return " > ".join([*names, *self.frames[-1:]])


@dataclass(frozen=True, slots=True)
class Card:
    """One piece of evidence: its title is what was found."""

    kind: str
    title: str
    names: str = ""
    state: str = "ok"
    weight: float | None = None
    source: str = ""
    at: datetime | None = None
    raw_id: int | None = None
    sha256: str = ""
    wide: bool = False
    payload: Any = None
    problem: str = ""
    earlier: int = 0
    """older pieces of the same kind; the newest is shown"""


@dataclass(frozen=True, slots=True)
class Action:
    """The one recommended step: its first sentence large, the rest as its reason."""

    head: str
    rest: str = ""


@dataclass(frozen=True, slots=True)
class IncidentPage:
    """All the template draws."""

    incident: Incident
    live: bool
    badge: Badge
    state_badge: Badge
    culprits: tuple[Mapping[str, Any], ...]
    suspects: str
    confidence: float | None
    signals: int
    """filled parts of the four-part meter"""
    coverage: Mapping[str, int]
    silent: int
    call: str
    group: str
    joined: tuple[int, ...]
    missing: tuple[int, ...]
    chain: tuple[Link, ...]
    stacks: tuple[Stack, ...]
    cards: tuple[Card, ...]
    changes: Sequence[IncidentChange]
    notes: Sequence[Note]
    action: Action
    commands: tuple[str, ...]
    lost_hours: float | None
    lost_gpus: float | None
    """GPUs or ranks that burn for nothing while it lasts"""
    slow: bool
    """it slows the job down, which goes on"""
    time_unit: str
    """``GPU`` or ``rank``: what the hours are counted in"""
    counted: str
    """what coverage counts, in words"""
    neighbours: Sequence[Incident]
    since_end: datetime
    would_change: tuple[str, ...] = ()
    rule: str = ""
    doc: str = ""
    """address of the page that explains the verdict"""
    findings: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)


def build(
    incident: Incident, neighbours: Sequence[Incident], has_gpus: bool, now: datetime | None = None
) -> IncidentPage:
    """Arranges an incident with its evidence, changes and notes (three queries, bounded)."""
    diagnosis: dict[str, Any] = incident.diagnosis or {}
    pieces = [open_evidence(piece) for piece in incident.evidence.all()[:40]]
    culprits = tuple(diagnosis.get("culprits") or ())
    coverage = _coverage(diagnosis)
    call, stacks = _call(diagnosis), _stacks(diagnosis)
    chain, moment = _chain(diagnosis, call), now or datetime.now(UTC)
    return IncidentPage(
        incident=incident,
        live=incident.state in LIVE_STATES,
        badge=verdict_badge(incident.fault_class, incident.verdict, incident.severity),
        state_badge=incident_badge(incident.state, incident.severity),
        culprits=culprits,
        suspects=_suspects(diagnosis),
        confidence=diagnosis.get("confidence"),
        signals=_signals(diagnosis.get("confidence")),
        coverage=coverage,
        silent=max(0, coverage["expected"] - coverage["reported"]),
        call=call,
        group=_group_name(diagnosis),
        joined=tuple(diagnosis.get("joined_ranks") or ()),
        missing=tuple(diagnosis.get("missing_ranks") or ()),
        chain=chain,
        stacks=stacks,
        cards=_cards(diagnosis, pieces, chain, stacks),
        changes=list(incident.changes.order_by("-id")[:50]),
        notes=list(incident.notes.order_by("-id")[:50]),
        action=_action(diagnosis),
        commands=_commands(incident, culprits),
        lost_hours=lost_gpu_hours(incident, moment),
        lost_gpus=lost_gpus(incident),
        slow=incident.fault_class in SLOW_CLASSES,
        time_unit="GPU" if has_gpus else "rank",
        counted=_counted(incident),
        neighbours=neighbours,
        since_end=incident.resolved_at or moment,
        would_change=_would_change(incident, diagnosis, call),
        rule=str(diagnosis.get("rule") or ""),
        doc=verdict_docs.address(incident.verdict),
        findings=tuple(diagnosis.get("findings") or ())[1:6],
    )


def _counted(incident: Incident) -> str:
    usual = "nodes heard" if incident.fault_class == "health" else "ranks reported"
    return _COUNTED.get(incident.verdict, usual)


def _coverage(diagnosis: Mapping[str, Any]) -> dict[str, int]:
    raw = diagnosis.get("coverage") or {}
    return {name: int(raw.get(name) or 0) for name in ("expected", "reported", "stale", "truncated")}


def _signals(confidence: float | None) -> int:
    """Confidence on a meter of four parts; none filled where it is unknown."""
    return 0 if confidence is None else min(4, int(confidence * 4 + 0.25))


def _call(diagnosis: Mapping[str, Any]) -> str:
    op, sequence = diagnosis.get("op"), diagnosis.get("seq")
    if op is None:
        return ""
    return str(op) if sequence is None else f"{op} #{sequence}"


def _group_name(diagnosis: Mapping[str, Any]) -> str:
    group = diagnosis.get("group") or {}
    return str(group.get("desc") or group.get("name") or "")


def _suspects(diagnosis: Mapping[str, Any]) -> str:
    named = set(diagnosis.get("culprit_ranks") or ())
    rest = [rank for rank in diagnosis.get("suspect_ranks") or () if rank not in named]
    return rank_runs(rest) if rest else ""


def _chain(diagnosis: Mapping[str, Any], call: str) -> tuple[Link, ...]:
    """Root first, then the members of the open call, then everybody behind them."""
    if diagnosis.get("class") not in ("hang", "crash"):
        return ()
    links = [_root_link(diagnosis, call)]
    roots = set(diagnosis.get("culprit_ranks") or ()) | set(diagnosis.get("suspect_ranks") or ())
    waiting = [rank for rank in diagnosis.get("joined_ranks") or () if rank not in roots]
    group = _group_name(diagnosis)
    if waiting:
        label = f"Group {group}" if group else "Its group"
        text = f"{'rank' if len(waiting) == 1 else 'ranks'} {rank_runs(waiting)}, inside {call or 'the call'}"
        links.append(Link(label, _wait_words(len(waiting)), text))
    downstream = diagnosis.get("downstream") or {}
    rest = int(downstream.get("ranks") or 0) - len(waiting)
    if rest > 0:
        groups = int(downstream.get("groups") or 0)
        label = f"{grouped(groups)} other {'group' if groups == 1 else 'groups'}" if groups else "The rest"
        verb = "end because of it" if diagnosis.get("class") == "crash" else "only wait"
        links.append(Link(label, _wait_words(rest), f"ranks behind them; they {verb}"))
    return tuple(links)


def _wait_words(count: int) -> str:
    return "1 rank waits" if count == 1 else f"{grouped(count)} ranks wait"


def _root_link(diagnosis: Mapping[str, Any], call: str) -> Link:
    ranks = diagnosis.get("culprit_ranks") or []
    label = "Root"
    if not ranks:
        ranks, label = diagnosis.get("suspect_ranks") or [], "Cannot be told apart"
    title = ("rank " if len(ranks) == 1 else "ranks ") + rank_runs(ranks) if ranks else "nobody is named"
    words = _ROOT_WORDS.get(str(diagnosis.get("verdict")), "")
    hosts = sorted({str(c["host"]) for c in diagnosis.get("culprits") or () if c.get("host")})
    text = words.format(call=call or "the call its peers wait in")
    where = f"on {', '.join(hosts[:3])}" if hosts else ""
    cause = diagnosis.get("cause")
    because = f"cause: {str(cause).replace('_', ' ')}" if cause else ""
    return Link(label, title, "; ".join(part for part in (where, text, because) if part), root=True)


def _stacks(diagnosis: Mapping[str, Any]) -> tuple[Stack, ...]:
    state_of = {"culprit": "failed", "suspect": "degraded"}
    stacks = []
    for raw in (diagnosis.get("stacks") or ())[:STACKS_MAX]:
        ranks = raw.get("ranks") or []
        role = str(raw.get("role") or "waiting")
        stacks.append(
            Stack(
                count="1 rank" if len(ranks) == 1 else f"{grouped(len(ranks))} ranks",
                ranks=rank_runs(ranks),
                role=role,
                state=state_of.get(role, ""),
                frames=tuple(str(frame) for frame in raw.get("frames") or ()),
                source=str(raw.get("source") or ""),
            )
        )
    return tuple(stacks)


def _named_words(diagnosis: Mapping[str, Any]) -> tuple[str, str]:
    """Whom the verdict names, in words, and the state of that pill."""
    ranks = diagnosis.get("culprit_ranks") or []
    if ranks:
        return ("names rank " if len(ranks) == 1 else "names ranks ") + rank_runs(ranks), "failed"
    suspects = diagnosis.get("suspect_ranks") or []
    if suspects:
        return f"suspects {rank_runs(suspects)}", "degraded"
    return ("", "failed") if diagnosis.get("class") in ("health", "blind") else ("names nobody", "unknown")


def _cards(
    diagnosis: Mapping[str, Any],
    pieces: Sequence[EvidenceView],
    chain: Sequence[Link],
    stacks: Sequence[Stack],
) -> tuple[Card, ...]:
    """Cards made from the diagnosis, joined with the newest evidence of the same kind; heaviest first."""
    left: dict[str, EvidenceView] = {}
    for piece in sorted(pieces, key=lambda piece: piece.id):
        left[piece.kind] = piece
    earlier = {kind: sum(piece.kind == kind for piece in pieces) - 1 for kind in left}
    names, state = _named_words(diagnosis)
    cards = []
    if len(chain) > 1:
        cards.append(_joined(left.pop("progress", None), "chain", "Who waits for whom", names, state, True))
    if diagnosis.get("joined_ranks") or diagnosis.get("missing_ranks"):
        title = f"{_call(diagnosis) or 'The open call'}: who joined"
        cards.append(
            _joined(left.pop("collective_state", None), "collective_state", title, names, state, False)
        )
    if diagnosis.get("class") in _TOLD_BY_WHY and diagnosis.get("why"):
        cards.append(Card("why", "How we know", names, state, source=str(diagnosis.get("rule")), wide=True))
    if stacks:
        title = _stack_title(stacks)
        cards.append(_joined(left.pop("stacks", None), "stacks", title, names, state, False))
    cards += [_evidence_card(piece) for piece in left.values()]
    cards = [replace(card, earlier=earlier.get(card.kind, 0)) for card in cards]
    return tuple(sorted(cards, key=lambda card: (not card.wide, -(card.weight or 0.0))))


def _stack_title(stacks: Sequence[Stack]) -> str:
    if len(stacks) == 1:
        return "One stack, all alike"
    odd = sum(stack.role != "waiting" for stack in stacks)
    differs = f", {odd} {'differs' if odd == 1 else 'differ'}" if odd else ""
    return f"{len(stacks)} different stacks{differs}"


def _joined(piece: EvidenceView | None, kind: str, title: str, names: str, state: str, wide: bool) -> Card:
    if piece is None:
        return Card(kind, title, names, state, source="verdict", wide=wide)
    return Card(
        kind,
        title,
        names,
        state,
        weight=piece.weight,
        source=piece.source,
        at=piece.at,
        raw_id=piece.id,
        sha256=piece.sha256,
        wide=wide,
        payload=piece.payload,
        problem=piece.problem,
    )


def _evidence_card(piece: EvidenceView) -> Card:
    return Card(
        kind=piece.kind,
        title=piece.title,
        names=f"names {piece.names}" if piece.names else "",
        state="failed" if piece.names else "ok",
        weight=piece.weight,
        source=piece.source,
        at=piece.at,
        raw_id=piece.id,
        sha256=piece.sha256,
        payload=piece.payload,
        problem=piece.problem,
    )


def _action(diagnosis: Mapping[str, Any]) -> Action:
    text = str(diagnosis.get("recommended_action") or "").strip()
    if not text:
        return Action("Look at the evidence below", "The verdict recommends no single step.")
    head, _, rest = text.partition(". ")
    return Action(head.rstrip("."), rest)


def _commands(incident: Incident, culprits: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Commands to copy, only with names that are harmless in a shell."""
    commands = []
    scheduler = incident.job.labels.get("scheduler") if incident.job else None
    hosts = [str(c["host"]) for c in culprits if c.get("host") and _SAFE_WORD.fullmatch(str(c["host"]))]
    if scheduler == "slurm" and incident.owner == "infra" and hosts:
        commands.append(
            f'scontrol update nodename={hosts[0]} state=drain reason="clusterwatch incident {incident.pk}"'
        )
    first = next((c for c in culprits if c.get("pid") and c.get("host") in hosts), None)
    if first is not None and incident.state in LIVE_STATES and incident.fault_class == "hang":
        commands.append(f"ssh {first['host']} py-spy dump --pid {int(first['pid'])}")
    if incident.job and _SAFE_WORD.fullmatch(incident.job.key):
        commands.append(f"clusterwatch why {incident.job.key}")
    return tuple(commands[:2])


def _would_change(incident: Incident, diagnosis: Mapping[str, Any], call: str) -> tuple[str, ...]:
    """What new data would alter the verdict, in words."""
    if incident.fault_class in _ENDS:
        return (_ENDS[incident.fault_class],)
    lines = []
    ranks = diagnosis.get("culprit_ranks") or diagnosis.get("suspect_ranks") or []
    who = ("Rank " if len(ranks) == 1 else "Ranks ") + rank_runs(ranks) if ranks else ""
    if incident.fault_class == "hang" and who and call:
        lines.append(f"{who} issues {call}: the incident resolves by itself.")
        lines.append("Another rank found without this call: it becomes a second root.")
    if incident.fault_class == "crash" and who:
        lines.append("An earlier exit found on another rank: that one is named instead.")
    coverage = _coverage(diagnosis)
    missing = coverage["expected"] - coverage["reported"]
    if missing > 0:
        lines.append(f"{grouped(missing)} ranks have not reported; a word from them may change the name.")
    if not ranks and incident.fault_class == "hang":
        lines.append("A trace or a stack of every member of the group would allow a name.")
    return tuple(lines)
