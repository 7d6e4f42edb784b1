"""A node of two GPUs with a kernel log, for tests of what that log tells."""

from __future__ import annotations

from pathlib import Path

from collectors.sources.base import SourceEvent
from collectors.sources.kernel_log import KernelLogSource
from tests.collectors.sources.trees import look, write

A, B = "GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b"
BTIME = 1_700_000_000


def node(root: Path, *lines: str, boot: str = "b1", first: int = 100) -> Path:
    """A node of two GPUs whose log has ``lines``, a second apart."""
    text = "".join(f"3,{first + n},{(n + 1) * 1_000_000},-;{line}\n" for n, line in enumerate(lines))
    smi = f"index, uuid, pci.bus_id\n0, {A}, 00000000:0A:00.0\n1, {B}, 00000000:0B:00.0\n"
    return write(
        root,
        {
            "dev/kmsg": text.encode("utf-8", "surrogateescape"),
            "proc/stat": f"cpu 1\nbtime {BTIME}\n",
            "proc/sys/kernel/random/boot_id": boot + "\n",
            "commands/nvidia-smi_query-gpu.csv": smi,
        },
    )


def events(root: Path, *lines: str) -> list[SourceEvent]:
    return look(KernelLogSource(), node(root, *lines))[1]
