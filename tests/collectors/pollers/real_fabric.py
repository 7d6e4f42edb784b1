"""A fabric of ibsim with its own opensm, in which the real tools of infiniband-diags run.

Needs ``ibsim-utils``, ``libumad2sim0``, ``opensm`` and ``infiniband-diags`` of Debian, installed or unpacked
into a folder that ``CLUSTERWATCH_TEST_IBSIM`` names. No InfiniBand hardware, no module, no rights.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

UNPACKED = "CLUSTERWATCH_TEST_IBSIM"
READY_S = 20.0
NET = """Switch 8 "ib-leaf-02"
[1] "ib-spine-01"[1]
[3] "gtn-0101 mlx5_4"[1]
[4] "gtn-0102 mlx5_4"[1]

Switch 8 "ib-spine-01"
[1] "ib-leaf-02"[1]

Hca 1 "gtn-0101 mlx5_4"
[1] "ib-leaf-02"[3]

Hca 1 "gtn-0102 mlx5_4"
[1] "ib-leaf-02"[4]
"""


@dataclass
class Fabric:
    """A running fabric. ``environment``: for the tools, seen from the first adapter."""

    environment: dict[str, str]
    console: subprocess.Popen[bytes]

    def order(self, line: str) -> None:
        """A line for ibsim's console."""
        assert self.console.stdin is not None
        self.console.stdin.write(f"{line}\n".encode())
        self.console.stdin.flush()
        time.sleep(0.2)

    def sweep(self) -> None:
        """The subnet manager gives every port its LID."""
        subprocess.run(
            ["opensm", "-o", "-f", "stdout"], env=self.environment, timeout=READY_S, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


@contextlib.contextmanager
def fabric(folder: Path) -> Iterator[Fabric]:
    """Starts ibsim, and ends it; skips where there is none."""
    environment = dict(os.environ)
    root = Path(environment.get(UNPACKED, "/"))
    environment["PATH"] = f"{root}/usr/bin:{root}/usr/sbin:{environment['PATH']}"
    library = next(root.glob("usr/lib/*/umad2sim/libumad2sim.so"), None)
    tools = ("ibsim", "opensm", "ibnetdiscover", "ibqueryerrors")
    if library is None or any(shutil.which(name, path=environment["PATH"]) is None for name in tools):
        pytest.skip("no ibsim on this machine")
    environment["LD_LIBRARY_PATH"] = str(library.parent.parent)
    (folder / "net").write_text(NET)
    with (folder / "ibsim.log").open("wb") as log:
        console = subprocess.Popen(
            ["ibsim", "-s", str(folder / "net")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
        try:
            ends_s = time.monotonic() + READY_S
            while b"simulator ready" not in (folder / "ibsim.log").read_bytes():
                if time.monotonic() > ends_s or console.poll() is not None:
                    pytest.skip("ibsim does not start here")
                time.sleep(0.05)
            inside = {
                "LD_PRELOAD": str(library), "SIM_HOST": "gtn-0101 mlx5_4", "OSM_TMP_DIR": str(folder),
                "OSM_CACHE_DIR": str(folder),
            }  # fmt: skip
            running = Fabric(environment | inside, console)
            running.sweep()
            yield running
        finally:
            console.terminate()
            console.wait(10)
