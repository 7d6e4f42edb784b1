"""The files ``analyze`` writes beside its answer. One that cannot be written never costs the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from clusterwatch.cli.report.files import TargetError, whole_file

EXIT_USAGE: Final = 64
EXIT_NO_INPUT: Final = 66


def write(path: Path, fill: Callable[[IO[bytes]], object]) -> int:
    """Writes one file and says on standard error what became of it.

    Returns:
        0, or 66 where its folder does not exist, or 64 where it cannot be written there.
    """
    try:
        with whole_file(path) as file:
            fill(file)
    except TargetError as error:
        print(f"clusterwatch: {error}", file=sys.stderr)
        return EXIT_NO_INPUT if error.missing else EXIT_USAGE
    print(f"clusterwatch: wrote {path}", file=sys.stderr)
    return 0
