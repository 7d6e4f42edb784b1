"""Puts what the logs say into findings: the sentence, the lines it rests on, who, and how sure.

Confidence, each part documented where it is applied: 0.9 when one process failed by its own words and its
rank is told; less when only an exit code tells it, when local ranks had to be taken for ranks, when no rank
is told, or when the order of several cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from clusterwatch.analysis.log_actors import Actor, Told
from clusterwatch.analysis.log_failures import Failure, Sign, xid_word
from clusterwatch.analysis.model import Culprit, Downstream, Finding, Owner
from clusterwatch.analysis.sentence import count, noun, sentence
from clusterwatch.analysis.verdicts import CATALOGUE
from collectors.formats.job_log import TEXT_MAX_CHARS

if TYPE_CHECKING:
    from clusterwatch.analysis.log_judge import LogVerdict

SURE: Final = 0.9
BY_EXIT_ONLY: Final = 0.6
"""Only an exit code or a signal from outside tells it: what the process said is not here."""
UNORDERED: Final = 0.5
NO_RANK: Final = 0.6
"""Cause told, process not, or by host and pid only."""
ASSUMED: Final = 0.8
"""Factor where torchrun's local ranks, or srun's tasks, are taken for ranks."""
_LOOPBACK: Final = ("127.", "::1", "localhost")
"""On one host every peer has this address: it tells no process."""
_LINE_MAX_CHARS: Final = 360
LINES_QUOTED: Final = 5

_WORDS: Final = {
    "gpu_memory": "ran out of GPU memory", "host_memory": "ran out of host memory",
    "link_down": "lost its network port", "nic_error": "hit a fatal event of its network adapter",
    "device_assert": "hit a device-side assert", "ecc_error": "hit an uncorrectable ECC error",
    "nvlink_error": "hit an NVLink error", "gpu_lost": "lost its GPU",
    "port_in_use": "found its port taken by another process",
    "illegal_memory_access": "made an illegal memory access on the GPU", "cuda_error": "hit a CUDA error",
}  # fmt: skip
_GPU_BROKEN: Final = (
    "Drain the host and have its GPU looked at (reset; RMA if it fails again); restart the job from "
    "its last checkpoint without it."
)
_ACTIONS: Final = {
    "host_memory": "Lower the need for host memory: fewer data-loader workers or less prefetch, less pinned "
    "memory; or raise the job's memory limit (--mem, the cgroup's).",
    "port_in_use": "End the process that holds the port on that host, often one of an earlier run, or choose "
    "another MASTER_PORT.",
    "peer_lost": "Find the rank or host whose log ends first: what it said is not in these logs.",
    "gpu_lost": _GPU_BROKEN, "ecc_error": _GPU_BROKEN, "nvlink_error": _GPU_BROKEN,
}  # fmt: skip
"""What to do about a cause, where the verdict's own advice is about another."""


def quote(told: Told) -> str:
    """``logs/rank3.log:118: ...``: where a line stands and what it says."""
    text = " ".join(told.event.text.split())
    whole = len(text) <= _LINE_MAX_CHARS and len(told.event.text) < TEXT_MAX_CHARS
    return f"{told.at}: {text if whole else text[: _LINE_MAX_CHARS - 3].rstrip() + '...'}"


def failed(first: Sequence[Failure], verdict: LogVerdict, *, alike: bool) -> Finding:
    """One process failed by itself, or several whose order cannot be told."""
    best = first[0].told_best
    ranks = tuple(sorted(f.actor.rank for f in first if f.actor.rank is not None))
    single = len(first) == 1
    word = "out_of_memory" if all(f.told_best.verdict == "out_of_memory" for f in first) else "rank_failed"
    if all(f.told_best.verdict == "numeric" for f in first):
        word = "numeric"
    why = [line for failure in first[:3] for line in _failure_lines(failure)]
    if alike:
        why.append(f"{count(len(first), 'rank')} failed alike: the program or its input, not one of them")
    elif not single:
        why.append("no clock tells which of them was first")
    why += _effects(verdict, set(ranks))
    base = SURE if first[0].strength == 2 else BY_EXIT_ONLY
    return finding_of(
        word,
        summary=_failed_sentence(first, best, alike, len(verdict_ranks(verdict) - set(ranks))),
        confidence=surely(base if single else UNORDERED, ranks, verdict),
        verdict=verdict,
        cause=best.cause,
        owner=best.owner,
        named=first if single else (),
        suspects=() if single else ranks,
        why=why,
    )


