"""The status table: what the supervisor last wrote, held against what really runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterwatch.ops.proc import is_same_process
from clusterwatch.ops.recovery import leftovers, running_supervisor
from clusterwatch.ops.state import StateFolder

UP_STATES = ("ready", "done")


@dataclass(frozen=True, slots=True)
class Row:
    """One process as a person reads it."""

    name: str
    state: str
    pid: str
    restarts: int
    note: str


def read_status(state: StateFolder) -> tuple[str, list[Row]]:
    """The phase (`ready`, `starting`, `stopping`, `down`, `killed`) and the processes.

    `killed`: the supervisor is gone and processes of its run are still there; the next start clears them.
    """
    status = running_supervisor(state)
    if status is not None:
        rows = [_row(name, record) for name, record in status["processes"].items()]
        return str(status["phase"]), rows
    remaining = leftovers(state)
    rows = [Row(name, "left over", str(pid), 0, "") for (pid, _), name in remaining.items()]
    return ("killed" if rows else "down"), rows


def _row(name: str, record: dict[str, Any]) -> Row:
    pid = record["pid"]
    state = str(record["state"])
    if pid and state == "ready" and not is_same_process(int(pid), int(record["start_ticks"])):
        state = "ended"
    ready_after_s = record["ready_after_s"]
    note = f"ready after {ready_after_s:.1f} s" if ready_after_s is not None else ""
    if record["last_exit"]:
        note = f"last end: {record['last_exit']}"
    return Row(name, state, str(pid or "-"), int(record["restarts"]), note)


def table(rows: list[Row]) -> str:
    """The processes as aligned text."""
    lines = [f"{'process':<12}{'state':<12}{'pid':>8}{'restarts':>10}  note"]
    lines += [f"{r.name:<12}{r.state:<12}{r.pid:>8}{r.restarts:>10}  {r.note}".rstrip() for r in rows]
    return "\n".join(lines)
