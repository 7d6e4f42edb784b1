"""``pause-gpu`` and ``resume-gpu``: asks the agent to let go of the GPU driver and waits until it has.

In: the agent's folder. Out: words for people. Names the other processes that have the driver open, as far as
they may be seen: a reset needs them gone, too.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from collectors.sources import gpu_pause
from collectors.sources.tree import printable

ANSWER_S: Final = 20.0
"""How long the agent may take: a tick to see the pause, some seconds to end a worker that hangs."""
_LOOK_EVERY_S: Final = 0.1
_SHOWN_MAX: Final = 10
_DEVICE: Final = "/dev/nvidia"


def pause(folder: Path, seconds: float, out: TextIO, within_s: float = ANSWER_S) -> bool:
    """Begins a pause. Returns whether the agent has let go. Raises ``OSError``."""
    if not is_running(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        gpu_pause.begin(folder, seconds)
        print(f"no agent runs; one that starts leaves the driver alone for {seconds:.0f} s", file=out)
        _say_others(out, set())
        return True
    begun = gpu_pause.begin(folder, seconds)
    ends_s = time.monotonic() + within_s
    while (held := gpu_pause.held_by(folder, begun)) != [] and time.monotonic() < ends_s:
        time.sleep(_LOOK_EVERY_S)
    if held is None:
        print("the agent has not answered: its state is not known", file=out)
    elif held:
        print(f"the agent could not let go: process {held[0]} hangs in the driver", file=out)
    else:
        print(f"the agent has let go of the GPU driver for {seconds:.0f} s", file=out)
    _say_others(out, set(held or ()))
    return held == []


def resume(folder: Path, out: TextIO) -> None:
    """Ends the pause. Raises ``OSError``."""
    stood = gpu_pause.end(folder)
    print("the pause is over" if stood else "there was no pause", file=out)


def is_running(folder: Path) -> bool:
    """Whether an agent holds the folder. Raises ``OSError`` where that may not be seen."""
    try:
        with (folder / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def holders(proc: Path = Path("/proc")) -> Iterator[tuple[int, str]]:
    """(process, its name) of whoever has the GPU driver open and may be seen."""
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            opened = [str(descriptor.readlink()) for descriptor in (entry / "fd").iterdir()]
            name = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue  # gone meanwhile, or another user's
        if any(path.startswith(_DEVICE) for path in opened):
            yield int(entry.name), printable(name)[:64]


def _say_others(out: TextIO, ours: set[int]) -> None:
    others = sorted((pid, name) for pid, name in holders() if pid not in ours)
    for pid, name in others[:_SHOWN_MAX]:
        print(f"still open: process {pid} ({name})", file=out)
    if len(others) > _SHOWN_MAX:
        print(f"still open: {len(others) - _SHOWN_MAX} more processes", file=out)
