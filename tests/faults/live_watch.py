"""What pages of a cluster are told, frame by frame.

A thread looks ten times a second at the newest live frame. Where the thread itself was held up, the machine
was: frames around such a moment say nothing about the product.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import redis

from clusterwatch.store import frames, valkey
from tests.e2e.product import Product

LOOK_EVERY_S = 0.1
HELD_UP_S = 0.5
UNSURE_S = 4.0
"""After a hold-up nothing is judged for so long: longer than it takes a node to count as silent."""


@dataclass(frozen=True)
class Shown:
    """One frame of ``cluster:<id>``."""

    epoch: str
    number: int
    at_ms: int
    silent: frozenset[str]
    """names of nodes shown as silent"""
    unsure: bool
    """the machine was held up shortly before"""


@dataclass
class LiveWatch:
    """Use as a context manager; ``frames`` grows while inside."""

    product: Product
    cluster_id: int
    frames: list[Shown] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        url = (self.product.folder / "secrets" / "valkey_url").read_text().strip()
        self._valkey = redis.Redis.from_url(url)
        self._thread = threading.Thread(target=self._run, name="live-watch", daemon=True)
        self._held_up_s = float("-inf")

    def __enter__(self) -> LiveWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        self._valkey.close()

    def wrongly_silent(self, node: str) -> list[Shown]:
        """Frames that show the node as silent although the machine ran smoothly."""
        return [shown for shown in self.frames if node in shown.silent and not shown.unsure]

    def epochs(self) -> list[str]:
        """Whose frames were seen, in order, each run of one publisher once."""
        runs: list[str] = []
        for shown in self.frames:
            if not runs or runs[-1] != shown.epoch:
                runs.append(shown.epoch)
        return runs

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._stop.wait(LOOK_EVERY_S):
            now_s = time.monotonic()
            if now_s - before_s > HELD_UP_S:
                self._held_up_s = now_s
            before_s = now_s
            self._look(now_s)

    def _look(self, now_s: float) -> None:
        body: Any = self._valkey.get(valkey.frame_full_key(f"cluster:{self.cluster_id}"))
        if body is None:
            return
        frame: Mapping[str, Any] = frames.decode_frame(body)
        shown = Shown(
            epoch=frame["epoch"],
            number=frame["number"],
            at_ms=frame["at_ms"],
            silent=frozenset(row["name"] for row in frame["full"]["silent"].values()),
            unsure=now_s - self._held_up_s < UNSURE_S,
        )
        newest = self.frames[-1] if self.frames else None
        if newest is None or (newest.epoch, newest.number) != (shown.epoch, shown.number):
            self.frames.append(shown)
