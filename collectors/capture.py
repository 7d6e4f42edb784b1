"""Carries out a ``CaptureOrder``: traces and stacks of this node's ranks, in time, whatever their state.

In: an order, the ranks and their hooks. Out, through ``emit``: ``Trace``, ``Stacks``, an ``Event`` for each
dump that cannot be read and for what NCCL's RAS said, and one ``CaptureDone`` at the end. A rank whose hook
does not answer (stopped, stuck in native code, hook gone) is looked at from outside; that never waits past
the order's deadline.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final, Protocol

from collectors import hook_messages as messages
from collectors import processes, ras, ras_event, stacks
from collectors.clock import Clock
from collectors.formats import columns as trace_columns
from collectors.formats import flight_recorder
from collectors.formats.trace import TraceError
from collectors.hook_messages import clip
from collectors.hook_server import HookConnection, HookError
from collectors.ranks import Emit, RankState, RankTable
from collectors.wire import limits, records
from collectors.wire.records import CaptureOrder, CaptureWant, ThreadStack

log = logging.getLogger(__name__)

STACKS_PATIENCE_S: Final = 2.0
"""How long a hook may take for its stacks before we look from outside."""
DEADLINE_MAX_S: Final = 60.0
_RESERVE_S: Final = 0.5
"""Kept of the deadline to send what was found."""
_ORDERS_AT_ONCE_MAX: Final = 4


class Hooks(Protocol):
    """Where a capture finds the hook of a process."""

    def connection_of(self, pid: int) -> HookConnection | None: ...


@dataclass(slots=True)
class _Job:
    """One order being carried out."""

    order: CaptureOrder
    ends_s: float
    """on the loop's clock"""
    answered: set[int] = field(default_factory=set)
    silent: dict[str, str] = field(default_factory=dict)

    def left_s(self) -> float:
        return max(0.05, self.ends_s - asyncio.get_running_loop().time())


