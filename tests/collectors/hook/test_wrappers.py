"""The thin wrappers around plain functions: what they note, and that they change nothing."""

from __future__ import annotations

import gc
import inspect
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.hook import wrappers
from collectors.hook.watch import Watch


class Work:
    """Stands for the work object of a non-blocking call."""

    def __init__(self) -> None:
        self.done = False

    def is_completed(self) -> bool:
        return self.done


class Distributed(SimpleNamespace):
    """Sends and receives that do what a test says."""

    def __init__(self, during: Any = None) -> None:
        def isend(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0) -> Work:
            return Work()

        def irecv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0) -> Work:
            return Work()

        def send(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0) -> None:
            self.isend(tensor, dst, group)
            if during is not None:
                during()

        def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0) -> int:
            if during is not None:
                during()
            return 3

        super().__init__(isend=isend, irecv=irecv, send=send, recv=recv)


def make(during: Any = None) -> tuple[Watch, Distributed]:
    watch, distributed = Watch(), Distributed(during)
    watch.active = True
    wrappers.wrap_p2p(distributed, watch)
    return watch, distributed


def test_a_blocking_call_is_open_while_it_lasts() -> None:
    seen: list[dict[str, Any]] = []
    watch: Watch

    def look() -> None:
        seen.extend(wrappers.open_p2p(watch))

    watch, distributed = make(look)
    assert distributed.recv("tensor", src=4, group=SimpleNamespace(group_name="7")) == 3
    assert [(row["op"], row["peer"], row["group"]) for row in seen] == [("recv", 4, "7")]
    assert seen[0]["since_ns"] > 0
    assert wrappers.open_p2p(watch) == []
    assert watch.p2p_count == {"7": 1}


def test_a_send_counts_once_although_it_sends_by_isend() -> None:
    watch, distributed = make()
    distributed.send("tensor", 1)
    assert watch.p2p_count == {"": 1}


def test_a_non_blocking_call_is_open_until_done_or_let_go() -> None:
    watch, distributed = make()
    first, second = distributed.isend("tensor", 1), distributed.irecv("tensor", 2)
    assert [row["peer"] for row in wrappers.open_p2p(watch)] == [1, 2]
    first.done = True
    assert [row["peer"] for row in wrappers.open_p2p(watch)] == [2]
    del second
    assert wrappers.open_p2p(watch) == []


def test_an_error_passes_and_leaves_nothing_open() -> None:
    def fail() -> None:
        raise RuntimeError("peer is gone")

    watch, distributed = make(fail)
    with pytest.raises(RuntimeError, match="peer is gone"):
        distributed.recv("tensor", 1)
    assert watch.p2p_open == {}


def test_open_calls_are_bounded() -> None:
    watch, distributed = make()
    works = [distributed.isend("tensor", 1) for _ in range(200)]
    assert len(wrappers.open_p2p(watch)) == wrappers.P2P_OPEN_MAX
    assert watch.p2p_count == {"": len(works)}


def test_other_threads_may_send_too() -> None:
    watch, distributed = make()
    thread = threading.Thread(target=distributed.send, args=("tensor", 1))
    thread.start()
    thread.join()
    assert watch.p2p_count == {"": 1}


def test_an_inactive_watch_sees_nothing() -> None:
    watch, distributed = make()
    watch.active = False
    distributed.recv("tensor", 1)
    assert watch.p2p_count == {}


def test_names_and_signatures_stay() -> None:
    _watch, distributed = make()
    assert distributed.isend.__name__ == "isend"
    assert list(inspect.signature(distributed.recv).parameters) == ["tensor", "src", "group", "tag"]


def test_collections_of_old_generations_are_timed() -> None:
    watch = Watch()
    watch.active = True
    callback = wrappers._gc_callback(watch)
    gc.callbacks.append(callback)
    try:
        gc.collect(0)
        assert watch.gc.total_ns == 0
        gc.collect()
    finally:
        gc.callbacks.remove(callback)
    assert watch.gc.total_ns > 0 and watch.gc.since_ns is None


def test_versions_are_compared_by_major_and_minor() -> None:
    assert wrappers.is_tested("2.13.0+cpu")
    assert not wrappers.is_tested("2.1.3")
    assert not wrappers.is_tested("3.13.0")
    assert not wrappers.is_tested("")
