"""Answers depend on what the dumps say only: not on order, copies, file names or hash seed."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterwatch.analysis import Diagnosis, Observation, diagnose
from clusterwatch.analysis.window import reduce
from collectors.formats.columns import TraceColumns, pack, unpack
from tests.analysis.looks import traces
from tests.data.blocking_job import World
from tests.data.recorder import Job, name_of, parallel, steps


def of_nccl(fault: str) -> Job:
    """Three steps of a parallel job with timing, then one fault of rank 5 in its tensor group of 4 and 5."""
    job = parallel("nccl", timing=True)
    steps(job, 3)
    steps(job, 1, ranks=range(4))
    for rank in (6, 7):
        job.call(rank, "4")
        job.call(rank, "4")
        job.call(rank, name_of(job, "dp", rank), size=(4096,), state="scheduled" if fault else "completed")
    if not fault:
        steps(job, 1, ranks=(4, 5))
    if fault == "size":
        job.call(4, "3", state="scheduled")
        job.call(5, "3", size=(7,), state="scheduled")
    elif fault == "missing":
        job.call(4, "3", state="scheduled")
    elif fault == "p2p":
        job.recv(4, 0, "5", state="scheduled")
    return job


JOBS: dict[str, Any] = {
    **{f"gloo-{fault or 'healthy'}": lambda fault=fault: World(fault, 5).run() for fault in
       ("", "data_loader", "spin", "wrong_op", "wrong_size", "extra_call", "extra_dp")},
    **{f"nccl-{fault or 'healthy'}": lambda fault=fault: of_nccl(fault) for fault in
       ("", "size", "missing", "p2p")},
}  # fmt: skip


def dumps(name: str, keep: int | None = None) -> list[TraceColumns]:
    return list(traces(JOBS[name](), keep=keep))


def answer(given_traces: Sequence[TraceColumns], **what: Any) -> dict[str, Any]:
    return diagnose(Observation(traces=tuple(given_traces), **what)).to_dict()


@pytest.mark.parametrize("name", JOBS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_shuffled_copied_renamed_dropped_and_cut_dumps_give_one_answer(
    name: str, data: st.DataObject
) -> None:
    keep = data.draw(st.sampled_from([None, 4, 9]))
    gone = data.draw(st.sets(st.integers(0, 7), max_size=3))
    kept = [one for one in dumps(name, keep) if one.rank not in gone]
    copies = data.draw(st.lists(st.sampled_from(kept), max_size=4)) if kept else []
    mixed = data.draw(st.permutations([*kept, *copies]))
    renamed = [replace(one, source=f"{number}-{one.source}") for number, one in enumerate(mixed)]
    assert answer(renamed, world_size=8) == answer(kept, world_size=8)


@pytest.mark.parametrize("name", JOBS)
def test_windows_reduced_elsewhere_give_the_answer_of_the_rings(name: str) -> None:
    whole = dumps(name)
    windows = [pickle.loads(pickle.dumps(reduce(unpack(pack(one))))) for one in whole]
    apart = diagnose(Observation(windows=tuple(windows[:5]), traces=tuple(whole[5:])))
    assert apart.to_dict() == answer(whole)


@pytest.mark.parametrize("name", JOBS)
def test_live_and_offline_are_one_engine(name: str) -> None:
    whole = dumps(name)
    offline = diagnose(Observation(traces=tuple(whole)))
    live = diagnose(Observation(traces=tuple(whole), live=True, advanced=False, world_size=8))

    def told(one: Diagnosis) -> list[tuple[Any, ...]]:
        return sorted((f.verdict, f.culprit_ranks, f.suspect_ranks, f.seq, f.op) for f in one.findings)

    assert told(live) == told(offline)


@pytest.mark.parametrize("name", ["nccl-size", "nccl-missing", "nccl-p2p"])
@given(order=st.permutations(range(5)), cut=st.integers(2, 8))
@settings(max_examples=15, deadline=None)
def test_less_data_never_raises_the_confidence(name: str, order: list[int], cut: int) -> None:
    """Ranks outside the fault lose their dumps one by one, then all rings are cut."""
    whole = dumps(name)
    bystanders = [rank for rank in range(8) if rank not in (0, 4, 5)]
    last = diagnose(Observation(traces=tuple(whole), world_size=8))
    for number in range(1, 4):
        gone = {bystanders[place] for place in order[:number]}
        found = diagnose(Observation(traces=tuple(t for t in whole if t.rank not in gone), world_size=8))
        if found.worst.culprit_ranks:
            assert found.worst.confidence < last.worst.confidence
        assert found.coverage.reported == 8 - number
        last = found
    short = diagnose(Observation(traces=tuple(dumps(name, cut)), world_size=8))
    assert short.coverage.truncated > 0


def test_renumbered_tables_change_nothing() -> None:
    """Groups and signatures are numbered as each rank came by them."""
    whole = dumps("nccl-size")
    turned = [_turned(one, random.Random(one.rank)) for one in whole]
    assert answer(turned) == answer(whole)


def _turned(trace: TraceColumns, source: random.Random) -> TraceColumns:
    groups, signatures = list(range(len(trace.groups))), list(range(len(trace.signatures)))
    source.shuffle(groups)
    source.shuffle(signatures)
    entries = trace.entries
    moved = replace(
        entries,
        group=type(entries.group)("i", [groups.index(one) for one in entries.group]),
        signature=type(entries.signature)("i", [signatures.index(one) for one in entries.signature]),
    )
    return replace(
        trace,
        groups=tuple(trace.groups[one] for one in groups),
        signatures=tuple(trace.signatures[one] for one in signatures),
        entries=moved,
    )


_PROGRAM = """
import json, sys
from tests.analysis.test_sturdiness import JOBS, answer, dumps
json.dump({name: answer(dumps(name)) for name in JOBS}, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers_by_seed() -> list[bytes]:
    return [
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    ]


def test_no_answer_hangs_on_the_hash_seed(answers_by_seed: list[bytes]) -> None:
    assert len(answers_by_seed[0]) > 10_000
    assert answers_by_seed[0] == answers_by_seed[1]
