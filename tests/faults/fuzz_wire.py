"""``python -m tests.faults.fuzz_wire --minutes 10``: mutants of every message, until the time is up.

Prints per target how many were made, accepted and refused. An exception that a caller would not expect, or
memory beyond the bound, ends with 1 and prints the bytes; ``--seed`` and the number of the case repeat it.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Final

import django

from tests.faults.mutation import mutant

if TYPE_CHECKING:
    from tests.faults.wire_targets import Target

MEMORY_BYTES: Final = 1024 * 1024 * 1024
"""What all readers together may need above what the process has at its start."""
FAULTS_SHOWN: Final = 20
SHOWN_BYTES: Final = 2_000


class Run:
    """Counts of one run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._counts: dict[str, Counter[str]] = {}
        self.faults: list[str] = []

    def one(self, target: Target, number: int) -> None:
        """Makes mutant ``number`` of the target and lets it be read."""
        data = mutant(random.Random(f"{self._seed} {target.name} {number}"), target.samples)
        counts = self._counts.setdefault(target.name, Counter())
        try:
            counts["accepted" if target.accepts(data) else "refused"] += 1
        except Exception as error:  # anything at all is what is looked for
            counts["faults"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.faults.append(
                f"{target.name} {number}: {type(error).__name__}: {str(error)[:200]} at "
                f"{where.filename}:{where.lineno}\n  {data[:SHOWN_BYTES].hex()}"
            )

    def table(self) -> str:
        words = ("accepted", "refused", "faults")
        lines = [f"{'target':<22}" + "".join(f"{word:>12}" for word in words)]
        for name, counts in self._counts.items():
            lines.append(f"{name:<22}" + "".join(f"{counts[word]:>12}" for word in words))
        return "\n".join(lines)


def bound_memory() -> None:
    """From here on an allocation beyond the bound fails, and is reported like any other fault."""
    with open("/proc/self/statm") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MEMORY_BYTES,) * 2)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="default: another each time")
    options = parser.parse_args(argv)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")
    os.environ.setdefault("CLUSTERWATCH_SECRET_KEY", "only-for-fuzzing-" + "0" * 40)
    django.setup()
    from tests.faults.wire_targets import targets  # loads models: only after Django is set up

    chosen, run = targets(), Run(options.seed)
    bound_memory()
    deadline_s, number = time.monotonic() + options.minutes * 60, 0
    while time.monotonic() < deadline_s and len(run.faults) < FAULTS_SHOWN:
        for target in chosen:
            run.one(target, number)
        number += 1
    print(run.table())
    for fault in run.faults:
        print(fault)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"seed {options.seed}, {number} rounds, {len(run.faults)} faults, at most {peak_mb} MB of memory")
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main())
