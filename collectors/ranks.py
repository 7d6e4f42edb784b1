"""The training processes of this node: what their hooks said last, as records and as hot-frame columns.

In: typed hook messages with the pid the kernel vouches for. Out: ``RankInventory``, ``PhaseChange``,
``Steps``, ``Edges``, ``RankExit`` and ``process_state`` events through ``emit``; ``HotProgress`` each second.
"""

from __future__ import annotations

import logging
import secrets
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from collectors import hook_messages as messages
from collectors import processes
from collectors.clock import Clock
from collectors.exits import ExitStatus
from collectors.hook_messages import clip
from collectors.rank_edges import RankEdges
from collectors.wire import limits, records
from collectors.wire.records import PHASES, GroupInfo, HotProgress, RankId, group_info

log = logging.getLogger(__name__)

SILENT_NS: Final = 2_000_000_000
"""A hook speaks once a second; after this the agent looks at the process itself."""
STILL_NS: Final = 5_000_000_000
"""So long without progress the agent looks too: a write that hangs leaves the hook's thread free to speak."""
BLOCKED_LOOKS: Final = 2
"""Looks in a row that must find a silent process in state D: every process is there for moments."""
BLOCKED_LOOKS_SPEAKING: Final = 10
"""The same while its hook speaks: a healthy checkpoint is in state D often, but not at each look."""
STEPS_FLUSH_ROWS: Final = 4_096
_HEARD_LATE_MAX_NS: Final = 1_500_000_000
"""By how much a message may be older than the moment it is heard; its own time counts up to there."""
_UNKNOWN: Final = -1
_STEP_COLUMNS: Final = (
    "step", "end_ns", "duration_s", "data_wait_s", "checkpoint_s", "gc_s", "cpu_s", "wait_s", "late_launch"
)  # fmt: skip

Emit = Callable[[records.Spooled], None]


