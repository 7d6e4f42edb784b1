"""The last words of a process: an exception nobody caught, or a normal end.

In: ``sys.excepthook``, ``threading.excepthook``, ``atexit``, each chained to what was there before.
Out: the protocol's ``exception`` and ``finish``. No signal handler: a signal's death is told by its parent
(``clusterwatch-run``) and by the agent's pidfd.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

TEXT_MAX_CHARS = 16_000

Report = Callable[[dict[str, Any]], None]


class LastWords:
    """Chains the interpreter's hooks once; ``report`` gets finished protocol headers."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._failed = False
        self._before = sys.excepthook
        self._before_in_thread = threading.excepthook
        sys.excepthook = self._main_failed
        threading.excepthook = self._thread_failed
        atexit.register(self._ends)

    def _main_failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._failed = True
        self._tell(kind, error, trace, "")
        self._before(kind, error, trace)

    def _thread_failed(self, args: Any) -> None:
        if args.exc_type is not SystemExit:
            name = args.thread.name if args.thread is not None else "thread"
            self._tell(args.exc_type, args.exc_value, args.exc_traceback, name)
        self._before_in_thread(args)

    def _tell(
        self,
        kind: type[BaseException],
        error: BaseException | None,
        trace: TracebackType | None,
        thread: str,
    ) -> None:
        try:
            text = "".join(traceback.format_exception(kind, error, trace))
            header: dict[str, Any] = {
                "k": "exception",
                "type": kind.__name__,
                "message": str(error)[:TEXT_MAX_CHARS],
                "traceback": text[-TEXT_MAX_CHARS:],
                "t_ns": time.time_ns(),
            }
            if thread:
                header["thread"] = thread
            self._report(header)
        except Exception:  # noqa: BLE001 - a strange __str__ must not hide the job's own exception
            return

    def _ends(self) -> None:
        if not self._failed:
            self._report({"k": "finish", "t_ns": time.time_ns()})
        self._report({"k": "stop"})
