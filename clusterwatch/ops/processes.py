"""The process table: every process of the product, in one place.

`clusterwatch up` runs it; `docker-compose.yml` holds the same commands and a test compares the two. Commands
start with `python`; the supervisor puts its own interpreter there.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from clusterwatch.ops.account import SpawnIdentity
from clusterwatch.ops.probes import answers_http, is_listening

PYTHON = "python"
WORKER_PROCESSES = 2
CELERY = (PYTHON, "-m", "celery", "-A", "clusterwatch.project.celery_app")


def always() -> bool:
    """The readiness of a process that has nothing to ask: it is ready once it has stayed up."""
    return True


def nothing() -> None:
    """No preparation."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: how it is started, when it is ready, how it is stopped.

    `ready` is asked until it says yes, at the earliest `settle_s` after the start. `prepare` runs before each
    start. A `once` process is ready when it has ended with 0. Without a `required` process nothing works: if
    it cannot be started at all, the start is given up. `after` names what must be ready first.
    """

    name: str
    argv: tuple[str, ...]
    after: tuple[str, ...] = ()
    ready: Callable[[], bool] = always
    prepare: Callable[[], None] = nothing
    env: Mapping[str, str] = field(default_factory=dict)
    identity: SpawnIdentity = field(default_factory=SpawnIdentity)
    settle_s: float = 0.0
    once: bool = False
    required: bool = False
    stop_signal: int = signal.SIGTERM
    stop_grace_s: float = 10.0

    def command(self) -> tuple[str, ...]:
        """The command on this machine."""
        return (sys.executable, *self.argv[1:]) if self.argv[0] == PYTHON else self.argv


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def reachable_host(self) -> str:
        """A host name for a client on this machine."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104


def product_processes(web: Address, gateway: Address, demo_gpus: int) -> tuple[ProcessSpec, ...]:
    """The product's own processes, without the two servers it stands on.

    Args:
        web: where pages and REST are served.
        gateway: where agents connect.
        demo_gpus: GPUs of the simulated cluster; 0 leaves the simulator out.
    """
    specs = (
        ProcessSpec("bootstrap", (PYTHON, "-m", "clusterwatch.ops.bootstrap"), once=True, required=True),
        ProcessSpec(
            "web",
            (PYTHON, "-m", "uvicorn", "clusterwatch.project.asgi:application")
            + ("--host", web.host, "--port", str(web.port))
            + ("--lifespan", "off", "--no-access-log", "--ws-per-message-deflate", "false"),
            after=("bootstrap",),
            ready=lambda: answers_http(web.reachable_host, web.port, "/login/"),
            required=True,
        ),
        ProcessSpec(
            "gateway",
            (PYTHON, "-m", "clusterwatch.ingest.gateway"),
            after=("bootstrap",),
            ready=lambda: is_listening(gateway.port),
        ),
        ProcessSpec("pulse", (PYTHON, "-m", "clusterwatch.ingest.pulse"), after=("bootstrap",), settle_s=1.0),
        ProcessSpec(
            "worker",
            (*CELERY, "worker", "--loglevel", "INFO", "--concurrency", str(WORKER_PROCESSES))
            + ("--without-gossip", "--without-mingle"),
            after=("bootstrap",),
            settle_s=1.0,
            stop_grace_s=15.0,
        ),
        ProcessSpec(
            "beat", (*CELERY, "beat", "--loglevel", "INFO", "--pidfile="), after=("bootstrap",), settle_s=1.0
        ),
        ProcessSpec("agent", (PYTHON, "-m", "collectors", "run"), after=("gateway",), settle_s=1.0),
        ProcessSpec(
            "simulator",
            (PYTHON, "-m", "clusterwatch.cli.main", "simulate", "--gpus", str(demo_gpus)),
            after=("gateway", "pulse"),
            settle_s=1.0,
        ),
    )
    return tuple(spec for spec in specs if demo_gpus > 0 or spec.name != "simulator")
