"""A checkpoint directory on storage that gets slow: what the job writes goes through slowly read pipes.

In: paths the job will write. Out: real ``write(2)`` calls that block in the kernel while the other end takes
so many bytes a second and no more, as on a file system whose server is busy. No page cache lies between.
"""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 64 * 1024
"""What is taken at a time: as much as a pipe holds."""


class SlowStorage:
    """Takes what is written to ``paths``. Use as a context manager; fast until ``bytes_per_s`` is set."""

    def __init__(self, paths: list[Path]) -> None:
        self.bytes_per_s = 0
        self.taken_bytes = 0
        self._ends: list[int] = []
        for path in paths:
            os.mkfifo(path)
            # Open for both, so that the end of one checkpoint is not the end of the pipe.
            self._ends.append(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._take, args=(end,), daemon=True) for end in self._ends]

    def __enter__(self) -> SlowStorage:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(10)
        for end in self._ends:
            os.close(end)

    def _take(self, end: int) -> None:
        while not self._stopping.is_set():
            if not select.select([end], [], [], 0.2)[0]:
                continue
            taken = len(os.read(end, CHUNK_BYTES))
            self.taken_bytes += taken
            if self.bytes_per_s:
                time.sleep(taken / self.bytes_per_s)
