"""Process groups of this process as its peers know them, and which recorder number each one has.

In: torch's table of groups (``torch.distributed.distributed_c10d._world``), the recorders' entries.
Out: the protocol's ``groups`` and, per group, progress by its index.

A recorder counts its groups from 0 in the order in which this process made a backend of its kind, so the
number follows from the order in torch's table. Entries in the ring carry both name and number: while the
ring is small (reading it costs 17 us an entry) they confirm it, since a wrapper backend
(TORCH_DISTRIBUTED_DEBUG=DETAIL) takes numbers too.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .recorder import Recorder, Status
from .watch import Operations, Watch

CONFIRM_MAX_ENTRIES = 200
"""Read the ring to confirm numbers only while it holds no more: 200 entries cost 3.4 ms."""
GROUPS_MAX = 4_096
NEVER = -1
"""Progress column for "not known", as the wire has it."""

BLOCKING_BACKENDS = frozenset({"gloo", "mpi"})
"""Backends whose ``Work.wait`` returns when the data is there, as long as no GPU is in use."""
_RECORDER_OF = {"nccl": "nccl"}


@dataclass
class Group:
    """One process group; ``numbers`` is recorder name -> pg_id."""

    index: int
    name: str
    desc: str
    backend: str
    ranks: list[int]
    handle: weakref.ref[Any]
    """torch's own object; weak, since the last holder pays for its shutdown"""
    is_default: bool = False
    is_gloo: bool = False
    blocks: bool = False
    """on CPUs a wait for one of its calls returns when the data is there"""
    is_single: bool = True
    """has one backend, so its sequence number is that of all its calls"""
    numbers: dict[str, int] = field(default_factory=dict)

    def as_header(self) -> dict[str, Any]:
        number = next(iter(self.numbers.values()), None)
        return {
            "index": self.index,
            "name": self.name,
            "desc": self.desc,
            "backend": self.backend,
            "ranks": self.ranks,
            "recorder_id": number,
        }

    def operations(self) -> int:
        """torch's own sequence number, ``NEVER`` where this backend does not count.

        NCCL counts collectives; gloo counts sends and receives as well.
        """
        handle = self.handle()
        try:
            return NEVER if handle is None else int(handle._get_sequence_number_for_group())
        except Exception:  # noqa: BLE001 - torch raises RuntimeError or its own types, per backend
            return NEVER

    def sequence(self, p2p_count: Mapping[str, int] | None) -> int:
        """Collective sequence number, ``NEVER`` where it cannot be known.

        Args: ``p2p_count`` calls per group name as ``Watch`` has it; None where nobody counts them.
        """
        operations = self.operations()
        if operations == NEVER or not self.is_gloo:
            return operations
        if p2p_count is None:
            return NEVER
        unnamed = p2p_count.get("", 0) if self.is_default else 0
        return max(operations - p2p_count.get(self.name, 0) - unnamed, 0)


class GroupTable:
    """Follows torch's table of groups over ``new_group``, destroy and re-init."""

    def __init__(self, c10d: Any) -> None:
        self._world: Any = getattr(c10d, "_world", None)
        self._next_number: dict[str, int] = {}
        self._confirmed: set[tuple[str, int]] = set()
        self.groups: list[Group] = []
        self._next_index = 0

    def refresh(self) -> bool:
        """Reads torch's table. Returns True when the set of groups changed. Cost: linear in groups."""
        if not self.groups:
            self._next_index = 0  # a new world counts anew
        known = {id(handle): group for group in self.groups if (handle := group.handle()) is not None}
        current: list[Group] = []
        changed = False
        table = getattr(self._world, "pg_map", {})  # an untried torch may keep it elsewhere
        for handle, (backend, _store) in list(table.items())[:GROUPS_MAX]:
            group = known.get(id(handle))
            if group is None:
                group = self._add(handle, str(backend))
                changed = True
            current.append(group)
        changed = changed or len(current) != len(self.groups)
        self.groups = current
        return changed

    def _add(self, handle: Any, backend: str) -> Group:
        ranks = self._world.pg_group_ranks.get(handle, {})
        group = Group(
            index=self._next_index,
            name=str(self._world.pg_names.get(handle, "")),
            desc=str(getattr(handle, "group_desc", "") or ""),
            backend=backend,
            ranks=sorted(ranks, key=lambda rank: ranks[rank]),
            handle=weakref.ref(handle),
            is_default=handle is self._world.default_pg,
            is_gloo="gloo" in backend,
            blocks=not BLOCKING_BACKENDS.isdisjoint(backend_kinds(backend)),
            is_single=len(backend_kinds(backend)) == 1,
        )
        self._next_index += 1
        for kind in backend_kinds(backend):
            number = self._next_number.get(kind, 0)
            self._next_number[kind] = number + 1
            group.numbers.setdefault(_RECORDER_OF.get(kind, "generic"), number)
        return group

    def confirm(self, recorder: Recorder, status: Status) -> bool:
        """Corrects numbers by the ring's own entries while it is small. Returns True when one changed."""
        fresh = {number for number in status if (recorder.name, number) not in self._confirmed}
        if not fresh or sum(enqueued for enqueued, _completed in status.values()) > CONFIRM_MAX_ENTRIES:
            return False
        changed = False
        by_name = {group.name: group for group in self.groups}
        for number, name in recorder.names().items():
            self._confirmed.add((recorder.name, number))
            group = by_name.get(name)
            if group is not None and group.numbers.get(recorder.name) != number:
                group.numbers[recorder.name] = number
                changed = True
        return changed

    def progress(self, statuses: dict[str, Status], p2p_count: Mapping[str, int] | None) -> list[list[int]]:
        """Rows [index, enqueued, completed, sequence]. Args: ``p2p_count`` as ``Group.sequence`` has it.

        A group with two backends has two counters: they are added, since readers look at differences.
        """
        rows: list[list[int]] = []
        for group in self.groups:
            enqueued = completed = 0
            for recorder, number in group.numbers.items():
                one = statuses.get(recorder, {}).get(number)
                if one is not None:
                    enqueued += max(one[0], 0)
                    completed += max(one[1], 0)
            rows.append([group.index, enqueued, completed, group.sequence(p2p_count)])
        return rows


def operations(groups: list[Group], watch: Watch, is_timed: bool, on_stream: bool = False) -> Operations:
    """Calls of some groups, and how many of them are counted where their waiting is timed.

    Args: ``is_timed`` False where the host does not wait for collectives at all, or nobody looks;
    ``on_stream`` where marks on the GPU's stream time calls of any backend.
    """
    made = seen = 0
    for group in groups:
        number = group.operations()
        made += number
        is_timed = is_timed and (group.is_single if on_stream else group.blocks) and number != NEVER
        seen += _seen(watch.calls, group) + (_seen(watch.p2p_count, group) if group.is_gloo else 0)
    return Operations(made, seen if is_timed else None)


def _seen(counts: Mapping[str, int], group: Group) -> int:
    return counts.get(group.name, 0) + (counts.get("", 0) if group.is_default else 0)


def backend_kinds(backend: str) -> list[str]:
    """Kinds in torch's words for a group's backend: ``gloo`` or ``cpu:gloo,cuda:nccl``; each once."""
    kinds = [part.rsplit(":", 1)[-1].strip().lower() for part in backend.split(",")]
    return list(dict.fromkeys(kind for kind in kinds if kind))
