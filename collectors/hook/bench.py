"""``clusterwatch bench overhead``: what the hook costs a training process, and the agent its node.

In: a small real torch job of two ranks over gloo, run in pairs with and without the hook against a
listener of our own. Out: figures. The hook's cost is what its budget names: CPU of its thread plus time in
its wrappers, over wall time, by its own counters; the pairs are a check (their difference is mostly noise).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from . import protocol

BUDGET_RATIO = 0.001
RANKS = 2
SETTLE_S = 5.0
"""Left out at the start of each run: imports, first connections, first steps."""
STEP_S = 0.25
_AGENT_BENCH = "import json, sys; from collectors.bench import run; print(json.dumps(run(sys.argv[1:])))"


def run(argv: list[str]) -> dict[str, Any]:
    """Measures. Returns figures; ratios are of wall time. Cost: about 2 x pairs x seconds."""
    parser = argparse.ArgumentParser(prog="clusterwatch bench overhead")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured time of one run")
    parser.add_argument("--pairs", type=int, default=2, help="runs with and without the hook")
    parser.add_argument("--no-agent", action="store_true", help="leave the agent's cost out")
    options = parser.parse_args(argv)
    watched: list[Run] = []
    plain: list[Run] = []
    for number in range(options.pairs):
        for hooked in (True, False) if number % 2 == 0 else (False, True):
            one = measure(options.seconds, hooked)
            (watched if hooked else plain).append(one)
            print(one.sentence(), flush=True)
    figures = summary(watched, plain)
    print(
        f"hook: {figures['hook_cpu_ratio']:.4%} of wall time, budget {BUDGET_RATIO:.1%}; "
        f"paired step time {figures['paired_step_ratio']:+.2%}"
    )
    if not options.no_agent:
        figures["agent"] = agent_cost(options.seconds)
    return figures


class Run:
    """One run of the job: what its ranks and, where it was loaded, their hooks counted."""

    def __init__(self, hooked: bool, ranks: list[dict[str, float]], costs: list[dict[str, float]]) -> None:
        self.hooked = hooked
        self.step_s = statistics.median(rank["step_s"] for rank in ranks)
        self.cpu_per_step_s = statistics.median(rank["cpu_per_step_s"] for rank in ranks)
        self.costs = costs

    def sentence(self) -> str:
        name = "with the hook" if self.hooked else "without it"
        worst = max((cost["ratio"] for cost in self.costs), default=0.0)
        own = f", the hook's own count {worst:.4%}" if self.hooked else ""
        return f"{name}: step {self.step_s:.4f} s, CPU per step {self.cpu_per_step_s * 1e3:.2f} ms{own}"


def summary(watched: list[Run], plain: list[Run]) -> dict[str, Any]:
    """Figures over all runs; the hook's ratio is that of its dearest rank."""
    costs = [cost for one in watched for cost in one.costs]
    with_s, without_s = (statistics.median(one.step_s for one in runs) for runs in (watched, plain))
    with_cpu, without_cpu = (
        statistics.median(one.cpu_per_step_s for one in runs) for runs in (watched, plain)
    )
    return {
        "bench": "overhead",
        "hook_cpu_ratio": max(cost["ratio"] for cost in costs),
        "hook_thread_ratio": max(cost["thread_ratio"] for cost in costs),
        "hook_wrapper_ratio": max(cost["wrapper_ratio"] for cost in costs),
        "hook_wakes_hz": max(cost["wakes_hz"] for cost in costs),
        "budget_ratio": BUDGET_RATIO,
        "within_budget": max(cost["ratio"] for cost in costs) <= BUDGET_RATIO,
        "step_with_s": with_s,
        "step_without_s": without_s,
        "paired_step_ratio": with_s / without_s - 1,
        "paired_cpu_ratio": (with_cpu - without_cpu) / without_s,
        "runs": len(watched) + len(plain),
    }


