"""Reads layouts beside pulse's ticks: a slow or absent database delays no live frame.

In: which jobs are watched, once a tick. Out: the newest layouts that were read; while PostgreSQL is away the
last ones stay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from django.db import Error as DatabaseFault
from django.db import close_old_connections, connection

from clusterwatch.ingest.layout import ClusterLayout, JobLayout, Layouts

log = logging.getLogger("clusterwatch.pulse")

FIRST_WAIT_S: Final = 2.0
"""A new leader waits so long for its first layouts: a frame without any would show an empty cluster."""


class LayoutKeeper:
    """The thread of a leading pulse."""

    def __init__(self) -> None:
        self._layouts = Layouts()
        self._watched: frozenset[int] = frozenset()
        self._asked, self._read = threading.Event(), threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="pulse-layouts", daemon=True)
        self._thread.start()

    @property
    def clusters(self) -> Mapping[int, ClusterLayout]:
        return self._layouts.clusters

    @property
    def jobs(self) -> Mapping[int, JobLayout]:
        return self._layouts.jobs

    def ask(self, watched_jobs: frozenset[int]) -> None:
        """Has them read again; returns at once but for the first time."""
        self._watched = watched_jobs
        self._asked.set()
        self._read.wait(FIRST_WAIT_S)

    def close(self) -> None:
        """Ends the thread after what it reads now."""
        self._closing = True
        self._asked.set()

    def _run(self) -> None:
        try:
            while self._asked.wait() and not self._closing:
                self._asked.clear()
                self._refresh()
                self._read.set()
        finally:
            connection.close()

    def _refresh(self) -> None:
        close_old_connections()
        try:
            self._layouts.refresh(self._watched)
        except DatabaseFault as fault:
            log.warning("database_away frames go on with the last known layout reason=%s", fault)
            connection.close()
        except Exception:  # noqa: BLE001  the thread's own boundary: pages go on with what is known
            log.exception("layouts_unread")
