"""How old the state is that a browser sees: listens to a job's live frames as a web process does.

The load writes into each rank's step the time its frame was made, in ms; a live frame holds the newest step
and how far each rank is behind it, so every frame tells the age of every rank.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import numpy as np

from clusterwatch.store import frames, valkey

WATCH_FOR_S: Final = 8.0


class StateAge(threading.Thread):
    """Collects ages in ms until ``stop``."""

    def __init__(self, job_id: int) -> None:
        super().__init__(daemon=True)
        self._topic = f"job:{job_id}"
        self._stopping = threading.Event()
        self._taking = threading.Lock()
        self._state: dict[str, Any] | None = None
        self.ages_ms: list[float] = []
        self.frames = 0

    def begin(self) -> None:
        """Forgets what was seen up to now; the state itself is known, so the next change counts."""
        with self._taking:
            self.ages_ms, self.frames = [], 0

    def stop(self) -> None:
        self._stopping.set()
        self.join(5)

    def run(self) -> None:
        """Follows the topic."""
        client: Any = valkey.client()
        subscription = client.pubsub(ignore_subscribe_messages=True)
        subscription.subscribe(valkey.frame_channel(self._topic))
        marked_s = 0.0
        while not self._stopping.is_set():
            if time.monotonic() - marked_s > WATCH_FOR_S / 2:
                marked_s = time.monotonic()
                valkey.client().zadd(valkey.watched_key(), {self._topic: time.time() + WATCH_FOR_S})
            message = subscription.get_message(timeout=0.5)
            if message is not None:
                self._take(message["data"], time.time() * 1e3)
        subscription.close()

    def _take(self, body: bytes, at_ms: float) -> None:
        content = frames.decode_frame(body)
        if "full" in content:
            self._state = frames.decode_content(content["full"])
        elif self._state is not None:
            delta = content["delta"]
            delta["set"] = frames.decode_content(delta.get("set", {}))
            self._state = frames.apply_delta(self._state, delta)
        else:
            return
        behind = np.array([np.nan if n is None else n for n in self._state["steps_behind"]], float)
        with self._taking:
            self.frames += 1
            if self._state["step"] is not None:
                self.ages_ms += (at_ms - (self._state["step"] - behind)).tolist()

    def percentile_s(self, percent: float) -> float | None:
        """Of the ages of ranks that ever reported."""
        known = np.array(self.ages_ms)
        known = known[np.isfinite(known)]
        return round(float(np.percentile(known, percent)) / 1e3, 3) if len(known) else None