def _failed_sentence(first: Sequence[Failure], best: Sign, alike: bool, others: int) -> str:
    what = _what(best)
    wake = f"; {count(others, 'other rank')} failed in its wake" if others else ""
    if len(first) == 1:
        who = _who(first[0].actor)
        return sentence(
            f"{who[:1].upper()}{who[1:]} {what} first{wake}."
            if others
            else f"{who[:1].upper()}{who[1:]} {what}."
        )
    ranks = [f.actor.rank for f in first if f.actor.rank is not None]
    rest = count(len(first) - len(ranks), "process").replace("processs", "processes")
    who = noun(ranks, 4).capitalize() if ranks else rest
    if ranks and len(ranks) < len(first):
        who += f" and {rest} without a rank"
    if alike:
        return sentence(f"{who} failed alike ({best.cause}): no single rank is to blame.")
    return sentence(f"{who} failed by themselves; which was first cannot be told from the logs.")


def _what(sign: Sign) -> str:
    if sign.cause.startswith("xid_"):
        return f"failed on {xid_word(sign.cause)}"
    if sign.cause in _WORDS:
        return _WORDS[sign.cause]
    if sign.verdict == "numeric":
        return "found NaN or infinite values"
    return f"failed ({sign.cause})"


def _who(actor: Actor) -> str:
    pid = f"pid {actor.pid}" if actor.pid is not None else ""
    if actor.rank is not None:
        return f"rank {actor.rank}" + (f" ({actor.host})" if actor.host else "")
    if actor.host:
        return f"a process on {actor.host}" + (f" ({pid})" if pid else "")
    return f"the process with {pid}" if pid else "a process whose rank the log does not tell"


def _failure_lines(failure: Failure) -> list[str]:
    """The first and the best line of a failure, and the user's own frame."""
    shown = {sign.told.at: sign for sign in (failure.first, failure.told_best)}
    lines = [quote(sign.told) for sign in shown.values()]
    frames = [frame for sign in failure.signs if (frame := sign.told.event.word("frame"))]
    if frames:
        lines.append(f"raised in {frames[0]}")
    others = [sign for sign in failure.signs if sign.told.at not in shown]
    cause = failure.told_best.cause
    lines += [quote(s.told) for s in others if s.told.of_node or cause.startswith("xid_")][:2]
    return lines


def _effects(verdict: LogVerdict, named: set[int]) -> list[str]:
    """Who was only hit, and one of their lines."""
    ranks = verdict_ranks(verdict) - named
    lines = []
    effects = [s for s in verdict.effects if s.told.actor.rank not in named]
    if ranks:
        lines.append(f"{noun(ranks)} failed in its wake")
    if effects:
        lines.append(f"effect: {quote(effects[0].told)}")
    return lines


def verdict_ranks(verdict: LogVerdict) -> set[int]:
    """Every rank that failed, by itself or not."""
    signs = [*verdict.effects, *(sign for failure in verdict.every for sign in failure.signs)]
    return {sign.told.actor.rank for sign in signs if sign.told.actor.rank is not None}


