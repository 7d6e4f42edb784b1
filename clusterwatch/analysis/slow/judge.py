"""From columns of calls to findings: who is slow, since when, what it costs, and who waits.

In: ``CallLog``. Out: ``Finding``s, independent ones each; none where nobody is slow. A cause is named where
the evidence tells it apart from the others; what the job's own shape explains is said and blames nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.model import Finding, GroupRef, RankFacts
from clusterwatch.analysis.sentence import count, noun, sentence
from clusterwatch.analysis.slow import links, phases, quantiles, ranks, steps, work, workload
from clusterwatch.analysis.slow.layout import UNKNOWN
from clusterwatch.analysis.slow.links import SlowPart
from clusterwatch.analysis.slow.log import CallLog
from clusterwatch.analysis.slow.ranks import SlowRanks
from clusterwatch.analysis.slow.steps import StepTable
from clusterwatch.analysis.slow.wording import (
    RULE,
    Case,
    excess_text,
    finding,
    part_text,
    processes_text,
    seconds_text,
)
from clusterwatch.analysis.slow.work import Model
from clusterwatch.analysis.verdicts import CATALOGUE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEPS_MIN: Final = 5
"""With fewer steps nobody can be slow for long."""
HOST_RATIO: Final = 0.75
"""Of a node's ranks so many must be slow for the node to be the part."""
LATE_LAUNCH_MIN: Final = 0.25
"""More of the gaps than this, beyond the peers', end with a call launched late: the host is the part."""
LATE_LAUNCH_NODE_MIN: Final = 0.1
"""The same where a whole node is slow: hosts that keep up launch next to nothing late."""
SILENT_RATIO_MAX: Final = 0.1


def case_of_log(log: CallLog, facts: Mapping[int, RankFacts]) -> Case:
    """The steps of a log, with who is slow in them; what ``findings`` and ``nothing`` tell of."""
    table = steps.table(log.calls, log.layout, log.members)
    model = work.fit(table.work, table.usual, log.layout.stage, log.layout.replica)
    case = case_of(_named(table, log), model, ranks.of_residual(model.residual), facts)
    return replace(case, names=log.names, of_log=" of the log" if log.is_inspected else "")


def findings(case: Case) -> list[Finding]:
    """Everything that is slow, worst first within the caller's order; empty for too few steps."""
    is_enough = len(case.table.steps) >= STEPS_MIN and bool(np.isfinite(case.table.work).any())
    return of_case(case) if is_enough else []


def _named(table: StepTable, log: CallLog) -> StepTable:
    """Pairs of processes by their names, where the numbers in the table are no ranks."""
    if not log.names:
        return table
    groups = log.members.count
    pairs = (table.paths.of_group(path).tolist() for path in range(groups, table.paths.count))
    names = (processes_text(pair, log.names, log.layout) for pair in pairs)
    return replace(table, path_names=(*table.path_names[:groups], *names))


def case_of(table: StepTable, model: Model, slow: SlowRanks, facts: Mapping[int, RankFacts]) -> Case:
    """Everything on one job's steps; who told nothing of its work lowers the confidence."""
    heard = float(np.isfinite(table.work).any(axis=0).mean()) if table.work.size else 0.0
    return Case(table, model, slow, facts, heard)


def of_case(case: Case) -> list[Finding]:
    """Parts that are slow, then what the job's own shape explains."""
    found = [*_working(case), *_inputs(case), *_storage(case), *_links(case)]
    found += _pauses(case, found)
    return found + list(_workload(case))


