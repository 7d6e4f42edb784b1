"""What a killed supervisor left running is found and stopped; what is not ours is never touched.

A process is ours when its id and start time were recorded, or when it carries our run id in the environment
it was started with (which covers children of a recorded process, and one started just before the kill).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Any

from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.proc import all_processes, is_same_process, process_variable, send_signal
from clusterwatch.ops.state import StateFolder
from clusterwatch.ops.supervisor import RUN_ID_VARIABLE, STATUS_FILE

GRACE_S = 8.0

Identity = tuple[int, int]  # process id, start time in clock ticks since boot


def running_supervisor(state: StateFolder) -> dict[str, Any] | None:
    """The status of the supervisor that runs on this state folder now, None when there is none."""
    status = state.read_json(STATUS_FILE)
    if status is None:
        return None
    supervisor = status.get("supervisor") or {}
    alive = is_same_process(int(supervisor.get("pid") or 0), int(supervisor.get("start_ticks") or 0))
    return status if alive else None


def leftovers(state: StateFolder) -> dict[Identity, str]:
    """Processes of an earlier run that still run: (pid, start time) -> name."""
    status = state.read_json(STATUS_FILE) or {}
    run_id = status.get("run_id") or ""
    found: dict[Identity, str] = {}
    for name, record in (status.get("processes") or {}).items():
        identity = (int(record.get("pid") or 0), int(record.get("start_ticks") or 0))
        if identity[0] and is_same_process(*identity):
            found[identity] = name
    if run_id:
        for process in all_processes():
            identity = (process.pid, process.start_ticks)
            ours = process.is_running and process.pid != os.getpid() and identity not in found
            if ours and process_variable(process.pid, RUN_ID_VARIABLE) == run_id:
                found[identity] = "child"
    return found


def stop_leftovers(state: StateFolder, grace_s: float = GRACE_S) -> int:
    """Stops them: the recorded ones first and politely, PostgreSQL by its fast shutdown, then with SIGKILL.

    Returns:
        How many processes were found.
    Raises:
        OpsError: one of them does not go away even after SIGKILL.
    """
    found = leftovers(state)
    for (pid, _), name in found.items():
        if name != "child":
            send_signal(pid, signal.SIGINT if name == "postgres" else signal.SIGTERM)
            send_signal(pid, signal.SIGCONT)
    _wait_gone(found, grace_s)
    remaining = leftovers(state)
    for pid, _ in remaining:
        send_signal(pid, signal.SIGKILL)
    stuck = _wait_gone(remaining, 5.0)
    if stuck:
        raise OpsError(
            f"Processes of an earlier run do not end even after SIGKILL: {sorted(p for p, _ in stuck)}."
        )
    return len(found)


def _wait_gone(processes: Iterable[Identity], limit_s: float) -> list[Identity]:
    """Waits until all have ended; returns those that have not."""
    deadline_s = time.monotonic() + limit_s
    remaining = [identity for identity in processes if is_same_process(*identity)]
    while remaining and time.monotonic() < deadline_s:
        time.sleep(0.05)
        remaining = [identity for identity in remaining if is_same_process(*identity)]
    return remaining
