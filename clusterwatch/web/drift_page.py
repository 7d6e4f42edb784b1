"""Nodes that differ from their peers as pages show them.

In: what ``jobs.drift`` read. Out: dataclasses for the templates: groups with something to tell first, those
without in one list. Never "alike" where not enough was known or the comparison is old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.peers import JOB
from clusterwatch.jobs import drift
from clusterwatch.jobs.drift import DriftView, Finding, GroupView, NodeDrift
from clusterwatch.web.words import Badge

ROWS_MAX: Final = 200
"""Findings of one group on the page; the rest is counted, and in REST."""
QUIET_MAX: Final = 100
BADGES: Final = {
    drift.ODD: Badge("degraded", "Differs"),
    drift.CAMPS: Badge("idle", "In camps"),
    drift.FINE: Badge("ok", "Alike"),
    drift.NOT_ENOUGH: Badge("unknown", "Not enough data"),
}
OLD: Final = Badge("unknown", "Old")


@dataclass(frozen=True, slots=True)
class GroupCard:
    """Nodes that should be alike, with what was found among them."""

    view: GroupView
    title: str
    badge: Badge
    note: str
    """why there is nothing to tell; empty: there is"""
    rows: tuple[Finding, ...]
    beyond: int
    """findings that are only in REST"""


@dataclass(frozen=True, slots=True)
class DriftPage:
    view: DriftView
    badge: Badge
    sentence: str
    cards: tuple[GroupCard, ...]
    quiet: tuple[GroupCard, ...]
    quiet_beyond: int


def build(view: DriftView) -> DriftPage:
    """Arranges what was read. Cost: linear in the findings."""
    cards = [_card(group, view.is_old) for group in view.groups]
    telling = tuple(card for card in cards if card.view.odd or card.view.camps)
    quiet = [card for card in cards if not (card.view.odd or card.view.camps)]
    badge = OLD if view.is_old else BADGES[view.state]
    return DriftPage(
        view, badge, _sentence(view), telling, tuple(quiet[:QUIET_MAX]), max(0, len(quiet) - QUIET_MAX)
    )


def node_badge(differs: NodeDrift) -> Badge:
    return OLD if differs.is_old else BADGES[differs.state]


def node_note(differs: NodeDrift) -> str:
    """Why nothing stands there of a node; empty where something was found."""
    if differs.findings:
        return ""
    if differs.run is None:
        return "No comparison ran yet; one runs each minute."
    if differs.is_old:
        return "The last comparison is too old to say anything of now."
    if not differs.is_heard:
        return "This node tells no facts now, so it was not compared."
    if differs.state == drift.NOT_ENOUGH:
        return "Fewer than 4 nodes of its kind tell their facts."
    return "In nothing that enough nodes tell does it stand alone."


def _card(group: GroupView, is_old: bool) -> GroupCard:
    row = group.row
    return GroupCard(
        view=group,
        title=f"Job {row.name}" if row.kind == JOB else f"Nodes {row.name}",
        badge=OLD if is_old else BADGES[group.state],
        note="fewer than 4 nodes of a kind tell this" if group.state == drift.NOT_ENOUGH else "",
        rows=group.odd[:ROWS_MAX],
        beyond=max(0, len(group.odd) - ROWS_MAX),
    )


def _sentence(view: DriftView) -> str:
    """What was found, in one line."""
    nodes = len({one.node for group in view.groups for one in group.odd})
    if nodes:
        verb = "node differs" if nodes == 1 else "nodes differ"
        return f"{nodes:,} {verb} from nearly all others of their kind or job"
    if view.state == drift.CAMPS:
        return "Large groups of nodes differ, as in a rollout; no single node does"
    if view.state == drift.FINE:
        return "No node stands alone in anything that was compared"
    return "Fewer than 4 nodes of a kind tell their facts, so nothing can be said"