def nothing(log: CallLog, case: Case) -> Finding:
    """That nobody stands out, with how small a slowness would have shown; or that too little is known."""
    table = case.table
    heard = (
        np.isfinite(table.work).any(axis=0) if len(table.steps) else np.zeros(log.layout.rank_count, np.bool_)
    )
    silent = np.flatnonzero(~heard).tolist()
    who = processes_text(silent, log.names, log.layout) if log.names else noun(silent)
    whole = f"{count(len(table.steps), 'step')} of {count(log.layout.rank_count, 'rank')}"
    if log.is_blind or len(table.steps) < STEPS_MIN or len(silent) > SILENT_RATIO_MAX * log.layout.rank_count:
        row, sure = CATALOGUE["not_enough_data"], 0.0
        text = sentence("Not enough data:", f"the log tells the work of {whole};",
                        f"{STEPS_MIN} steps and nine ranks of ten are the least." )  # fmt: skip
        if log.is_blind:
            text = sentence("Not enough data:", "the logs lack calls that ranks may have waited in.")
        why = [f"{who} told no whole step"] if silent else []
    else:
        unit = float(np.median(case.slow.noise))
        least = max(unit, ranks.UNIT_MIN) * ranks.RULE.allowed
        row, sure = CATALOGUE["no_fault"], 0.9 * float(heard.mean())
        text = sentence(
            f"Nobody is slow in {whole}.", f"A rank that stays {excess_text(least)} slower would show."
        )
        why = [f"{who} told nothing"] if silent else []
    return Finding(
        verdict=row.word, fault_class=row.fault_class, severity=row.severity, summary=text,
        rule=RULE.format(word=row.word), confidence=sure, owner=row.owner, why=tuple(why),
        recommended_action=row.action,
    )  # fmt: skip


# --- ranks and hosts -------------------------------------------------------------------------------------


def _working(case: Case) -> Iterator[Finding]:
    """Slow GPUs and hosts: a node whose ranks are nearly all slow is one finding."""
    left = set(np.flatnonzero(case.slow.is_slow).tolist())
    for node in np.unique(case.table.layout.node).tolist():
        of_node = case.table.layout.node_ranks(node) if node != UNKNOWN else ()
        mine = left & set(of_node)
        if len(mine) >= 2 and len(mine) >= HOST_RATIO * len(of_node):
            left -= mine
            yield _of_work(case, of_node, sorted(mine))
    for rank in sorted(left):
        yield _of_work(case, (rank,), [rank])
    yield from _whole_replicas(case)


def _of_work(case: Case, culprits: tuple[int, ...], slow: list[int]) -> Finding:
    """One slow GPU, several of a node, or its processors where the host launches late."""
    onset = int(np.median(case.slow.onset[slow]))
    excess = float(np.median(case.slow.excess[slow]))
    late = _late(case, slow, onset)
    is_host = late > (LATE_LAUNCH_MIN if len(slow) == 1 else LATE_LAUNCH_NODE_MIN)
    word = "slow_host" if is_host else "slow_gpu"
    usual_s = float(np.nanmedian(case.table.usual[:, slow]))
    lost_s = usual_s * float(np.expm1(max(excess, 0.0)))
    bad = int(np.median(case.slow.bad_rows[slow]))
    seen = int(np.median(np.isfinite(case.slow.residual[onset:, slow]).sum(axis=0)))  # others told no work
    what = part_text(case, culprits, is_host)
    why = [
        f"{case.who(slow)}: own work {excess_text(excess)} longer than the peers' of the same stage and "
        f"replica, in {bad} of {seen} steps from {case.since(onset)} on",
        f"median of the bad steps {seconds_text(usual_s + lost_s)}, usual {seconds_text(usual_s)}; "
        f"the job's own spread is {excess_text(float(np.median(case.slow.noise)))}",
        f"its host launched late before {late:.0%} of the gaps, peers' taken off"
        if is_host
        else "its host launches its work as early as the peers' do: the GPU is slow, not what feeds it",
    ]
    verb = "is" if len(culprits) == 1 else "are"
    score = float(case.slow.score[slow].max())
    found = finding(case, word, f"{what} {verb} slow:", culprits, onset, lost_s, excess, score, why)
    return replace(found, bad_steps=bad, seen_steps=seen)


def _late(case: Case, slow: Iterable[int], onset: int) -> float:
    """By how much more of their gaps than the peers' the ranks' host launched late, in the bad steps."""
    late = case.table.late_launch[onset:]
    peers = np.ones(late.shape[1], np.bool_)
    peers[list(slow)] = False
    mine = quantiles.median(quantiles.median(late[:, ~peers], axis=1)) if late.size else 0.0
    others = quantiles.median(quantiles.median(late[:, peers], axis=1)) if peers.any() else 0.0
    return float(np.nan_to_num(mine) - np.nan_to_num(others))


