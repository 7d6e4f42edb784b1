"""``clusterwatch bench agent``: what a running agent costs beside N training processes.

In: ``--ranks``, ``--seconds``. Out: figures of one real agent process that reads a recorded node of 8 GPUs
and 8 RDMA ports with all sources, beside N real processes that speak the hook protocol once a second. A
gateway of our own acknowledges everything. Memory is the proportional set size; processor time includes
children. ``sources``: each source alone, over a recorded node.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from websockets.asyncio.server import ServerConnection, serve

from collectors import bench_node, bench_sources
from collectors.guard import CPU_MAX_RATIO, PSS_MAX_BYTES, pss_bytes
from collectors.hook import protocol
from collectors.wire import codec, limits, records

WARM_UP_S: Final = 5.0
_GROUPS: Final = 12
"""Process groups a rank of a TP x PP x DP job typically has."""


def run(argv: list[str]) -> dict[str, Any]:
    """Measures and returns the figures."""
    parser = argparse.ArgumentParser(prog="clusterwatch bench agent")
    parser.add_argument("--ranks", type=int, default=8, help="training processes on the node")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure")
    arguments = parser.parse_args(argv)
    return asyncio.run(_measure(arguments.ranks, arguments.seconds))


class _Sink:
    """A gateway that acknowledges everything and counts."""

    def __init__(self) -> None:
        self.hot_frames = 0
        self.records = 0
        self.bytes = 0

    async def serve(self, connection: ServerConnection) -> None:
        await connection.recv()
        acked = records.LaneNext(urgent=0, bulk=0)
        welcome = records.Welcome(version=codec.VERSION, t_ns=time.time_ns(), acked=acked, credential="bench")
        await connection.send(codec.encode(welcome))
        async for data in connection:
            assert isinstance(data, bytes)
            self.bytes += len(data)
            message = codec.decode_from_node(data)
            if isinstance(message, records.Put):
                self.records += len(message.items)
                ack = records.Ack(lane=message.lane, sequence=message.items[-1].sequence)
                await connection.send(codec.encode(ack))
            elif isinstance(message, records.HotFrame):
                self.hot_frames += 1


async def _measure(ranks: int, seconds: float) -> dict[str, Any]:
    sink = _Sink()
    with tempfile.TemporaryDirectory(prefix="cw-bench-") as folder:
        bench_node.write(Path(folder) / "node", 1_000)
        hook_socket = Path(folder) / "hook.sock"
        async with serve(
            sink.serve, "127.0.0.1", 0, compression=None, max_size=limits.FRAME_MAX_BYTES
        ) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            agent = await _start_agent(folder, hook_socket, port)
            hooks = [_start_hook(hook_socket, rank, ranks) for rank in range(ranks)]
            try:
                await asyncio.sleep(WARM_UP_S)
                # A live log has nothing new in most seconds; a recorded one would be parsed whole at each.
                (Path(folder) / "node" / "dev/kmsg").write_text("", encoding="ascii")
                return await _watch(agent.pid, sink, ranks, seconds)
            finally:
                for hook in hooks:
                    hook.kill()
                    hook.wait()
                agent.terminate()
                await agent.wait()


async def _watch(pid: int, sink: _Sink, ranks: int, seconds: float) -> dict[str, Any]:
    cpu_from_s, from_s, hot_from, bytes_from = _cpu_s(pid), time.monotonic(), sink.hot_frames, sink.bytes
    worst_pss = 0
    while time.monotonic() - from_s < seconds:
        await asyncio.sleep(min(5.0, seconds / 4))
        worst_pss = max(worst_pss, pss_bytes(pid) or 0)
    took_s = time.monotonic() - from_s
    cpu_ratio = (_cpu_s(pid) - cpu_from_s) / took_s
    return {
        "bench": "agent",
        "ranks_count": ranks,
        "seconds": round(took_s, 1),
        "cpu_ratio": round(cpu_ratio, 5),
        "cpu_s_per_hour": round(cpu_ratio * 3_600, 2),
        "pss_bytes": worst_pss,
        "hot_frames_per_s": round((sink.hot_frames - hot_from) / took_s, 3),
        "sent_bytes_per_s": round((sink.bytes - bytes_from) / took_s),
        "records_count": sink.records,
        "sources": bench_sources.measure(),
        "within_budget": cpu_ratio <= CPU_MAX_RATIO and worst_pss <= PSS_MAX_BYTES,
    }


def _cpu_s(pid: int) -> float:
    """Processor time of a process and its finished children.

    The process by the scheduler's own ns count of its threads (/proc/PID/task/*/schedstat), since a tick of
    10 ms is too coarse for a budget of 5 ms a second; children by /proc/PID/stat fields 16 and 17.
    """
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    own_ns = sum(int(path.read_text(encoding="ascii").split()[0]) for path in threads)
    fields = (
        Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
    )
    return own_ns / 1e9 + sum(int(ticks) for ticks in fields[13:15]) / os.sysconf("SC_CLK_TCK")


async def _start_agent(folder: str, hook_socket: Path, port: int) -> asyncio.subprocess.Process:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("CLUSTERWATCH_")}
    environment |= {
        "CLUSTERWATCH_STATE_DIR": folder,
        "CLUSTERWATCH_GATEWAY_URL": f"ws://127.0.0.1:{port}",
        "CLUSTERWATCH_HOOK_SOCKET": str(hook_socket),
        "CLUSTERWATCH_NODE": "bench",
        "CLUSTERWATCH_TOKEN": "bench",
    }
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "collectors.bench_agent", str(Path(folder) / "node"),
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    assert agent.stdout is not None
    line = await asyncio.wait_for(agent.stdout.readline(), 20)
    if not line.startswith(b"agent ready"):
        raise RuntimeError(f"the agent did not start: {line!r}")
    return agent


def _start_hook(hook_socket: Path, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "collectors.bench", str(hook_socket), str(rank), str(ranks)]
    return subprocess.Popen(command, cwd=root)


def _speak(path: str, rank: int, ranks: int) -> None:
    """A training process's once-a-second messages, for ever."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)

        def say(*headers: dict[str, Any]) -> None:
            line.sendall(b"".join(protocol.pack(header) for header in headers))

        hello = {"k": "hello", "v": protocol.VERSION, "rank": rank, "world_size": ranks, "job": "bench"}
        members = list(range(ranks))
        groups = [{"index": index, "name": f"g{index}", "ranks": members} for index in range(_GROUPS)]
        say(hello, {"k": "groups", "groups": groups})
        for step in range(1_000_000):
            now_ns = time.time_ns()
            numbers = [[index, step * 9, step * 9, step * 9] for index in range(_GROUPS)]
            progress = {"k": "progress", "t_ns": now_ns, "step": step, "phase": "train", "groups": numbers}
            columns = {"k": "steps", "step": [step], "end_ns": [now_ns], "duration_s": [1.0], "cpu_s": [0.5]}
            say(progress, columns)
            time.sleep(1.0)


if __name__ == "__main__":
    _speak(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
