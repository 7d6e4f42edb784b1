"""One absurd number in one file never makes an innocent rank the culprit, whatever the job and its fault."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.analysis.model import Diagnosis
from clusterwatch.analysis.window import Window, reduce
from clusterwatch.simulate.trace_files import json_dump
from clusterwatch.simulate.traces import Fault, Kind, Layout, StepShape, TraceJob
from collectors.formats.flight_recorder import decode

ABSURD = (-5, 0, 2**31, 2**53, 2**62, 2**63 - 1)
NUMBERS = (
    "record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "time_created_ns", "timeout_ms",
    "time_discovered_started_ns", "time_discovered_completed_ns", "duration_ms", "input_sizes",
    "output_sizes",
)  # fmt: skip
STATUS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
LAYOUTS = (
    Layout(tensor=8, data=2),
    Layout(tensor=4, pipeline=2, data=4),
    Layout(pipeline=4, data=3),
    Layout(data=6),
    Layout(context=4, data=4, expert=2),
    Layout(tensor=2, context=2, pipeline=2, data=2, expert=2),
)
SHAPES: tuple[dict[str, Any], ...] = (
    {"steps": 9},
    {"ring": 120},
    {"steps": 9, "open_only": True},
    {"steps": 7, "shape": StepShape(layers=2, microbatches=3, batched_p2p=False), "timing": True},
)
JOBS = 20


def job(number: int) -> TraceJob:
    """The fault by the number, the rest by a seed; the last one is healthy."""
    source = random.Random(number)
    kinds = list(Kind)
    faults = () if number == JOBS - 1 else (Fault(kinds[number % len(kinds)]),)
    while True:
        made = TraceJob(source.choice(LAYOUTS), faults, seed=source.randrange(1000), **source.choice(SHAPES))
        try:
            assert made.expected
        except ValueError:  # the layout has no place for such a fault
            continue
        return made


def tampered(data: bytes, source: random.Random) -> Iterator[tuple[str, bytes]]:
    """The dump with one number changed, for each field in turn; as JSON or as a pickle."""
    for field in (*NUMBERS, *STATUS):
        dump, value = json.loads(data), source.choice(ABSURD)
        if field in STATUS:
            dump["pg_status"][source.choice(sorted(dump["pg_status"]))][field] = str(value)
            where = "pg_status"
        else:
            count = len(dump["entries"])
            at = source.choice([0, count - 1, source.randrange(max(0, count - 12), count)])
            entry, where = dump["entries"][at], f"entry {at} of {count}"
            if field in ("input_sizes", "output_sizes"):
                entry[field] = [[value], *entry[field][1:]]
            else:
                entry[field] = float(value) if field == "duration_ms" else value
        text = json.dumps(dump).encode() if source.random() < 0.5 else pickle.dumps(dump, protocol=2)
        yield f"{field} = {value} in {where}", text


def culprits(found: Diagnosis) -> set[int]:
    return {rank for finding in found.findings for rank in finding.culprit_ranks}


def judged(windows: dict[int, Window], world_size: int) -> Diagnosis:
    return diagnose(Observation(windows=tuple(windows.values()), world_size=world_size))


@pytest.mark.parametrize("number", range(JOBS))
@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=[pytest.mark.long, pytest.mark.limit_s(600)])])
def test_no_innocent_is_named(number: int, rounds: int) -> None:
    made, source = job(number), random.Random(number + 100)
    dumps = {trace.rank: json_dump(trace) for trace in made.traces()}
    windows = {rank: reduce(decode(data, rank)) for rank, data in dumps.items()}
    guilty = {rank for truth in made.expected for rank in truth.culprit_ranks}
    assert culprits(judged(windows, made.layout.world)) <= guilty
    with_calls = [rank for rank, window in windows.items() if window.entry_count]
    kept = 0
    for _ in range(rounds):
        rank = source.choice(with_calls)
        for what, data in tampered(dumps[rank], source):
            found = judged(windows | {rank: reduce(decode(data, rank))}, made.layout.world)
            assert culprits(found) <= guilty | {rank}, (made, rank, what)
            kept += guilty - {rank} <= culprits(found)
    assert kept >= 0.9 * rounds * len((*NUMBERS, *STATUS))  # nor is the verdict lost
