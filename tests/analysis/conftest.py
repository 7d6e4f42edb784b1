"""Analysis is pure: while a test of this folder runs, files, sockets and clocks are out of reach."""

from __future__ import annotations

import builtins
import io
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Blocks them around the call itself: pytest's own set-up and reports need them."""
    if "analysis" not in item.path.parts:
        return (yield)
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return (yield)  # hypothesis itself reads clocks and keeps its examples in files
    with pytest.MonkeyPatch.context() as patch:
        _block(patch)
        return (yield)


def _block(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("analysis must not touch files, sockets or clocks")

    for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "scandir"), (socket, "socket")):
        patch.setattr(module, name, refuse)
    for name in _CLOCKS:
        patch.setattr(time, name, refuse)