class Capturer:
    """Runs captures in the background of the loop, a few at a time."""

    def __init__(self, table: RankTable, hooks: Hooks, clock: Clock, emit: Emit) -> None:
        self._table = table
        self._hooks = hooks
        self._clock = clock
        self._emit = emit
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._decoding = asyncio.Semaphore(1)  # a decoded ring is large; the agent's memory is not
        self._spying = asyncio.Semaphore(1)  # py-spy takes a core for a moment; the job needs the others

    def start(self, order: CaptureOrder) -> None:
        """Begins an order; one that already runs is not begun twice."""
        if order.capture_id in self._tasks:
            return
        if len(self._tasks) >= _ORDERS_AT_ONCE_MAX:
            self._done(order, set(), {"*": "the agent is busy with other captures"})
            return
        task = asyncio.get_running_loop().create_task(self._carry_out(order))
        self._tasks[order.capture_id] = task
        task.add_done_callback(lambda done: self._ended(order.capture_id, done))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _carry_out(self, order: CaptureOrder) -> None:
        deadline_s = min(max(order.deadline_s, 0.2), DEADLINE_MAX_S)
        reserve_s = min(_RESERVE_S, deadline_s / 4)
        job = _Job(order, asyncio.get_running_loop().time() + deadline_s - reserve_s)
        ranks = self._table.of_job(order.job, order.ranks)
        for rank in set(order.ranks or ()) - {state.id.rank for state in ranks}:
            job.silent[str(rank)] = "no such rank of this job on this node"
        try:
            await asyncio.gather(
                *(self._capture_rank(job, state) for state in ranks),
                *(self._ask_ras(job, state) for state in self._asked_for_ras(order)),
            )
        finally:
            self._done(order, job.answered, job.silent)

    async def _capture_rank(self, job: _Job, state: RankState) -> None:
        parts = [self._capture_trace(job, state, want) for want in job.order.want if want != "stacks"]
        if "stacks" in job.order.want:
            parts.append(self._capture_stacks(job, state))
        complaints = [reason for reason in await asyncio.gather(*parts) if reason]
        if len(complaints) < len(parts):
            job.answered.add(state.id.rank)
        if complaints:
            job.silent[str(state.id.rank)] = clip("; ".join(dict.fromkeys(complaints)))

    # --- traces ----------------------------------------------------------------------------------------

    async def _capture_trace(self, job: _Job, state: RankState, want: CaptureWant) -> str:
        """Gets one dump; returns why there is none, empty on success."""
        connection = self._hooks.connection_of(state.pid)
        if connection is None:
            return f"{want}: its hook is not connected"
        if _is_stopped(state):
            return f"{want}: its process is stopped"
        try:
            answer, blob = await connection.ask(want, job.left_s())
        except TimeoutError:
            return f"{want}: its hook did not answer in time"
        except HookError as error:
            return f"{want}: {error}"
        taken_ns = self._clock.now_ns()
        if answer.error or not blob:
            return f"{want}: {answer.error or 'an empty dump'}"
        return await self._decode(job, state, want, answer, blob, taken_ns)

    async def _decode(
        self,
        job: _Job,
        state: RankState,
        want: CaptureWant,
        answer: messages.Dump,
        blob: bytes,
        taken_ns: int,
    ) -> str:
        source = f"capture {job.order.capture_id}"
        try:
            async with self._decoding:
                columns = await asyncio.to_thread(_columns, blob, state.id.rank, source, taken_ns)
        except TraceError as error:
            self._emit(self._unreadable(state, want, str(error)))
            return f"{want}: unreadable dump: {error}"
        self._emit(
            records.Trace(
                t_ns=taken_ns,
                id=state.id,
                pid=state.pid,
                capture_id=job.order.capture_id,
                want=want,
                recorder=answer.recorder,
                columns=columns,
            )
        )
        return ""

    def _unreadable(self, state: RankState, want: str, reason: str) -> records.Event:
        return records.Event(
            t_ns=self._clock.now_ns(),
            source="capture",
            kind="dump_unreadable",
            severity="warning",
            text=clip(f"the {want} dump of rank {state.id.rank} (pid {state.pid}) cannot be used: {reason}"),
            fields={"want": want, "pid": str(state.pid), "reason": clip(reason)},
            id=state.id,
        )

    # --- stacks ----------------------------------------------------------------------------------------

    async def _capture_stacks(self, job: _Job, state: RankState) -> str:
        """Stacks by the hook, else (or for a suspect: also) from outside. Returns why there are none."""
        is_suspect = job.order.ranks is not None
        complaint = await self._hook_stacks(job, state)
        if complaint or is_suspect:
            outside = await self._outside_stacks(job, state)
            complaint = f"{complaint}; {outside}" if complaint and outside else ""
        return complaint

    async def _hook_stacks(self, job: _Job, state: RankState) -> str:
        connection = self._hooks.connection_of(state.pid)
        if connection is None:
            return "stacks: its hook is not connected"
        if _is_stopped(state):
            return "stacks: its process is stopped"
        try:
            answer = await connection.ask("stacks", min(STACKS_PATIENCE_S, job.left_s() / 2))
        except TimeoutError:
            return f"stacks: its hook did not answer within {STACKS_PATIENCE_S:.0f} s"
        except HookError as error:
            return f"stacks: {error}"
        if answer.error and not answer.threads:
            return f"stacks: {answer.error}"
        threads = [
            ThreadStack(
                name=thread.name,
                frames=[clip(text, 1_024) for text in thread.frames[-limits.FRAMES_PER_STACK_MAX :]],
                main=thread.main,
            )
            for thread in answer.threads[: stacks.THREADS_MAX]
        ]
        self._emit_stacks(job, state, "hook", threads, answer.error or "")
        return ""

    async def _outside_stacks(self, job: _Job, state: RankState) -> str:
        threads: list[ThreadStack] = []
        error = ""
        try:
            async with asyncio.timeout(job.left_s()), self._spying:
                threads = await stacks.take(state.pid, job.left_s())
        except TimeoutError:
            error = "py-spy found no time before the deadline"
        except (stacks.StackError, OSError) as fault:
            error = str(fault)
        threads += stacks.kernel_thread(state.pid)
        if processes.state(state.pid) is None:
            return "stacks: the process is gone"
        self._emit_stacks(job, state, "py-spy", threads, error)
        return f"stacks: {error}" if error else ""

    def _emit_stacks(
        self, job: _Job, state: RankState, source: str, threads: list[ThreadStack], error: str
    ) -> None:
        self._emit(
            records.Stacks(
                t_ns=self._clock.now_ns(),
                id=state.id,
                pid=state.pid,
                capture_id=job.order.capture_id,
                source=source,
                threads=threads,
                error=clip(error),
                process_state=processes.state(state.pid) or "",
                wchan=processes.wchan(state.pid),
            )
        )

    # --- NCCL's RAS --------------------------------------------------------------------------------------

    def _asked_for_ras(self, order: CaptureOrder) -> list[RankState]:
        """The rank whose RAS is asked, if it is here; a job without NCCL has none."""
        if order.ras_rank is None:
            return []
        here = self._table.of_job(order.job, [order.ras_rank])
        return [state for state in here if not state.hello.backend or "nccl" in state.hello.backend][:1]

    async def _ask_ras(self, job: _Job, state: RankState) -> None:
        answer = await ras.ask(state.pid, state.hello.world_size, job.left_s())
        fields = await asyncio.to_thread(ras_event.fields, answer, job.order.capture_id)
        self._emit(
            records.Event(
                t_ns=self._clock.now_ns(),
                source=ras_event.SOURCE,
                kind=ras_event.KIND,
                severity="info",
                text=clip(ras_event.sentence(fields)),
                fields=fields,
                id=state.id,
            )
        )

    # --- the end -----------------------------------------------------------------------------------------

    def _done(self, order: CaptureOrder, answered: set[int], silent: dict[str, str]) -> None:
        log.info("capture_done id=%d job=%s answered=%d", order.capture_id, order.job, len(answered))
        self._emit(
            records.CaptureDone(
                t_ns=self._clock.now_ns(),
                capture_id=order.capture_id,
                answered=sorted(answered),
                silent=silent,
            )
        )

    def _ended(self, capture_id: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(capture_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("capture_failed id=%d error=%r", capture_id, error)


def _is_stopped(state: RankState) -> bool:
    """Asking a stopped process is waiting for nothing."""
    return processes.STATE_WORDS.get(processes.state(state.pid) or "") == "stopped"


def _columns(blob: bytes, rank: int, source: str, taken_ns: int) -> bytes:
    """A raw dump as the wire carries it. Runs in a thread. Raises ``TraceError``."""
    columns = trace_columns.pack(flight_recorder.decode(blob, rank=rank, source=source, taken_ns=taken_ns))
    if len(columns) > limits.RECORD_MAX_BYTES - 4_096:
        raise TraceError(f"{len(columns)} packed bytes are over the limit of a record")
    return columns
