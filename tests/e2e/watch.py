"""Follows one job of the example through REST until its incident says what it should."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from examples.run import Example
from tests.e2e.product import Product, wait_for

Accept = Callable[[dict[str, Any]], bool]


@dataclass
class Outcome:
    """What became of a fault. Times in seconds after it."""

    incident: dict[str, Any]
    suspected_s: float | None
    open_s: float | None
    named_s: float

    @property
    def diagnosis(self) -> dict[str, Any]:
        found: dict[str, Any] = self.incident["diagnosis"]
        return found

    def line(self, name: str) -> str:
        def show(value: float | None) -> str:
            return f"{value:6.1f}" if value is not None else "     -"

        d = self.diagnosis
        return (
            f"{name:14s} suspected {show(self.suspected_s)}  open {show(self.open_s)}  "
            f"named {self.named_s:6.1f}  "
            f"{d['verdict']} culprits {d['culprit_ranks']} suspects {d['suspect_ranks']} "
            f"confidence {d['confidence']}"
        )


def job_id_of(product: Product, example: Example, timeout_s: float = 60.0) -> int:
    """Our id of the example's job, once the server knows it."""
    job = wait_for(lambda: product.job(example.plan.job), timeout_s, "the job appears")
    return int(job["id"])


def follow(product: Product, example: Example, job_id: int, accept: Accept, timeout_s: float) -> Outcome:
    """Polls until the job's newest incident is accepted and open; gives up with what was last seen."""
    fault_at_ns = example.wait_for_fault()
    deadline = time.monotonic() + timeout_s
    last: dict[str, Any] = {}
    while time.monotonic() < deadline:
        for incident in product.incidents(job_id):
            last = incident
            if incident["state"] in ("open", "acknowledged") and accept(incident["diagnosis"]):
                named_s = (time.time_ns() - fault_at_ns) / 1e9
                return Outcome(
                    incident,
                    _after(incident, "suspected_at", fault_at_ns),
                    _after(incident, "opened_at", fault_at_ns),
                    named_s,
                )
        time.sleep(0.25)
    raise AssertionError(f"not named within {timeout_s:.0f} s, last seen: {_short(last)}")


def _after(incident: dict[str, Any], name: str, fault_at_ns: int) -> float | None:
    if not incident.get(name):
        return None
    return datetime.fromisoformat(incident[name]).timestamp() - fault_at_ns / 1e9


def _short(incident: dict[str, Any]) -> str:
    if not incident:
        return "no incident at all"
    d = incident["diagnosis"]
    return (
        f"{incident['state']} {d['verdict']} culprits {d['culprit_ranks']} suspects {d['suspect_ranks']} "
        f"cause {d['cause']}: {incident['summary']} {d['why']}"
    )
