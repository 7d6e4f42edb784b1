"""How long the training thread is inside collectives and receives: what is left of a step is its own work.

In: torch's public collectives, the ``Work`` they return, backward passes. Out: ``Watch.waiting``, counts of
the calls whose waiting was seen, and durations of calls that are to be told. Only backends that hold up
their caller (gloo, MPI) can be timed by a clock of the host; with a GPU in use the host runs ahead of the
collectives, and the waiting is what lies between two marks on the GPU's stream, in the steps that ``marks``
chooses.

A collective that C++ makes is seen by torch's own sequence numbers alone. In a backward pass those are
DistributedDataParallel's: it waits for them after all gradients are there, so the time from a callback that
the autograd engine runs just before to the end of the pass is that waiting. Any other one makes the waiting
of its step unknown: a number that holds only a part of it would name the wrong rank.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

from .edges import OP_OF, EdgeStep, Key, Size, size_of
from .marked import WAIT
from .watch import Watch, unseen

COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_single",
    "all_gather_into_tensor", "_all_gather_base", "all_gather_coalesced", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base", "all_to_all",
    "all_to_all_single", "barrier",
)  # fmt: skip
"""Functions of ``distributed_c10d`` that make one call of a group each; torch 2.13."""
UNCOUNTED = ("monitored_barrier",)
"""Those that make a number of calls that only torch knows."""
UNWAITED_MAX = 4_096
"""Calls whose work nobody has waited for; of more than these the waiting stays unknown."""
LOOKED_AT = 64
"""Where steps hold calls that nobody saw, so many passes and then one of so many are looked at for them."""
TRIALS = 64


def wrap_calls(c10d: Any, watch: Watch) -> None:
    """Counts and times collectives and waits for them.

    Only before anybody could import these names: torch.compile knows collectives by identity.
    """
    for name in COLLECTIVES:
        original = getattr(c10d, name, None)
        if original is not None:
            setattr(c10d, name, _counted(original, watch))
    for name in UNCOUNTED:
        original = getattr(c10d, name, None)
        if original is not None:
            setattr(c10d, name, _covered(original, watch))
    c10d.Work.wait = _timed_wait(c10d.Work.wait, watch)
    watch.coalesced = getattr(getattr(c10d, "_world", None), "pg_coalesce_state", {})
    watch.wait_call_ns = _own_cost_ns(tells=False)
    watch.edge_call_ns = max(0, _own_cost_ns(tells=True) - watch.wait_call_ns)


def wrap_native(distributed: Any, watch: Watch) -> None:
    """Times what DistributedDataParallel does for its buffers. Args: ``distributed``: torch.distributed."""
    original = getattr(distributed, "_broadcast_coalesced", None)
    if original is not None:
        distributed._broadcast_coalesced = _covered(original, watch)


def _counted(original: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """A blocking call is seen at once, another one when somebody waits for its work."""
    place = _place_of_group(original)
    op, size = OP_OF.get(original.__name__, original.__name__), size_of(original)
    span, loader, checkpoint, calls = watch.waiting, watch.loader, watch.checkpoint, watch.calls

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if watch.in_collective or not watch.is_training_thread():
            return original(*args, **kwargs)  # one collective that is made of another counts once
        watch.wait_calls += 1
        watch.in_collective = True
        marks, begun, began_ns = watch.marks, None, 0
        if not (loader.depth or checkpoint.depth):
            if marks is not None:
                begun = marks.begin()
            span.enter(began_ns := perf_counter_ns())
        try:
            work = original(*args, **kwargs)
        finally:
            watch.in_collective = False
            ended_ns = perf_counter_ns()
            if span.depth:
                span.leave(ended_ns)
        group = args[place] if len(args) > place else kwargs.get("group")
        name = "" if group is None else _name(group)
        if work is None and name is not None and not watch.coalesced:
            calls[name] = calls.get(name, 0) + 1
            if began_ns and (begun is not None or watch.edges is not None):
                _note(watch, begun, _key(watch, name, op, size, args, kwargs), ended_ns - began_ns)
        else:
            if work is not None:
                _see_when_waited(watch, work, name)
            if begun is not None:
                marks.drop(begun)
        return work

    return call


def _key(watch: Watch, name: str, op: str, size: Size, args: Any, kwargs: Any) -> Key | None:
    """What to tell a call by; None where it is not to be told."""
    if not watch.tells_calls():
        return None
    size_bytes = size(args, kwargs)
    return None if size_bytes is None else (name, op, size_bytes)


def _note(watch: Watch, begun: Any, key: Key | None, duration_ns: int) -> None:
    """A call is over: marked on the GPU's stream where its begin was, else told by the host's clock."""
    if begun is not None:
        if watch.marks is not None:
            watch.marks.end(begun, WAIT, key)
    elif key is not None and watch.edges is not None:
        watch.edge_calls += 1
        watch.edges.add(key, duration_ns)


def see_p2p(watch: Watch, name: str, op: str, size: Size, args: Any, kwargs: Any) -> Key | None:
    """Key of a send or receive of the training thread, None where it is not to be told."""
    return _key(watch, name, op, size, args, kwargs) if watch.is_training_thread() else None


def tell_when_waited(watch: Watch, work: Any, key: Key) -> None:
    """Remembers a send or receive until somebody waits for its work; holds the work weakly."""
    place = id(work)
    try:
        reference = weakref.ref(work, lambda _gone: watch.p2p_waits.pop(place, None))
    except TypeError:
        return
    if len(watch.p2p_waits) < UNWAITED_MAX:
        watch.p2p_waits[place] = (key, reference)


def _name(group: Any) -> str | None:
    """Name of a group; None for no group of this process."""
    try:
        return str(group.group_name)
    except Exception:  # noqa: BLE001 - torch raises its own types; the call stays uncounted
        return None


def _see_when_waited(watch: Watch, work: Any, name: str | None) -> None:
    """Remembers a call until its work is waited for or let go; holds the work weakly (it owns tensors)."""
    key = id(work)
    try:
        reference = weakref.ref(work, lambda _gone: watch.unwaited.pop(key, None))
    except TypeError:
        return
    if name is not None and len(watch.unwaited) < UNWAITED_MAX:
        watch.unwaited[key] = (name, reference)


def _place_of_group(function: Callable[..., Any]) -> int:
    """Where ``group`` stands among the positional arguments; past the end where it has no such name."""
    names = list(inspect.signature(function).parameters)
    return names.index("group") if "group" in names else 1 << 30


def _covered(original: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """Times a function all of whose calls are waited for before it returns; torch says how many it made."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        marks = watch.marks
        operations = watch.operations if marks is None else marks.operations
        if watch.in_collective or not watch.is_training_thread() or operations is None:
            return original(*args, **kwargs)
        before, begun = operations(), None
        watch.in_collective = True
        if watch.is_timed():
            begun = marks.begin() if marks is not None else None
            watch.waiting.enter(perf_counter_ns())
        try:
            return original(*args, **kwargs)
        finally:
            watch.in_collective = False
            if watch.waiting.depth:
                watch.waiting.leave(perf_counter_ns())
            if begun is not None:
                marks.end(begun, WAIT)
            watch.covered += unseen(before, operations()) or 0

    return call


