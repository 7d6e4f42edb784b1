"""Who a process is in its job: from a few variables of its environment and from its control group.

In: /proc/PID/environ and /proc/PID/cgroup as bytes and text. Out: ``Identity``. Only the variables in
``ALLOWED`` are ever decoded; all others, which hold secrets, stay in the bytes that were read. An environment
is what it was when the program began. Source: proc(5); torchrun, srun(1) and mpirun(1) for the variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

VALUE_MAX_CHARS: Final = 128
LIST_MAX_CHARS: Final = 8_192
"""Of the variables that list devices."""
RANK_MAX: Final = 10_000_000
_LISTS: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"}
)
_RANKS: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Variables that say a process is a rank, the most certain first. SLURM_PROCID may be a launcher's."""
_LOCAL_RANKS: Final = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_RESTARTS: Final = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
_WORDS: Final = (
    "CLUSTERWATCH_JOB_ID", "CLUSTERWATCH_JOB_ID_MADE", "MASTER_ADDR", "MASTER_PORT",
    "NCCL_INSPECTOR_ENABLE", "SLURM_JOB_ID", "SLURM_JOB_NAME", "TORCHELASTIC_RUN_ID",
)  # fmt: skip
_NUMBERS: Final = (
    "LOCAL_WORLD_SIZE", "SLURM_GPUS", "SLURM_JOB_END_TIME", "SLURM_JOB_NUM_NODES", "SLURM_JOB_START_TIME",
    "SLURM_LOCALID", "SLURM_NNODES", "SLURM_NODEID", "SLURM_PROCID", "SLURM_STEP_ID", "WORLD_SIZE",
)  # fmt: skip
ALLOWED: Final = frozenset({*_LISTS, *_RANKS, *_LOCAL_RANKS, *_RESTARTS, *_WORDS, *_NUMBERS})
_NAMES: Final = {name.encode(): name for name in ALLOWED}
_JOB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+-]{0,127}")
_NO_RUN_ID: Final = "none"
"""torchrun's word for a run without an id; unrelated jobs share it."""
_SLURM_PATH: Final = re.compile(r"/(?:[^/]*slurmstepd\.scope|slurm[^/]*/uid_\d+)/([^/]+)(?:/step_([^/]+))?")
_SLURM_JOB: Final = re.compile(r"job_(\d{1,10})")
_POD: Final = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])"
)
_CONTAINER: Final = re.compile(r"docker|libpod|cri-?o|containerd|kubepods|lxc|enroot")
_NO_RANK_STEPS: Final = frozenset({"batch", "extern", "interactive"})


@dataclass(frozen=True, slots=True)
class Group:
    """What a control group tells. None: it does not.

    Attributes:
        step: of Slurm, ``0`` or ``batch``.
        is_closed: whether it may give its processes a part of the node's GPUs only.
    """

    job: str | None = None
    step: str | None = None
    pod_uid: str | None = None
    is_closed: bool = False
    path: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """One process. ``values``: its allowed variables."""

    pid: int
    values: Mapping[str, str] = field(default_factory=dict)
    group: Group = field(default_factory=Group)

    @property
    def job(self) -> str | None:
        """Job id as the hook of a rank finds it; None for a process of no job."""
        values = self.values
        given = _job_id(values.get("CLUSTERWATCH_JOB_ID"))
        made = given if values.get("CLUSTERWATCH_JOB_ID_MADE") == "1" else None
        if given and not made:
            return given
        elastic = _job_id(values.get("TORCHELASTIC_RUN_ID"))
        elastic = None if elastic == _NO_RUN_ID else elastic
        scheduled = _job_id(values.get("SLURM_JOB_ID")) or self.group.job
        return scheduled or elastic or made or self.group.pod_uid or self._rendezvous()

    def _rendezvous(self) -> str | None:
        """What ranks without any id have in common: where they meet."""
        address = _job_id(self.values.get("MASTER_ADDR"))
        if self.rank is None or "WORLD_SIZE" not in self.values or address is None:
            return None
        return _job_id(f"{address}:{self.values.get('MASTER_PORT', '')}".rstrip(":"))

    @property
    def rank(self) -> int | None:
        """Global rank where a launcher of ranks has set one."""
        return self._first(_RANKS)

    @property
    def local_rank(self) -> int | None:
        return self._first(_LOCAL_RANKS)

    @property
    def task(self) -> int | None:
        """Slurm's number of this task: a rank, or the launcher of a node's ranks."""
        return None if self.group.step in _NO_RANK_STEPS else self.number("SLURM_PROCID")

    @property
    def age(self) -> tuple[int, int, int]:
        """Orders lives of one rank: restarts of the job, of the launcher, steps of the job."""
        job_restarts, launcher_restarts = (self.number(name) or 0 for name in _RESTARTS)
        return job_restarts, launcher_restarts, self.number("SLURM_STEP_ID") or 0

    def number(self, name: str) -> int | None:
        text = self.values.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) <= 12):
            return None
        return int(text)

    def _first(self, names: tuple[str, ...]) -> int | None:
        found = next((value for name in names if (value := self.number(name)) is not None), None)
        return found if found is not None and found <= RANK_MAX else None


def environment(data: bytes) -> dict[str, str]:
    """The allowed variables of an environment; of a name that is there twice the first, as getenv(3) does."""
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        raw, equals, value = entry.partition(b"=")
        name = _NAMES.get(raw) if equals else None
        if name is None or name in found:
            continue
        text = value[: LIST_MAX_CHARS if name in _LISTS else VALUE_MAX_CHARS + 1].decode("utf-8", "replace")
        if text.isprintable() and (name in _LISTS or len(text) <= VALUE_MAX_CHARS):
            found[name] = text
    return found


def group(text: str) -> Group:
    """What the lines of a cgroup file tell: v1, v2, Slurm 26.05's SLUID in place of the job, Kubernetes."""
    paths = [line.split(":", 2)[2] for line in text.splitlines()[:64] if line.count(":") >= 2]
    job = step = pod_uid = None
    slurm_path = ""
    for path in paths:
        if match := _SLURM_PATH.search(path):
            slurm_path = slurm_path or path
            step = step or match[2]
            if number := _SLURM_JOB.fullmatch(match[1]):
                job = job or number[1]
        if pod := _POD.search(path):
            pod_uid = pod_uid or _pod_uid(pod[1])
    path = slurm_path or max(paths, key=len, default="")
    return Group(job, step, pod_uid, bool(slurm_path or pod_uid or _CONTAINER.search(path)), path)


def _pod_uid(text: str) -> str:
    """With dashes, as the API prints it; that of a static pod is a hash without any."""
    return text.replace("_", "-")


def _job_id(text: str | None) -> str | None:
    return text if text and _JOB_ID.fullmatch(text) else None
