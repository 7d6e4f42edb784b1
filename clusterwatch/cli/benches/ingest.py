"""`clusterwatch bench ingest`: what a gateway and pulse cost under the load of a whole cluster.

Starts a PostgreSQL and a Valkey of its own, a real gateway, a real pulse, and a process that speaks as
`--nodes` nodes of 8 GPUs: they enrol, announce their ranks, then send a hot frame each second and a block
each minute. CPU shares are of one core, read from the kernel over the measured seconds; the load's own
share is printed apart. The age of the state is taken from live frames as a web process receives them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

import django
import msgspec

from clusterwatch.cli.benches import ingest_curve, ingest_records, options, scratch
from clusterwatch.cli.benches.cpu_time import cpu_s, memory_mb, tree_cpu_s
from clusterwatch.cli.benches.ingest_records import PERIOD_S, Plan
from clusterwatch.ops.errors import OpsError

if TYPE_CHECKING:
    from clusterwatch.cli.benches.ingest_state_age import StateAge

SETTLE_S: Final = 12
"""Between the first frames and the measurement: pulse has read every job and its first percentiles."""
PAIRS: Final = 4
DRAIN_S: Final = 2
"""At the beginning of a period, not measured: what the one before has left to commit."""
VALUES_PER_BLOCK: Final = 20 * 8 * 60
_STOP_WITHIN_S: Final = 20


def run(argv: list[str]) -> dict[str, Any]:
    """Measures; returns the figures, whose names end in their units."""
    arguments = _arguments(argv)
    if arguments.curve:
        return ingest_curve.run(arguments.seconds)
    with scratch.servers(None, 512) as server:
        os.environ["DJANGO_SETTINGS_MODULE"] = "clusterwatch.project.settings"
        django.setup()
        # Models may be imported only after django.setup().
        from django.core.management import call_command
        from django.db import connection

        from clusterwatch.ingest import measure

        call_command("migrate", interactive=False, verbosity=0)
        figures: dict[str, Any] = {"bench": "ingest", "nodes": arguments.nodes, "seconds": arguments.seconds}
        try:
            postgres_pid = int((server.postgres.data_dir / "postmaster.pid").read_text().split()[0])
            figures |= _under_load(arguments, postgres_pid)
            figures |= measure.hot_frames(arguments.nodes, 3)
            figures |= measure.commits(arguments.nodes, arguments.records)
        finally:
            connection.close()
    return figures


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = options.parser_of("ingest", __doc__)
    parser.add_argument("--nodes", type=int, default=3_072, help="nodes of 8 GPUs, default 3072")
    parser.add_argument("--seconds", type=int, default=30, help="measured, default 30")
    parser.add_argument("--records", type=int, default=20_000, help="events to commit, default 20000")
    parser.add_argument(
        "--pairs", type=int, default=PAIRS, help=f"periods with and without blocks, default {PAIRS}"
    )
    parser.add_argument(
        "--curve", action="store_true", help="cost per GPU from 512 to 24,576 GPUs, and a fleet's projection"
    )
    arguments = parser.parse_args(argv)
    if min(arguments.nodes, arguments.seconds, arguments.records, arguments.pairs) < 1:
        raise OpsError("--nodes, --seconds, --records and --pairs must be at least 1.")
    return arguments


# --- processes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Child:
    """A process of this run and where it writes what it has to say."""

    process: subprocess.Popen[str]
    log: IO[str]

    def lines_until(self, event: str) -> dict[str, Any]:
        """The load's line of this event. Raises ``OpsError`` when it ended before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if said.pop("event") == event:
                print(f"{event}: {json.dumps(said)}" if said else event, flush=True)
                return dict(said)
        raise OpsError(f"The load ended before it was {event}: {self.last_words()}")

    def last_words(self) -> str:
        self.log.seek(0)
        return " | ".join(self.log.read().strip().splitlines()[-5:])


@contextlib.contextmanager
def _child(*command: str, **environment: str) -> Iterator[_Child]:
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=os.environ | environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        try:
            yield _Child(process, log)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _gateway_url(gateway: _Child) -> str:
    assert gateway.process.stdout is not None
    line = gateway.process.stdout.readline()
    if not line.startswith("gateway ready "):
        raise OpsError(f"The gateway did not start: {gateway.last_words()}")
    return line.split()[-1]


# --- the measurement ----------------------------------------------------------------------------------


