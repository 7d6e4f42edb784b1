"""Versions of libraries that dumps and job logs tell, for the catalogue of known bugs.

In: what lies at a path, and parsed job logs. Out: fact -> versions, by the names that agents give such facts.
A dump tells NCCL's version in its head, pickled or as JSON; a log tells it where NCCL or torch prints it with
an error. Only the heads of a few dumps are read, and nothing is unpickled.
Source: PyTorch's FlightRecorder.hpp (``nccl_version``), ProcessGroupNCCL.cpp, NCCL's init.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from clusterwatch.readers.archives import Survey
from clusterwatch.readers.blobs import Blob, UnreadableError
from collectors.formats.job_log import JobLog

NCCL: Final = "nccl.version"
TORCH: Final = "torch.version"
FILES_LOOKED_AT: Final = 64
DUMPS_READ: Final = 4
HEAD_BYTES: Final = 512 * 1024
DUMP_MAX_BYTES: Final = 1 << 40
"""Reading ends at the head, so a large dump is no reason to refuse it."""
EVENTS_READ: Final = 20_000
VALUES_MAX: Final = 8
_IN_DUMP: Final = re.compile(
    rb"(?:nccl_version|comm_lib_version).{1,24}?(?<![\d.])(\d{1,3}\.\d{1,3}\.\d{1,3})(?![\d.])", re.DOTALL
)
"""Between the name and the text lie a quote and a colon, or the codes of a pickle."""
_IN_LOG: Final = (
    (NCCL, re.compile(r"\bNCCL version (\d{1,3}\.\d{1,3}\.\d{1,3}[\w.+-]{0,32})", re.ASCII)),
    (TORCH, re.compile(r"\b(?:PyTorch|torch) version:? (\d{1,3}\.\d{1,3}\.\d{1,3}[\w.+-]{0,32})", re.ASCII)),
)


def versions(looked: Survey, logs: Iterable[JobLog]) -> dict[str, frozenset[str]]:
    """Fact -> the versions told. Cost: the heads of ``DUMPS_READ`` dumps, and the events of the logs."""
    found: dict[str, set[str]] = {}
    for fact, text in (*_of_dumps(looked.blobs.values()), *_of_logs(logs)):
        values = found.setdefault(fact, set())
        if len(values) < VALUES_MAX:
            values.add(text)
    return {fact: frozenset(values) for fact, values in found.items()}


def _of_dumps(blobs: Iterable[Blob]) -> Iterator[tuple[str, str]]:
    heads = (head for blob in islice(blobs, FILES_LOOKED_AT) if _is_dump(head := _head(blob)))
    for head in islice(heads, DUMPS_READ):
        if (match := _IN_DUMP.search(head)) is not None:
            yield NCCL, match[1].decode()


def _is_dump(head: bytes) -> bool:
    return b"pg_config" in head[:4_096] or b"pg_status" in head or b"nccl_version" in head[:4_096]


def _head(blob: Blob) -> bytes:
    """The first bytes of a file; none of one that cannot be read, which its own reader reports."""
    head = b""
    try:
        for chunk in blob.stream(DUMP_MAX_BYTES):
            head += chunk
            if len(head) >= HEAD_BYTES:
                break
    except (UnreadableError, OSError):
        return b""
    return head[:HEAD_BYTES]


def _of_logs(logs: Iterable[JobLog]) -> Iterator[tuple[str, str]]:
    for event in islice((event for log in logs for event in log.events), EVENTS_READ):
        for fact, pattern in _IN_LOG:
            if (match := pattern.search(event.text)) is not None:
                yield fact, match[1].rstrip(".,")
