"""The files ``analyze`` writes beside its answer. One that cannot be written never costs the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Final

from clusterwatch.analysis.sentence import noun
from clusterwatch.cli.report.files import TargetError, whole_file
from collectors.formats.columns import TraceColumns


class SourceError(Exception):
    """The input could not be read a second time; the text says why."""


EXIT_USAGE: Final = 64
EXIT_NO_INPUT: Final = 66


def write(path: Path, fill: Callable[[IO[bytes]], object]) -> int:
    """Writes one file and says on standard error what became of it.

    Returns:
        0, or 66 where its folder or its input does not exist, or 64 where it cannot be written there.
    """
    try:
        with whole_file(path) as file:
            fill(file)
    except TargetError as error:
        print(f"clusterwatch: {error}", file=sys.stderr)
        return EXIT_NO_INPUT if error.missing else EXIT_USAGE
    except SourceError as error:
        print(f"clusterwatch: {path} is not written: {error}", file=sys.stderr)
        return EXIT_NO_INPUT
    print(f"clusterwatch: wrote {path}", file=sys.stderr)
    return 0


def read_again(source: Path, rings: Iterator[TraceColumns], ranks: Collection[int]) -> Iterator[TraceColumns]:
    """Passes rings on; tells trouble with the input from trouble with the output, and which rings are gone.

    Raises:
        SourceError: the input cannot be listed or read any more.
    """
    seen = set()
    try:
        for ring in rings:
            seen.add(ring.rank)
            yield ring
    except OSError as error:
        raise SourceError(f"{source} cannot be read again: {error.strerror or error}") from error
    if gone := set(ranks) - seen:
        print(f"clusterwatch: dumps of {noun(gone)} changed meanwhile; the trace lacks them", file=sys.stderr)
