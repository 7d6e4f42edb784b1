"""A process that behaves like a rank with the hook loaded: ``hook_process SOCKET RANK MODE [DUMP]``.

Modes: ``run`` reports for ever, ``quiet`` says hello only, ``raise`` ends with an exception, ``finish``
normally, ``burst`` sends phases as fast as it can and prints how many.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from collectors.hook import protocol

STEP_S = 0.2


class Rank:
    """One fake rank."""

    def __init__(self, path: str, rank: int, dump: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._dump = dump
        self.send("hello", v=1, pid=os.getpid(), rank=rank, world_size=4, job="job-1", backend="gloo")
        self.send(
            "groups", groups=[{"index": 0, "name": "default_pg", "desc": "world", "ranks": [0, 1, 2, 3]}]
        )
        threading.Thread(target=self._answer, daemon=True).start()

    def send(self, k: str, blob: bytes = b"", **fields: Any) -> None:
        self._socket.sendall(protocol.pack({"k": k, **fields}, blob))

    def _answer(self) -> None:
        with contextlib.suppress(ConnectionError):
            self._listen()

    def _listen(self) -> None:
        reader = protocol.Reader()
        while data := self._socket.recv(65_536):
            for header, _ in reader.feed(data):
                if header["k"] == "want" and header["what"] == "stacks":
                    threads = [{"name": "MainThread", "frames": ["main (x.py:1)"], "main": True}]
                    self.send("stacks", id=header["id"], threads=threads)
                elif header["k"] == "want":
                    self.send("dump", self._dump, id=header["id"], recorder="generic", format="pickle")

    def wait_here_for_ever(self, mode: str) -> None:
        for step in range(1_000_000):
            time.sleep(STEP_S)
            now_ns = time.time_ns()
            if mode == "raise" and step > 3:
                self.send("exception", type="ValueError", message="boom", traceback="Traceback", t_ns=now_ns)
                sys.exit(3)
            if mode == "finish" and step > 3:
                self.send("finish", t_ns=now_ns)
                sys.exit(0)
            if mode != "quiet":
                numbers = [[0, step, step, step]]
                self.send("progress", t_ns=now_ns, step=step, phase="train", phase_since_ns=1, groups=numbers)
                self.send("steps", step=[step], end_ns=[now_ns], duration_s=[STEP_S], data_wait_s=[None])

    def burst(self, seconds: float) -> None:
        """Numbered phases at about 1,000 a second; the last number is printed."""
        end_s = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end_s:
            number += 1
            detail = str(number)
            self.send(
                "phase", t_ns=time.time_ns(), phase="train", before="train", before_s=0.0, detail=detail
            )
            time.sleep(0.001)
        print(number, flush=True)


def main() -> None:
    path, rank, mode = sys.argv[1:4]
    dump = Path(sys.argv[4]).read_bytes() if len(sys.argv) > 4 else b"not a dump"
    process = Rank(path, int(rank), dump)
    if mode == "burst":
        process.burst(3.0)
    else:
        process.wait_here_for_ever(mode)


if __name__ == "__main__":
    main()
