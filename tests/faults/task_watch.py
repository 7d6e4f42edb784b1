"""Tasks sent to the product's workers, and what became of them, by Celery's own events."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from celery import Celery

from clusterwatch.project import environment
from tests.e2e.product import Product


class TaskWatch:
    """Use as a context manager; workers tell of their tasks while inside."""

    def __init__(self, product: Product, transport_options: dict[str, Any]) -> None:
        """``transport_options``: as the product's settings have them, the prefix of keys above all."""
        state_dir = {"CLUSTERWATCH_STATE_DIR": str(product.folder)}
        self._app = Celery("watch", broker=environment.celery_broker_url(state_dir), set_as_current=False)
        self._app.conf.broker_transport_options = transport_options
        self._app.conf.task_ignore_result = True
        self._done: dict[str, tuple[str, str]] = {}
        """task id -> (worker, what it returned)"""
        self._workers: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="task-watch", daemon=True)

    def __enter__(self) -> TaskWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        self._app.control.disable_events()
        self._app.close()

    def send(self, name: str, *arguments: Any) -> str:
        """Sends a task and returns its id."""
        task_id = uuid.uuid4().hex
        self._app.send_task(name, args=arguments, task_id=task_id)
        return task_id

    def taken_by(self, workers: int, name: str, *arguments: Any) -> bool | None:
        """Whether so many workers have finished a task since the watch began; if not, sends more to take."""
        if len(self._workers) >= workers:
            return True
        self._app.control.enable_events()  # again and again: a worker may have started since
        for _ in range(2 * workers):
            self.send(name, *arguments)
        return None

    def count_of(self, tasks: Sequence[str], returned: str) -> int:
        """How many of the tasks have ended and returned this."""
        return sum(self._done.get(task, ("", ""))[1] == returned for task in tasks)

    def _receive(self) -> None:
        with self._app.connection() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"task-succeeded": self._succeeded})
            while not self._stop.is_set():
                try:
                    receiver.capture(limit=None, timeout=1.0, wakeup=False)
                except TimeoutError:
                    continue

    def _succeeded(self, event: dict[str, Any]) -> None:
        self._workers.add(str(event["hostname"]))
        self._done[str(event["uuid"])] = (str(event["hostname"]), str(event.get("result")))
