"""Histories of parts by serial: where each one sits and sat, and which ones sat in a place.

In: what nodes and devices tell now (``Seen``). Out: rows of ``Part`` and ``PartPlacement``. A part that
nobody tells of any more stays where it was, last seen then: only another serial in its place, or its own
elsewhere, ends a placement. A serial that stands in many places is no serial.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from clusterwatch.fleet.models import Part, PartPlacement

PLACES_MAX: Final = 4
"""A serial of one kind told in more places at once is no serial: vendors fill the field with one text."""
SERIAL_MAX_CHARS: Final = 64
SERIAL_MIN_CHARS: Final = 4
CHUNK: Final = 2_000
SEEN_EVERY: Final = timedelta(minutes=30)
"""How far ``seen_at`` may lag: 200,000 rows are not written each round to say that nothing changed."""
_NO_SERIALS: Final = frozenset(
    {
        "none", "null", "unknown", "not specified", "notspecified", "not available", "to be filled by o.e.m.",
        "default string", "system serial number", "serial", "empty", "invalid", "undefined", "not present",
    }
)  # fmt: skip
REPLACED: Final = "replaced"
MOVED: Final = "moved"


@dataclass(frozen=True, slots=True)
class Seen:
    """One part as a source tells it now."""

    kind: str
    serial: str
    host: str
    slot: str
    node_id: int | None = None
    model: str = ""
    gpu_uuid: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a round changed."""

    told: int
    begun: int
    ended: int
    twice: int
    """parts that are told in two places at once"""
    no_serials: int
    """words that are no serials"""


def kind_of(slot: str, part: str = "") -> str:
    """``port/mlx5_0/1`` -> ``optics``; a BMC's own parts by what it calls them."""
    head = slot.partition("/")[0]
    if head in ("port", "nic"):
        return "optics"
    if part:
        word = "".join(c for c in part.lower() if c.isalpha() or c == "_").strip("_")
        return word[:20] or head[:20]
    return head[:20] or "part"


def clean_serial(told: str) -> str | None:
    """The serial without blanks around it; None where the text is none."""
    serial = told.strip()
    if not SERIAL_MIN_CHARS <= len(serial) <= SERIAL_MAX_CHARS or not serial.isprintable():
        return None
    if serial.lower() in _NO_SERIALS or len(set(serial.lower()) - set(" .-_:/")) < 2:
        return None
    return serial


def take(cluster_id: int, seen: Iterable[Seen], now: datetime) -> Taken:
    """Brings the histories of a cluster up to date in one transaction.

    Cost: one read of the open placements, bulk writes of what changed, one update per ``CHUNK`` of the rest.
    """
    told, no_serials = _believable(seen)
    with transaction.atomic():
        told = _named_as_known(cluster_id, told)
        parts = _parts(cluster_id, told, now)
        open_rows = list(PartPlacement.objects.filter(cluster_id=cluster_id, until__isnull=True))
        held = {(row.host, row.slot): row for row in open_rows}
        changed = _Changes()
        for one in told.values():
            changed.see(parts[one.kind, one.serial], one, held.get((one.host, one.slot)), now)
        twice = changed.leave(open_rows)
        _write(cluster_id, changed, now)
    return Taken(len(told), len(changed.begun), len(changed.replaced) + len(changed.moved), twice, no_serials)


def _believable(seen: Iterable[Seen]) -> tuple[dict[tuple[str, str], Seen], int]:
    """(the parts by place, how many words were no serials); of two words for one place the first."""
    by_place: dict[tuple[str, str], Seen] = {}
    refused = 0
    for one in seen:
        serial = clean_serial(one.serial)
        if serial is None:
            refused += 1
            continue
        place = (one.host[:255], one.slot[:255])
        by_place.setdefault(
            place,
            Seen(one.kind, serial, *place, one.node_id, one.model[:128], one.gpu_uuid[:255]),
        )
    places = Counter((one.kind, one.serial) for one in by_place.values())
    crowded = {key for key, count in places.items() if count > PLACES_MAX}
    kept = {place: one for place, one in by_place.items() if (one.kind, one.serial) not in crowded}
    return kept, refused + len(by_place) - len(kept)


