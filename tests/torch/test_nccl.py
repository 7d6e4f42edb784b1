"""One rank over NCCL, where a GPU and a build with NCCL's recorder are at hand; else a skip in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectors.formats import flight_recorder
from tests.torch.lab import ROOT

HAS_GPU = """
import torch, torch._C._distributed_c10d as core
print(int(torch.cuda.is_available() and hasattr(core, "_dump_nccl_trace")))
"""

JOB = """
import json, os, sys, time
import torch, torch.distributed as dist
from collectors.hook import recorder
out = sys.argv[1]
dist.init_process_group("nccl", store=dist.FileStore(out + "/store", 1), rank=0, world_size=1)
values = torch.ones(1 << 20, device="cuda")
for _ in range(200):
    dist.all_reduce(values)
torch.cuda.synchronize()
time.sleep(2)
found = recorder.find()
chosen = recorder.choose(found)
began = time.perf_counter()
for _ in range(20):
    status = chosen.status()
cost_us = (time.perf_counter() - began) / 20 * 1e6
open(out + "/dump", "wb").write(chosen.dump(stacks=False, only_active=False))
print(json.dumps({"recorders": [r.name for r in found], "chosen": chosen.name, "cost_us": cost_us,
                  "status": [list(row) for row in status.values()]}), flush=True)
os._exit(0)
"""


def ran(program: str, *arguments: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, cwd=ROOT, env=dict(os.environ) | environ, timeout=110, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(scope="module")
def gpu() -> None:
    pytest.importorskip("torch")
    if ran(HAS_GPU).strip() != "1":
        pytest.skip("no GPU, or a torch without NCCL's recorder: NCCL dumps were not tried on this machine")


@pytest.mark.parametrize("timing", ["0", "1"])
def test_a_job_of_one_rank_leaves_a_dump_that_we_read(gpu: None, tmp_path: Path, timing: str) -> None:
    environ = {"TORCH_NCCL_ENABLE_TIMING": timing, "TORCH_FR_BUFFER_SIZE": "2000"}
    said: dict[str, Any] = json.loads(ran(JOB, str(tmp_path), **environ).splitlines()[-1])
    assert said["recorders"] == ["nccl", "generic"] and said["chosen"] == "nccl"
    assert said["cost_us"] < 5_000
    assert said["status"] and said["status"][0][0] == said["status"][0][1]
    trace = flight_recorder.decode((tmp_path / "dump").read_bytes(), 0)
    assert len(trace.entries) >= 200
    assert "all_reduce" in {signature.op for signature in trace.signatures}
