"""``python -m tests.faults.soak --gpus 24576 --minutes 30``: a whole product at work, and whether it grows.

Starts a product of its own with a simulated cluster and looks every ten seconds: memory of each process, how
long the gateway takes to acknowledge, how long pages take. Prints a table of the first against the last
quarter, the figures as one line of JSON, and ends with 1 if a process grows by more than 5 % in ten minutes.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import quantiles

from tests.e2e.product import Product, temporary_product, wait_for
from tests.faults.browser import Visitor
from tests.faults.growth import Growth, Sample, judge, memory_by_process, table
from tests.faults.probe import AckProbe

LOOK_EVERY_S = 10.0
WARM_UP_ROUNDS = 20
"""Looks at every page before the time begins: what is made at first use is no growth."""
WARM_UP_RATIO = 0.2
WARM_UP_MIN_S = 60.0
JOB_LIMIT_S = 300.0


@dataclass
class Soak:
    """One run: what was measured so far."""

    memory: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """what was timed -> each time it took"""
    failures: list[str] = field(default_factory=list)
    """pages that did not come"""

    def look(self, at_s: float, product: Product, visitor: Visitor, job: int, probe: AckProbe) -> None:
        for name, size in memory_by_process(product.folder).items():
            self.memory[name].append((at_s, size))
        self.seconds["ack of an event"].append(probe.event_s())
        self.seconds["ack of a block"].append(probe.block_s())
        self._see("/login/", Visitor(product), at_s)
        self._see("/", visitor, at_s)
        self._see("/jobs", visitor, at_s)
        self._see(f"/jobs/{job}", visitor, at_s)

    def _see(self, path: str, visitor: Visitor, at_s: float) -> None:
        page = visitor.get(path)
        self.seconds[f"page {path}"].append(page.seconds)
        if page.status != 200:
            self.failures.append(f"{path} answered {page.status} after {at_s:.0f} s")

    def growths(self, warm_up_s: float) -> list[Growth]:
        found = (judge(name, samples, warm_up_s) for name, samples in sorted(self.memory.items()))
        return [one for one in found if one is not None]

    def times(self) -> str:
        lines = [f"{'what':<18}{'p50':>10}{'p99':>10}{'worst':>10}   (ms)"]
        for what, taken in self.seconds.items():
            shown = (_part(taken, 50), _part(taken, 99), max(taken))
            lines.append(f"{what:<18}" + "".join(f"{seconds * 1000:>10.0f}" for seconds in shown))
        return "\n".join(lines)

    def figures(self, growths: list[Growth]) -> dict[str, object]:
        return {
            "memory_mib": {one.name: round(one.last_bytes / 2**20, 1) for one in growths},
            "growth_per_10_min": {one.name: round(one.ratio, 4) for one in growths},
            "p99_ms": {what: round(_part(taken, 99) * 1000, 1) for what, taken in self.seconds.items()},
            "pages_failed": len(self.failures),
        }


def _part(taken: list[float], percent: int) -> float:
    return quantiles(taken, n=100, method="inclusive")[percent - 1] if len(taken) > 1 else taken[0]


def run(product: Product, minutes: float, say: Callable[[str], None]) -> Soak:
    """Looks until the time is up. The product's simulated cluster must have a job."""
    visitor, soak = Visitor(product), Soak()
    visitor.sign_in()
    job = wait_for(lambda: _a_job(product), JOB_LIMIT_S, "the simulated cluster has a job")
    for _ in range(WARM_UP_ROUNDS):
        for path in ("/login/", "/", "/jobs", f"/jobs/{job}"):
            visitor.get(path)
    with AckProbe(product) as probe:
        begun_s = time.monotonic()
        while (at_s := time.monotonic() - begun_s) < minutes * 60:
            soak.look(at_s, product, visitor, job, probe)
            if len(soak.seconds["page /"]) % 6 == 0:
                now_bytes = sum(samples[-1][1] for samples in soak.memory.values())
                say(f"{at_s / 60:.1f} min, {now_bytes / 2**20:.0f} MiB")
            time.sleep(max(0.0, LOOK_EVERY_S - (time.monotonic() - begun_s - at_s)))
    return soak


def _a_job(product: Product) -> int | None:
    found = (product.try_get("/jobs") or {"results": []})["results"]
    return int(found[0]["id"]) if found else None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=24_576, help="GPUs of the simulated cluster (24576)")
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args(argv)
    # A SIGTERM unwinds like Ctrl-C, so that the product is stopped.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    warm_up_s = max(WARM_UP_MIN_S, WARM_UP_RATIO * options.minutes * 60)
    with temporary_product("cw-soak-", options.gpus) as product:
        soak = run(product, options.minutes, lambda line: print(line, flush=True))
    growths = soak.growths(warm_up_s)
    print(f"{options.gpus} GPUs, {options.minutes:g} min; MiB without shared memory after {warm_up_s:.0f} s:")
    print(table(growths))
    print(soak.times())
    for failure in soak.failures:
        print(failure)
    print(json.dumps({"gpus": options.gpus, "minutes": options.minutes} | soak.figures(growths)))
    if not growths:
        print("too short to tell whether anything grows")
        return 2
    return 1 if soak.failures or any(one.is_leak for one in growths) else 0


if __name__ == "__main__":
    sys.exit(main())
