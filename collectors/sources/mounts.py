"""Network file systems: rates and latencies of NFS, requests waiting in FUSE, mounts that hang or are gone.

In: proc/self/mountstats, proc/self/mountinfo, sys/fs/fuse/connections/MINOR/waiting and the mounts told by
etc/clusterwatch/agent.toml. Never asks the mount itself: that would hang with it. Out: samples and
``mount_stall`` and ``mount_missing`` events of entity ``mount/<mount point>``. A hung RPC changes no per-op
line, as these are added up at completion: a stall is seen from what stands still while something waits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import FIRST_SAMPLE, OK, RESET, Reading, Sample, SourceEvent
from collectors.sources.gpu_identity import inventory
from collectors.sources.mountstats import MOUNTS_MAX, Mount, NfsMount, Op, mounts, nfs_mounts, path_of
from collectors.sources.tree import Tree, reason

STALL_S: Final = 5.0
"""RPCs wait this long while none finishes: a stall."""
WRITEBACK_STALL_S: Final = 45.0
"""Linux writes a dirty page back within 30 s + 5 s by default; data held for longer is stuck."""
FUSE_STALL_S: Final = 30.0
NO_OPS: Final = "no_ops"
ALWAYS_SHOWN: Final = ("read", "write")
_DECLARED_OPS: Final = (
    "read", "write", "commit", "open", "close", "getattr", "setattr", "lookup", "access", "create", "remove",
    "rename", "readdir", "readdirplus", "layoutget", "layouterror", "layoutreturn", "layoutcommit",
)  # fmt: skip
_MOVED: Final = (
    ("app_bytes_read_per_s", (0, 2)),
    ("app_bytes_written_per_s", (1, 3)),
    ("server_bytes_read_per_s", (4,)),
    ("server_bytes_written_per_s", (5,)),
)
METRICS: Final = (
    MetricSpec("rpc_in_flight_count", "count", 1.0),
    MetricSpec("fuse_waiting_count", "count", 1.0),
    MetricSpec("mounted_count", "count", 1.0),
    *(MetricSpec(name, "bytes_per_s", 1.0) for name, _ in _MOVED),
    *(
        MetricSpec(f"{op}_{suffix}", unit, resolution)
        for op in _DECLARED_OPS
        for suffix, unit, resolution in (
            ("ops_per_s", "per_s", 0.01),
            ("bytes_per_s", "bytes_per_s", 1.0),
            ("rtt_s", "s", 0.0001),
            ("exec_s", "s", 0.0001),
            ("queue_s", "s", 0.0001),
            ("errors_total", "total", 1.0),
        )
    ),
)


@dataclass(slots=True)
class _Watched:
    """What is remembered of one mount between two looks. Times are of the caller's monotonic clock."""

    nfs: NfsMount | None = None
    at_s: float = 0.0
    pending_since_s: float | None = None
    unwritten_since_s: float | None = None
    fuse_waiting: int = 0
    fuse_since_s: float | None = None
    told: bool = False


class MountsSource:
    """NFS and FUSE mounts of this node."""

    name = "mounts"
    period_s = 1.0
    deadline_s = 2.0
    metrics = METRICS

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        samples: list[Sample] = []
        events: list[SourceEvent] = []
        listed, why = _read(tree, "proc/self/mountinfo")
        known = _known(listed or "")
        # A live node without NFS is not asked: the kernel writes down statistics of every mount.
        has_nfs = not (tree.is_live and known) or any(mount.kind.startswith("nfs") for mount in known)
        stats, _ = _read(tree, "proc/self/mountstats") if has_nfs else (None, OK)
        nfs = nfs_mounts(stats or "")
        fuse = {mount.path: mount.device_minor for mount in known if mount.kind.partition(".")[0] == "fuse"}
        present = {mount.path for mount in known} | {mount.path for mount in nfs}
        self._watched = {path: watched for path, watched in self._watched.items() if path in present}
        for mount in nfs:
            watched = self._watched.setdefault(mount.path, _Watched())
            samples += _nfs_samples(mount, watched, at_s)
            events += _nfs_stall(mount, watched, at_s)
            watched.nfs, watched.at_s = mount, at_s
        for path, minor in list(fuse.items())[:MOUNTS_MAX]:
            watched = self._watched.setdefault(path, _Watched())
            sample = _fuse_sample(tree, path, minor)
            samples.append(sample)
            events += _fuse_stall(sample, watched, at_s)
        for path in _expected(tree):
            samples.append(_mounted(path, present, None if listed is not None else why))
        events += _gone(samples)
        return Reading(samples, events)


