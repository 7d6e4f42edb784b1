"""A bar on the terminal while files are read: share, files, bytes per second, time left.

Shown only on a terminal, from the first tenth of a second on and at most ten times a second, in one write per
update, so that it neither flickers nor slows the work down; its line is cleared when the work ends.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TextIO

from clusterwatch.readers.folder import Progress

_EVERY_S: Final = 0.1
_BAR_CHARS: Final = 24
_CLEAR: Final = "\r\033[K"


class Bar:
    """``with Bar(sys.stderr) as bar: folder.read(path, bar.show)``.

    Args:
        out: where it is drawn; nothing is drawn when it is no terminal.
        clock: seconds, rising.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.visible = out.isatty()
        self._out = out
        self._clock = clock
        self._begun = self._last = clock()
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._write(_CLEAR)

    def show(self, progress: Progress) -> None:
        """Draws ``progress``, unless the last drawing is younger than a tenth of a second."""
        now = self._clock()
        if self.visible and now - self._last >= _EVERY_S:
            self._last = now
            self._drawn = True
            width = max(20, shutil.get_terminal_size().columns - 1)
            self._write("\r" + line(progress, now - self._begun)[:width] + "\033[K")

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:  # the terminal went away; the verdict still has to be found
            self.visible = False


def line(progress: Progress, spent_s: float) -> str:
    """The text of the bar after ``spent_s`` seconds of work."""
    share = progress.bytes_done / progress.bytes if progress.bytes else 0.0
    full = int(share * _BAR_CHARS)
    rate = progress.bytes_done / spent_s if spent_s > 0 else 0.0
    left = f", {_duration((progress.bytes - progress.bytes_done) / rate)} left" if rate else ""
    return (
        f"reading [{'#' * full}{'.' * (_BAR_CHARS - full)}] {share:4.0%}  "
        f"{progress.files_done:,} of {progress.files:,} files, {rate / 1e6:,.0f} MB/s{left}"
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
