"""``make example``: a real 8-process PyTorch job on four named hosts, and one fault on request.

In: a running clusterwatch, found by the ``endpoints.json`` of its state folder; FAULT, SCENARIO in the
environment or options. Out: processes, one line per thing worth knowing, and for machines
``FAULT_AT <ns UTC> kind=... rank=...``. Ctrl-C stops everything it started. Tests use ``Example`` directly.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from examples import faults, hosts, network
from examples.hosts import ROOT, Gateway, Host

HOST_NAMES = ("host-a", "host-b", "host-c", "host-d")
RANKS_PER_HOST = 2
POLL_S = 0.1
RESTART_STEP = 30
"""Step after which the elastic scenario starts all ranks again."""
SCENARIOS = ("healthy", "slow_first_step", "evaluation", "slow_checkpoint", "reinit", "elastic_restart")
_FAULT_LINE = re.compile(r"^FAULT (\d+) kind=(\w+) step=(\d+)$", re.MULTILINE)
_PID_LINE = re.compile(r"^rank \d+ pid (\d+)$", re.MULTILINE)
_STEP_LINE = re.compile(r"^step (\d+) ", re.MULTILINE)


class ExampleError(Exception):
    """The example cannot run here; the text is one line for people."""


@dataclass
class Plan:
    """What to run. Ranks count from 0, steps from 1."""

    state_dir: Path = ROOT / ".clusterwatch"
    fault: str = ""
    fault_rank: int = 5
    fault_step: int = 60
    scenario: str = "healthy"
    steps: int = 1_000_000
    job: str = ""
    folder: Path | None = None
    arguments: list[str] = field(default_factory=list)
    """further options of examples.train"""

    def __post_init__(self) -> None:
        self.job = self.job or f"example-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
        self.folder = (self.folder or ROOT / ".example" / self.job).absolute()


class Example:
    """A running job. Use as a context manager, so that nothing stays behind."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.folder = plan.folder or ROOT / ".example" / plan.job
        self.endpoints = _endpoints(plan.state_dir)
        self.fault_at_ns: int | None = None
        self._link = network.HostLink() if plan.fault == "host_netns" else None
        groups = [[2 * index, 2 * index + 1] for index in range(len(HOST_NAMES))]
        self.hosts = [
            Host(name, self.folder / name, ranks) for name, ranks in zip(HOST_NAMES, groups, strict=True)
        ]

    def __enter__(self) -> Example:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    @property
    def job_url(self) -> str:
        """Address that leads to the job's page: the search knows the launcher's job id."""
        return f"{self.endpoints['web_url'].rstrip('/')}/search?q={self.plan.job}"

    @property
    def attempt(self) -> int:
        """How often all ranks were started again."""
        return self.hosts[0].attempt

    @property
    def world_size(self) -> int:
        return len(self.hosts) * RANKS_PER_HOST

    def start(self) -> None:
        """Agents first, then all ranks. Raises ``ExampleError``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        gateway = Gateway(self.endpoints["gateway_url"], self.endpoints["enrolment_token_file"])
        for host in self.hosts:
            reached = gateway
            if self._link is not None and self.plan.fault_rank in host.ranks:
                host.prefix, reached = self._link.up(gateway)
            host.start_agent(reached)
        for host in self.hosts:
            self._wait_for_agent(host)
        self._start_ranks()

    def _wait_for_agent(self, host: Host) -> None:
        until = time.monotonic() + 30
        while not host.socket.exists():
            if host.agent is None or host.agent.poll() is not None or time.monotonic() > until:
                raise ExampleError(f"the agent of {host.name} does not start: {host.folder / 'agent.log'}")
            time.sleep(POLL_S)

    def _start_ranks(self) -> None:
        environ = hosts.clean_environment() | {
            "WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self._link.outer_address if self._link is not None else "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "OMP_NUM_THREADS": "1",
            "CLUSTERWATCH_JOB_ID": self.plan.job,
            "CLUSTERWATCH_JOB_NAME": "example",
        }
        if self.plan.scenario == "elastic_restart":
            environ["TORCHELASTIC_RESTART_COUNT"] = str(self.attempt)
        for host in self.hosts:
            own = environ | (self._link.environment(bool(host.prefix)) if self._link is not None else {})
            for rank in host.ranks:
                host.start_rank(rank, own, self._arguments())

    def _arguments(self) -> list[str]:
        plan = self.plan
        arguments = [f"--steps={plan.steps}", f"--folder={self.folder}", f"--scenario={plan.scenario}"]
        if plan.fault in faults.IN_RANK:
            arguments += [f"--fault={plan.fault}", f"--fault-rank={plan.fault_rank}"]
            arguments += [f"--fault-step={plan.fault_step}"]
        return arguments + plan.arguments

    # --- looking at it ----------------------------------------------------------------------------

    def host_of(self, rank: int) -> Host:
        return next(host for host in self.hosts if rank in host.ranks)

    def log(self, rank: int) -> str:
        """What ``rank`` printed so far."""
        try:
            return self.host_of(rank).log(rank).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def step(self, rank: int) -> int:
        """Last step ``rank`` printed in this attempt, 0 before the first."""
        steps = _STEP_LINE.findall(self.log(rank))
        return int(steps[-1]) if steps else 0

    def pids(self) -> dict[int, int]:
        """rank -> process id of the training process, of those that have started."""
        found = {rank: _PID_LINE.findall(self.log(rank)) for rank in range(self.world_size)}
        return {rank: int(pids[-1]) for rank, pids in found.items() if pids}

    def exit_codes(self) -> dict[int, int | None]:
        """rank -> exit code, None while it runs."""
        return {rank: runner.poll() for host in self.hosts for rank, runner in host.runners.items()}

    def wait_for_step(self, step: int, rank: int = 0, timeout_s: float = 120.0) -> None:
        """Returns once ``rank`` has printed ``step``. Raises ``ExampleError`` if it ends or is late."""
        until = time.monotonic() + timeout_s
        while self.step(rank) < step:
            if time.monotonic() > until:
                raise ExampleError(
                    f"rank {rank} is at step {self.step(rank)} after {timeout_s:.0f} s, not {step}"
                )
            if self.exit_codes().get(rank) is not None:
                raise ExampleError(
                    f"rank {rank} ended at step {self.step(rank)}: {self.host_of(rank).log(rank)}"
                )
            self.poll()
            time.sleep(POLL_S)

    def wait_for_fault(self, timeout_s: float = 120.0) -> int:
        """Returns the moment of the fault, ns UTC. Raises ``ExampleError`` when there is none in time."""
        until = time.monotonic() + timeout_s
        while self.fault_at_ns is None:
            if time.monotonic() > until:
                raise ExampleError(f"no fault within {timeout_s:.0f} s")
            self.poll()
            time.sleep(POLL_S)
        return self.fault_at_ns

    def is_over(self) -> bool:
        """True when every rank has ended."""
        return all(code is not None for code in self.exit_codes().values())

    # --- making things happen ---------------------------------------------------------------------

    def poll(self) -> None:
        """Does what is due: the host's fault at its step, the elastic restart. Call often."""
        plan = self.plan
        if plan.fault and self.fault_at_ns is None:
            line = _FAULT_LINE.search(self.log(plan.fault_rank))
            if line is not None:
                self.fault_at_ns = int(line.group(1))
            elif plan.fault in faults.ON_HOST and self.step(plan.fault_rank) >= plan.fault_step:
                self.inject()
        if plan.scenario == "elastic_restart" and self.attempt == 0 and self.step(0) >= RESTART_STEP:
            self.restart()

    def inject(self) -> None:
        """Makes the host's fault now."""
        host = self.host_of(self.plan.fault_rank)
        self.fault_at_ns = time.time_ns()
        if self.plan.fault == "agent_kill":
            host.kill_agent()
        elif self.plan.fault == "host_freeze":
            host.freeze()
        elif self._link is not None:
            self._link.cut()

    def restart(self) -> None:
        """Ends all ranks and starts them again as the next attempt, as torchelastic does."""
        hosts.stop([runner for host in self.hosts for runner in host.runners.values()])
        for host in self.hosts:
            host.attempt += 1
        self._start_ranks()

    def stop(self) -> None:
        """Stops every process and takes the network down again."""
        hosts.stop([process for host in self.hosts for process in host.runners.values()])
        hosts.stop([host.agent for host in self.hosts if host.agent is not None])
        if self._link is not None:
            self._link.down()


