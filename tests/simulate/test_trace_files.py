"""Files of made jobs are what the recorder would have written: our reader and PyTorch's own take them."""

from __future__ import annotations

import json
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterwatch.simulate.trace_files import PickleWriter, json_dump, write_json, write_pickles
from clusterwatch.simulate.traces import Fault, Kind, Layout, StepShape, TraceJob
from collectors.formats.columns import COLUMNS, NULL, TraceColumns
from collectors.formats.flight_recorder import decode

FIVE = Layout(tensor=2, context=2, pipeline=3, data=4, expert=2)
JOBS = {
    "faulty": TraceJob(FIVE, (Fault(Kind.MISSING_RANK),), steps=3, frames=4),
    "truncated": TraceJob(FIVE, ring=150, seed=3),
    "timed": TraceJob(FIVE, (Fault(Kind.QUEUED_NOT_STARTED),), steps=3, frames=20),
    "single moves": TraceJob(FIVE, (Fault(Kind.P2P_UNMATCHED),), StepShape(batched_p2p=False), steps=3),
}


def told(trace: TraceColumns, frames: bool = True) -> dict[str, Any]:
    """What a trace says, whatever the order of its tables."""
    entries = trace.entries
    rows = {name: list(getattr(entries, name)) for name in COLUMNS}
    rows["group"] = [trace.groups[at] for at in entries.group]
    rows["signature"] = [trace.signatures[at] for at in entries.signature]
    rows["stack"] = [trace.stacks[at] if at != NULL and frames else () for at in entries.stack]
    return {"rank": trace.rank, "version": trace.version, "backend": trace.backend, "source": trace.source,
            "rows": rows, "groups": {(g.name, g.desc, g.ranks) for g in trace.groups}}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("repeat_frames", [False, True])
@pytest.mark.parametrize("name", JOBS)
def test_a_decoded_pickle_is_the_trace(name: str, repeat_frames: bool, compiled: bool) -> None:
    writer = PickleWriter(repeat_frames)
    for trace in JOBS[name].traces():
        found = decode(writer.pickle(trace), trace.rank, trace.source, compiled=compiled)
        assert told(found) == told(trace)


@pytest.mark.parametrize("name", JOBS)
def test_a_decoded_json_dump_is_the_trace_without_its_stacks(name: str) -> None:
    for trace in JOBS[name].traces():
        found = told(decode(json_dump(trace), trace.rank, trace.source))
        assert found == told(trace, frames=False)


@pytest.mark.parametrize("repeat_frames", [False, True])
def test_a_pickle_holds_plain_things_only_and_reads_as_the_json_does(repeat_frames: bool) -> None:
    job = JOBS["timed"]
    for trace in job.traces():
        data = PickleWriter(repeat_frames).pickle(trace)
        assert not {op.name for op, _, _ in pickletools.genops(data)} & {"GLOBAL", "REDUCE", "BUILD"}
        dump, flavour = pickle.loads(data), json.loads(json_dump(trace))
        assert dump.keys() == flavour.keys() - {"nccl_comm_state"}
        assert dump["pg_config"] == flavour["pg_config"]
        for entry, row in zip(dump["entries"], flavour["entries"], strict=True):
            assert len(entry.pop("frames")) == 20
            known: dict[str, Any] = {key: 0 if value is None else value for key, value in entry.items()}
            assert {**known, "process_group": list(known["process_group"])} == row


def test_equals_share_a_body_and_keep_their_own_times() -> None:
    writer = PickleWriter()
    traces = list(TraceJob(Layout(tensor=4, data=4), steps=4).traces())
    times = {tuple(e["time_created_ns"] for e in pickle.loads(writer.pickle(t))["entries"]) for t in traces}
    assert len(times) == len(traces)


def test_files_bear_the_names_of_their_ranks(tmp_path: Path) -> None:
    job = TraceJob(Layout(data=4), (Fault(Kind.NO_DUMP, 2),), steps=2)
    size = write_pickles(tmp_path, job.traces()) + write_json(tmp_path, job.traces())
    assert {path.name for path in tmp_path.iterdir()} == {
        f"nccl_trace_rank_{rank}{ending}" for rank in (0, 1, 3) for ending in ("", ".json")
    }
    assert size == sum(path.stat().st_size for path in tmp_path.iterdir())


WITHOUT_TABLES = """
import sys
sys.modules["tabulate"] = None
from torch.distributed.flight_recorder import fr_trace
fr_trace.main()
"""
"""The analyzer prints otherwise where the optional package tabulate happens to be installed."""


@pytest.mark.torch
@pytest.mark.parametrize("fault", [None, Kind.MISSING_RANK])
def test_pytorchs_own_analyzer_takes_the_files(tmp_path: Path, fault: Kind | None) -> None:
    pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    faults = (Fault(fault, 5, "tp"),) if fault else ()
    write_pickles(tmp_path, TraceJob(Layout(tensor=4, data=2), faults, steps=3, frames=3).traces())
    command = [sys.executable, "-c", WITHOUT_TABLES, str(tmp_path), "--prefix", "nccl_trace_rank_", "-v"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    text = done.stdout + done.stderr
    assert ("Not all ranks joining" in text) is (fault is not None)
    assert text.count("pass_check=True") > 100
