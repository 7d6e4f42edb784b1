"""From "torch was imported" to "this rank is watched": wraps the making and unmaking of process groups.

In: the module ``torch.distributed.distributed_c10d``. Out: one ``Session`` per process, begun when
``init_process_group`` is entered, so that a rank stuck in it is seen. A process that never makes a world
(a loader worker, a tool) starts no thread and says nothing; a forked child falls silent at once.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from time import thread_time_ns
from typing import Any

from . import endpoints, waits, wrappers
from .failures import LastWords
from .session import Session
from .watch import Watch, now_ns


class _Process:
    """What the hook keeps for the whole life of a process."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.session: Session | None = None
        self.entered = False
        self.wrapped = False
        self.p2p_wrapped = False
        self.last_words: LastWords | None = None


_process = _Process()


def on_import(module: Any, late: bool, early_wrappers: bool = False) -> None:
    """Wraps ``module`` once. Args: ``late`` when other code may hold its functions already."""
    later = wrappers.LATER.get(module.__name__)
    if later is not None:
        if wrappers.is_tested(_torch_version()):
            later(module, _process.watch)
        return
    if early_wrappers and not _process.p2p_wrapped and wrappers.is_tested(_torch_version()):
        wrappers.wrap_p2p(module, _process.watch)
        waits.wrap_calls(module, _process.watch)
        _process.p2p_wrapped = True
    if not _process.entered:
        _process.entered = True
        _replace(module, "init_process_group", _around_init(module.init_process_group, module))
        _replace(module, "destroy_process_group", _around_destroy(module.destroy_process_group))
        os.register_at_fork(after_in_child=_silence_child)
    if late and _process.session is None and module.is_initialized():
        _never_raising(_begin, module, {})
        _never_raising(_world_is_up, module)


def _torch_version() -> str:
    """Version of a torch whose import may still be under way."""
    return str(getattr(sys.modules.get("torch.version") or sys.modules.get("torch"), "__version__", ""))


def _replace(module: Any, name: str, wrapped: Callable[..., Any]) -> None:
    original = getattr(module, name)
    for holder in (module, sys.modules.get("torch.distributed")):
        if getattr(holder, name, None) is original:
            setattr(holder, name, wrapped)


def _around_init(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        _never_raising(_begin, module, _by_name(original, args, kwargs))
        result = original(*args, **kwargs)
        _never_raising(_world_is_up, module)
        return result

    return init_process_group


def _around_destroy(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        if not args and kwargs.get("group") is None and _process.session is not None:
            _process.watch.torn_down = now_ns()
        return original(*args, **kwargs)

    return destroy_process_group


def _by_name(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    try:
        return dict(inspect.signature(function).bind_partial(*args, **kwargs).arguments)
    except TypeError:
        return {}  # torch will raise its own, better words for a wrong call


def _begin(module: Any, init: dict[str, Any]) -> None:
    """Starts the session, or tells the running one about a further world."""
    process = _process
    if process.session is None:
        path = endpoints.hook_socket(os.environ)
        if path is None:
            return
        torch = sys.modules["torch"]
        session = process.session = Session(torch, module, process.watch, path)
        _install_once(torch, session)
        process.watch.restart()
    process.session.begin(init, process.p2p_wrapped)


def _install_once(torch: Any, session: Session) -> None:
    """Hooks and wrappers that live as long as the process, whatever session comes after a fork."""
    process = _process
    if process.last_words is None:
        process.last_words = LastWords(_report)
    if session.steps is None or process.wrapped:
        return
    process.wrapped = True
    wrappers.install(torch, process.watch, _after_batch)
    if process.p2p_wrapped:
        waits.wrap_native(torch.distributed, process.watch)
    optimizer_module = sys.modules.get("torch.optim.optimizer")
    register = getattr(optimizer_module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(_after_optimizer_step)


def _world_is_up(module: Any) -> None:
    if _process.session is not None:
        _process.session.world_is_up(int(module.get_rank()), int(module.get_world_size()))


def _report(header: dict[str, Any]) -> None:
    if _process.session is not None:
        _process.session.report(header)


def _after_batch() -> None:
    session = _process.session
    if session is not None and session.steps is not None:
        session.steps.after_batch()


def _after_optimizer_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """torch's global post-step hook: closes a training step."""
    session, watch = _process.session, _process.watch
    if session is None or session.steps is None or not watch.active:
        return
    entered_ns = thread_time_ns()
    wrappers.end_false_evaluation(watch, session.steps.step)
    _never_raising(session.steps.after_optimizer_step, optimizer)
    watch.wrapper_ns += thread_time_ns() - entered_ns


def _silence_child() -> None:
    """A forked child is another process: it must neither speak for its parent nor close its connection."""
    session, _process.session = _process.session, None
    _process.watch.active = False
    if session is not None:
        session.forget()


def _never_raising(function: Callable[..., Any], *args: Any) -> None:
    """The border between the hook and the job."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - whatever is wrong in here, the job goes on
        sys.stderr.write(f"clusterwatch: the hook failed: {error!r}\n")