def _named_as_known(cluster_id: int, told: dict[tuple[str, str], Seen]) -> dict[tuple[str, str], Seen]:
    """GPUs keep one part, whichever of UUID and serial was told first."""
    uuids = [one.gpu_uuid for one in told.values() if one.gpu_uuid]
    known = {part.gpu_uuid: part for part in Part.objects.filter(cluster_id=cluster_id, gpu_uuid__in=uuids)}
    found = {}
    for place, one in told.items():
        part = known.get(one.gpu_uuid) if one.gpu_uuid else None
        if part is not None and part.kind == one.kind and part.serial != one.serial:
            if part.serial == part.gpu_uuid:
                Part.objects.filter(pk=part.pk).update(serial=one.serial)
            elif one.serial == one.gpu_uuid:
                one = replace(one, serial=part.serial)
        found[place] = one
    return found


def _parts(cluster_id: int, told: dict[tuple[str, str], Seen], now: datetime) -> dict[tuple[str, str], int]:
    """Ids by (kind, serial), made where there is none yet."""
    wanted = {(one.kind, one.serial): one for one in told.values()}
    known = _ids(cluster_id, wanted)
    fresh = [one for key, one in wanted.items() if key not in known]
    Part.objects.bulk_create(
        [
            Part(
                cluster_id=cluster_id, kind=one.kind, serial=one.serial, model=one.model,
                gpu_uuid=one.gpu_uuid, first_seen_at=now,
            )
            for one in fresh
        ],
        batch_size=CHUNK,
        ignore_conflicts=True,
    )  # fmt: skip
    return known | _ids(cluster_id, [(one.kind, one.serial) for one in fresh])


def _ids(cluster_id: int, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    by_kind: dict[str, list[str]] = defaultdict(list)
    for kind, serial in keys:
        by_kind[kind].append(serial)
    found: dict[tuple[str, str], int] = {}
    for kind, serials in by_kind.items():
        rows = Part.objects.filter(cluster_id=cluster_id, kind=kind, serial__in=serials)
        found |= {(kind, serial): pk for serial, pk in rows.values_list("serial", "pk")}
    return found


class _Changes:
    """What a round does to placements."""

    def __init__(self) -> None:
        self.same: list[int] = []
        self.replaced: list[int] = []
        self.moved: list[int] = []
        self.begun: list[tuple[int, Seen]] = []
        self._came: set[int] = set()
        """parts that are in a new place"""
        self._now_at: dict[int, set[tuple[str, str]]] = defaultdict(set)

    def see(self, part_id: int, one: Seen, held: PartPlacement | None, now: datetime) -> None:
        """A part in its place, where ``held`` was until now."""
        self._now_at[part_id].add((one.host, one.slot))
        if held is not None and held.part_id == part_id:
            if now - held.seen_at >= SEEN_EVERY:
                self.same.append(held.pk)
            return
        if held is not None:
            self.replaced.append(held.pk)
        self._came.add(part_id)
        self.begun.append((part_id, one))

    def leave(self, open_rows: Sequence[PartPlacement]) -> int:
        """Ends older placements of parts that came to another place; returns how many parts are told twice.

        Of a part that was told in two places the one that falls silent ends nothing.
        """
        gone = set(self.replaced)
        for row in open_rows:
            places = self._now_at.get(row.part_id, set())
            if row.part_id in self._came and (row.host, row.slot) not in places and row.pk not in gone:
                self.moved.append(row.pk)
        return sum(len(places) > 1 for places in self._now_at.values())


def _write(cluster_id: int, changes: _Changes, now: datetime) -> None:
    for word, ids in ((REPLACED, changes.replaced), (MOVED, changes.moved)):
        for start in range(0, len(ids), CHUNK):
            PartPlacement.objects.filter(pk__in=ids[start : start + CHUNK]).update(until=now, ended=word)
    for start in range(0, len(changes.same), CHUNK):
        PartPlacement.objects.filter(pk__in=changes.same[start : start + CHUNK]).update(seen_at=now)
    PartPlacement.objects.bulk_create(
        [
            PartPlacement(
                part_id=part_id, cluster_id=cluster_id, host=one.host, node_id=one.node_id, slot=one.slot,
                since=now, seen_at=now,
            )
            for part_id, one in changes.begun
        ],
        batch_size=CHUNK,
    )  # fmt: skip