def _whole_replicas(case: Case) -> Iterator[Finding]:
    """A replica on one node has its slowness in the model; late launches tell that it is the host."""
    layout, model = case.table.layout, case.model
    if not model.has_replicas:
        return
    for replica in range(model.replica.shape[1]):
        mine = np.flatnonzero(layout.replica == replica)
        if not len(mine) or len(np.unique(layout.node[mine])) > 1 or case.slow.is_slow[mine].any():
            continue
        found = ranks.of_residual(model.replica)
        if not found.is_slow[replica]:
            return
        onset, excess = int(found.onset[replica]), float(found.excess[replica])
        if _late(case, mine.tolist(), onset) > LATE_LAUNCH_MIN:
            as_ranks = replace(
                case.slow, onset=np.full_like(case.slow.onset, onset),
                excess=np.full_like(case.slow.excess, excess),
                score=np.full_like(case.slow.score, found.score[replica]),
                bad_rows=np.full_like(case.slow.bad_rows, found.bad_rows[replica]),
            )  # fmt: skip
            ranks_of = layout.node_ranks(int(layout.node[mine[0]]))
            yield _of_work(replace(case, slow=as_ranks), ranks_of, mine.tolist())


# --- input, storage, links -------------------------------------------------------------------------------


def _inputs(case: Case) -> Iterator[Finding]:
    """Ranks that are fed late; not those whose host is slow in everything."""
    found = [one for one in phases.slow_inputs(case.table, case.model) if not case.slow.is_slow[one.rank]]
    by_node: dict[int, list[phases.SlowInput]] = defaultdict(list)
    for one in found:
        by_node[int(case.table.layout.node[one.rank])].append(one)
    for node, of_node in sorted(by_node.items()):
        together = node != UNKNOWN and len({one.onset for one in of_node}) == 1
        for group in [of_node] if together else [[one] for one in of_node]:
            culprits = tuple(sorted(one.rank for one in group))
            lost_s = max(one.excess_s for one in group)
            usual_s = float(np.nanmedian(case.table.first_gap[:, list(culprits)]))
            why = [
                f"{case.who(culprits)}: the first call of a step comes {seconds_text(lost_s)} later than the "
                "peers' of the stage; the work after it is not longer",
                f"median before the first call {seconds_text(usual_s)}",
            ]
            verb = "gets" if len(culprits) == 1 else "get"
            yield finding(
                case, "slow_dataloader", f"{part_text(case, culprits)} {verb} its input late:", culprits,
                min(one.onset for one in group), lost_s, 1.0, max(one.score for one in group), why,
            )  # fmt: skip


def _storage(case: Case) -> Iterator[Finding]:
    for one in phases.slow_storage(case.table):
        name = case.table.layout.host(one.ranks[0])
        why = [
            f"its ranks spend {one.factor:.1f} times as long before the checkpoint's barrier as those of "
            f"other nodes, at {count(one.writes, 'checkpoint')}; their work between is not longer"
        ]
        yield finding(
            case, "slow_storage", f"Storage of {name} is slow:", one.ranks, one.onset, one.excess_s,
            float(np.log(one.factor)), one.score, why, per="checkpoint",
        )  # fmt: skip


_LINK_WORDS: Final = {"nic": "slow_nic", "nvlink": "slow_nvlink", "leaf": "slow_switch"}


def _links(case: Case) -> Iterator[Finding]:
    for part in links.find(case.table):
        yield of_links(case, part)


