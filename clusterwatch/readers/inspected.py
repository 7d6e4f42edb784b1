"""NCCL Inspector logs at a path as an ``Observation``: their calls for the slow side, who made them.

In: what lies at the path, and a topology file. Out: ``Observation``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from clusterwatch.analysis import Observation
from clusterwatch.analysis.model import InputProblem, RankFacts
from clusterwatch.analysis.slow.calls import COLUMNS, Calls
from clusterwatch.analysis.slow.inspector import Inspected, inspected
from clusterwatch.analysis.slow.inspector_roles import Place
from clusterwatch.analysis.slow.layout import UNKNOWN, Layout
from clusterwatch.readers import collective_log, inspector_log, job_logs
from clusterwatch.readers.archives import Survey
from clusterwatch.readers.progress import Show

SOURCE: Final = "NCCL Inspector logs"


def observed(
    looked: Survey,
    names: frozenset[str],
    told: job_logs.Logs,
    topology_file: Path | str | None,
    world_size: int | None = None,
    show: Show | None = None,
) -> Observation:
    """The logs of those names.

    Args:
        told: job logs beside them.
        world_size: processes the job should have, where the logs do not tell.

    Raises:
        CollectiveLogError: the topology is none.
    """
    places, layout = _topology(topology_file)
    log = inspector_log.read(looked, names, show)
    problems = (*log.problems, *told.problems)
    found = inspected(log.lines, places, layout)
    if found is None:
        nothing = InputProblem(SOURCE, "no line of them tells a finished call")
        return Observation(world_size=world_size, problems=(*problems, nothing), logs=told.logs)
    return Observation(
        world_size=found.log.layout.rank_count if not found.log.names else None,
        facts=dict(_facts(found)),
        problems=(*problems, *(InputProblem(SOURCE, text) for text in found.problems)),
        logs=told.logs,
        call_log=found.log,
    )


def unused(names: frozenset[str]) -> Iterator[InputProblem]:
    """That dumps are judged and the logs beside them are not."""
    if names:
        yield InputProblem(SOURCE, "there are dumps, too, which are judged; these logs are not")


def _topology(file: Path | str | None) -> tuple[list[Place], Layout | None]:
    if file is None:
        return [], None
    listed = collective_log.places_of(Path(file).read_bytes())
    nobody = Calls(**{name: np.zeros(0, np.int64) for name in COLUMNS}, groups=(), ops=())
    layout, _ = collective_log.layout_of(listed, nobody)
    return [Place(one.rank, one.node, one.tp, one.dp, one.pp, one.host) for one in listed], layout


def _facts(found: Inspected) -> Iterator[tuple[int, RankFacts]]:
    layout = found.log.layout
    for rank, process in sorted(found.processes.items()):
        gpu = int(layout.gpu[rank]) if layout.parts_told and layout.gpu[rank] != UNKNOWN else None
        yield rank, RankFacts(rank, host=process.host, gpu=gpu, pid=process.pid)
