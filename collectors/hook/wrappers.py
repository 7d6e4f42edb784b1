"""Thin wrappers of public functions, for what torch offers no hook for.

In: torch's modules. Out: numbers in ``Watch``. Each wrapper reads a clock, sets an attribute and calls the
original; it keeps name, signature, ``__wrapped__`` and pickling by reference, and does nothing at all while
``watch.active`` is False (a forked loader worker, a process without an agent).

Only torch versions in ``TESTED`` are wrapped: on another one a wrapper could break the job, so the hook
reports progress only and says so in ``blind``.
"""

from __future__ import annotations

import functools
import gc
import sys
import time
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

from . import waits
from .edges import OP_OF, size_of
from .marked import CHECKPOINT, LOADER
from .watch import Watch, now_ns

TESTED = ("2.13",)
"""Versions of torch on which every wrapper here was tried; see tests/collectors/hook/test_torch_jobs.py."""
P2P_OPEN_MAX = 64
FALSE_EVALUATIONS_MAX = 256

_tickets = count()


def is_tested(version: str) -> bool:
    """True for a version like ``2.13.0+cpu`` whose major and minor are in ``TESTED``."""
    return ".".join(version.split(".")[:2]) in TESTED


def install(torch: Any, watch: Watch, after_batch: Callable[[], None]) -> None:
    """Wraps data loading, saving, evaluation and backward; adds the GC callback. Call once per process."""
    torch.save = _timed(torch.save, watch)
    passes = waits.Backward(watch, torch.autograd.Variable._execution_engine)
    torch.autograd.backward = _counted_backward(torch.autograd.backward, watch, passes)
    _wrap_modules(torch.nn.Module, watch)
    _wrap_loader(torch.utils.data.DataLoader, watch, after_batch)
    _wrap_graphs(torch.cuda.CUDAGraph, watch)
    gc.callbacks.append(_gc_callback(watch))
    for name, follow in LATER.items():
        if name in sys.modules:
            follow(sys.modules[name], watch)


def wrap_saver(saver: Any, watch: Watch) -> None:
    """Wraps ``torch.distributed.checkpoint.save`` where it is defined and where it is offered."""
    original = saver.save
    if hasattr(original, "__clusterwatch__"):
        return
    saver.save = _timed(original, watch)
    offered = sys.modules.get("torch.distributed.checkpoint")
    if getattr(offered, "save", None) is original:
        setattr(offered, "save", saver.save)  # noqa: B010 - a module attribute mypy cannot know


