"""What NCCL's RAS answered to ``STATUS``: which ranks it lacks, which are behind, which failed.

In: the answer, text (NCCL 2.24 on) or JSON (2.28.7 on). Out: ``RasStatus``, bounded; what cannot be read is
said in ``damaged``. Ranks are those of a communicator, which are global ranks in the job's first one only.
Counts of operations that differ are normal while a job moves: they mean something only at a stall.
Source: docs/userguide/source/troubleshooting/ras.rst and src/ras/client_support.cc of NCCL 2.29.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

COMMUNICATORS_MAX: Final = 32
"""Communicators with something wrong that are told one by one."""
RANKS_MAX: Final = 64
PROCESSES_MAX: Final = 32
WORD_MAX_CHARS: Final = 128
LINE_MAX_CHARS: Final = 1_024
_COUNT_MAX: Final = 10**9

Word = Annotated[str, Meta(max_length=WORD_MAX_CHARS)]
Count = Annotated[int, Meta(ge=0, le=_COUNT_MAX)]
Ranks = Annotated[list[Count], Meta(max_length=RANKS_MAX)]


class Communicator(msgspec.Struct, omit_defaults=True):
    """One that has something wrong. ``name`` is NCCL's hash as in its log; lists hold the first ranks."""

    name: Word
    missing_count: Count = 0
    missing: Ranks = []
    """ranks of which RAS got no word"""
    behind_count: Count = 0
    behind: Ranks = []
    """ranks that launched fewer operations of one kind than others"""
    failed_count: Count = 0
    failed: Ranks = []
    """ranks with an error of NCCL"""


class RasStatus(msgspec.Struct, omit_defaults=True):
    """What an answer says. ``problems``: NCCL's own words (INCOMPLETE, DEAD, ERROR, MISMATCH, TIMEOUT)."""

    nccl_version: Word = ""
    communicator_count: Count | None = None
    problems: Annotated[list[Word], Meta(max_length=8)] = []
    communicators: Annotated[list[Communicator], Meta(max_length=COMMUNICATORS_MAX)] = []
    left_out_count: Count = 0
    """communicators with something wrong that are not told"""
    processes: Annotated[list[Word], Meta(max_length=PROCESSES_MAX)] = []
    """processes that do not answer or are dead, as NCCL names them"""
    damaged: Word = ""
    """why this is not all of the answer; empty when it is"""

    @property
    def sentence(self) -> str:
        """For people; says nothing that the answer does not."""
        parts = [
            f"{total} rank{'s'[: total != 1]} {word}"
            for word, total in (
                ("missing", sum(one.missing_count for one in self.communicators)),
                ("behind", sum(one.behind_count for one in self.communicators)),
                ("with an error", sum(one.failed_count for one in self.communicators)),
            )
            if total
        ]
        if self.processes:
            parts.append(f"{len(self.processes)} processes without an answer")
        if not parts and self.problems:
            parts.append(", ".join(self.problems))
        if not parts:
            parts.append("an answer that cannot be read" if self.damaged else "no fault seen")
        known = self.communicator_count
        return ", ".join(parts) + ("" if known is None else f" (of {known} communicators)")


PROBLEMS: Final = ("INCOMPLETE", "DEAD", "ERROR", "MISMATCH", "TIMEOUT")


def parse(text: str) -> RasStatus:
    """An answer of either form; never raises. Cost: linear in its length."""
    start = text[:4_096].lstrip()
    return _from_json(text) if start.startswith("{") else _from_text(text)


# --- JSON ------------------------------------------------------------------------------------------------


class _RankState(msgspec.Struct):
    init_state: int = 0
    async_error: int = 0
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int = 0
    cuda_dev: int = 0
    status: _RankState = msgspec.field(default_factory=_RankState)
    collective_counts: dict[str, int] = {}


class _Communicator(msgspec.Struct):
    hash: str = ""
    size: int = 0
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []
    missing_ranks_count: int = 0


class _Network(msgspec.Struct):
    timeouts_count: int = 0


class _Answer(msgspec.Struct):
    nccl_version: str = ""
    communicators_count: int | None = None
    communicators: list[_Communicator] = []
    ras: _Network = msgspec.field(default_factory=_Network)


