"""Job logs as they lie beside dumps, or alone -> what each says, streamed, bounded.

In: a file, a folder, an archive. Out: ``Logs``. A file is a log by its name, or when it is the one file
asked for and holds text. Its name may tell the process: torchrun's ``attempt_0/3/stderr.log``, Slurm's
``slurm-4711_3.out``, ``rank3.log``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clusterwatch.analysis.model import InputProblem
from clusterwatch.readers import tasks
from clusterwatch.readers.archives import Blob, Survey, UnreadableError, survey
from clusterwatch.readers.names import PARTS
from clusterwatch.readers.progress import Show
from clusterwatch.readers.tasks import Task
from clusterwatch.readers.texts import chunks_as_utf8
from collectors.formats import elastic_error
from collectors.formats.job_log import JobLog, LogParser, Origin
from collectors.formats.job_log_prefix import Label

LOG_MAX_BYTES: Final = 64 * 1024**3
"""Unpacked bytes of one log that are read; a log of a long job at debug level takes some GB."""
FILES_MAX: Final = 400_000
"""Two files per rank of the largest job, in eight attempts."""
_TOO_MANY: Final = f"more than {FILES_MAX} logs: the rest is not read"
_SNIFF_BYTES: Final = 4_096

_LOG_NAME: Final = re.compile(
    r"\.(?:log|out|err|stdout|stderr)(?:[.-]\d{1,10})?(?:\.txt)?$|(?:^|[_.-])(?:log|stdout|stderr)(?:[_.-]\w{1,40})?(?:\.txt)?$"
    r"|^(?:dmesg|messages|syslog|kern)(?:[._-]\w{1,40})?(?:\.txt)?$|^slurm-[\w.-]{1,200}\.txt$",
    re.IGNORECASE,
)
_ERROR_FILE: Final = re.compile(r"^(?:torchelastic_)?error(?:[_.-]?\w{1,40})?\.json$", re.IGNORECASE)
"""TORCHELASTIC_ERROR_FILE: the agent calls it ``error.json``, people put the rank behind."""
_ELASTIC: Final = re.compile(
    r"^(?P<scope>.*?)/?attempt_(?P<attempt>\d{1,6})/(?P<local>\d{1,7})/[^/]{1,255}$", re.IGNORECASE
)
_RANK: Final = re.compile(r"(?<![A-Za-z])(?:global[_-]?)?rank[_.=-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LOCAL: Final = re.compile(r"local[_-]?rank[_.=-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_TASK: Final = re.compile(
    r"^slurm-\d{1,12}(?:\.\d{1,6})?[_-](\d{1,7})\.(?:out|err|log|txt)$|(?<![A-Za-z])(?:task|proc)[_.=-]?(\d{1,7})(?!\d)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Logs:
    """What the logs below a path say."""

    logs: tuple[JobLog, ...]
    problems: tuple[InputProblem, ...]


def is_log_name(name: str) -> bool:
    """Whether a file below a folder is taken for a log."""
    base = PARTS.split(name)[-1]
    return bool(_LOG_NAME.search(base)) or is_error_file(name)


def is_error_file(name: str) -> bool:
    """Whether it is called as torchelastic's file of one process's exception."""
    return bool(_ERROR_FILE.match(PARTS.split(name)[-1]))


def origin(name: str) -> Origin:
    """What the path of a log says of the process that wrote it."""
    base = PARTS.split(name)[-1]
    if (match := _ELASTIC.match(name)) is not None:
        return Origin(Label(local_rank=int(match["local"])), int(match["attempt"]), match["scope"] or ".")
    if (match := _LOCAL.search(base)) is not None:
        return Origin(Label(local_rank=int(match[1])), None, name.rpartition("/")[0] or ".")
    if (match := _RANK.search(base)) is not None:
        return Origin(Label(rank=int(match[1])))
    if (match := _TASK.search(base)) is not None:
        return Origin(Label(task=int(match[1] or match[2])))
    return Origin()


def read(
    path: Path, show: Show | None = None, processes: int | None = None, found: Survey | None = None
) -> Logs:
    """All job logs at or below ``path``. A path that is one file is tried whatever its name.

    Args:
        show: called after each log.
        processes: how many read at a time; as many as the cores and the amount suggest when not given.
        found: what ``archives.survey`` gave for ``path``; looked at anew when not given.

    Raises:
        FileNotFoundError, OSError: as ``archives.files``.
    """
    looked = survey(path) if found is None else found

    def is_log(name: str) -> bool:
        return is_log_name(name) or (looked.one_file and not PARTS.search(name))

    every: list[Task] = [blob for name, blob in sorted(looked.blobs.items()) if is_log(name)]
    problems = [InputProblem(task.name, _TOO_MANY) for task in every[FILES_MAX : FILES_MAX + 1]]
    every = every[:FILES_MAX]
    every += [stream for stream, inside in looked.streams if any(map(is_log, inside))]

    def each(blob: Blob) -> Iterator[JobLog | InputProblem]:
        if is_log(blob.name):
            yield from _read(blob)

    logs = []
    for item in tasks.read(every, each, show=show, processes=processes):
        if isinstance(item, JobLog):
            if item.events or is_log_name(item.source):  # any text file may have been asked for by its name
                logs.append(item)
        else:
            problems.append(item)
    return Logs(
        tuple(sorted(logs, key=lambda log: log.source)), tuple(sorted(problems, key=lambda p: p.source))
    )


def _read(blob: Blob) -> Iterator[JobLog | InputProblem]:
    """One log; what could be read of a damaged one."""
    if is_error_file(blob.name):
        yield from _read_error(blob)
        return
    parser = LogParser(blob.name, origin(blob.name))
    first = True
    try:
        for chunk in chunks_as_utf8(blob.stream(LOG_MAX_BYTES)):
            if first and _is_binary(chunk[:_SNIFF_BYTES]):
                return
            first = False
            parser.feed(chunk)
    except UnreadableError as error:
        yield InputProblem(blob.name, f"{error}: what stands before it is judged")
    yield parser.finish()


def _read_error(blob: Blob) -> Iterator[JobLog | InputProblem]:
    try:
        data = blob.read(elastic_error.ERROR_MAX_BYTES)
    except UnreadableError as error:
        yield InputProblem(blob.name, str(error))
        return
    log = elastic_error.parse_error(blob.name, data, origin(blob.name))
    if log is not None:
        yield log


def _is_binary(head: bytes) -> bool:
    """Pickles, ELF, images: many bytes that no terminal shows."""
    odd = sum(byte < 9 or 13 < byte < 27 for byte in head)
    return head[:1] == b"\x80" or odd * 50 > len(head) + 49