@functools.lru_cache(maxsize=2)
def _known(listed: str) -> tuple[Mount, ...]:
    """The list is read each second and changes once a month."""
    return tuple(mounts(listed))


def _gone(samples: list[Sample]) -> Iterator[SourceEvent]:
    """Expected mounts that are missing."""
    for sample in samples:
        if sample.metric == "mounted_count" and sample.value == 0:
            text = f"{sample.entity.partition('/')[2]} is not mounted"
            yield SourceEvent(sample.entity, "mount_missing", text, "critical", standing=True)


def _read(tree: Tree, name: str) -> tuple[str | None, str]:
    try:
        return tree.read_text(name), OK
    except OSError as error:
        return None, reason(error)


def _expected(tree: Tree) -> list[str]:
    """Paths of the node's expected mounts; none where the inventory is missing or damaged."""
    tables = inventory(tree).get("mount", [])
    if not isinstance(tables, list):
        return []
    named = [table.get("path") for table in tables[:MOUNTS_MAX] if isinstance(table, dict)]
    return [path for path in named if isinstance(path, str) and path_of(path) == path]


def _mounted(path: str, present: set[str], unread: str | None) -> Sample:
    """Whether the mount is there. Unknown where the list of mounts cannot be read."""
    entity = f"mount/{path}"
    if path in present:
        return Sample(entity, "mounted_count", 1)
    return (
        Sample(entity, "mounted_count", 0)
        if unread is None
        else Sample(entity, "mounted_count", None, unread)
    )


# --- NFS ---------------------------------------------------------------------------------------------------


def _nfs_samples(mount: NfsMount, watched: _Watched, at_s: float) -> Iterator[Sample]:
    entity = f"mount/{mount.path}"
    if mount.transports:
        yield Sample(entity, "rpc_in_flight_count", max(0, mount.sends - mount.receives))
    before, quality = _comparable(mount, watched, at_s)
    passed_s = at_s - watched.at_s
    for metric, columns in _MOVED if mount.bytes_moved else ():
        moved = None
        if before is not None and before.bytes_moved:
            moved = sum(mount.bytes_moved[at] - before.bytes_moved[at] for at in columns) / passed_s
        yield Sample(entity, metric, moved, OK if moved is not None else quality)
    for name, op in mount.ops.items():
        if op.ops or name in ALWAYS_SHOWN:
            old = before.ops.get(name) if before is not None else None
            yield from _op_samples(entity, name, op, old, passed_s, quality)


def _comparable(mount: NfsMount, watched: _Watched, at_s: float) -> tuple[NfsMount | None, str]:
    """The look before where every counter has grown since; else why there is no rate."""
    before = watched.nfs
    if before is None or at_s <= watched.at_s:
        return None, FIRST_SAMPLE
    younger = mount.age_s is not None and before.age_s is not None and mount.age_s < before.age_s
    fell = any(now < then for now, then in zip(mount.bytes_moved, before.bytes_moved, strict=False))
    for name, op in mount.ops.items():
        old = before.ops.get(name)
        fell = fell or (old is not None and (op.ops < old.ops or op.rtt_ms < old.rtt_ms))
    return (None, RESET) if younger or fell else (before, OK)


def _op_samples(
    entity: str, name: str, op: Op, old: Op | None, passed_s: float, quality: str
) -> Iterator[Sample]:
    """Rates and averages of the interval. No operation finished: the latency is unknown, not 0."""
    if op is old:
        yield from _idle(entity, name, op.errors)
        return
    if op.errors is not None:
        yield Sample(entity, f"{name}_errors_total", op.errors)
    if old is None:
        reason = FIRST_SAMPLE if quality == OK else quality
        for suffix in ("ops_per_s", "bytes_per_s", "rtt_s", "exec_s", "queue_s"):
            yield Sample(entity, f"{name}_{suffix}", None, reason)
        return
    done = op.ops - old.ops
    yield Sample(entity, f"{name}_ops_per_s", done / passed_s)
    yield Sample(entity, f"{name}_bytes_per_s", max(0, _payload(name, op) - _payload(name, old)) / passed_s)
    for suffix, spent_ms in (
        ("rtt_s", op.rtt_ms - old.rtt_ms),
        ("exec_s", op.execute_ms - old.execute_ms),
        ("queue_s", op.queue_ms - old.queue_ms),
    ):
        value = max(0, spent_ms) / (1_000 * done) if done else None
        yield Sample(entity, f"{name}_{suffix}", value, OK if done else NO_OPS)


