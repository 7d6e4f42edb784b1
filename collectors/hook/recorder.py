"""torch's flight recorders, looked up and never assumed: NCCL's own and the generic one (gloo and others).

In: the functions of ``torch._C._distributed_c10d``. Out: progress numbers per pg_id, raw dumps.
``pg_id`` is a counter of one process and one backend; ``groups`` gives it a name.

Cost [measured on torch 2.13, a ring of 2,000 entries]: progress 10 us; a dump without stacks 17 ms; the first
one with stacks up to 2 s of GIL, later ones 30 ms, which is why stacks come only when the agent asks.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Status = dict[int, tuple[int, int]]
"""pg_id -> (last enqueued, last completed)"""


@dataclass(frozen=True)
class Recorder:
    """One recorder of this process; ``name`` is ``nccl`` or ``generic``."""

    name: str
    to_pickle: Callable[..., bytes]
    to_json: Callable[..., bytes]

    def status(self) -> Status:
        """Progress of every group this recorder knows. Raises what torch raises."""
        found = json.loads(self.to_json(includeCollectives=False)).get("pg_status", {})
        return {
            int(pg_id): (int(row["last_enqueued_collective"]), int(row["last_completed_collective"]))
            for pg_id, row in found.items()
        }

    def names(self) -> dict[int, str]:
        """pg_id -> group name, from the entries themselves. Cost: 17 us per entry in the ring."""
        entries = json.loads(self.to_json(includeCollectives=True)).get("entries", [])
        return {int(entry["pg_id"]): str(entry["process_group"][0]) for entry in entries}

    def dump(self, stacks: bool, only_active: bool) -> bytes:
        """The ring as torch pickles it (plain containers only)."""
        return self.to_pickle(includeCollectives=True, includeStackTraces=stacks, onlyActive=only_active)


def find() -> list[Recorder]:
    """The recorders this build of torch has, NCCL's first; a CPU build has only the generic one."""
    core = importlib.import_module("torch._C._distributed_c10d")
    found: list[Recorder] = []
    for name, pickled, text in (
        ("nccl", "_dump_nccl_trace", "_dump_nccl_trace_json"),
        ("generic", "_dump_fr_trace", "_dump_fr_trace_json"),
    ):
        to_pickle: Any | None = getattr(core, pickled, None)
        to_json: Any | None = getattr(core, text, None)
        if to_pickle is not None and to_json is not None:
            found.append(Recorder(name, to_pickle, to_json))
    return found


def choose(recorders: list[Recorder], name: str | None = None) -> Recorder:
    """The recorder called ``name``; without a name the one that holds open calls, else the one in use.

    Raises: ``LookupError`` when there is none.
    """
    found = [recorder for recorder in recorders if name in (None, recorder.name)]
    if not found:
        raise LookupError(f"this torch has no {name or 'flight'} recorder")
    statuses = [(recorder, recorder.status()) for recorder in found]
    for recorder, status in statuses:
        if any(enqueued > completed for enqueued, completed in status.values()):
            return recorder
    return next((recorder for recorder, status in statuses if status), found[-1])
