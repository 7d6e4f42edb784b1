"""Who this process is in its job, from the environment its launcher made and from init_process_group.

In: environment variables of torchrun, Slurm and ``clusterwatch-run``; arguments of ``init_process_group``.
Out: the fields of the protocol's ``hello``.
"""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NO_RUN_ID = ("", "none")
"""torchrun's placeholder for "nobody chose a run id"; shared by unrelated jobs."""
COMMAND_MAX_CHARS = 2_000
SCHEDULER_LABELS = {
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
    "qos": "SLURM_JOB_QOS",
}
LABELS_MAX = 16
LABEL_MAX_CHARS = 200


def integer(text: str | None) -> int | None:
    """The number in ``text``, or None where there is none."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def job_id(environ: Mapping[str, str]) -> str:
    """Job id: CLUSTERWATCH_JOB_ID, SLURM_JOB_ID, TORCHELASTIC_RUN_ID, else the one ``clusterwatch-run`` made.

    An id that ``clusterwatch-run`` made on its own (it says so) yields to torchrun's run id: that one is
    the same on every host.
    """
    given = environ.get("CLUSTERWATCH_JOB_ID", "")
    made = given if environ.get("CLUSTERWATCH_JOB_ID_MADE") == "1" else ""
    if given and not made:
        return given
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    scheduled = environ.get("SLURM_JOB_ID", "")
    return scheduled or (elastic if elastic not in NO_RUN_ID else "") or made or f"pid-{os.getpid()}"


def attempt(environ: Mapping[str, str]) -> int:
    """How often the launcher has restarted this job: torchelastic's count, else Slurm's requeue count."""
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        value = integer(environ.get(name))
        if value is not None and value >= 0:
            return value
    return 0


def labels(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job's time is told apart by: Slurm's partition, account and QOS, and CLUSTERWATCH_LABELS.

    CLUSTERWATCH_LABELS is ``team=vision,model=7b`` and wins; what is no ``name=value`` is left out.
    """
    found = {name: environ.get(variable, "") for name, variable in SCHEDULER_LABELS.items()}
    for pair in environ.get("CLUSTERWATCH_LABELS", "").split(","):
        name, equals, value = pair.strip().partition("=")
        if equals and name:
            found[name] = value
    told = [(name[:LABEL_MAX_CHARS], value[:LABEL_MAX_CHARS]) for name, value in found.items() if value]
    return dict(told[:LABELS_MAX])


def world_name(environ: Mapping[str, str], init: Mapping[str, Any], generation: int) -> str:
    """Name of a world that all its ranks agree on: its rendezvous, and which re-init this is.

    Args: ``init`` arguments of init_process_group; ``generation`` counts worlds made by this process, from 0.
    """
    method = str(init.get("init_method") or "")
    given = "://" in method and not method.startswith("env:")
    place = method.split("://", 1)[1].split("?", 1)[0] if given else ""
    if not place and environ.get("MASTER_ADDR"):
        place = f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '')}"
    return f"{place[-200:]}#{generation}" if generation else place[-200:]


def started_ns() -> int:
    """When this process started, ns UTC, from /proc (resolution 10 ms); now where /proc is closed."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time_ns()
    return time.time_ns() - int((up_s - ticks / os.sysconf("SC_CLK_TCK")) * 1e9)


def command() -> str:
    """The command line, cut to ``COMMAND_MAX_CHARS``."""
    return " ".join(getattr(sys, "orig_argv", sys.argv))[:COMMAND_MAX_CHARS]


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a uid without a name, as in many containers
        return str(os.getuid())


def gpu(torch: Any, environ: Mapping[str, str]) -> tuple[int | None, str | None]:
    """GPU index on the node and its UUID, without ever initialising CUDA for the job.

    The index counts before CUDA_VISIBLE_DEVICES where that lists plain numbers.
    """
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None, None
    index = cuda.current_device()
    uuid = getattr(cuda.get_device_properties(index), "uuid", None)
    visible = [part.strip() for part in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    if visible:
        index = integer(visible[index]) if index < len(visible) else None
    return index, (f"GPU-{uuid}" if uuid is not None else None)