@functools.lru_cache(maxsize=4_096)
def _idle(entity: str, name: str, errors: int | None) -> tuple[Sample, ...]:
    """The samples of an operation of which nothing changed: those of most, at each look."""
    told = () if errors is None else (Sample(entity, f"{name}_errors_total", errors),)
    rates = (Sample(entity, f"{name}_{suffix}", 0.0) for suffix in ("ops_per_s", "bytes_per_s"))
    times = (Sample(entity, f"{name}_{suffix}", None, NO_OPS) for suffix in ("rtt_s", "exec_s", "queue_s"))
    return (*told, *rates, *times)


def _payload(name: str, op: Op) -> int:
    """Bytes in the direction the data goes; both where the operation carries none."""
    return {"read": op.bytes_received, "write": op.bytes_sent}.get(name, op.bytes_sent + op.bytes_received)


def _nfs_stall(mount: NfsMount, watched: _Watched, at_s: float) -> Iterator[SourceEvent]:
    before, _ = _comparable(mount, watched, at_s)
    if before is None:
        watched.pending_since_s = watched.unwritten_since_s = None
        return
    pending_s = _pending_s(mount, before, watched, at_s)
    unwritten_s = _unwritten_s(mount, before, watched, at_s)
    stalled = pending_s >= STALL_S or unwritten_s >= WRITEBACK_STALL_S
    if stalled and not watched.told:
        waiting = max(0, mount.sends - mount.receives)
        what = f"{waiting} RPCs wait" if pending_s >= STALL_S else "written data does not reach the server"
        yield _stall(
            mount.path, f"{what}, nothing finished for {max(pending_s, unwritten_s):.0f} s", mount.server
        )
    watched.told = stalled


def _pending_s(mount: NfsMount, before: NfsMount, watched: _Watched, at_s: float) -> float:
    """How long RPCs have waited while none finished."""
    finished = any(op.ops > before.ops[name].ops for name, op in mount.ops.items() if name in before.ops)
    waits = mount.sends - mount.receives - mount.retransmitted > 0
    if not waits:
        watched.pending_since_s = None
    elif finished:
        watched.pending_since_s = at_s
    elif watched.pending_since_s is None:
        watched.pending_since_s = watched.at_s
    return 0.0 if watched.pending_since_s is None else at_s - watched.pending_since_s


def _unwritten_s(mount: NfsMount, before: NfsMount, watched: _Watched, at_s: float) -> float:
    """How long the application has written while nothing went to the server.

    The only sign of a dead pNFS data server: the transports listed are those to the metadata server.
    """
    if not mount.bytes_moved or not before.bytes_moved:
        return 0.0
    grew = [now > then for now, then in zip(mount.bytes_moved, before.bytes_moved, strict=True)]
    if grew[5] or not (grew[1] or grew[3]):
        watched.unwritten_since_s = None
    elif watched.unwritten_since_s is None:
        watched.unwritten_since_s = watched.at_s
    return 0.0 if watched.unwritten_since_s is None else at_s - watched.unwritten_since_s


def _stall(path: str, message: str, server: str | None) -> SourceEvent:
    attributes = {} if server is None else {"server": server}
    return SourceEvent(f"mount/{path}", "mount_stall", message, "critical", attributes=attributes)


# --- FUSE --------------------------------------------------------------------------------------------------


def _fuse_sample(tree: Tree, path: str, minor: int) -> Sample:
    text, reason = _read(tree, f"sys/fs/fuse/connections/{minor}/waiting")
    word = (text or "").strip()
    if text is not None and not (word.isascii() and word.isdigit() and len(word) <= 12):
        text, reason = None, "unreadable" if word else "empty"
    return Sample(f"mount/{path}", "fuse_waiting_count", None if text is None else int(word), reason)


def _fuse_stall(sample: Sample, watched: _Watched, at_s: float) -> Iterator[SourceEvent]:
    """The same number of requests at every look for ``FUSE_STALL_S``: the daemon answers none."""
    waiting = int(sample.value or 0)
    if not waiting or waiting != watched.fuse_waiting:
        watched.fuse_since_s = at_s if waiting else None
    watched.fuse_waiting = waiting
    waited_s = 0.0 if watched.fuse_since_s is None else at_s - watched.fuse_since_s
    stalled = waited_s >= FUSE_STALL_S
    if stalled and not watched.told:
        path = sample.entity.partition("/")[2]
        yield _stall(path, f"{waiting} FUSE requests wait, the same for {waited_s:.0f} s", None)
    watched.told = stalled
