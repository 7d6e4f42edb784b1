"""How jobs ended, as ``sacct --json`` or ``squeue --json`` with ended states tells it, in any dialect.

In: the JSON text. Out: ``Outcome`` of each job that has ended. Numbers and states are as in ``slurm_jobs``;
an exit code is the status of wait(2) or an object. Source: sacct(1), "JOB STATE CODES"; data_parser plugins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from collectors.pollers.slurm_jobs import (
    ENDED,
    NAME_MAX_CHARS,
    gpus,
    number,
    rows_of,
    states_of,
    text_of,
)
from collectors.sources import hostlist

NODE_FAIL: Final = frozenset({"NODE_FAIL", "BOOT_FAIL"})
NO_FAULT: Final = frozenset({"COMPLETED", "CANCELLED", "REVOKED", "PREEMPTED"})
HOSTS_MAX_CHARS: Final = 65_536


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a job. None or empty: not told.

    Attributes:
        hosts: its nodes, as Slurm writes them.
        failed: nodes that Slurm says failed.
    """

    id: int
    name: str
    state: str
    end_s: int
    exit_code: int | None
    signal: int | None
    reason: str
    hosts: str
    nodes: int | None
    gpus: int | None
    restarts: int | None
    failed: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A job that is put back into the queue ends several times."""
        return f"{self.id}:{self.end_s}"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """``errors``: what Slurm says went wrong; then some may lack."""

    ended: list[Outcome]
    errors: list[str]


def parse(text: bytes | str) -> Outcomes:
    """All jobs that have ended. Raises ``ValueError`` for what is no such JSON at all."""
    rows, errors = rows_of(text)
    found: dict[str, Outcome] = {}
    for row in rows:
        outcome = _outcome(row)
        if outcome is not None:
            found.setdefault(outcome.key, outcome)
    return Outcomes(list(found.values()), errors)


def exit_of(value: Any) -> tuple[int | None, int | None]:
    """(exit code, signal) of either dialect; a job that was killed has no exit code."""
    if isinstance(value, dict):
        signal = value.get("signal")
        told = signal if isinstance(signal, dict) else {}
        killed = number(told.get("id", told.get("signal_id"))) or None
        return (None if killed else number(value.get("return_code"))), killed
    status = number(value)
    if status is None or status > 0xFFFF:
        return None, None
    killed = status & 0x7F or None
    return (None if killed else status >> 8), killed


def _outcome(row: dict[str, Any]) -> Outcome | None:
    job_id = number(row.get("job_id"))
    told = row.get("state")
    current = told.get("current") if isinstance(told, dict) else told
    words = states_of(row.get("job_state") if current is None else current)
    state = next((word for word in words if word in ENDED), None)
    times = row.get("time")
    end_s = number(times.get("end") if isinstance(times, dict) else row.get("end_time"))
    if not job_id or state is None or "COMPLETING" in words or not end_s or end_s >= 2**33:
        return None
    exit_code, signal = exit_of(row.get("exit_code"))
    reason = told.get("reason") if isinstance(told, dict) else row.get("state_reason")
    hosts = text_of(row.get("nodes"), HOSTS_MAX_CHARS)
    tres = row.get("tres")
    return Outcome(
        id=job_id,
        name=text_of(row.get("name"), NAME_MAX_CHARS) or f"job {job_id}",
        state=state,
        end_s=end_s,
        exit_code=exit_code,
        signal=signal,
        reason=_unless_none(text_of(reason, 64)),
        hosts=_unless_none(hosts),
        nodes=number(row.get("allocation_nodes")) or number(row.get("node_count")),
        gpus=_gpus_of(tres.get("allocated")) if isinstance(tres, dict) else _gpus_told(row),
        restarts=number(row.get("restart_cnt")),
        failed=tuple(hostlist.expand(text_of(row.get("failed_node"), 4_096))[:64]),
    )


def _gpus_told(row: dict[str, Any]) -> int | None:
    return gpus(row.get("tres_alloc_str"), row.get("gres_detail"))


def _gpus_of(tres: Any) -> int | None:
    """GPUs of ``sacct``'s list of resources."""
    for one in tres[:64] if isinstance(tres, list) else ():
        if isinstance(one, dict) and one.get("type") == "gres" and one.get("name") == "gpu":
            return number(one.get("count"))
    return None


def _unless_none(text: str) -> str:
    return "" if text in ("None", "None assigned", "(null)") else text