def of_links(case: Case, part: SlowPart) -> Finding:
    """A part whose transfers are slow, or the transfers alone where no part is told apart."""
    onset = int(np.median([path.onset for path in part.slow]))
    lost_s = max(path.lost_s for path in part.slow)
    excess = float(np.median([path.excess for path in part.slow]))
    names = [case.table.path_names[path.path] for path in part.slow]
    why = [
        f"transfers of {', '.join(names[:4])}{' and others' if len(names) > 4 else ''} take "
        f"{np.exp(excess):.1f} times as long as others of their kind from {case.since(onset)} on"
    ]
    score = max(path.score for path in part.slow)
    group = GroupRef(names[0], names[0], tuple(case.table.paths.of_group(part.slow[0].path).tolist()))
    word = _word_of(part)
    if word is None:
        members = tuple(sorted(set(_ends(case, part))))
        text = f"Transfers of {names[0]} are slow, and no part is told apart:"
        found = finding(case, "slow_cause_unknown", text, (), onset, lost_s, excess, score, why)
        return replace(found, suspect_ranks=members, group=group)
    culprits = tuple(sorted({rank for one in part.parts for rank in one.ranks}))
    if part.parts[0].kind == "nvlink" and len(part.slow) == 1:
        culprits = tuple(case.table.paths.of_group(part.slow[0].path).tolist())
    told = case.table.layout.parts_told
    names_of = ", ".join(one.name for one in part.parts) if told else f"what {case.who(culprits)} sends over"
    sole = part.parts[0] if len(part.parts) == 1 else None
    why.append(f"they are the paths of {names_of} (fit {part.fit:.2f})")
    found = finding(
        case, word, f"{_link_title(case, part, culprits)}:", culprits, onset, lost_s, excess, score, why
    )
    kind = part.parts[0].kind
    return replace(
        found, group=group,
        link=sole.name if sole is not None and kind in ("nic", "nvlink") and told else None,
        switch=sole.name if sole is not None and kind == "leaf" else None,
    )  # fmt: skip


def _ends(case: Case, part: SlowPart) -> Iterator[int]:
    for path in part.slow:
        yield from case.table.paths.of_group(path.path).tolist()


def _word_of(part: SlowPart) -> str | None:
    """Verdict of the part, None where several of more than one NVLink island fit, or none does."""
    if not part.parts:
        return None
    kind = part.parts[0].kind
    if kind == "node":
        return "slow_switch" if len(part.parts) > 1 else "slow_nic"
    if len(part.parts) > 1 and kind != "nvlink":
        return None
    return _LINK_WORDS[kind]


def _link_title(case: Case, part: SlowPart, culprits: tuple[int, ...]) -> str:
    first = part.parts[0]
    host = case.table.layout.host(culprits[0]) if culprits else ""
    on = "" if case.names else f" on {host}"
    if first.kind == "nic" and not case.table.layout.parts_told:
        return f"The network port of {case.who(culprits)}{on} is slow"
    if first.kind == "nic":
        return f"Network port {first.name} of {noun(culprits)} on {host} is slow"
    if first.kind == "leaf":
        return f"Leaf switch {first.name} is slow for {count(len(culprits), 'rank')} behind it"
    if first.kind == "nvlink":
        return f"NVLink between {case.who(culprits)}{on} is slow"
    return f"All ports of {host} are slow"


# --- software and workload -------------------------------------------------------------------------------


def _pauses(case: Case, found: list[Finding]) -> list[Finding]:
    named = np.zeros(case.table.layout.rank_count, np.bool_)
    named[[rank for one in found for rank in one.culprit_ranks]] = True
    pause = phases.pauses(case.table, case.slow.residual, named | case.slow.is_slow)
    if pause is None:
        return []
    share, long = f"{pause.rank_ratio:.0%}", seconds_text(pause.median_s)
    text = f"{share} of the ranks pause now and then, at different steps, {long} each:"
    why = [f"single steps more than {phases.PAUSE_MIN:.0%} longer, {pause.step_ratio:.1%} of all; "
           "no rank does it more than its share"]  # fmt: skip
    return [finding(case, "gc_pauses", text, (), 0, 0.0, phases.PAUSE_MIN, 1.5, why)]


def _workload(case: Case) -> Iterator[Finding]:
    told = workload.explain(case.table, case.model, case.slow.residual)
    if told.stage is not None:
        stage, beyond = told.stage
        text = f"Pipeline stage {stage} has {excess_text(beyond)} more work than the shorter stages:"
        yield finding(case, "stage_imbalance", text, (), 0, 0.0, beyond, 1.5, ["it is so in all steps"])
    if told.skew is not None:
        replica, beyond = told.skew
        text = f"Replica {replica} has {excess_text(beyond)} more work than the others:"
        yield finding(case, "replica_skew", text, (), 0, 0.0, beyond, 1.5, ["all its stages have it alike"])
    if told.sequences is not None:
        text = (
            f"Another replica is longest from step to step, by {excess_text(told.sequences)} in the median:"
        )
        yield finding(case, "sequence_imbalance", text, (), 0, 0.0, told.sequences, 1.5,
                       ["all stages of a replica have it alike; it moves, so it is no part"])  # fmt: skip
