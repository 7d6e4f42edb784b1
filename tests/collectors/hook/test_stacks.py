"""Stacks of this very process."""

from __future__ import annotations

import threading

from collectors.hook import stacks
from collectors.hook.waits import Backward
from collectors.hook.watch import Watch
from collectors.hook.wrappers import _counted_backward


def test_the_main_thread_comes_first_and_is_told_outermost_first() -> None:
    first = stacks.threads()[0]
    assert first["main"] is True
    assert "test_the_main_thread_comes_first" in next(
        text for text in reversed(first["frames"]) if "test_stacks.py" in text
    )
    assert "test_stacks.py" not in first["frames"][0]


def test_every_thread_has_its_name_and_one_may_be_left_out() -> None:
    release = threading.Event()
    waiting = threading.Thread(target=release.wait, name="reader", daemon=True)
    waiting.start()
    try:
        assert "reader" in {thread["name"] for thread in stacks.threads()}
        assert "reader" not in {thread["name"] for thread in stacks.threads(skip=waiting.ident)}
    finally:
        release.set()
        waiting.join()


def test_a_deep_stack_keeps_its_innermost_frames() -> None:
    def dive(depth: int) -> list[str]:
        if depth:
            return dive(depth - 1)
        frames: list[str] = stacks.threads()[0]["frames"]
        return frames

    frames = dive(stacks.FRAMES_MAX + 10)
    assert len(frames) == stacks.FRAMES_MAX
    assert frames[-1].startswith("dive (")


def test_the_hooks_own_wrappers_are_left_out() -> None:
    seen: list[str] = []

    def backward() -> None:
        seen.extend(stacks.threads()[0]["frames"])

    watch = Watch()
    watch.active = True
    _counted_backward(backward, watch, Backward(watch, None))()
    assert any(text.startswith("backward (") and "test_stacks.py" in text for text in seen)
    assert not any("collectors/hook/" in text.rpartition("tests/")[0] for text in seen)