def host_memory(failures: Sequence[Failure], memory: Sequence[Told], verdict: LogVerdict) -> Finding:
    """The node's memory ran out; the process only when one alone was killed for it."""
    killed = [f for f in failures if f.told_best.cause in ("SIGKILL", "host_memory")]
    one = killed if len(killed) == 1 else []
    who = _who(one[0].actor) if one else "a process of the job"
    ranks = tuple(f.actor.rank for f in killed if f.actor.rank is not None)
    why = [quote(told) for told in memory[:2]] + [quote(f.first.told) for f in killed[:2]]
    return finding_of(
        "out_of_memory",
        summary=sentence(f"{who[:1].upper()}{who[1:]} was killed: the host or its memory limit ran out."),
        confidence=surely(SURE if one else UNORDERED, ranks, verdict),
        verdict=verdict,
        cause="host_memory",
        owner=Owner.USER,
        named=one,
        suspects=() if one else ranks,
        why=why + _effects(verdict, set(ranks)),
    )


def numeric(failures: Sequence[Failure], told: Sequence[Told], verdict: LogVerdict) -> Finding:
    """NaN: every rank sees it after the next all-reduce, so a rank is named only if one alone found it."""
    if failures:
        size = verdict.story.world_size or len(verdict.story.ranks)
        return failed(failures, verdict, alike=len(failures) > 1 and len(failures) > _HALF * size)
    lines = [one for one in told if one.event.kind == "nan_value"]
    return finding_of(
        "numeric",
        summary="The loss is NaN: no rank can be named, since the reduction spreads it to all.",
        confidence=NO_RANK,
        verdict=verdict,
        cause="nan",
        owner=Owner.USER,
        why=[quote(lines[0]), f"{count(len(lines), 'line')} report a NaN loss"],
    )


_HALF: Final = 0.5


def network(lines: Sequence[Told], verdict: LogVerdict) -> Finding:
    """A transfer failed. It is between two ends, and the line is of the one that noticed."""
    first = lines[0]
    event = first.event
    peer, nic = event.word("peer"), event.word("nic")
    ranks = tuple(sorted({one.actor.rank for one in lines if one.actor.rank is not None}))
    who = _who(first.actor)
    ends = f"{who} and {peer}" if peer else who
    link = " to ".join(part for part in (f"{first.actor.host or ''} {nic or ''}".strip(), peer or "") if part)
    finding = finding_of(
        "rank_failed",
        summary=sentence(
            f"The network failed between {ends}; which end or link is at fault the log cannot tell."
        ),
        confidence=0.5 if ranks else 0.4,
        verdict=verdict,
        cause="network_error",
        owner=Owner.INFRA,
        suspects=ranks,
        why=[quote(one) for one in lines[:LINES_QUOTED]],
    )
    return replace(finding, link=link or None, node=first.actor.host)


def node_failure(told: Told, verdict: LogVerdict) -> Finding:
    """Slurm names the node that it lost."""
    host = told.event.word("host")
    finding = finding_of(
        "dead_node",
        summary=sentence(f"Host {host} failed: Slurm lost it."),
        confidence=SURE,
        verdict=verdict,
        cause="node_failure",
        owner=Owner.INFRA,
        why=[quote(told)],
    )
    return replace(finding, node=host, culprits=(Culprit(None, host),))


def watchdog_stuck(lines: Sequence[Told], verdict: LogVerdict) -> Finding:
    """The watchdog thread did not run: what the job did meanwhile is not known."""
    ranks = tuple(sorted({one.actor.rank for one in lines if one.actor.rank is not None}))
    who = noun(ranks, 4) if ranks else "a process"
    return finding_of(
        "watchdog_stuck",
        summary=sentence(f"The NCCL watchdog of {who} got stuck: the driver or the interpreter held it."),
        confidence=NO_RANK,
        verdict=verdict,
        suspects=ranks,
        why=[quote(one) for one in lines[:3]],
    )


