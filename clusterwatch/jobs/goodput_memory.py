"""What counting a job's time leaves from one window to the next <-> the bytes of ``GoodputMark.memory``.

In: the memory of an attempt by rank. Out: one zstd frame; bytes that are none of ours are an empty memory,
so damage costs the start-up of ranks and the usual pace, never the count. About 1 byte a rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from clusterwatch.analysis.goodput import Before
from clusterwatch.analysis.goodput_model import Ints, Memory
from clusterwatch.analysis.goodput_phases import Open

VERSION: Final = 1
RAW_MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """Who is meant by a place: shape (N,), sorted by world and rank."""

    worlds: tuple[str, ...]
    world: Ints
    rank: Ints
    started_ns: Ints


@dataclass(frozen=True, slots=True)
class Kept:
    """Memory of one attempt. ``cause``: verdict of what ended the attempt before."""

    memory: Memory
    phases: Open
    before: Before = Before(None, None)
    cause: str = ""


class _Packed(msgspec.Struct, frozen=True):
    version: int
    worlds: list[str]
    columns: dict[str, bytes]
    words: list[str]
    paces_s: dict[str, list[float]] = field(default_factory=dict)
    last_step: int | None = None
    repeats_until: int | None = None
    is_judged: bool = False
    before: tuple[int | None, int | None] = (None, None)
    cause: str = ""


def pack(kept: Kept, ranks: Ranks) -> bytes:
    """Cost: O(ranks) in numpy."""
    words, place = np.unique(kept.phases.phase, return_inverse=True)
    columns = {
        "world": ranks.world, "rank": ranks.rank, "started_ns": ranks.started_ns,
        "first_ns": kept.memory.first_ns, "phase": place, "since_ns": kept.phases.since_ns,
    }  # fmt: skip
    packed = _Packed(
        VERSION,
        list(ranks.worlds),
        {name: np.asarray(column, np.int64).tobytes() for name, column in columns.items()},
        words.tolist(),
        {ranks.worlds[world]: list(told) for world, told in kept.memory.paces_s.items()},
        kept.memory.last_step,
        kept.memory.repeats_until,
        kept.memory.is_judged,
        (kept.before.last_step, kept.before.saved_step),
        kept.cause,
    )
    return zstandard.ZstdCompressor(level=3).compress(msgspec.msgpack.encode(packed))


def unpack(data: bytes, ranks: Ranks) -> Kept:
    """What was packed, for the ranks there are now; one whose process is another is as new."""
    packed = _read(data)
    first_ns, since_ns = (np.zeros(len(ranks.rank), np.int64) for _ in range(2))
    phase = np.zeros(len(ranks.rank), "U16")
    if packed is None:
        return Kept(Memory(first_ns), Open(phase, since_ns))
    old = {name: np.frombuffer(raw, np.int64) for name, raw in packed.columns.items()}
    here, there = _same(ranks, packed.worlds, old)
    first_ns[here], since_ns[here] = old["first_ns"][there], old["since_ns"][there]
    phase[here] = np.array(packed.words or [""], "U16")[old["phase"][there]]
    number = {name: place for place, name in enumerate(ranks.worlds)}
    paces: Mapping[int, Sequence[float]] = {
        number[name]: told for name, told in packed.paces_s.items() if name in number
    }
    memory = Memory(first_ns, paces, packed.last_step, packed.repeats_until, packed.is_judged)
    return Kept(memory, Open(phase, since_ns), Before(*packed.before), packed.cause)


def _read(data: bytes) -> _Packed | None:
    try:
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=RAW_MAX_BYTES)
        packed = msgspec.msgpack.decode(raw, type=_Packed)
    except (zstandard.ZstdError, msgspec.MsgspecError):
        return None
    return packed if packed.version == VERSION else None


def _same(
    ranks: Ranks, worlds: Sequence[str], old: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of the same processes now and then."""
    number = {name: place for place, name in enumerate(ranks.worlds)}
    table = np.array([number.get(name, -1) for name in worlds] or [-1], np.int64)
    world = table[old["world"]]
    now_key, then_key = ranks.world << 32 | ranks.rank, world << 32 | old["rank"]
    _, here, there = np.intersect1d(now_key, then_key, assume_unique=False, return_indices=True)
    same = ranks.started_ns[here] == old["started_ns"][there]
    return here[same], there[same]
