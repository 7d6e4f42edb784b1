"""How the processes of an attempt ended: normally, told to end, failed, or gone without a word.

A planned stop (elastic restart, cancelled job, maintenance) ends every process from outside and pages nobody;
a failure begins with one. ``exit_code`` and ``exit_signal`` are unknown where a launcher such as torchrun is
the parent, so "gone without a word" is told from a failure by who else is still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusterwatch.analysis.ending import Ending
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.exits import ending
from clusterwatch.jobs.models import Rank

SETTLE_NS: Final = 1_500_000_000
"""Peers of a dead process raise within about a second: we wait, to judge the first and not a victim."""
VANISHED_SETTLE_NS: Final = 2_500_000_000
"""A launcher that ends every process does so within this, also over several hosts."""


def ended_without_failure(ranks: Sequence[Rank]) -> bool:
    """Some process is gone, and every one that is ended normally or was told to."""
    endings = {ending(rank) for rank in ranks} - {Ending.ALIVE}
    return bool(endings) and endings <= {Ending.TOLD, Ending.CLEAN}


def is_failure(ranks: Sequence[Rank], gone_for_ns: int) -> bool:
    """Whether the endings so far are a failure, as far as it can be told ``gone_for_ns`` after the first.

    All gone without a word is none: that is how a launcher stops a job, and a launcher's own fault has words.
    """
    endings = {ending(rank) for rank in ranks}
    if Ending.FAILED in endings:
        return gone_for_ns >= SETTLE_NS and not _was_stopped_first(ranks)
    if Ending.VANISHED not in endings or Ending.TOLD in endings or Ending.ALIVE not in endings:
        return False
    return gone_for_ns >= VANISHED_SETTLE_NS


def _was_stopped_first(ranks: Sequence[Rank]) -> bool:
    """Some process was told to end before any failed: what its peers then raise is the stop's effect.

    A launcher that ends the others because one failed does so after that failure.
    """
    told = [rank.exit_ns for rank in ranks if ending(rank) is Ending.TOLD and rank.exit_ns is not None]
    failed = [failed_ns for rank in ranks if (failed_ns := _failed_ns(rank)) is not None]
    return bool(told) and bool(failed) and min(told) < min(failed)


def _failed_ns(rank: Rank) -> int | None:
    """When a failed process raised, else when it ended, by its node's clock."""
    if ending(rank) is not Ending.FAILED:
        return None
    raised_ns = rank.exception.get("t_ns") if isinstance(rank.exception, dict) else None
    return raised_ns if isinstance(raised_ns, int) else rank.exit_ns


def may_become_failure(ranks: Sequence[Rank]) -> bool:
    """Some process is gone that did not end normally and was not seen to be told to."""
    return any(ending(rank) in (Ending.FAILED, Ending.VANISHED) for rank in ranks)


def are_aftermath(ranks: Sequence[Rank], incident: Incident) -> bool:
    """Whether what ended came of the stall or of the job's end, and says nothing of who caused the stall.

    So it is when every process ended after the stall was suspected, and not only such as the incident names:
    a watchdog that aborts the waiting ranks after ten minutes, a person who kills the job.
    """
    ended = [rank for rank in ranks if rank.exited_at is not None]
    told = incident.diagnosis
    named = {*told.get("culprit_ranks", ()), *told.get("suspect_ranks", ())}
    if not ended or not named or incident.fault_class != "hang" or incident.suspected_at is None:
        return False
    suspected_ns = int(incident.suspected_at.timestamp() * 1e9)
    return not named.issuperset(rank.rank for rank in ended) and all(
        _gone_ns(rank) > suspected_ns for rank in ended
    )


def _gone_ns(rank: Rank) -> int:
    """When it ended, or raised the exception that it ended with, by its node's clock."""
    failed_ns = _failed_ns(rank)
    if failed_ns is not None:
        return failed_ns
    if rank.exit_ns is not None:
        return rank.exit_ns
    return int(rank.exited_at.timestamp() * 1e9) if rank.exited_at is not None else 0


def all_gone(ranks: Sequence[Rank]) -> bool:
    return all(rank.exited_at is not None for rank in ranks)


def all_clean(ranks: Sequence[Rank]) -> bool:
    return all(ending(rank) is Ending.CLEAN for rank in ranks)
