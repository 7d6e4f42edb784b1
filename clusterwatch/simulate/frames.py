"""Hot frames of many nodes at once, as the bytes that go into their sockets.

In: columns of values and progress of K nodes of one kind. Out: K masked websocket frames, each holding the
message that ``codec.encode(records.HotFrame(...))`` gives. One such message is encoded as a template; where
in it the changing columns lie is found by their bytes, so the template follows the wire whatever it becomes.
Websocket framing: RFC 6455, section 5.2.
"""

from __future__ import annotations

import os
import random
import struct
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate.progress import Columns
from collectors.wire import codec, hot_values, records
from collectors.wire.metrics import GPU_METRICS, HOST_METRICS

_FINAL_BINARY: Final = 0x82
_MASKED_16, _MASKED_64 = 0x80 | 126, 0x80 | 127
_SHORT_MAX: Final = 125
_encoder = msgspec.msgpack.Encoder()
_AGENT: Final = records.AgentCost(sources={"simulator": "ok"})


@dataclass(frozen=True, slots=True)
class FrameKind:
    """What frames of one template share; ``groups`` is 0 for nodes without ranks."""

    gpus: int
    ranks: int = 0
    groups: int = 0
    first_ref: int = 1
    """number of the first rank in the frames"""

    @property
    def series(self) -> int:
        """Values in a frame."""
        return self.gpus * len(GPU_METRICS) + len(HOST_METRICS)

    @property
    def layout(self) -> bytes:
        """The layout of ``records.HotMetrics``."""
        return hot_values.layout_bytes(
            tuple((m.name, self.gpus) for m in GPU_METRICS) + tuple((m.name, 1) for m in HOST_METRICS)
        )