def _timed_wait(original: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """The name ``wait`` and its first argument are what pybind11 knows an override by."""
    span = watch.waiting

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if span.depth or not watch.is_training_thread():
            return original(self, *args, **kwargs)
        watch.wait_calls += 1
        waited = watch.unwaited.pop(id(self), None)
        if waited is not None:
            watch.calls[waited[0]] = watch.calls.get(waited[0], 0) + 1
        if not watch.is_timed():
            return original(self, *args, **kwargs)
        marks, begun = watch.marks, None
        if marks is not None:
            begun = marks.begin()
        span.enter(began_ns := perf_counter_ns())
        try:
            return original(self, *args, **kwargs)
        finally:
            span.leave(ended_ns := perf_counter_ns())
            if begun is not None or watch.edges is not None:
                sent = watch.p2p_waits.pop(id(self), None)
                _note(watch, begun, watch.p2p_key if sent is None else sent[0], ended_ns - began_ns)

    return wait


def _own_cost_ns(tells: bool) -> int:
    """What a counted call costs beyond the call itself, tried out; CPU clocks cost more than the call.

    Args: ``tells`` the calls of this step are told.
    """
    tried = Watch()
    tried.active = True

    def nothing(tensor: Any, group: Any = None) -> None:
        return None

    tensor = [_NoTensor()]
    call = _counted(nothing, tried)
    costs = []
    for function in (call, nothing):
        best = 1 << 62
        for _ in range(3):
            tried.edges = EdgeStep() if tells else None
            began_ns = perf_counter_ns()
            for _ in range(TRIALS):
                function(tensor, group=None)
            best = min(best, perf_counter_ns() - began_ns)
        costs.append(best)
    return max(0, costs[0] - costs[1]) // TRIALS


class _NoTensor:
    """As much of a tensor as a call's size needs."""

    def numel(self) -> int:
        return 1

    def element_size(self) -> int:
        return 4


# --- backward passes -------------------------------------------------------------------------------------


class Backward:
    """Finds out whether backward passes of this process hold collectives of C++, and times their waiting."""

    def __init__(self, watch: Watch, engine: Any) -> None:
        """Args: ``engine`` is torch's autograd engine, ``Variable._execution_engine``."""
        self._watch = watch
        self._engine = engine
        self._holds_native = False
        """an earlier pass made calls that no function of Python made"""
        self._computed_ns = 0
        self._begun: Any = None
        """the mark of that moment, where the step is marked"""
        self._runs = False
        self._passes = 0

    def run(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One backward pass of the training thread; a pass inside another is a part of that."""
        watch = self._watch
        marks = watch.marks
        operations = watch.operations if marks is None else marks.operations
        is_dark = operations is None or (marks is None and watch.on_stream)
        if operations is None or is_dark or self._runs or not self._is_looked_at():
            return original(*args, **kwargs)
        began_ns = perf_counter_ns()
        before, handle = operations(), None
        if before.seen is None:
            return original(*args, **kwargs)
        self._computed_ns, self._begun, self._runs = 0, None, True
        if self._holds_native:
            handle = self._call_before_native(args, kwargs)
        watch.wrapper_ns += perf_counter_ns() - began_ns
        try:
            result = original(*args, **kwargs)
        finally:
            ended_ns = perf_counter_ns()
            self._runs = False
            if handle is not None:
                handle.remove()
        self._take(unseen(before, operations()) or 0, ended_ns)
        watch.wrapper_ns += perf_counter_ns() - ended_ns
        return result

    def _is_looked_at(self) -> bool:
        if self._holds_native or not self._watch.has_unseen:
            return self._holds_native
        self._passes += 1
        return self._passes <= LOOKED_AT or self._passes % LOOKED_AT == 0

    def _take(self, count: int, ended_ns: int) -> None:
        begun, marks = self._begun, self._watch.marks
        self._begun = None
        if count > 0:
            self._holds_native = True
        if begun is not None and marks is not None:
            if count > 0:
                marks.end(begun, WAIT)
                self._watch.covered += count
            else:
                marks.drop(begun)
        elif count > 0 and self._computed_ns:
            self._watch.waiting.total_ns += ended_ns - self._computed_ns
            self._watch.covered += count

    def _call_before_native(self, args: Any, kwargs: Any) -> Any:
        """Handle of a hook on the pass's first root, None where there is no root to hook on."""
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        if getattr(compiled, "compiled_autograd_enabled", False):
            return None  # a hook would change the graph that it compiles
        roots = args[0] if args else kwargs.get("tensors")
        root = roots if hasattr(roots, "register_hook") else _first(roots)
        if root is None or not root.requires_grad or root.grad_fn is None:
            return None
        return root.register_hook(self._at_begin)

    def _at_begin(self, _gradient: Any) -> None:
        """The pass begins: what is queued first is called first when its gradients are all there."""
        try:
            self._engine.queue_callback(self._at_end)
        except Exception:  # noqa: BLE001 - torch raises its own types; the waiting of this pass stays unknown
            self._computed_ns = 0

    def _at_end(self) -> None:
        """The engine calls it with the stream of the pass's caller as the current one."""
        marks = self._watch.marks
        if marks is None:
            self._computed_ns = perf_counter_ns()
        else:
            self._begun = marks.begin()


def _first(roots: Any) -> Any:
    return next(iter(roots), None) if isinstance(roots, Iterable) else None
