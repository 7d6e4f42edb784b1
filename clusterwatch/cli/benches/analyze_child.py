"""The analysing side of ``bench analyze --full`` and ``--columns``, as processes of their own.

In: the job's size as JSON in the first argument; for ``full`` also folders, one a line, on the standard
input: each holds the files of some ranks and may vanish once it is answered. Out: a JSON line per folder (its
cost) and a last one (the verdict and the cost of it).
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.analysis.tables import Window
from clusterwatch.analysis.window import reduce
from clusterwatch.cli.benches.analyze_jobs import job_from
from clusterwatch.readers import folder, workers
from collectors.formats.columns import pack, unpack

_BATCH: Final = 512
"""Ranks whose packed traces are held at a time."""


class Clock:
    """Wall and CPU time, of this process and of children that have ended, since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), self._cpu_s()

    @staticmethod
    def _cpu_s() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(item.ru_utime + item.ru_stime for item in used)

    def read(self) -> dict[str, float]:
        return {"wall_s": time.perf_counter() - self._wall, "cpu_s": self._cpu_s() - self._cpu}


def main() -> None:
    options = json.loads(sys.argv[1])
    modes: dict[str, Callable[[dict[str, Any]], None]] = {"full": _full, "columns": _columns, "open": _open}
    modes[options["mode"]](options)


def _tell(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _full(options: dict[str, Any]) -> None:
    windows: list[Window] = []
    for line in sys.stdin:
        clock = Clock()
        windows += folder.read(Path(line.strip())).windows
        _tell(clock.read())
    _judge(windows, options)


def _judge(windows: list[Window], options: dict[str, Any]) -> None:
    clock = Clock()
    found = diagnose(Observation(windows=tuple(windows), world_size=options["world"]))
    cost = clock.read()
    worst = found.worst
    told = {"verdict": worst.verdict, "culprit_ranks": list(worst.culprit_ranks), "seq": worst.seq}
    _tell({"phase": "diagnose", "ranks": len(windows), "answer": told, **cost})


def _columns(options: dict[str, Any]) -> None:
    """Whole rings, packed."""
    job = job_from(options)
    processes = max(1, min(workers.PROCESSES_MAX, len(os.sched_getaffinity(0))))
    windows: list[Window] = []
    spent = {"wall_s": 0.0, "cpu_s": 0.0}
    size = 0
    for first in range(0, job.layout.world, _BATCH):
        batch = [pack(trace) for trace in job.traces(range(first, min(first + _BATCH, job.layout.world)))]
        size += sum(map(len, batch))
        clock = Clock()
        windows += _reduced(batch, processes)
        spent = {key: spent[key] + value for key, value in clock.read().items()}
    _tell({"phase": "reduce", "packed_bytes": size, "processes": processes, **spent})
    _judge(windows, options)


def _open(options: dict[str, Any]) -> None:
    """The open windows alone, as a server holds them that has judged nothing yet."""
    windows = [reduce(trace) for trace in job_from(options, open_only=True).traces()]
    _judge(windows, options)


def _reduced(batch: list[bytes], processes: int) -> list[Window]:
    def work(number: int) -> Iterator[Window]:
        yield reduce(unpack(batch[number]))

    told = workers.run(range(len(batch)), work, processes)
    windows = [window for _, window in told if isinstance(window, Window)]
    if len(windows) != len(batch):
        raise RuntimeError(f"{len(batch) - len(windows)} of {len(batch)} traces were lost")
    return windows


if __name__ == "__main__":
    main()
