"""Stacks of many ranks, merged; and what a rank is doing by its stack.

In: ``RankStacks``. Out: ``MergedStack`` (identical ones once, the minority first) and a cause word. Only
Python frames are compared: native frames carry addresses and differ for no reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.model import MergedStack, RankStacks

_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")
_PLACE: Final = re.compile(r"^(?P<name>.*) \((?P<file>.*):(?P<line>\d+)\)$")
_LIBRARY: Final = re.compile(r"(^<|/site-packages/|/dist-packages/|/lib/python3[^/]*/|/collectors/hook/)")

_WAITING: Final = re.compile(
    r"(all_reduce|all_gather\w*|reduce_scatter\w*|all_to_all\w*|broadcast\w*|barrier|monitored_barrier|reduce"
    r"|gather|scatter|send|recv|batch_isend_irecv|wait|synchronize) \(.*torch/(distributed|cuda)/"
)
"""Public functions of torch.distributed that block until peers come."""

_NATIVE_WAIT: Final = re.compile(
    r"(gloo|c10d)::\w*(wait|recv|Wait)|c10d::Work|ncclCommWait|ProcessGroup\w+::"
)

_CAUSES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("data_loading", re.compile(r"torch/utils/data/|_next_data |load_batch|/datasets?/|dataloader", re.I)),
    ("checkpoint", re.compile(r"torch/serialization\.py|distributed/checkpoint/|^\w*save_checkpoint")),
    (
        "compile",
        re.compile(r"torch/_dynamo/convert_frame|torch/_inductor/(compile_fx|graph|codegen|async_compile)|triton/comp"),
    ),
    ("gc", re.compile(r"^(gc\.)?collect \(|gc_callback")),
    ("io", re.compile(r"\((?:[^)]*/)?(socket|ssl|urllib/request|http/client|subprocess|selectors)\.py:")),
)  # fmt: skip
"""Source: module layout of torch 2.x and of the standard library."""


RECORDER: Final = "recorder"
"""Source of stacks that a dump holds: where its newest call was issued, not where the rank is now."""


@dataclass(frozen=True, slots=True)
class Doing:
    """What the main thread of a rank does. ``waits`` = inside a call that only its peers can end."""

    cause: str | None
    waits: bool
    place: str
    """the innermost frame of the user's own code: ``function (file:line)``; empty when there is none"""


def main_frames(stacks: RankStacks) -> tuple[str, ...]:
    """Frames of the main thread, outermost first; the only thread when none is marked."""
    for thread in stacks.threads:
        if thread.main:
            return thread.frames
    return stacks.threads[0].frames if len(stacks.threads) == 1 else ()


_OWN: Final = "/collectors/hook/"
"""Our thin wrappers stand between a caller and torch; they say nothing of the job."""


def _python(frames: Iterable[str]) -> tuple[str, ...]:
    kept = tuple(
        _ADDRESS.sub("0x", frame)
        for frame in frames
        if (".py:" in frame or "(<" in frame) and _OWN not in frame
    )
    return kept or tuple(_ADDRESS.sub("0x", frame) for frame in frames)


def doing(stacks: RankStacks) -> Doing | None:
    """Reads the main thread's stack from the inside out; None without one that was taken now."""
    if stacks.source == RECORDER:
        return None
    frames = _python(main_frames(stacks))
    if not frames:
        return None
    if stacks.process_state == "T":
        return Doing("stopped", False, user_frame(frames))
    if any(map(_WAITING.search, frames)) or any(map(_NATIVE_WAIT.search, main_frames(stacks))):
        return Doing(None, True, user_frame(frames))
    for frame in reversed(frames):
        for cause, pattern in _CAUSES:
            if pattern.search(frame):
                return Doing(cause, False, user_frame(frames))
    if "_engine_run_backward" in frames[-1]:  # inside C++ autograd: compute or a hook that waits, unseen
        return None
    return Doing("user_code", False, user_frame(frames))


def user_frame(frames: Iterable[str]) -> str:
    """The innermost frame outside of libraries, of frames outermost first; empty when there is none."""
    for frame in reversed(tuple(frames)):
        place = _PLACE.match(frame)
        if place is not None and not _LIBRARY.search(place["file"]):
            return frame
    return ""


def merge(
    stacks: Iterable[RankStacks], culprits: Collection[int] = (), suspects: Collection[int] = ()
) -> tuple[MergedStack, ...]:
    """Identical main-thread stacks once per role, the named ranks' first, then the fewest ranks first."""
    together: dict[tuple[tuple[str, ...], str, str], set[int]] = defaultdict(set)
    for one in stacks:
        frames = _python(main_frames(one))
        role = "culprit" if one.rank in culprits else "suspect" if one.rank in suspects else "waiting"
        if frames:
            together[(frames, one.source, role)].add(one.rank)
    merged = [
        MergedStack(frames, tuple(sorted(ranks)), source, role)
        for (frames, source, role), ranks in together.items()
    ]
    order = {"culprit": 0, "suspect": 1, "waiting": 2}
    return tuple(sorted(merged, key=lambda m: (order[m.role], len(m.ranks), m.ranks, m.frames, m.source)))