_decoder: Final = msgspec.json.Decoder(_Answer)
_NO_COMMA: Final = re.compile(r"}(\s*){")
"""Some versions omit it between two missing ranks."""
_NO_ERROR: Final = (0, 7)
"""ncclSuccess, ncclInProgress"""


def _from_json(text: str) -> RasStatus:
    try:
        answer = _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        try:
            answer = _decoder.decode(_NO_COMMA.sub(r"},\1{", text))
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            return RasStatus(damaged=_word(f"no JSON of RAS: {error}"))
    status = RasStatus(_word(answer.nccl_version), _count(answer.communicators_count))
    problems: set[str] = {"TIMEOUT"} if answer.ras.timeouts_count > 0 else set()
    gone: dict[str, bool] = {}
    for one in answer.communicators:
        for rank in one.missing_ranks:
            dead = gone.setdefault(_process(rank), rank.status.considered_dead)
            problems.add("DEAD" if dead else "INCOMPLETE")
        failed = [rank.rank for rank in one.ranks if not _is_sound(rank.status)]
        missing = [rank.rank for rank in one.missing_ranks]
        found = _communicator(one.hash, missing, _behind(one.ranks), failed)
        found.missing_count = max(found.missing_count, _count(one.missing_ranks_count) or 0)
        problems |= {
            word for word, count in (("ERROR", found.failed_count), ("MISMATCH", found.behind_count)) if count
        }
        _add(status, found)
    status.processes = list(gone)[:PROCESSES_MAX]
    status.problems = [word for word in PROBLEMS if word in problems]
    return status


def _is_sound(state: _RankState) -> bool:
    return state.init_state in _NO_ERROR and state.async_error in _NO_ERROR


def _behind(ranks: list[_Rank]) -> list[int]:
    """Ranks with fewer operations of any kind than the first of their communicator."""
    most: dict[str, int] = {}
    for rank in ranks:
        for operation, count in rank.collective_counts.items():
            most[operation] = max(most.get(operation, 0), count)
    return [
        rank.rank
        for rank in ranks
        if any(count < most[operation] for operation, count in rank.collective_counts.items())
    ]


def _process(rank: _Rank) -> str:
    return _word(f"process {rank.pid} on node {rank.host} managing GPU {rank.cuda_dev}")


# --- text ------------------------------------------------------------------------------------------------

_VERSION: Final = re.compile(r"NCCL version (\S{1,64})")
_BLOCK: Final = re.compile(
    r"(?:#(?P<group>\d{1,9})-(?P<number>\d{1,9}) \((?P<hash>[0-9a-f]{1,32})\) )?"
    rf"(?P<kind>{'|'.join(PROBLEMS)})"
)
_GROUP_ROW: Final = re.compile(r" {0,8}\d{1,9} {1,12}(\d{1,9}) (?: *\S{1,24}){4} +[A-Z,]{1,64} +[A-Z,]{1,64}")
_RANK: Final = re.compile(r"  Rank (\d{1,9}) (.{0,200})")
_MISSING_RANK: Final = re.compile(r"  The missing ranks?: ([\d, -]{1,512})")
_MISSING: Final = re.compile(r"  Missing communicator data from (\d{1,9}) ranks?")
_FAILED: Final = re.compile(r"  (?:Initialization|Asynchronous) errors? on (\d{1,9}) ranks?")
_LAUNCHED: Final = re.compile(r"  (\d{1,9}) ranks have launched up to operation (\d{1,19})")
_LAUNCHED_NONE: Final = re.compile(r"  (\d{1,9}) ranks have not launched any operations")
_RANK_LAUNCHED: Final = re.compile(r"has launched up to operation (\d{1,19})")
_PROCESS: Final = re.compile(r"  (Process \d{1,12} on node .{1,128})")


def _from_text(text: str) -> RasStatus:
    lines = [line.rstrip()[:LINE_MAX_CHARS] for line in text.splitlines()]
    version = _VERSION.search(text[:4_096])
    groups = [int(row[1]) for line in lines if (row := _GROUP_ROW.fullmatch(line))]
    status = RasStatus(version[1] if version else "", _count(sum(groups)) if groups else None)
    problems: set[str] = set()
    told: dict[str, _Told] = {}
    for kind, name, body in _blocks(lines):
        problems.add(kind)
        if name:
            told.setdefault(name, _Told()).learn(kind, body)
        else:
            gone = [_word(match[1]) for line in body if (match := _PROCESS.fullmatch(line))]
            status.processes = list(dict.fromkeys([*status.processes, *gone]))[:PROCESSES_MAX]
    for name, one in told.items():
        _add(status, one.communicator(name))
    status.problems = [word for word in PROBLEMS if word in problems]
    if version is None and not groups and not problems:
        status.damaged = "no words of RAS in it"
    return status


