"""The hook's one thread: once a second it tells the agent how far this rank is, on request what it waits in.

In: ``Watch``, the step counter, torch's groups and recorders, the agent's requests.
Out: protocol frames. Never raises into the job; after ``ERRORS_MAX`` failures in a row it gives up.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from . import identity, protocol, stacks, wrappers
from .allocator import Allocator
from .closely import Closely
from .groups import GroupTable, operations
from .link import Link
from .phases import Phases
from .recorder import Recorder, Status, choose, find
from .steps import StepCounter
from .watch import Operations, Watch

BLIND_TO_P2P = "p2p on gloo: the hook came after torch"
BLIND_TO_WAITS = "waiting in collectives: "
"""and why, in the words of ``marks``"""
BLIND_TO_WAITS_LATE = "waiting in collectives: the hook came after torch"
TICK_S = 1.0
ERRORS_MAX = 10
LAST_WORDS_S = 0.2
"""How long a dying process may wait for its last frame to leave."""
JOIN_S = 1.0
WORDS_EVERY_S = 60.0
"""A change of what is blind is a new hello; not more often than this."""
SEQUENCE_GROUPS_MAX = 4
"""The step counter adds the sequence numbers of so many groups; a period shows in any of them."""


class Session:
    """Watches one process; ``begin`` for each world, ``report`` from dying threads."""

    def __init__(self, torch: Any, c10d: Any, watch: Watch, socket_path: str) -> None:
        self._torch = torch
        self._watch = watch
        self._tested = wrappers.is_tested(str(torch.__version__))
        self._table = GroupTable(c10d)
        self._recorders: list[Recorder] = find()
        self._statuses: dict[str, Status] = {}
        self._closely = Closely(torch, watch, self._table)
        self.steps = StepCounter(watch, self._operations, self._closely.turn) if self._tested else None
        self._started_ns = identity.started_ns()
        self._phases = Phases(watch, self.steps, self._started_ns)
        self._hello: dict[str, Any] = {}
        self._generation = -1
        self._gpu_told = False
        self._words_told, self._words_next_s = "", 0.0
        self._errors = 0
        self._stopping = False
        self._thread_s = 0.0
        self._wakes = 0
        self._link = Link(socket_path, self._opening)
        self._counts_p2p = False
        self._allocator = Allocator(torch)
        self._waker, self._wake = socket.socketpair()
        self._waker.setblocking(False)
        self._wake.setblocking(False)
        self._poller = select.poll()
        self._poller.register(self._waker.fileno(), select.POLLIN)
        self._polled: tuple[int, int] | None = None
        """file and events of the link as the poller has them"""
        self._thread = threading.Thread(target=self._run, name="clusterwatch-hook", daemon=True)

    # --- called by the job's threads -------------------------------------------------------------

    def begin(self, init: Mapping[str, Any], counts_p2p: bool) -> None:
        """A world is about to be made.

        Args: ``init`` arguments of init_process_group by name; ``counts_p2p`` sends and receives are noted.
        """
        self._counts_p2p = counts_p2p
        environ = os.environ
        self._generation += 1
        self._watch.torn_down = None
        rank = init.get("rank", -1)
        size = init.get("world_size", -1)
        blind = [] if counts_p2p else [BLIND_TO_P2P, BLIND_TO_WAITS_LATE]
        self._watch.operations = self._operations if counts_p2p else None
        if not self._tested:
            blind = [f"torch {self._torch.__version__} untested: progress only"]
        self._hello = {
            "k": "hello",
            "v": protocol.VERSION,
            "pid": os.getpid(),
            "rank": rank if isinstance(rank, int) and rank >= 0 else identity.integer(environ.get("RANK")),
            "world_size": size
            if isinstance(size, int) and size > 0
            else identity.integer(environ.get("WORLD_SIZE")),
            "local_rank": identity.integer(environ.get("LOCAL_RANK")),
            "job": identity.job_id(environ),
            "attempt": identity.attempt(environ),
            "world": identity.world_name(environ, init, self._generation),
            "role": environ.get("CLUSTERWATCH_ROLE", environ.get("ROLE_NAME", "")),
            "torch": str(self._torch.__version__),
            "backend": str(init.get("backend") or ""),
            "started_ns": self._started_ns,
            "command": identity.command(),
            "blind": blind,
            "job_name": environ.get("CLUSTERWATCH_JOB_NAME", environ.get("SLURM_JOB_NAME", "")),
            "user": identity.user(),
            "labels": identity.labels(environ),
        }
        if self._generation:
            self._link.close()  # a new world is a new rank: it says hello again
        self._speak()

    def world_is_up(self, rank: int, size: int) -> None:
        """``init_process_group`` returned: what it settled is better than what the environment said."""
        if (self._hello["rank"], self._hello["world_size"]) != (rank, size):
            self._hello.update(rank=rank, world_size=size)
            self._link.close()
        self._speak()

    def _speak(self) -> None:
        """Starts the thread as soon as this process knows its rank, and lets it look now."""
        if self._hello["rank"] is None or self._hello["world_size"] is None:
            return  # init_process_group will settle it
        if not self._thread.is_alive():
            self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Lets the thread look now instead of at its next tick."""
        try:
            self._wake.send(b"w")
        except OSError:
            return  # it is being woken already, or the process ends

    def report(self, header: dict[str, Any]) -> None:
        """Last words of the process, flushed within ``LAST_WORDS_S``; ``stop`` ends the thread."""
        if header["k"] == "stop":
            self._stopping = True
            self.wake()
            if self._thread is not threading.current_thread() and self._thread.is_alive():
                self._thread.join(JOIN_S)
            return
        self._link.send(header)
        self._link.flush(LAST_WORDS_S)

    def forget(self) -> None:
        """For a forked child: no thread runs here and nothing may be said."""
        self._link.forget()
        self._waker.close()
        self._wake.close()

    def _operations(self) -> Operations:
        on_stream = self._watch.on_stream or self._torch.cuda.is_initialized()
        is_timed = self._counts_p2p and not on_stream
        return operations(self._table.groups[:SEQUENCE_GROUPS_MAX], self._watch, is_timed)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._stopping and self._errors < ERRORS_MAX:
            try:
                if time.monotonic() >= next_s:
                    self._tick()
                    next_s = max(next_s + TICK_S, time.monotonic() + TICK_S / 2)
                self._wait(next_s)
                self._errors = 0
            except Exception as error:  # noqa: BLE001 - boundary of the loop: the job must not notice us
                self._errors += 1
                if self._errors == ERRORS_MAX:
                    sys.stderr.write(f"clusterwatch: the hook gives up: {error!r}\n")
                time.sleep(TICK_S)
            self._thread_s = time.thread_time()
        self._watch.active = False
        self._link.flush(LAST_WORDS_S)
        self._link.close()

    def _wait(self, until_s: float) -> None:
        """Sleeps until ``until_s``, the agent's next word, or ``wake``."""
        self._link.pump()
        self._follow_link()
        self._wakes += 1
        for ready, events in self._poller.poll(max(0.0, until_s - time.monotonic()) * 1000):
            if ready == self._waker.fileno():
                self._drain_waker()
            elif events & ~select.POLLOUT:
                for header in self._link.receive():
                    self._answer(header)

    def _follow_link(self) -> None:
        """Keeps the poller on the link's present file, for writing only while something waits."""
        fd = self._link.fileno()
        events = select.POLLIN | (select.POLLOUT if self._link.wants_write() else 0)
        wanted = None if fd is None else (fd, events)
        if wanted == self._polled:
            return
        if self._polled is not None:
            self._poller.unregister(self._polled[0])
        if wanted is not None:
            self._poller.register(*wanted)
        self._polled = wanted

    def _drain_waker(self) -> None:
        self._waker.recv(64)
        if not self._stopping:
            self._link.ensure()
            self._tell_groups()

    def _opening(self) -> list[dict[str, Any]]:
        """Frames that open every connection: who this is and which groups it has."""
        index, uuid = self._gpu()
        self._gpu_told = uuid is not None
        self._table.refresh()
        blind = list(self._hello["blind"])
        self._words_told = self._closely.marks.words
        if self._words_told and self._counts_p2p and self._tested:
            blind.append(BLIND_TO_WAITS + self._words_told)
        return [{**self._hello, "gpu_index": index, "gpu_uuid": uuid, "blind": blind}, self._groups_frame()]

    def _gpu(self) -> tuple[int | None, str | None]:
        return identity.gpu(self._torch, os.environ)

    def _groups_frame(self) -> dict[str, Any]:
        return {"k": "groups", "groups": [group.as_header() for group in self._table.groups]}

    def _tell_groups(self) -> None:
        if self._table.refresh():
            self._link.send(self._groups_frame(), asked=True)

    def _tick(self) -> None:
        if self._link.connected and (self._is_gpu_news() or self._is_blind_news()):
            self._link.close()  # say hello again
        self._link.ensure()
        change = self._phases.update()
        if not self._link.connected:
            return
        self._tell_groups()
        self._read_status()
        if change is not None:
            self._link.send(change)
        columns = self.steps.take() if self.steps is not None else None
        if columns is not None:
            self._link.send({"k": "steps", "t_ns": time.time_ns(), **columns})
        edges = self._closely.frame()
        if edges is not None:
            self._link.send(edges)
        allocator = self._allocator.frame(time.monotonic_ns())
        if allocator is not None:
            self._link.send(allocator)
        self._link.send(self._progress())

    def _is_gpu_news(self) -> bool:
        """CUDA came up after hello."""
        return not self._gpu_told and self._gpu()[1] is not None

    def _is_blind_news(self) -> bool:
        """What is known of waiting on the GPU has changed, and has not just done so."""
        now_s = time.monotonic()
        if self._closely.marks.words == self._words_told or now_s < self._words_next_s:
            return False
        self._words_next_s = now_s + WORDS_EVERY_S
        return True

    def _read_status(self) -> None:
        for recorder in list(self._recorders):
            try:
                status = recorder.status()
                changed = self._table.confirm(recorder, status)
            except Exception as error:  # noqa: BLE001 - an untried torch may dump another way: go on without
                sys.stderr.write(f"clusterwatch: no {recorder.name} flight recorder: {error!r}\n")
                self._recorders.remove(recorder)
                continue
            self._statuses[recorder.name] = status
            if changed:
                self._link.send(self._groups_frame(), asked=True)

    def _progress(self) -> dict[str, Any]:
        step = self.steps.step if self.steps is not None else 0
        watch = self._watch
        calls_ns = watch.wait_calls * watch.wait_call_ns + watch.edge_calls * watch.edge_call_ns
        wrapper_s = (watch.wrapper_ns + calls_ns) / 1e9
        return {
            "k": "progress",
            "t_ns": time.time_ns(),
            "step": step or None,
            "phase": self._phases.phase,
            "phase_since_ns": self._phases.since_ns,
            "groups": self._table.progress(
                self._statuses, self._watch.p2p_count if self._counts_p2p else None
            ),
            "p2p": {"count": sum(self._watch.p2p_count.values()), "open": wrappers.open_p2p(self._watch)},
            "cost_s": self._thread_s + wrapper_s,
            "wrapper_s": wrapper_s,
            "wakes": self._wakes,
            "dropped": self._link.dropped_count,
        }

    # --- answers -----------------------------------------------------------------------------------

    def _answer(self, header: dict[str, Any]) -> None:
        if header.get("k") == "bye":
            self._link.close()
        if header.get("k") != "want":
            return
        what, number = header.get("what"), header.get("id")
        if what == "stacks":
            self._send_stacks(number)
        elif what in ("window", "ring"):
            self._send_dump(header)

    def _send_stacks(self, number: Any) -> None:
        answer: dict[str, Any] = {"k": "stacks", "id": number, "threads": [], "error": ""}
        try:
            answer["threads"] = stacks.threads(skip=threading.get_ident())
        except Exception as error:  # noqa: BLE001 - the agent gets the reason instead of silence
            answer["error"] = repr(error)
        self._link.send(answer, asked=True)

    def _send_dump(self, want: Mapping[str, Any]) -> None:
        """One ``dump`` frame, with the reason where there is no dump: the agent need not wait."""
        answer: dict[str, Any] = {"k": "dump", "id": want.get("id"), "format": "pickle", "error": ""}
        blob = b""
        try:
            recorder = choose(self._recorders, want.get("recorder"))
            answer["recorder"] = recorder.name
            blob = recorder.dump(stacks=want.get("frames") is True, only_active=want.get("what") == "window")
        except Exception as error:  # noqa: BLE001 - the agent gets the reason instead of silence
            answer["error"] = str(error) or repr(error)
        self._link.send(answer, blob, asked=True)
