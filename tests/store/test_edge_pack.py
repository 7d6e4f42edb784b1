"""Transfers of a node in one column: what comes back, how many bytes it takes, what damaged bytes do."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.store import edge_pack
from collectors.wire.records import Edges, RankId

INT8 = st.integers(-(2**63), 2**63 - 1)
SECONDS = st.floats(0, 1e5, width=32)
NUMBERS = ("step", "group", "size_bytes", "count")
TIMES = ("sum_s", "min_s", "p10_s", "p50_s")


@st.composite
def records(draw: st.DrawFn) -> Edges:
    count = draw(st.integers(0, 6))
    ops = draw(st.lists(st.sampled_from(("send", "recv", "all_reduce", "über")), min_size=1, unique=True))

    def column(kind: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(kind, min_size=count, max_size=count))

    columns = {name: column(INT8) for name in NUMBERS} | {name: column(SECONDS) for name in TIMES}
    who = RankId("job", draw(st.integers(0, 2**31 - 1)))
    op = column(st.integers(0, len(ops) - 1))
    return Edges(t_ns=draw(st.integers(1, 2**62)), id=who, ops=ops, op=op, **columns)  # type: ignore[arg-type]


@given(st.lists(st.lists(records(), min_size=1, max_size=4), max_size=5))
def test_what_is_packed_comes_back(told: list[list[Edges]]) -> None:
    for one in told:
        found = edge_pack.unpack([edge_pack.pack(one)])
        assert found.rank.tolist() == [record.id.rank for record in one for _ in record.step]
        assert found.t_ns.tolist() == [record.t_ns for record in one for _ in record.step]
        assert [found.ops[op] for op in found.op] == [record.ops[op] for record in one for op in record.op]
        for name in (*NUMBERS, *TIMES):
            assert getattr(found, name).tolist() == [v for record in one for v in getattr(record, name)]
    together = edge_pack.unpack([edge_pack.pack(one) for one in told])
    every = [record for one in told for record in one]
    assert sorted(together.step.tolist()) == sorted(step for record in every for step in record.step)
    words = sorted(record.ops[op] for record in every for op in record.op)
    assert sorted(together.ops[op] for op in together.op) == words


def typical(ranks: int = 8, steps: int = 4) -> list[Edges]:
    """Six kinds of calls of each rank and step."""
    random = np.random.default_rng(1)
    told = []
    for rank in range(ranks):
        step = np.repeat(np.arange(steps), 6)
        kind = np.tile(np.arange(6), steps)
        least = (1e-4 * (1 + kind) * (1 + 0.02 * random.standard_normal(len(kind)))).tolist()
        more = [value * 1.1 for value in least]
        told.append(
            Edges(
                t_ns=10**18, id=RankId("job", rank), ops=["all_reduce", "send", "recv"], step=step.tolist(),
                group=(kind // 2).tolist(), op=(kind % 3).tolist(), size_bytes=(2**20 * (1 + kind)).tolist(),
                count=[8] * len(kind), sum_s=more, min_s=least, p10_s=least, p50_s=more,
            )  # fmt: skip
        )
    return told


def test_a_row_takes_less_than_twenty_bytes() -> None:
    assert len(edge_pack.pack(typical())) < 20 * 8 * 4 * 6


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_damaged_bytes_are_named(cut: int) -> None:
    with pytest.raises(edge_pack.EdgesDamaged):
        edge_pack.unpack([edge_pack.pack(typical())[:cut]])


def test_another_version_is_refused() -> None:
    raw = bytearray(zstandard.ZstdDecompressor().decompress(edge_pack.pack(typical())))
    raw[0] = 9
    with pytest.raises(edge_pack.EdgesDamaged, match="version 9"):
        edge_pack.unpack([zstandard.ZstdCompressor().compress(bytes(raw))])


def test_no_row_holds_more_rows_or_words_than_can_be_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_pack, "ROWS_MAX", 50)
    told = list(enumerate(typical()))
    parts = list(edge_pack.portions(told))
    assert [len(part) for part in parts] == [2, 2, 2, 2] and [one for part in parts for one in part] == told
    monkeypatch.setattr(edge_pack.limits, "EDGE_OPS_MAX", 2)
    assert [len(part) for part in edge_pack.portions(told)] == [1] * 8


def test_a_frame_that_tells_of_too_much_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = edge_pack.pack(typical())
    monkeypatch.setattr(edge_pack, "RAW_MAX_BYTES", 100)
    with pytest.raises(edge_pack.EdgesDamaged, match="more bytes"):
        edge_pack.unpack([packed])
