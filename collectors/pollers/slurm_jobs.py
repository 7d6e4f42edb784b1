"""Jobs as ``squeue --json`` tells them, in any of its dialects.

In: the JSON text. Out: ``Queue``. Numbers are plain or ``{set, infinite, number}``; the state is a word or a
list of words; the nodes of ``job_resources`` are a host list, a list of objects or an object with a list.
Source: Slurm's data_parser plugins v0.0.37 to v0.0.44; slurm.h for the values that mean "none".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from collectors.sources import hostlist
from collectors.sources.tree import printable

JOBS_MAX: Final = 100_000
NAME_MAX_CHARS: Final = 128
_NO_VALUES: Final = frozenset({2**32 - 1, 2**32 - 2, 2**64 - 1, 2**64 - 2})
"""INFINITE and NO_VAL of 32 and 64 bits, as the plain dialects print them."""
ENDED: Final = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "SPECIAL_EXIT", "TIMEOUT",
    }
)  # fmt: skip
_COMPLETING: Final = "COMPLETING"
_PENDING: Final = "PENDING"
_GPUS_OF_TRES: Final = re.compile(r"gres/gpu(:[^=,]+)?=(\d{1,9})")
_GPUS_OF_GRES: Final = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::[^:(,]+)?:(\d{1,6})(?=$|[,(])")
_IN_BRACKETS: Final = re.compile(r"\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Job:
    """One job. None: not told, or there is no limit.

    Attributes:
        hosts: the nodes it holds, in Slurm's order; empty for a job that waits.
        indices: node name -> its index in the job, where Slurm tells one.
    """

    id: int
    name: str
    state: str | None
    on_nodes: bool
    hosts: list[str]
    indices: dict[str, int]
    nodes: int | None
    gpus: int | None
    restarts: int | None
    time_limit_s: int | None

    def index_of(self, host: str) -> int | None:
        """Index of a host among the job's nodes; None where it is not one of them."""
        place = hostlist.position(self.hosts, host)
        return place if place is None else self.indices.get(self.hosts[place], place)


@dataclass(frozen=True, slots=True)
class Queue:
    """``errors``: what squeue says went wrong; then ``jobs`` may lack some."""

    jobs: list[Job]
    errors: list[str]


def parse(text: bytes | str) -> Queue:
    """All jobs that can be read. Raises ``ValueError`` for what is no such JSON at all."""
    rows, errors = rows_of(text)
    found: dict[int, Job] = {}
    for row in rows:
        job = _job(row)
        if job is not None:
            found.setdefault(job.id, job)
    return Queue(list(found.values()), errors)


def rows_of(text: bytes | str) -> tuple[list[dict[str, Any]], list[str]]:
    """(objects of ``jobs``, at most ``JOBS_MAX`` entries of it; what Slurm says went wrong).

    Raises: ``ValueError`` for what is no such JSON at all.
    """
    try:
        said = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    rows = said.get("jobs") if isinstance(said, dict) else None
    errors = list(errors_of(said.get("errors"))) if isinstance(said, dict) else []
    if not isinstance(rows, list) and not errors:
        raise ValueError("no list of jobs")
    listed = rows[:JOBS_MAX] if isinstance(rows, list) else []
    return [row for row in listed if isinstance(row, dict)], errors


def number(value: Any) -> int | None:
    """A number of either dialect; None where it is not set, has no limit or is none."""
    if isinstance(value, dict):
        if value.get("infinite") is True or value.get("set") is False:
            return None
        value = value.get("number")
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value in _NO_VALUES:
        return None
    return value


def gpus(tres: Any, details: Any) -> int | None:
    """GPUs of the whole allocation: its TRES, else the sum of each node's ``gres_detail``.

    Zero only where both are told and neither has a GPU: TRES lack GPUs where accounting does not track them.
    """
    counts = [(kind, int(count)) for kind, count in _GPUS_OF_TRES.findall(text_of(tres, 4_096))]
    untyped = [count for kind, count in counts if not kind]
    if counts:
        return untyped[0] if untyped else sum(count for _, count in counts)
    if not isinstance(details, list):
        return None
    per_node = [_IN_BRACKETS.sub("", text_of(part, 4_096)) for part in details[: hostlist.HOSTS_MAX]]
    held = [int(count) for part in per_node for count in _GPUS_OF_GRES.findall(part)]
    return sum(held) if held or (isinstance(tres, str) and tres) else None


def _job(row: dict[str, Any]) -> Job | None:
    job_id = number(row.get("job_id"))
    if not job_id:
        return None
    words = states_of(row.get("job_state"))
    hosts, indices, count = _hosts(row)
    limit_min = number(row.get("time_limit"))
    ended = bool(ENDED.intersection(words)) and _COMPLETING not in words
    return Job(
        id=job_id,
        name=text_of(row.get("name"), NAME_MAX_CHARS) or f"job {job_id}",
        state=words[0] if words else None,
        on_nodes=bool(hosts) and not ended and _PENDING not in words,
        hosts=hosts,
        indices=indices,
        nodes=len(hosts) or count or number(row.get("node_count")),
        gpus=gpus(row.get("tres_alloc_str"), row.get("gres_detail")),
        restarts=number(row.get("restart_cnt")),
        time_limit_s=None if limit_min is None else limit_min * 60,
    )


def _hosts(row: dict[str, Any]) -> tuple[list[str], dict[str, int], int | None]:
    """(names, index by name, number of nodes) of the allocation."""
    resources = row.get("job_resources")
    resources = resources if isinstance(resources, dict) else {}
    nodes = resources.get("nodes")
    listed, count = nodes, number(resources.get("allocated_hosts"))
    rows = resources.get("allocated_nodes")
    if isinstance(nodes, dict):
        listed, rows = nodes.get("list"), nodes.get("allocation")
        count = number(nodes.get("count"))
    pairs = list(_allocated(rows))
    for text in (row.get("nodes"), listed):
        if isinstance(text, str) and (hosts := hostlist.expand(text)) and hosts != ["(null)"]:
            break
    else:
        hosts = [name for name, _ in pairs]
    indices = {name: index for name, index in pairs if index is not None and index < len(hosts)}
    # Numbers that are not those of this job's nodes, one each, say nothing.
    told = indices if len(set(indices.values())) == len(hosts) else {}
    return hosts, told, count


def _allocated(rows: Any) -> Iterator[tuple[str, int | None]]:
    """(name, index) of each node of an allocation: a list of objects, or objects by their number."""
    rows = list(rows.values()) if isinstance(rows, dict) else rows
    for row in rows[: hostlist.HOSTS_MAX] if isinstance(rows, list) else ():
        name = (row.get("name") or row.get("nodename")) if isinstance(row, dict) else row
        if isinstance(name, str) and name:
            yield name, number(row.get("index")) if isinstance(row, dict) else None


def states_of(value: Any) -> list[str]:
    """Words of a state, the base state first: ``RUNNING``, ``CANCELLED`` with ``COMPLETING``."""
    words: Iterable[Any] = value if isinstance(value, list) else [value]
    texts = [text_of(word, 32).upper() for word in words]
    return [text for text in texts if text]


def errors_of(rows: Any) -> Iterator[str]:
    for row in rows[:16] if isinstance(rows, list) else ():
        if isinstance(row, dict):
            row = row.get("error") or row.get("description") or row.get("error_number")
        yield text_of(row if isinstance(row, str) else str(row), 200)


def text_of(value: Any, max_chars: int) -> str:
    """A text of the queue, cut, with what is not printable replaced; empty for anything else."""
    if not isinstance(value, str):
        return ""
    return printable(value[:max_chars]).strip()
