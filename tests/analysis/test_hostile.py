"""Columns that no recorder would write: an answer still comes, and names no rank that is not there."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterwatch.analysis import CATALOGUE, Observation, diagnose
from clusterwatch.analysis.model import KnownGroup
from clusterwatch.analysis.window import reduce
from collectors.formats.columns import NULL, Entries, Signature, TraceColumns, check
from collectors.formats.trace import TraceGroup

NUMBERS = st.sampled_from([NULL, 0, 1, 2, 3, 2**31, 2**62, 2**63 - 1])
SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), max_size=2).map(tuple)
OPS = ["all_reduce", "all_to_all", "coalesced", "send 0->1", "recv 1<-0", "send 9->0", "_all_gather_base", ""]
SIGNATURES = st.builds(
    Signature, st.sampled_from(OPS), st.booleans(), SHAPES, SHAPES, st.just(("Float",)), st.just(())
)
MEMBERS = st.sampled_from([(), (0, 1), (1, 0), (0, 1, 2, 3), (3, 9), (2**40,)])
GROUPS = st.builds(
    TraceGroup, st.sampled_from(["0", "1"]), st.sampled_from(["", "tp", "default_pg"]), MEMBERS
)


@st.composite
def rings(draw: st.DrawFn, rank: int) -> TraceColumns:
    groups = draw(st.lists(GROUPS, min_size=1, max_size=3))
    signatures = draw(st.lists(SIGNATURES, min_size=1, max_size=4))
    count = draw(st.integers(0, 12))

    def column(kind: str, values: st.SearchStrategy[int]) -> array[int]:
        return array(kind, draw(st.lists(values, min_size=count, max_size=count)))

    columns: dict[str, Any] = {
        name: column("q", NUMBERS)
        for name in (
            "record_id", "sequence", "p2p_sequence", "op_id", "created_ns", "started_ns", "completed_ns",
            "duration_ns", "timeout_ms",
        )
    }  # fmt: skip
    columns["group"] = column("i", st.integers(0, len(groups) - 1))
    columns["signature"] = column("i", st.integers(0, len(signatures) - 1))
    columns["stack"] = column("i", st.integers(NULL, 0))
    columns["state"] = column("b", st.integers(0, 2))
    columns["retired"] = column("b", st.integers(0, 1))
    backend = draw(st.sampled_from(["nccl", "gloo", "xccl", ""]))
    trace = TraceColumns(
        rank, "2.10", backend, tuple(groups), tuple(signatures), (("f (a.py:1)",),), Entries(**columns)
    )
    check(trace)
    return trace


JOBS = st.lists(st.integers(0, 4), max_size=5).flatmap(lambda ranks: st.tuples(*map(rings, ranks)))


@given(JOBS, st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_columns_have_an_answer(job: tuple[TraceColumns, ...], live: bool, known: bool) -> None:
    groups = (KnownGroup("1", "", (0, 1)), KnownGroup("1", "tp", (2, 3))) if known else ()
    seen = Observation(traces=job, groups=groups, live=live, advanced=False if live else None)
    found = diagnose(seen)
    for finding in found.findings:
        assert finding.verdict in CATALOGUE and 0 <= finding.confidence <= 1
        assert not set(finding.culprit_ranks) & set(finding.suspect_ranks)
        assert set(finding.culprit_ranks) <= {trace.rank for trace in job}
    assert found.to_dict() == diagnose(Observation(
        traces=job[::-1], groups=groups[::-1], live=live, advanced=False if live else None
    )).to_dict()  # fmt: skip


@given(rings(0))
@settings(max_examples=60, deadline=None)
def test_any_ring_has_a_small_window(trace: TraceColumns) -> None:
    window = reduce(trace)
    assert len(window.groups) == len(trace.groups)
    assert set(window.calls["at"].tolist()) <= set(range(len(trace.entries)))
    for group in window.groups:
        assert group["first_call"] <= group["end_call"] <= len(window.calls)
        assert group["open_count"] <= group["call_count"] <= len(trace.entries)