def _endpoints(state_dir: Path) -> dict[str, str]:
    path = state_dir / "endpoints.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ExampleError(f"no running clusterwatch in {state_dir}: start one with `make up`") from None
    missing = [name for name in ("gateway_url", "web_url", "enrolment_token_file") if not found.get(name)]
    if missing:
        raise ExampleError(f"{path} does not say {missing[0]}")
    return {name: str(value) for name, value in found.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def report(example: Example) -> Iterator[str]:
    """Lines for people (and ``FAULT_AT`` for machines) as things happen, until the job is over."""
    told_pids = told_fault = False
    told_step = told_attempt = 0
    while not example.is_over() or example.attempt != told_attempt:
        example.poll()
        if example.attempt != told_attempt:
            told_attempt, told_pids, told_step = example.attempt, False, 0
            yield f"restart attempt {example.attempt}"
        pids = example.pids()
        if len(pids) == example.world_size and not told_pids:
            told_pids = True
            yield "pids    " + " ".join(f"{rank}:{pid}" for rank, pid in sorted(pids.items()))
        if example.fault_at_ns is not None and not told_fault:
            told_fault = True
            moment = datetime.fromtimestamp(example.fault_at_ns / 1e9, UTC).isoformat(timespec="milliseconds")
            yield f"fault   {example.plan.fault} on rank {example.plan.fault_rank} at {moment}"
            yield f"FAULT_AT {example.fault_at_ns} kind={example.plan.fault} rank={example.plan.fault_rank}"
        step = example.step(0)
        if step >= told_step + 20:
            told_step = step
            yield f"step    {step}"
        time.sleep(POLL_S)
    codes = example.exit_codes()
    yield "ended   " + " ".join(f"{rank}:{code}" for rank, code in sorted(codes.items()))


def parse(argv: list[str] | None = None) -> Plan:
    """Options; FAULT, FAULT_RANK, FAULT_STEP and SCENARIO of the environment are their defaults."""
    environ = os.environ
    parser = argparse.ArgumentParser(prog="make example", description=(__doc__ or "").splitlines()[0])
    state = environ.get("CLUSTERWATCH_STATE_DIR", str(ROOT / ".clusterwatch"))
    parser.add_argument("--state-dir", type=Path, default=Path(state), help="of the running clusterwatch")
    parser.add_argument("--fault", default=environ.get("FAULT", ""), choices=("", *faults.KINDS))
    parser.add_argument(
        "--fault-rank", type=int, default=int(environ.get("FAULT_RANK", "5")), choices=range(8)
    )
    parser.add_argument("--fault-step", type=int, default=int(environ.get("FAULT_STEP", "60")))
    parser.add_argument("--scenario", default=environ.get("SCENARIO", "healthy"), choices=SCENARIOS)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--job", default="", help="job id; made from the time when left out")
    parser.add_argument("--folder", type=Path, help="for logs and checkpoints, default .example/JOB")
    options, rest = parser.parse_known_args(argv)
    return Plan(**vars(options), arguments=rest)


def main() -> int:
    """Runs until the job ends or somebody stops it."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with Example(parse()) as example:
            print(
                f"job     {example.plan.job}\npage    {example.job_url}\nlogs    {example.folder}", flush=True
            )
            for line in report(example):
                print(line, flush=True)
    except (ExampleError, network.NetworkError) as error:
        print(f"example: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", flush=True)
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