def _blocks(lines: list[str]) -> Iterable[tuple[str, str, list[str]]]:
    """(kind, hash of the communicator or nothing, indented lines below it)."""
    head: re.Match[str] | None = None
    body: list[str] = []
    for line in [*lines, ""]:
        if head is not None and line.startswith("  "):
            body.append(line)
            continue
        if head is not None:
            yield head["kind"], head["hash"] or "", body
        head, body = _BLOCK.fullmatch(line), []


class _Told:
    """What the blocks of one communicator say."""

    def __init__(self) -> None:
        self.missing: list[int] = []
        self.failed: list[int] = []
        self.launched: list[tuple[int, list[int], int]] = []
        """per count of operations: it, ranks that are named, how many have it"""
        self.behind: list[int] = []
        self.behind_count = self.missing_count = self.failed_count = 0

    def learn(self, kind: str, body: list[str]) -> None:
        for line in body:
            if match := _MISSING.fullmatch(line):
                self.missing_count = int(match[1])
            elif match := _MISSING_RANK.fullmatch(line):
                self.missing += _numbers(match[1])
            elif match := _FAILED.fullmatch(line):
                self.failed_count += int(match[1])
            elif match := _LAUNCHED.fullmatch(line):
                self.launched.append((int(match[2]), [], int(match[1])))
            elif match := _LAUNCHED_NONE.fullmatch(line):
                self.launched.append((0, [], int(match[1])))
            elif match := _RANK.fullmatch(line):
                self._rank(kind, int(match[1]), match[2])
            elif line.endswith("operation counts"):
                self._close_operation()
        self._close_operation()

    def _rank(self, kind: str, rank: int, rest: str) -> None:
        if kind == "INCOMPLETE":
            self.missing.append(rank)
        elif kind == "ERROR":
            self.failed.append(rank)
        elif match := _RANK_LAUNCHED.match(rest):
            self.launched.append((int(match[1]), [rank], 1))
        elif rest.startswith("has not launched"):
            self.launched.append((0, [rank], 1))
        elif self.launched:
            self.launched[-1][1].append(rank)

    def _close_operation(self) -> None:
        """Of one kind of operation all are told now: those below the highest count are behind."""
        most = max((count for count, _, _ in self.launched), default=0)
        for count, ranks, how_many in self.launched:
            if count < most:
                self.behind += ranks
                self.behind_count += how_many
        self.launched = []

    def communicator(self, name: str) -> Communicator:
        found = _communicator(name, self.missing, self.behind, self.failed)
        found.missing_count = max(found.missing_count, _count(self.missing_count) or 0)
        found.behind_count = max(found.behind_count, _count(self.behind_count) or 0)
        found.failed_count = max(found.failed_count, _count(self.failed_count) or 0)
        return found


def _numbers(text: str) -> list[int]:
    """``1, 2, 5-7`` in full, as far as ranks are told."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            low = int(first)
            found += range(low, min(int(last or first), low + RANKS_MAX) + 1)
    return found


# --- both ------------------------------------------------------------------------------------------------


def _communicator(name: str, missing: list[int], behind: list[int], failed: list[int]) -> Communicator:
    lists = [
        sorted({rank for rank in ranks if 0 <= rank <= _COUNT_MAX}) for ranks in (missing, behind, failed)
    ]
    return Communicator(
        _word(name.removeprefix("0x")),
        len(lists[0]), lists[0][:RANKS_MAX],
        len(lists[1]), lists[1][:RANKS_MAX],
        len(lists[2]), lists[2][:RANKS_MAX],
    )  # fmt: skip


def _add(status: RasStatus, found: Communicator) -> None:
    if not (found.missing_count or found.behind_count or found.failed_count):
        return
    if len(status.communicators) < COMMUNICATORS_MAX:
        status.communicators.append(found)
    else:
        status.left_out_count += 1


def _word(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:WORD_MAX_CHARS])


def _count(number: int | None) -> int | None:
    return None if number is None else min(max(number, 0), _COUNT_MAX)