@dataclass(slots=True)
class RankState:
    """One training process."""

    ref: int
    pid: int
    id: RankId
    hello: messages.Hello
    heard_ns: int
    moved_ns: int
    groups: list[GroupInfo] = field(default_factory=list)
    step: int = _UNKNOWN
    phase: int = 0
    phase_since_ns: int = 0
    numbers: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(group index, enqueued, completed, sequence), -1 where unknown"""
    exception: records.ExceptionInfo | None = None
    finished: bool = False
    allocator: messages.Allocator | None = None
    allocator_ns: int = 0
    """when it was told"""
    told_state: str = "running"
    blocked_looks: int = 0
    steps: list[messages.Steps] = field(default_factory=list)
    """told since the last record of them"""
    steps_count: int = 0
    edges: RankEdges = field(default_factory=RankEdges)


class RankTable:
    """All ranks of the node by pid."""

    def __init__(self, node: str, clock: Clock, emit: Emit) -> None:
        self._node = node
        self._clock = clock
        self._emit = emit
        self._ranks: dict[int, RankState] = {}
        # A random start: after a restart a hot frame must not be read with the numbers of the agent before.
        self._next_ref = secrets.randbelow(2**30)

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[RankState]:
        return iter(self._ranks.values())

    def get(self, pid: int) -> RankState | None:
        return self._ranks.get(pid)

    def of_job(self, job: str, wanted: list[int] | None) -> list[RankState]:
        """Ranks of a job on this node, all or the wanted ones."""
        return [
            state
            for state in self._ranks.values()
            if state.id.job == job and (wanted is None or state.id.rank in wanted)
        ]

    # --- what a hook says --------------------------------------------------------------------------

    def hello(self, pid: int, hello: messages.Hello) -> RankState:
        """A process presents itself, for the first time or again."""
        now_ns = self._clock.now_ns()
        identity = RankId(
            job=hello.job, rank=hello.rank, attempt=hello.attempt, world=hello.world, role=hello.role
        )
        state = self._ranks.get(pid)
        if state is None or state.id != identity:
            if state is not None:
                self.flush_steps(state)
            self._next_ref += 1
            state = RankState(self._next_ref, pid, identity, hello, now_ns, now_ns)
            self._ranks[pid] = state
        state.hello = hello
        state.heard_ns = now_ns
        self._emit(self.inventory(state))
        return state

    def adopt(self, inventory: records.RankInventory) -> None:
        """A living process of before this agent's start; its hook is expected to come back."""
        now_ns = self._clock.now_ns()
        hello = messages.Hello(
            v=0,
            rank=inventory.id.rank,
            world_size=inventory.world_size,
            job=inventory.id.job,
            local_rank=inventory.local_rank,
            torch=inventory.torch_version,
            backend=inventory.backend,
            started_ns=inventory.started_ns,
            command=inventory.command,
            blind=inventory.blind,
            gpu_index=inventory.gpu_index,
            gpu_uuid=inventory.gpu_uuid,
            job_name=inventory.job_name,
            user=inventory.user,
            labels=inventory.labels,
        )
        state = RankState(inventory.ref, inventory.pid, inventory.id, hello, now_ns, now_ns)
        state.groups = inventory.groups
        self._ranks[state.pid] = state

    def inventories(self) -> list[records.RankInventory]:
        """All ranks as they were told last."""
        return [self.inventory(state) for state in self._ranks.values()]

    def set_groups(self, state: RankState, message: messages.Groups) -> None:
        """The whole list of the process's groups, after a change."""
        groups = [
            group_info(group.index, group.name, group.desc, group.backend, group.ranks, group.recorder_id)
            for group in message.groups
        ]
        self._heard(state)
        if groups != state.groups:
            state.groups = groups
            self._emit(self.inventory(state))

    def progress(self, state: RankState, message: messages.Progress) -> None:
        now_ns = self._heard(state)
        step = _UNKNOWN if message.step is None else message.step
        numbers = [
            (
                index,
                _UNKNOWN if enqueued is None else enqueued,
                _UNKNOWN if completed is None else completed,
                _UNKNOWN if sequence is None else sequence,
            )
            for index, enqueued, completed, sequence in message.groups
        ]
        if step != state.step or numbers != state.numbers:
            # Heard at the agent's tick, it was said up to a second before.
            said_ns = now_ns if message.t_ns is None else message.t_ns
            state.moved_ns = said_ns if now_ns - _HEARD_LATE_MAX_NS <= said_ns <= now_ns else now_ns
        state.step = step
        state.numbers = numbers
        state.phase = PHASES.index(message.phase) if message.phase in PHASES else 0
        state.phase_since_ns = message.phase_since_ns or 0

    def add_steps(self, state: RankState, message: messages.Steps) -> None:
        """Finished steps, kept until ``flush_steps`` so that a record carries about ten seconds."""
        self._heard(state)
        state.steps.append(message)
        state.steps_count += len(message.step)
        if state.steps_count >= STEPS_FLUSH_ROWS:
            self.flush_steps(state)

    def add_edges(self, state: RankState, message: messages.Edges) -> None:
        """Calls of steps that were told; they leave with the steps."""
        self._heard(state)
        if not state.edges.fits(message):
            self._flush_edges(state)
        state.edges.add(message)

    def phase(self, state: RankState, message: messages.Phase) -> None:
        self._heard(state)
        self._emit(
            records.PhaseChange(
                t_ns=message.t_ns,
                id=state.id,
                phase=message.phase,
                before=message.before,
                before_s=message.before_s,
                detail=clip(message.detail),
            )
        )

    def set_allocator(self, state: RankState, message: messages.Allocator) -> None:
        """GPU memory as torch's allocator sees it; the newest word counts."""
        self._heard(state)
        state.allocator, state.allocator_ns = message, self._clock.now_ns()

    def exception(self, state: RankState, message: messages.ExceptionRaised) -> None:
        """The exception that is about to end the process; it leaves with its exit."""
        self._heard(state)
        state.exception = records.ExceptionInfo(
            type=message.type,
            message=clip(message.message),
            traceback=clip(message.traceback),
            t_ns=message.t_ns,
        )

    def finish(self, state: RankState) -> None:
        self._heard(state)
        state.finished = True

    # --- what the kernel says -----------------------------------------------------------------------

    def exited(self, pid: int, status: ExitStatus) -> None:
        """The process is gone."""
        state = self._ranks.pop(pid, None)
        if state is None:
            return
        self.flush_steps(state)
        log.info(
            "rank_exit job=%s rank=%d pid=%d code=%s signal=%s",
            state.id.job, state.id.rank, pid, status.exit_code, status.signal,
        )  # fmt: skip
        self._emit(
            records.RankExit(
                t_ns=status.t_ns,
                ref=state.ref,
                id=state.id,
                pid=pid,
                exit_code=status.exit_code,
                signal=status.signal,
                exception=state.exception,
                clean=True if state.finished else None if status.signal is None else False,
            )
        )

    def look_at_still(self) -> None:
        """Tells when a process that is silent or makes no progress was stopped, is blocked in the kernel, or
        runs again; called once a second."""
        now_ns = self._clock.now_ns()
        for state in self._ranks.values():
            silent = now_ns - state.heard_ns > SILENT_NS
            still = now_ns - state.moved_ns > STILL_NS
            if not (silent or still) and state.told_state == "running":
                state.blocked_looks = 0
                continue
            letter = processes.state(state.pid)
            word = processes.STATE_WORDS.get(letter or "", "running")
            state.blocked_looks = state.blocked_looks + 1 if word == "blocked" else 0
            settled = word != "blocked" or state.blocked_looks >= (
                BLOCKED_LOOKS if silent else BLOCKED_LOOKS_SPEAKING
            )
            if settled and letter is not None and word not in (state.told_state, "dead"):
                state.told_state = word
                self._emit(self._state_event(state, letter, word, now_ns))

    def _state_event(self, state: RankState, letter: str, word: str, now_ns: int) -> records.Event:
        fields = {"state": letter, "word": word, "pid": str(state.pid), "wchan": processes.wchan(state.pid)}
        silent_s = (now_ns - state.heard_ns) / 1e9
        return records.Event(
            t_ns=now_ns,
            source="agent",
            kind="process_state",
            severity="info" if word == "running" else "warning",
            text=f"rank {state.id.rank} (pid {state.pid}) is {word}; its hook spoke {silent_s:.1f} s ago",
            fields=fields,
            id=state.id,
        )

    # --- what leaves ----------------------------------------------------------------------------------

    def inventory(self, state: RankState) -> records.RankInventory:
        hello = state.hello
        return records.RankInventory(
            t_ns=self._clock.now_ns(),
            ref=state.ref,
            id=state.id,
            pid=state.pid,
            host=self._node,
            world_size=hello.world_size,
            local_rank=hello.local_rank,
            gpu_index=hello.gpu_index,
            gpu_uuid=hello.gpu_uuid,
            started_ns=hello.started_ns,
            torch_version=hello.torch,
            backend=hello.backend,
            command=clip(hello.command),
            groups=state.groups,
            blind=hello.blind,
            job_name=hello.job_name,
            user=hello.user,
            labels=hello.labels,
        )

    def resend_inventories(self) -> None:
        """For a server that cannot know this epoch yet."""
        for state in self._ranks.values():
            self._emit(self.inventory(state))

    def flush_all_steps(self) -> None:
        for state in self._ranks.values():
            self.flush_steps(state)

    def flush_steps(self, state: RankState) -> None:
        """Writes the steps gathered so far as one record, and their calls as another."""
        told, state.steps, state.steps_count = state.steps, [], 0
        if told:
            self._emit(records.Steps(t_ns=self._clock.now_ns(), id=state.id, **_joined(told)))
        self._flush_edges(state)

    def _flush_edges(self, state: RankState) -> None:
        record = state.edges.take(self._clock.now_ns(), state.id)
        if record is not None:
            self._emit(record)

    def hot(self) -> HotProgress | None:
        """The columns of ``HotProgress``, None without ranks."""
        states = sorted(self._ranks.values(), key=lambda state: state.id.rank)
        if not states:
            return None
        pairs = [numbers for state in states for numbers in state.numbers]
        return HotProgress(
            ref=_column("I", [state.ref for state in states]),
            step=_column("q", [state.step for state in states]),
            phase=_column("B", [state.phase for state in states]),
            phase_since_ns=_column("q", [state.phase_since_ns for state in states]),
            moved_ns=_column("q", [state.moved_ns for state in states]),
            heard_ns=_column("q", [state.heard_ns for state in states]),
            group_count=_column("H", [len(state.numbers) for state in states]),
            group_index=_column("H", [pair[0] for pair in pairs]),
            enqueued=_column("q", [pair[1] for pair in pairs]),
            completed=_column("q", [pair[2] for pair in pairs]),
            sequence=_column("q", [pair[3] for pair in pairs]),
        )

    def _heard(self, state: RankState) -> int:
        state.heard_ns = self._clock.now_ns()
        return state.heard_ns


def _joined(told: list[messages.Steps]) -> dict[str, Any]:
    """Columns of all steps; one that a message leaves out is unknown in its rows."""
    return {
        name: [value for one in told for value in getattr(one, name) or [None] * len(one.step)]
        for name in _STEP_COLUMNS
    }


def _column(code: str, values: list[int]) -> bytes:
    """Little-endian bytes, as the wire has them on every machine."""
    column = array(code, values)
    if _IS_BIG_ENDIAN:
        column.byteswap()
    return column.tobytes()


_IS_BIG_ENDIAN: Final = array("H", [1]).tobytes() == b"\0\1"
RANKS_MAX: Final = limits.RANKS_PER_NODE_MAX
