"""What a simulator is told, and what it keeps between two starts: credentials of its nodes, its run.

One file of credentials for all nodes, 0600, beside the run's: thousands of folders would tell nothing more.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from clusterwatch.simulate.plans import JOBS_MAX
from clusterwatch.simulate.topology import Shape
from collectors.config import AgentConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a simulated cluster is."""

    cluster: str
    gpu_count: int
    seed: int
    root: Path
    """the state folder; everything kept lies in ``simulator`` below it"""
    gateway_url: str
    token: str | None = None
    token_file: Path | None = None
    gateway_ca: Path | None = None
    shape: Shape = field(default_factory=Shape)
    jobs_max: int = JOBS_MAX
    faults: tuple[str, ...] = ()
    """as ``--fault`` takes them"""
    truth: Path | None = None
    """file that says what was injected"""

    @property
    def folder(self) -> Path:
        return self.root / "simulator" / self.cluster


@dataclass(frozen=True, slots=True)
class Run:
    """Which attempt of the jobs runs, and since when."""

    attempt: int
    started_ns: int


class _KeptRun(msgspec.Struct):
    gpu_count: int
    attempt: int
    started_ns: int
    shape: str = ""


def run_of(settings: Settings, now_ns: int) -> Run:
    """The run of the simulated jobs: kept, so that their steps go on rising over restarts.

    A cluster of another size or shape cannot go on with the same ranks: its jobs begin their next attempt.
    Raises ``OSError``.
    """
    settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = settings.folder / f"run-{settings.seed}.json"
    shape = f"{settings.shape.gpus_per_node}/{settings.shape.nvlink_domain}/{settings.jobs_max}"
    attempt = 0
    try:
        known = msgspec.json.decode(path.read_bytes(), type=_KeptRun)
        if (known.gpu_count, known.shape) == (settings.gpu_count, shape):
            return Run(known.attempt, known.started_ns)
        attempt = known.attempt + 1
    except (FileNotFoundError, msgspec.MsgspecError):
        log.info("simulated jobs begin anew")
    path.write_bytes(msgspec.json.encode(_KeptRun(settings.gpu_count, attempt, now_ns, shape)))
    return Run(attempt, now_ns)


def end_run(settings: Settings, attempt: int) -> None:
    """The next simulator begins a later attempt than ``attempt``: faults of this one restart jobs.

    Raises ``OSError``.
    """
    path = settings.folder / f"run-{settings.seed}.json"
    path.write_bytes(msgspec.json.encode(_KeptRun(0, attempt, 0)))


class Credentials:
    """Credentials by node; ``held`` may be written to, ``save`` keeps what is new."""

    def __init__(self, settings: Settings) -> None:
        """Raises ``OSError``."""
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = settings.folder / "credentials.json"
        self.held: dict[str, str] = {}
        try:
            self.held = msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            log.info("simulated nodes enrol")
        except msgspec.MsgspecError as error:
            log.warning("credentials_unreadable reason=%s: the nodes enrol again", error)
        self._saved = dict(self.held)

    def save(self) -> None:
        """Writes the file where something is new. A file that cannot be written costs an enrolment later."""
        if self.held == self._saved:
            return
        temporary = self._path.with_suffix(".new")
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(self.held))
            temporary.replace(self._path)
            self._saved = dict(self.held)
        except OSError as error:
            log.error("credentials_unsaved reason=%s", error)


def agent_config(settings: Settings) -> AgentConfig:
    """What all simulated agents share; name and machine id are each node's own."""
    return AgentConfig(
        state_dir=settings.folder,
        gateway_url=settings.gateway_url,
        hook_socket=settings.folder / "hook.sock",
        cluster=settings.cluster,
        node="",
        machine_id="",
        boot_id=f"simulated-{settings.seed}",
        token=settings.token,
        token_file=settings.token_file,
        gateway_ca=settings.gateway_ca,
    )
