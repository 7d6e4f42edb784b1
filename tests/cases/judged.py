"""Short ways from a job of ``tests.cases`` to its verdict: in memory, or as files through the command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.cli.main import main
from collectors.formats.flight_recorder import decode
from tests.cases.jobs import Job

Verdict = dict[str, Any]


def judge_bytes(dumps: Mapping[int, bytes], **known: Any) -> Verdict:
    """What the engine says of dumps by rank; ``known`` goes into the observation."""
    traces = tuple(decode(data, rank, f"rank_{rank}") for rank, data in dumps.items())
    return diagnose(Observation(traces=traces, **known)).to_dict()


def judge(
    job: Job, without: Iterable[int] = (), known: Mapping[str, Any] | None = None, **how: Any
) -> Verdict:
    """What the engine says of a job's dumps; ``how`` as of ``Ring.dump``."""
    return judge_bytes(job.pickles(without, **how), **(known or {}))


def analyzed(folder: Path, *arguments: str) -> Verdict:
    """The JSON of ``clusterwatch analyze FOLDER --json``."""
    out = StringIO()
    with redirect_stdout(out):
        code = main(["analyze", str(folder), "--json", *arguments])
    answer: Verdict = json.loads(out.getvalue())
    return answer | {"exit_code": code}


def named(verdict: Verdict) -> tuple[str, list[int], list[int]]:
    """Verdict, culprits and suspects."""
    return verdict["verdict"], verdict["culprit_ranks"], verdict["suspect_ranks"]


def where(verdict: Verdict) -> tuple[str | None, int | None, str | None]:
    """Name of the group, number and operation of the call."""
    group = verdict["group"]
    return (group["name"] if group else None), verdict["seq"], verdict["op"]