def _under_load(arguments: argparse.Namespace, postgres_pid: int) -> dict[str, Any]:
    """The figures of gateway and pulse, and what nodes and viewers saw."""
    with (
        _child("clusterwatch.ingest.gateway", CLUSTERWATCH_GATEWAY_BIND="127.0.0.1:0") as gateway,
        _child("clusterwatch.ingest.pulse") as pulse,
    ):
        block_seconds = SETTLE_S + arguments.seconds + DRAIN_S
        seconds = block_seconds + 2 * arguments.pairs * PERIOD_S + 2
        plan = Plan(_gateway_url(gateway), _token(), arguments.nodes, seconds, block_seconds)
        cpu = {"gateway": gateway.process.pid, "pulse": pulse.process.pid}
        begun = {name: cpu_s(pid) for name, pid in cpu.items()}
        with _child("clusterwatch.cli.benches.ingest_load", msgspec.json.encode(plan).decode()) as load:
            admitted = load.lines_until("admitted")
            enrolled_cpu_s = cpu_s(gateway.process.pid) - begun["gateway"]
            announced = load.lines_until("announced")
            load.lines_until("running")
            ages = _viewer()
            time.sleep(SETTLE_S)
            pids = cpu | {"load": load.process.pid, "valkey": _valkey_pid()}
            shares = _watch(ages, arguments.seconds, pids, postgres_pid)
            added = _added_by_blocks(load, arguments, pids, postgres_pid)
            done = load.lines_until("done")
        if done["lost"] or done["rejects"]:
            raise OpsError(f"{done['lost']} connections lost, rejected: {done['rejects']}")
        return {
            "admission_s": _rounded(admitted["seconds"]),
            "admission_gateway_cpu_s": round(enrolled_cpu_s, 1),
            "admission_p99_s": round(admitted["hello_p99_s"], 2),
            "announce_ranks_s": round(announced["seconds"], 1),
            **shares,
            "hot_frames_per_s": round(done["frames_sent"] / plan.seconds),
            "values_per_s": round(done["frames_sent"] * len(ingest_records.METRICS) * 8 / plan.seconds),
            "blocks_sent": done["blocks_sent"],
            **added,
            "ack_p50_s": _rounded(done["ack_p50_s"]),
            "ack_p99_s": _rounded(done["ack_p99_s"]),
            "load_late_max_s": round(done["late_max_s"], 3),
            "gateway_memory_mb": round(gateway_memory(gateway)),
        }


def gateway_memory(gateway: _Child) -> float:
    """Resident memory while the nodes leave."""
    return memory_mb(gateway.process.pid)


def _added_by_blocks(
    load: _Child, arguments: argparse.Namespace, pids: dict[str, int], postgres_pid: int
) -> dict[str, float]:
    """What blocks add to a gateway that takes hot frames all the while, and to PostgreSQL: the median over
    pairs of a period without and one with them."""
    parts = ("gateway", "postgresql")
    added: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(arguments.pairs):
        load.lines_until("blocks_off")
        without = _period(pids, postgres_pid)
        load.lines_until("blocks_on")
        beside = _period(pids, postgres_pid)
        for name in parts:
            added[name].append(beside[f"{name}_core_ratio"] - without[f"{name}_core_ratio"])
    million_values_per_s = arguments.nodes / 60 * VALUES_PER_BLOCK / 1e6
    costs = {name: statistics.median(added[name]) / million_values_per_s for name in parts}
    return {
        **{f"blocks_{name}_cpu_s_per_million_values": round(cost, 4) for name, cost in costs.items()},
        "blocks_cpu_s_per_million_values": round(sum(costs.values()), 4),
    }


def _period(pids: dict[str, int], postgres_pid: int) -> dict[str, float]:
    time.sleep(DRAIN_S)
    return _cpu_shares(PERIOD_S - DRAIN_S - 1, pids, postgres_pid)


def _cpu_shares(seconds: int, pids: dict[str, int], postgres_pid: int) -> dict[str, float]:
    """Shares of a core over some seconds."""
    begun_s = time.monotonic()
    before = {name: cpu_s(pid) for name, pid in pids.items()} | {"postgresql": tree_cpu_s(postgres_pid)}
    time.sleep(seconds)
    after = {name: cpu_s(pid) for name, pid in pids.items()} | {"postgresql": tree_cpu_s(postgres_pid)}
    took_s = time.monotonic() - begun_s
    return {f"{name}_core_ratio": round((after[name] - before[name]) / took_s, 4) for name in before}


def _viewer() -> StateAge:
    """Follows a job from now on: on a busy machine the first whole state may take seconds to come."""
    from clusterwatch.cli.benches.ingest_state_age import StateAge
    from clusterwatch.jobs.models import Job

    ages = StateAge(Job.objects.order_by("pk").values_list("pk", flat=True)[0])
    ages.start()
    return ages


def _watch(ages: StateAge, seconds: int, pids: dict[str, int], postgres_pid: int) -> dict[str, Any]:
    """Shares of a core over some seconds, and the age of what a viewer sees meanwhile."""
    ages.begin()
    shares = _cpu_shares(seconds, pids, postgres_pid)
    ages.stop()
    return {
        **shares,
        "live_frames_seen": ages.frames,
        "state_age_p50_s": ages.percentile_s(50),
        "state_age_p99_s": ages.percentile_s(99),
    }


def _token() -> str:
    from clusterwatch.accounts.services import create_token
    from clusterwatch.fleet.services import ensure_cluster

    ensure_cluster(ingest_records.CLUSTER, simulated=True)
    return create_token("enrolment", "ingest", cluster=ingest_records.CLUSTER)[1]


def _valkey_pid() -> int:
    from clusterwatch.store import valkey

    return int(valkey.client().info("server")["process_id"])


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
