"""The supervisor: starts the table in order, restarts what dies, stops everything in reverse order.

One thread, one loop, no framework: a process that must outlive faults of everything else has few parts. Each
change is written to `status.json`, which `status`, `down` and the next start read.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from clusterwatch.ops.child import Child, ChildState
from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.proc import read_process
from clusterwatch.ops.processes import ProcessSpec
from clusterwatch.ops.state import StateFolder

STATUS_FILE = "status.json"
RUN_ID_VARIABLE = "CLUSTERWATCH_RUN_ID"
LOOK_EVERY_S = 0.05
LOOK_EVERY_WHEN_READY_S = 0.5
GIVE_UP_AFTER_FAILURES = 3
START_LIMIT_S = 90.0


class Supervisor:
    """Runs a process table until it is told to stop."""

    def __init__(
        self,
        state: StateFolder,
        specs: Sequence[ProcessSpec],
        env: Mapping[str, str],
        run_id: str,
        say: Callable[[str], None] = print,
    ) -> None:
        logs = state.folder("logs")
        own_env = {**env, RUN_ID_VARIABLE: run_id}
        self.state = state
        self.run_id = run_id
        self.children = {spec.name: Child(spec, own_env, logs / f"{spec.name}.log") for spec in specs}
        self.phase = "starting"
        self.error = ""
        self.start_limit_s = START_LIMIT_S
        self.extra: dict[str, str] = {}
        self._say = say
        self._stop_asked = False

    def install_signals(self) -> None:
        """SIGINT and SIGTERM ask for a clean stop, once and also when repeated; a closed terminal too."""

        def ask(number: int, frame: FrameType | None) -> None:
            self._stop_asked = True

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, ask)

    def start(self) -> bool:
        """Starts everything; True when all is ready, False when a stop was asked for meanwhile.

        Raises:
            OpsError: a required process cannot be started; everything is stopped then.
        """
        deadline_s = time.monotonic() + self.start_limit_s
        self._write()
        while not self._stop_asked:
            self.look()
            late = time.monotonic() > deadline_s
            self._give_up_on_required(late)
            if late or all(map(self._is_settled, self.children.values())):
                self._tell_late()
                break
            time.sleep(LOOK_EVERY_S)
        self.phase = "stopping" if self._stop_asked else "ready"
        self._write()
        return not self._stop_asked

    def watch(self) -> None:
        """Keeps everything running until a stop is asked for."""
        while not self._stop_asked:
            self.look()
            steady = all(child.is_up for child in self.children.values())
            time.sleep(LOOK_EVERY_WHEN_READY_S if steady else LOOK_EVERY_S)

    def stop(self) -> None:
        """Stops in waves, dependants first; what does not end in its grace is killed with its group."""
        self.phase = "stopping"
        self._write()
        remaining = dict(self.children)
        while remaining:
            needed = {name for child in remaining.values() for name in child.spec.after}
            wave = [child for name, child in remaining.items() if name not in needed]
            self._stop_wave(wave)
            for child in wave:
                del remaining[child.spec.name]
        self.phase = "stopped"
        self._write()

    def look(self) -> None:
        """Looks once at every process: starts what is due, notices what ended or became ready."""
        changed = False
        for child in self.children.values():
            if self._is_due(child):
                child.start()
                changed = True
            elif child.step():
                changed = True
                self._tell(child)
        if changed:
            self._write()

    def _is_due(self, child: Child) -> bool:
        if child.state is ChildState.BACKOFF:
            return time.monotonic() >= child.retry_at_s
        needed = (self.children[name] for name in child.spec.after if name in self.children)
        return child.state is ChildState.WAITING and all(other.is_up for other in needed)

    def _is_settled(self, child: Child) -> bool:
        """Whether waiting for it makes no sense any more: it is up, or it or what it needs keeps failing."""
        if child.is_up or child.failures_in_a_row >= GIVE_UP_AFTER_FAILURES:
            return True
        needed = [self.children[name] for name in child.spec.after if name in self.children]
        return any(not other.is_up and self._is_settled(other) for other in needed)

    def _tell(self, child: Child) -> None:
        if child.state is ChildState.BACKOFF and not self._stop_asked:
            wait_s = max(0.0, child.retry_at_s - time.monotonic())
            self._say(
                f"{child.spec.name} ended ({child.last_exit}), starts again in {wait_s:.1f} s; "
                f"log: {child.log_path}"
            )

    def _give_up_on_required(self, late: bool) -> None:
        for child in self.children.values():
            failing = child.failures_in_a_row >= GIVE_UP_AFTER_FAILURES or (late and not child.is_up)
            if child.spec.required and failing:
                reason = child.last_log_line() or child.last_exit or "it does not answer"
                self.error = f"{child.spec.name} cannot be started: {reason} (log: {child.log_path})"
                self.stop()
                self.phase = "failed"
                self._write()
                raise OpsError(self.error)

    def _tell_late(self) -> None:
        for child in self.children.values():
            if not child.is_up:
                self._say(
                    f"{child.spec.name} is not ready yet: {child.last_log_line()} (log: {child.log_path})"
                )

    def _stop_wave(self, wave: Sequence[Child]) -> None:
        for child in wave:
            child.stop()
        deadlines_s = {child.spec.name: time.monotonic() + child.spec.stop_grace_s for child in wave}
        waiting = list(wave)
        while waiting:
            for child in list(waiting):
                if child.has_ended():
                    waiting.remove(child)
                elif time.monotonic() > deadlines_s[child.spec.name]:
                    child.kill()
                    waiting.remove(child)
            time.sleep(LOOK_EVERY_S if waiting else 0)

    def _write(self) -> None:
        own = read_process(os.getpid())
        self.state.write_json(
            STATUS_FILE,
            {
                "run_id": self.run_id,
                "phase": self.phase,
                "error": self.error,
                "supervisor": {"pid": os.getpid(), "start_ticks": own.start_ticks if own else 0},
                "processes": {name: child.as_record() for name, child in self.children.items()},
                **self.extra,
            },
        )