class FrameTemplate:
    """Makes frames of one kind."""

    def __init__(self, kind: FrameKind) -> None:
        self._kind = kind
        sizes = _sizes(kind)
        marks = {name: _mark(name, size) for name, size in sizes.items()}
        t_ns = int.from_bytes(marks["t_ns"], "big")
        payload = codec.encode(
            _frame(kind, t_ns, {name: mark for name, mark in marks.items() if name != "t_ns"})
        )
        head = _head(len(payload))
        self._start = -len(head) % 4  # the payload begins at a multiple of the mask's length
        first = self._start + len(head)
        length = first + len(payload)
        row = bytes(self._start) + head + payload
        self._end = length
        self._first_word = first // 4
        self._mask_at = first - 4
        itemsize = -(-length // 8) * 8
        self._row = np.frombuffer(row.ljust(itemsize, b"\0"), np.uint8)
        self._type = _row_type(
            kind, {name: _place(row, name, mark) for name, mark in marks.items()}, itemsize
        )

    def frames(
        self, t_ns: NDArray[np.int64], values: NDArray[np.float32], progress: Columns | None
    ) -> tuple[memoryview, ...]:
        """Frames of K nodes.

        Args:
            t_ns: times by the nodes' clocks, K.
            values: (K, series), NaN where there is none.
            progress: of K nodes; None for a kind without ranks.
        """
        count = len(t_ns)
        rows = np.empty((count, len(self._row)), np.uint8)
        rows[:] = self._row
        fields = rows.view(self._type)[:, 0]
        fields["t_ns"], fields["values"] = t_ns, values
        if progress is not None:
            for name in _PROGRESS_COLUMNS:
                fields[name] = getattr(progress, name).reshape(count, -1)
        # RFC 6455, 5.3: every frame has a mask of its own that nobody can foresee.
        masks = np.frombuffer(os.urandom(4 * count), "<u4")
        words = rows.view("<u4")
        words[:, self._first_word :] ^= masks[:, None]
        words[:, self._mask_at // 4] = masks
        flat = rows.reshape(-1).data
        size = len(self._row)
        return tuple(flat[n * size + self._start : n * size + self._end] for n in range(count))


_PROGRESS_COLUMNS: Final = (
    "step", "phase", "phase_since_ns", "moved_ns", "heard_ns", "enqueued", "completed", "sequence",
)  # fmt: skip


def message(
    kind: FrameKind,
    t_ns: int,
    values: NDArray[np.float32],
    progress: Columns | None,
    row: int,
    living: NDArray[np.bool_],
) -> bytes:
    """The message of one node some of whose ranks are gone; the slow way, for few nodes.

    Args:
        values: of this node.
        progress: of many nodes, of which this is number ``row``.
        living: which of its ranks are there, length ranks.
    """
    columns = {"values": values.astype("<f4").tobytes()}
    if progress is not None:
        for name in _PROGRESS_COLUMNS:
            column = getattr(progress, name)[row][living]
            columns[name] = column.astype("u1" if name == "phase" else "<i8").tobytes()
    return codec.encode(_frame(kind, t_ns, columns, np.flatnonzero(living)))


def _frame(
    kind: FrameKind, t_ns: int, columns: dict[str, bytes], local_ranks: NDArray[np.int64] | None = None
) -> records.HotFrame:
    locals_ = np.arange(kind.ranks) if local_ranks is None else local_ranks
    progress = None
    if kind.ranks and len(locals_):
        progress = records.HotProgress(
            ref=(locals_ + kind.first_ref).astype("<u4").tobytes(),
            group_count=np.full(len(locals_), kind.groups, "<u2").tobytes(),
            group_index=np.tile(np.arange(kind.groups, dtype="<u2"), len(locals_)).tobytes(),
            **{name: columns[name] for name in _PROGRESS_COLUMNS},
        )
    return records.HotFrame(t_ns, records.HotMetrics(kind.layout, columns["values"]), progress, _AGENT)


def _sizes(kind: FrameKind) -> dict[str, int]:
    """Bytes of each changing column."""
    sizes = {"t_ns": 8, "values": 4 * kind.series}
    if kind.ranks:
        sizes |= dict.fromkeys(("step", "phase_since_ns", "moved_ns", "heard_ns"), 8 * kind.ranks)
        sizes |= {"phase": kind.ranks}
        sizes |= dict.fromkeys(("enqueued", "completed", "sequence"), 8 * kind.ranks * kind.groups)
    return sizes


def _mark(name: str, size: int) -> bytes:
    """Bytes by which a column is found; a positive number where it is one: MessagePack has forms by size."""
    found = random.Random(name).randbytes(size)  # noqa: S311  no secret, only not to be met by chance
    return b"\x17" + found[1:]


def _place(row: bytes, name: str, mark: bytes) -> int:
    """Where a column's bytes begin: behind its name and the head of its value."""
    value = int.from_bytes(mark, "big") if name == "t_ns" else mark
    field = _encoder.encode(name) + _encoder.encode(value)
    return row.index(field) + len(field) - len(mark)


def _row_type(kind: FrameKind, offsets: dict[str, int], itemsize: int) -> np.dtype[np.void]:
    """A row as numpy sees it."""
    forms: dict[str, Any] = {"t_ns": ">u8", "values": ("<f4", (kind.series,))}
    for name in _PROGRESS_COLUMNS if kind.ranks else ():
        per_rank = kind.groups if name in ("enqueued", "completed", "sequence") else 1
        forms[name] = ("u1" if name == "phase" else "<i8", (kind.ranks * per_rank,))
    names = list(forms)
    formats, places = [forms[name] for name in names], [offsets[name] for name in names]
    return np.dtype({"names": names, "formats": formats, "offsets": places, "itemsize": itemsize})


def _head(length: int) -> bytes:
    """Head of a masked frame with an empty mask."""
    if length <= _SHORT_MAX:
        return bytes([_FINAL_BINARY, 0x80 | length]) + bytes(4)
    if length < 2**16:
        return struct.pack(">BBH", _FINAL_BINARY, _MASKED_16, length) + bytes(4)
    return struct.pack(">BBQ", _FINAL_BINARY, _MASKED_64, length) + bytes(4)