def only_effects(verdict: LogVerdict) -> Finding:
    """All errors are of peers' trouble. The rank that shows none may be the one that was lost."""
    lines = [quote(sign.told) for sign in verdict.effects[:3]]
    hit, size = verdict_ranks(verdict), verdict.story.world_size
    silent = sorted(set(range(size)) - hit) if size and len(hit) > 2 else []
    peers = {p for sign in verdict.effects if (p := sign.told.event.word("peer"))}
    suspects = tuple(silent) if len(silent) == 1 else ()
    why = [*lines, "every error seen is one that a peer's trouble causes; its origin is not among them"]
    if len(peers) == 1 and not next(iter(peers)).startswith(_LOOPBACK):
        why.append(f"all of them lost a peer at one address: {next(iter(peers))}")
    who = noun(hit, 4).capitalize() if hit else "Processes"
    tail = (
        f"; {noun(suspects)} alone shows none and is suspected."
        if suspects
        else "; its origin is not in these logs."
    )
    return finding_of(
        "rank_failed",
        summary=sentence(f"{who} failed by a peer's trouble{tail}"),
        confidence=0.4 if suspects else 0.3,
        verdict=verdict,
        cause="peer_lost",
        owner=Owner.UNKNOWN,
        suspects=suspects,
        why=why,
    )


def restart_loop(finding: Finding, loop: Sequence[tuple[int, Failure]]) -> Finding:
    """The same failure in attempt after attempt."""
    row = CATALOGUE["restart_loop"]
    first, last = loop[0][0], loop[-1][0]
    head = f"{len(loop)} attempts ({first} to {last}) ended in the same failure; restarting does not help:"
    return replace(
        finding,
        verdict=row.word,
        fault_class=row.fault_class,
        severity=row.severity,
        rule=f"{row.fault_class}.{row.word} v1",
        summary=sentence(head, finding.summary[:1].lower() + finding.summary[1:]),
        recommended_action=row.action,
        why=(*(f"attempt {number}: {quote(f.told_best.told)}" for number, f in loop[-3:]), *finding.why),
    )


def surely(base: float, ranks: Iterable[int], verdict: LogVerdict) -> float:
    """Less where no rank is told, and where numbers had to be taken for ranks."""
    if not list(ranks):
        return min(base, NO_RANK)
    return base * (ASSUMED if verdict.story.assumed else 1.0)


def finding_of(
    word: str,
    *,
    summary: str,
    confidence: float,
    verdict: LogVerdict,
    cause: str | None = None,
    owner: Owner | None = None,
    named: Sequence[Failure] = (),
    named_ranks: tuple[int, ...] = (),
    suspects: tuple[int, ...] = (),
    why: Iterable[str] = (),
) -> Finding:
    row = CATALOGUE[word]
    ranks = named_ranks or tuple(f.actor.rank for f in named if f.actor.rank is not None)
    places = tuple(
        Culprit(f.actor.rank, f.actor.host, _gpu(f), None, f.actor.pid) for f in named if _placed(f.actor)
    )
    hit = verdict_ranks(verdict) - set(ranks) - set(suspects)
    lines = list(why)
    if verdict.story.assumed and (ranks or suspects):
        lines.append("the logs number tasks, or processes per node; these numbers are taken for ranks")
    return Finding(
        verdict=word,
        fault_class=row.fault_class,
        severity=row.severity,
        summary=summary,
        rule=f"{row.fault_class}.{word} v1",
        confidence=confidence,
        cause=cause,
        owner=row.owner if owner is None else owner,
        culprit_ranks=ranks,
        suspect_ranks=suspects,
        culprits=places or tuple(Culprit(rank) for rank in ranks),
        node=named[0].actor.host if len(named) == 1 else None,
        downstream=Downstream(0, len(hit)),
        why=tuple(dict.fromkeys(lines)),
        recommended_action=_action(cause, owner) or row.action,
        decisive=row.decisive and bool(ranks),
    )


def _action(cause: str | None, owner: Owner | None) -> str | None:
    if cause is not None and cause.startswith("xid_") and owner is Owner.INFRA:
        return _GPU_BROKEN
    return _ACTIONS.get(cause or "")


def _placed(actor: Actor) -> bool:
    return actor.rank is not None or actor.host is not None or actor.pid is not None


def _gpu(failure: Failure) -> int | None:
    return next((gpu for s in failure.signs if (gpu := s.told.event.number("gpu")) is not None), None)