def _timed(original: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """Time the training thread spends in ``original``, which saves; other threads block nobody."""
    span = watch.checkpoint

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not watch.is_training_thread():
            return original(*args, **kwargs)
        begun = _begun(watch)
        span.enter(now_ns())
        try:
            return original(*args, **kwargs)
        finally:
            span.leave(now_ns())
            if begun is not None and watch.marks is not None:
                watch.marks.end(begun, CHECKPOINT)

    call.__clusterwatch__ = True  # type: ignore[attr-defined]
    return call


def _begun(watch: Watch) -> Any:
    """A mark at the begin of a part of a marked step; None inside another part."""
    marks = watch.marks
    return marks.begin() if marks is not None and watch.is_timed() and not watch.waiting.depth else None


def _wrap_graphs(graph_class: Any, watch: Watch) -> None:
    """Notes captures, during which the GPU may be asked nothing, and replays, whose calls nobody sees."""
    begin, end, again = graph_class.capture_begin, graph_class.capture_end, graph_class.replay

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch.capturing += 1
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            watch.capturing -= 1
            raise

    @functools.wraps(end)
    def capture_end(self: Any) -> Any:
        try:
            return end(self)
        finally:
            watch.capturing = max(0, watch.capturing - 1)

    @functools.wraps(again)
    def replay(self: Any) -> Any:
        watch.replays += 1
        return again(self)

    graph_class.capture_begin, graph_class.capture_end = capture_begin, capture_end
    graph_class.replay = replay


def _counted_backward(
    original: Callable[..., Any], watch: Watch, passes: waits.Backward
) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        watch.backwards += 1
        if not watch.is_training_thread():
            return original(*args, **kwargs)
        return passes.run(original, args, kwargs)

    return backward


def _wrap_modules(module_class: Any, watch: Watch) -> None:
    """``eval()`` begins an evaluation, ``train()`` ends it.

    A module that is put into eval at every step (a frozen batch norm) is no evaluation: optimizer steps end
    it, ``end_false_evaluation`` marks that module and later calls on it are ignored.
    """
    original_eval, original_train = module_class.eval, module_class.train

    @functools.wraps(original_eval)
    def evaluate(self: Any) -> Any:
        begins = watch.evaluating is None and watch.is_training_thread()
        if begins and id(self) not in watch.false_evaluations:
            watch.evaluating, watch.evaluated_module = now_ns(), id(self)
        return original_eval(self)

    @functools.wraps(original_train)
    def train(self: Any, mode: bool = True) -> Any:
        if mode and watch.evaluating is not None and id(self) == watch.evaluated_module:
            watch.evaluating = None
        return original_train(self, mode)

    module_class.eval, module_class.train = evaluate, train


def end_false_evaluation(watch: Watch, step: int) -> None:
    """An optimizer step came before ``train()``. Twice in a row shows that ``eval()`` is part of training."""
    if watch.evaluating is None:
        return
    watch.evaluating = None
    module, before = watch.evaluated_module, watch.false_evaluation_at
    watch.false_evaluation_at = (module, step)
    if before == (module, step - 1) and len(watch.false_evaluations) < FALSE_EVALUATIONS_MAX:
        watch.false_evaluations.add(module)


def _wrap_loader(loader_class: Any, watch: Watch, after_batch: Callable[[], None]) -> None:
    """Times ``next()`` of what ``DataLoader.__iter__`` returns, in the class that defines it.

    The iterator itself is handed out untouched: a proxy would hide its type and attributes.
    """
    original = loader_class.__iter__
    wrapped: set[type] = set()

    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        iterator = original(self)
        if watch.active:
            owner = next((cls for cls in type(iterator).__mro__ if "__next__" in cls.__dict__), None)
            if owner is not None and owner not in wrapped and owner.__flags__ & _HEAP_TYPE:
                wrapped.add(owner)
                setattr(owner, "__next__", _timed_next(owner.__dict__["__next__"], watch, after_batch))  # noqa: B010
        return iterator

    loader_class.__iter__ = iterate


_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class made in Python, whose attributes may be set."""


def _timed_next(
    original: Callable[[Any], Any], watch: Watch, after_batch: Callable[[], None]
) -> Callable[[Any], Any]:
    span = watch.loader

    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        if not watch.is_training_thread():
            return original(self)
        begun = _begun(watch) if watch.marks is not None else None
        span.enter(now_ns())
        try:
            batch = original(self)
        finally:
            span.leave(now_ns())
            if begun is not None and watch.marks is not None:
                watch.marks.end(begun, LOADER)
        watch.batches += 1
        if watch.steps_by_batch:
            entered_ns = time.thread_time_ns()
            after_batch()
            watch.wrapper_ns += time.thread_time_ns() - entered_ns
        return batch

    return next_batch


def _gc_callback(watch: Watch) -> Callable[[str, dict[str, int]], None]:
    """Times collections of the older generations; the youngest takes microseconds and runs all the time."""

    def collected(moment: str, info: dict[str, int]) -> None:
        if info["generation"] == 0 or not watch.active:
            return
        if moment == "start":
            watch.gc.enter(now_ns())
        elif watch.gc.depth:
            watch.gc.leave(now_ns())

    return collected


def watch_compiler(callback: Any, watch: Watch) -> None:
    """Uses torch's own callbacks of a compilation. Args: ``callback`` the module that has them."""
    handler = callback.callback_handler

    def started(*_args: Any) -> None:
        if watch.is_training_thread():
            watch.compiling.enter(now_ns())

    def ended(*_args: Any) -> None:
        if watch.compiling.depth:
            watch.compiling.leave(now_ns())

    handler.register_start_callback(started)
    handler.register_end_callback(ended)


LATER: dict[str, Callable[[Any, Watch], None]] = {
    "torch.distributed.checkpoint.state_dict_saver": wrap_saver,
    "torch._dynamo.callback": watch_compiler,
}
"""Modules that torch loads only when a job uses them, and what to do then."""


def wrap_p2p(c10d: Any, watch: Watch) -> None:
    """Counts and notes sends and receives, which gloo's recorder does not hold.

    Only before anybody could import these names: ``P2POp`` compares its ``op`` with them by identity.
    """
    for name in ("send", "recv"):
        setattr(c10d, name, _noted(getattr(c10d, name), watch, blocking=True))
    for name in ("isend", "irecv"):
        setattr(c10d, name, _noted(getattr(c10d, name), watch, blocking=False))


def _noted(original: Callable[..., Any], watch: Watch, blocking: bool) -> Callable[..., Any]:
    name = original.__name__
    peer_name = "dst" if name.endswith("send") else "src"
    op, size = OP_OF.get(name, name), size_of(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not watch.active or (not blocking and watch.p2p_blocking.depth):
            return original(*args, **kwargs)  # send() calls isend() itself: one entry for both
        entered_ns = time.thread_time_ns()
        ticket = next(_tickets)
        peer, group = _peer(args, kwargs, peer_name)
        watch.p2p_count[group] = watch.p2p_count.get(group, 0) + 1
        if len(watch.p2p_open) < P2P_OPEN_MAX:
            watch.p2p_open[ticket] = (name, peer, group, time.time_ns(), None)
        key = waits.see_p2p(watch, group, op, size, args, kwargs)
        if blocking:
            watch.p2p_blocking.depth += 1
            if key is not None:
                watch.p2p_key = key
        watch.wrapper_ns += time.thread_time_ns() - entered_ns
        try:
            work = original(*args, **kwargs)
        except BaseException:
            watch.p2p_open.pop(ticket, None)
            raise
        finally:
            if blocking:
                watch.p2p_blocking.depth -= 1
                watch.p2p_open.pop(ticket, None)
                if key is not None:
                    watch.p2p_key = None
        if not blocking and key is not None and work is not None:
            waits.tell_when_waited(watch, work, key)
        if not blocking and ticket in watch.p2p_open:
            _keep_while_open(watch, ticket, work)
        return work

    return call


def _peer(args: tuple[Any, ...], kwargs: dict[str, Any], peer_name: str) -> tuple[int | None, str]:
    """Peer's global rank (None where only a group rank was given) and the name of the group."""
    peer = kwargs.get(peer_name, args[1] if len(args) > 1 else None)
    group = kwargs.get("group", args[2] if len(args) > 2 else None)
    return (peer if isinstance(peer, int) else None), str(getattr(group, "group_name", "") or "")


def _keep_while_open(watch: Watch, ticket: int, work: Any) -> None:
    """Notes a non-blocking call until its work is done or let go; holds the work weakly (it owns tensors)."""
    noted = watch.p2p_open.get(ticket)
    if noted is None:
        return
    if work is None:
        watch.p2p_open.pop(ticket, None)
        return
    try:
        reference = weakref.ref(work, lambda _gone: watch.p2p_open.pop(ticket, None))
    except TypeError:
        watch.p2p_open.pop(ticket, None)
        return
    watch.p2p_open[ticket] = (*noted[:4], reference)


def open_p2p(watch: Watch) -> list[dict[str, Any]]:
    """Point-to-point calls that have not returned or completed: ``op``, ``peer``, ``group``, ``since_ns``."""
    rows: list[dict[str, Any]] = []
    for ticket, (name, peer, group, since_ns, reference) in list(watch.p2p_open.items()):
        work = reference() if reference is not None else None
        if reference is not None and (work is None or work.is_completed()):
            watch.p2p_open.pop(ticket, None)
            continue
        rows.append({"op": name, "peer": peer, "group": group, "since_ns": since_ns})
    return rows
