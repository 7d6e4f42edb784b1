"""The open minute: samples go to a file each second, a finished minute leaves as one ``Block``.

In: values per second. Out: blocks with their rollup, due ``spread`` after the end of the minute so that a
fleet does not send at once. The file is the only copy of the minute: the agent's memory stays flat and a
killed agent finds its minute again. Not flushed each second: a power cut may cost the open minute, and
nothing acknowledged.
"""

from __future__ import annotations

import logging
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from collectors import segment
from collectors.wire import blocks, limits
from collectors.wire.records import Block, BlockMetric

log = logging.getLogger(__name__)

MINUTE_NS: Final = 60_000_000_000
SAMPLES: Final = 60
SPREAD_MAX_S: Final = 50.0


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric a source declares: its unit and the resolution its values are kept at, in that unit."""

    name: str
    unit: str
    resolution: float


def spread_s(node: str) -> float:
    """Seconds after the minute at which this node sends: the same for ever, even over a fleet."""
    return zlib.crc32(node.encode()) % 1000 / 1000 * SPREAD_MAX_S


class MinuteStore:
    """Files ``<minute_ns>.open`` in one folder."""

    def __init__(self, folder: Path, node: str, already_made: Iterable[int] = ()) -> None:
        """``already_made``: minutes whose block lies in the spool although a killed agent left the file."""
        self._folder = folder
        self._spread_ns = int(spread_s(node) * 1e9)
        self._fd: int | None = None
        self._minute_ns = 0
        self._written: set[str] = set()
        self._line = 0
        folder.mkdir(mode=0o700, exist_ok=True)
        for minute_ns in already_made:
            self._path(minute_ns).unlink(missing_ok=True)

    def add(
        self, t_ns: int, values: Mapping[str, list[float | None]], specs: Mapping[str, MetricSpec]
    ) -> None:
        """Writes one second. Raises ``OSError`` when the disk refuses."""
        minute_ns = t_ns - t_ns % MINUTE_NS
        if self._fd is None or minute_ns != self._minute_ns:
            self._open(minute_ns)
        fresh = [name for name in values if name in specs and name not in self._written]
        if fresh:
            self._append({"specs": [(name, specs[name].unit, specs[name].resolution) for name in fresh]})
            self._written.update(fresh)
        self._append({"t_ns": t_ns, "values": values})

    def take_due(self, now_ns: int) -> Iterator[tuple[Block, Path]]:
        """Blocks of minutes that are over and due. Delete the path once the block is in the spool."""
        current = now_ns - now_ns % MINUTE_NS
        for path in sorted(self._folder.glob("*.open")):
            minute_ns = int(path.stem) if path.stem.isdigit() else 0
            # A minute from the future was written before the clock was set back; it is over, too.
            is_over = minute_ns + MINUTE_NS + self._spread_ns <= now_ns or minute_ns > current
            if not is_over or minute_ns == self._minute_ns and self._fd is not None and minute_ns >= current:
                continue
            block = build(minute_ns, path.read_bytes())
            if block is None:
                log.warning("minute_unreadable file=%s", path.name)
                path.unlink(missing_ok=True)
            else:
                yield block, path

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _path(self, minute_ns: int) -> Path:
        return self._folder / f"{minute_ns}.open"

    def _open(self, minute_ns: int) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path(minute_ns), flags, 0o600)
        self._minute_ns = minute_ns
        self._written = set()
        self._line = os.fstat(self._fd).st_size  # rises over restarts, as the record format wants

    def _append(self, content: dict[str, Any]) -> None:
        assert self._fd is not None
        self._line += 1
        os.write(self._fd, segment.frame(self._line, msgspec.msgpack.encode(content)))


def build(minute_ns: int, data: bytes) -> Block | None:
    """The block of one minute file; None when it holds no sample."""
    specs, seconds = _read(minute_ns, data)
    headers: list[BlockMetric] = []
    columns: list[array[int]] = []
    rollups: list[tuple[float, float, float, float]] = []
    for name, (unit, resolution) in sorted(specs.items()):
        series = max((len(values[name]) for values in seconds.values() if name in values), default=0)
        if not series:
            continue
        column = array("q", [blocks.MISSING]) * (series * SAMPLES)
        for second, values in seconds.items():
            for row, value in enumerate(values.get(name, ())):
                column[row * SAMPLES + second] = blocks.quantise(value, resolution)
        headers.append(
            BlockMetric(name=name, unit=unit, resolution=resolution, series=series, samples=SAMPLES)
        )
        columns.append(column)
        rows = (column[row * SAMPLES : (row + 1) * SAMPLES] for row in range(series))
        rollups += [blocks.rollup(row, resolution) for row in rows]
    if not headers:
        return None
    return Block(
        minute_ns=minute_ns,
        codec=blocks.CODEC,
        metrics=headers,
        data=blocks.encode(headers, columns),
        rollup=blocks.pack_rollups(rollups),
    )


def _read(
    minute_ns: int, data: bytes
) -> tuple[dict[str, tuple[str, float]], dict[int, dict[str, list[float | None]]]]:
    """What the whole records of a file say: specs by name, and values by second of the minute."""
    specs: dict[str, tuple[str, float]] = {}
    seconds: dict[int, dict[str, list[float | None]]] = {}
    for offset in segment.scan(data).offsets:
        record = segment.parse(data, offset)
        assert record is not None
        content = msgspec.msgpack.decode(data[record[1] : record[2]])
        for name, unit, resolution in content.get("specs", ()):
            if len(specs) < limits.METRICS_PER_FRAME_MAX:
                specs[name] = (unit, resolution)
        if "t_ns" in content:
            second = (content["t_ns"] - minute_ns) // 1_000_000_000
            if 0 <= second < SAMPLES:
                seconds.setdefault(second, {}).update(content["values"])
    return specs, seconds