def measure(seconds: float, hooked: bool) -> Run:
    """Runs the job once. Raises ``RuntimeError`` with the job's last words when it fails."""
    with tempfile.TemporaryDirectory(prefix="cw-bench-") as folder:
        listener = Listener(Path(folder) / "hook.sock")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERWATCH_")}
        environ |= {
            "CLUSTERWATCH_HOOK_SOCKET": str(listener.path),
            "CLUSTERWATCH_JOB_ID": "bench",
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(RANKS),
            "BENCH_STORE": str(Path(folder) / "store"),
        }
        runner = [sys.executable, "-m", "collectors.hook.run"] if hooked else []
        job = [*runner, sys.executable, "-m", "collectors.hook.bench", "job", str(seconds)]
        processes = [
            subprocess.Popen(job, env=environ | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(RANKS)
        ]
        try:
            ranks = [_figures(process, seconds) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
            listener.close()
    return Run(hooked, ranks, listener.costs())


def _figures(process: subprocess.Popen[str], seconds: float) -> dict[str, float]:
    out, _errors = process.communicate(timeout=seconds + 180)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise RuntimeError(f"the measured job ended with {process.returncode}: {out[-2000:]}")
    return {str(name): float(value) for name, value in json.loads(lines[-1]).items()}


def agent_cost(seconds: float) -> dict[str, Any]:
    """Figures of ``clusterwatch bench agent``, measured in a process of its own."""
    command = [sys.executable, "-c", _AGENT_BENCH, f"--seconds={seconds:g}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Listener:
    """Stands for the agent: keeps the progress frames of every rank."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._frames: dict[int, list[dict[str, Any]]] = {}
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                peer, _address = self._socket.accept()
                threading.Thread(target=self._read, args=(peer,), daemon=True).start()

    def _read(self, peer: socket.socket) -> None:
        reader, rank = protocol.Reader(), -1
        with contextlib.suppress(OSError):
            while data := peer.recv(65_536):
                for header, _blob in reader.feed(data):
                    if header["k"] == "hello":
                        rank = int(header["rank"])
                    elif header["k"] == "progress":
                        self._frames.setdefault(rank, []).append(header)
        peer.close()

    def costs(self) -> list[dict[str, float]]:
        """Per rank, from SETTLE_S after its first step to its last frame."""
        found: list[dict[str, float]] = []
        for frames in self._frames.values():
            first_ns = next((frame["t_ns"] for frame in frames if frame["step"]), None)
            kept = [frame for frame in frames if first_ns and frame["t_ns"] >= first_ns + SETTLE_S * 1e9]
            if len(kept) < 2:
                continue
            first, last = kept[0], kept[-1]
            wall_s = (last["t_ns"] - first["t_ns"]) / 1e9
            total = (last["cost_s"] - first["cost_s"]) / wall_s
            wrappers = (last["wrapper_s"] - first["wrapper_s"]) / wall_s
            found.append(
                {
                    "ratio": total,
                    "wrapper_ratio": wrappers,
                    "thread_ratio": total - wrappers,
                    "wakes_hz": (last["wakes"] - first["wakes"]) / wall_s,
                }
            )
        return found


def job(seconds: float) -> None:
    """The measured job: loader, model, reduced gradients, AdamW, a step each STEP_S. Prints its figures."""
    import torch  # only the job needs it, not the measurement
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    store = f"file://{os.environ['BENCH_STORE']}"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    groups = [dist.new_group(list(range(size)), group_desc=desc) for desc in ("tp", "dp", "pp")]
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = DataLoader(TensorDataset(torch.randn(1 << 14, 256)), batch_size=16)
    durations: list[float] = []
    cpu: list[float] = []
    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds + SETTLE_S:
        for (batch,) in batches:
            started_s, cpu_s = time.perf_counter(), time.process_time()
            model(batch).square().mean().backward()
            for index, parameter in enumerate(model.parameters()):
                dist.all_reduce(parameter.grad, group=groups[index % len(groups)])
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(max(0.0, STEP_S - (time.perf_counter() - started_s)))
            durations.append(time.perf_counter() - started_s)
            cpu.append(time.process_time() - cpu_s)
            over = torch.tensor(float(time.monotonic() - began_s >= seconds + SETTLE_S))
            dist.all_reduce(over)
            if over.item():
                break
        else:
            continue
        break
    skip = int(SETTLE_S / STEP_S)
    figures = {"step_s": statistics.mean(durations[skip:]), "cpu_per_step_s": statistics.mean(cpu[skip:])}
    print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__" and sys.argv[1:2] == ["job"]:
    job(float(sys.argv[2]))
