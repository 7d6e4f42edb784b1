"""``topology.json``: where each rank sits. In: a file. Out: host and GPU per rank.

Format: one object with ``ranks``, a list of objects with ``rank``, ``node`` (host index) and ``gpu``, and
optionally ``host`` (its name). Unknown keys are ignored.
"""

from __future__ import annotations

import codecs
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from clusterwatch.analysis.model import RankFacts

TOPOLOGY_MAX_BYTES: Final = 256 * 1024 * 1024
EXAMPLE: Final = '{"ranks": [{"rank": 0, "host": "node07", "gpu": 3}, ...]}'
"""The form in one line, for help and faults."""


class TopologyError(ValueError):
    """The file is no topology; the text says why."""


class FormatError(TopologyError):
    """The file can be read and is no topology."""


class _Place(msgspec.Struct):
    rank: int
    node: int | None = None
    gpu: int | None = None
    host: str | None = None


class _Topology(msgspec.Struct):
    ranks: list[_Place]


def read(path: Path) -> dict[int, RankFacts]:
    """Place of each rank as facts. Raises ``TopologyError`` when the file cannot be used."""
    try:
        if path.stat().st_size > TOPOLOGY_MAX_BYTES:
            raise TopologyError(f"{path}: larger than {TOPOLOGY_MAX_BYTES >> 20} MiB")
        if path.exists() and not path.is_file():
            raise TopologyError(f"{path}: is no file")
        topology = _topology(path, path.read_bytes())
    except OSError as error:
        raise TopologyError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: {error}; it should be {EXAMPLE}") from error
    places = [place for place in topology.ranks if place.rank >= 0]
    if not places:
        raise FormatError(f"{path}: it lists no rank")
    facts = {place.rank: RankFacts(place.rank, host=_host(place), gpu=place.gpu) for place in places}
    if len(facts) < len(places):
        twice = next(rank for rank, times in Counter(place.rank for place in places).items() if times > 1)
        raise FormatError(f"{path}: rank {twice} is listed twice")
    return dict(sorted(facts.items()))


def _topology(path: Path, data: bytes) -> _Topology:
    """The object in a file; Windows editors put a byte order mark before it."""
    text = data.removeprefix(codecs.BOM_UTF8)
    if not text.strip():
        raise FormatError(f"{path}: the file is empty")
    if text.strip() == b"null":
        raise FormatError(f"{path}: it holds null, not an object with ranks")
    return msgspec.json.decode(text, type=_Topology)


def _host(place: _Place) -> str | None:
    if place.host:
        return place.host[:255]
    return f"node {place.node}" if place.node is not None else None
