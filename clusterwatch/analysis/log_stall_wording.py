"""Puts a ``Stall`` of the logs into a finding: the rank behind, the odd one, or nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterwatch.analysis.log_timeouts import Stall
from clusterwatch.analysis.log_wording import SURE, UNORDERED, finding_of, quote, surely
from clusterwatch.analysis.model import Downstream, Finding, GroupRef, Owner
from clusterwatch.analysis.sentence import count, duration, noun, sentence

if TYPE_CHECKING:
    from clusterwatch.analysis.log_judge import LogVerdict


def stalled(stall: Stall, verdict: LogVerdict) -> Finding:
    """Time-outs only: the rank that is behind, or an honest word that nobody can be named."""
    where = f"{stall.op} {stall.seq}" + (f" of {stall.desc}" if stall.desc else "")
    waited = f" for {duration(stall.waited_ms / 1000)}" if stall.waited_ms else ""
    lines = [quote(one) for one in (*stall.behind_lines[:2], *stall.lines[:2])]
    if stall.odd:
        finding = _odd(stall, where, verdict, lines)
    elif stall.behind:
        who = noun(stall.behind, 4).capitalize()
        named = stall.pg is not None
        finding = finding_of(
            "missing_rank",
            summary=sentence(
                f"{who} never issued {where}; {count(len(stall.waiting), 'rank')} waited{waited}."
            ),
            confidence=surely(0.85 if named else UNORDERED, stall.behind, verdict),
            verdict=verdict,
            named_ranks=stall.behind if named else (),
            suspects=() if named else stall.behind,
            why=lines,
        )
    elif 0 < len(stall.earlier) < len(stall.waiting):
        finding = _in_an_earlier_call(stall, where, verdict, lines)
    else:
        finding = _nobody_behind(stall, where, waited, verdict, lines)
    group = (
        GroupRef(stall.desc, stall.desc, stall.waiting) if stall.desc and not stall.desc.isdigit() else None
    )
    return replace(
        finding,
        seq=stall.seq,
        op=stall.op,
        group=group,
        joined_ranks=stall.waiting,
        missing_ranks=stall.behind,
        downstream=Downstream(1, len(stall.waiting)),
    )


def _odd(stall: Stall, where: str, verdict: LogVerdict, lines: list[str]) -> Finding:
    what = "another operation" if stall.odd_kind == "op_mismatch" else "another size"
    odd = [quote(one) for one in stall.lines if one.actor.rank in stall.odd][:2]
    if stall.divided:
        text = f"{noun(stall.odd, 4).capitalize()} passed different calls or sizes under {where}."
    else:
        text = f"{noun(stall.odd, 4).capitalize()} passed {what} than its peers under {where}."
    return finding_of(
        stall.odd_kind,
        summary=sentence(text),
        confidence=surely(UNORDERED if stall.divided else SURE, stall.odd, verdict),
        verdict=verdict,
        owner=Owner.USER,
        named_ranks=() if stall.divided else stall.odd,
        suspects=stall.odd if stall.divided else (),
        why=odd + lines,
    )


def _in_an_earlier_call(stall: Stall, where: str, verdict: LogVerdict, lines: list[str]) -> Finding:
    """Few ranks timed out in a call that the others have left: they are behind, or their GPUs stand."""
    ranks = tuple(one.actor.rank for one in stall.earlier if one.actor.rank is not None)
    numbers = sorted({one.event.number("seq") or 0 for one in stall.earlier})
    who = noun(ranks, 4).capitalize()
    return finding_of(
        "missing_rank",
        summary=sentence(
            f"{who} timed out in call {numbers[0]}, {count(len(stall.waiting), 'peer')} in {where}: "
            f"{'it is' if len(ranks) == 1 else 'they are'} behind and suspected."
        ),
        confidence=surely(UNORDERED if stall.pg is not None else 0.4, ranks, verdict),
        verdict=verdict,
        suspects=ranks,
        why=[*(quote(one) for one in stall.earlier[:2]), *lines],
    )


def _nobody_behind(stall: Stall, where: str, waited: str, verdict: LogVerdict, lines: list[str]) -> Finding:
    size = verdict.story.world_size
    silent = sorted(set(range(size)) - set(stall.waiting)) if size and not stall.unnamed else []
    default = stall.pg in (None, "0") or "default" in stall.desc
    if default and size and verdict.story.size_told and len(stall.waiting) == size:
        return finding_of(
            "all_joined_not_finished",
            summary=sentence(f"All {size} ranks timed out in {where}{waited}: all joined and none finished."),
            confidence=0.5,
            verdict=verdict,
            why=lines,
        )
    who = noun(stall.waiting, 4) if stall.waiting else count(stall.unnamed or 1, "process")
    few = len(silent) == 1 and default and len(stall.waiting) > 2
    why = [*lines, "the first rank to time out ends the others, so that the rest says nothing proves nothing"]
    if few:
        why.insert(0, f"{noun(silent)} alone did not time out in it")
    return finding_of(
        "missing_rank" if few else "not_enough_data",
        summary=sentence(
            f"{who[:1].upper()}{who[1:]} timed out in {where}{waited}",
            f"; {noun(silent)} alone did not and is suspected."
            if few
            else ": the logs do not tell who is missing, if anybody.",
        )
        .replace(" ;", ";")
        .replace(" :", ":"),
        confidence=0.4 if few else 0.0,
        verdict=verdict,
        suspects=tuple(silent) if few else (),
        why=why,
    )
