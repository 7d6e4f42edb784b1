"""``topology.json``: where each rank sits. In: a file. Out: host and GPU per rank.

Format: one object with ``ranks``, a list of objects with ``rank``, ``node`` (host index) and ``gpu``, and
optionally ``host`` (its name). Unknown keys are ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from clusterwatch.analysis.model import RankFacts

TOPOLOGY_MAX_BYTES: Final = 256 * 1024 * 1024


class TopologyError(ValueError):
    """The file is no topology; the text says why."""


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
            raise TopologyError(f"{path}: larger than {TOPOLOGY_MAX_BYTES} bytes")
        topology = msgspec.json.decode(path.read_bytes(), type=_Topology)
    except OSError as error:
        raise TopologyError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TopologyError(f"{path}: {error}") from error
    places = sorted(topology.ranks, key=lambda place: place.rank)
    return {
        place.rank: RankFacts(place.rank, host=_host(place), gpu=place.gpu)
        for place in places
        if place.rank >= 0
    }


def _host(place: _Place) -> str | None:
    if place.host:
        return place.host[:255]
    return f"node {place.node}" if place.node is not None else None
