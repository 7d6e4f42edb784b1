"""Answers of nodes to captures, written into the store as the gateway does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from psycopg.types.json import Jsonb

from clusterwatch.jobs.models import Capture
from clusterwatch.store.series import PartitionCache, Rows
from collectors import ras_event
from collectors.formats.columns import pack
from collectors.formats.flight_recorder import decode
from collectors.ras import RasAnswer
from tests.data import recorder
from tests.detect.fake_job import FakeJob

WAITING = (
    "<module> (train.py:5)",
    "step (train.py:9)",
    "all_reduce (torch/distributed/distributed_c10d.py:100)",
)
LOADING = (
    "<module> (train.py:5)",
    "__next__ (/x/site-packages/torch/utils/data/dataloader.py:1)",
    "fetch (/x/site-packages/torch/utils/data/_utils/fetch.py:3)",
    "__getitem__ (/opt/train/data.py:33)",
)


def captures_of(job: FakeJob) -> list[Capture]:
    return list(Capture.objects.filter(job=job.job).order_by("id"))


def answer(
    job: FakeJob,
    rings: recorder.Job | None,
    *,
    without: Iterable[int] = (),
    stacks: dict[int, Sequence[str]] | None = None,
    state: dict[int, str] | None = None,
    damaged: Iterable[int] = (),
    ras: RasAnswer | None = None,
) -> None:
    """Every capture of the job is answered: rings of all ranks but ``without``, stacks of those named."""
    rows, number = Rows(), iter(range(1, 10_000))
    cache = PartitionCache()
    cache.prepare([(table, job.now_ns) for table in ("trace", "stacks", "event")])
    for capture in captures_of(job):
        if capture.state != Capture.State.REQUESTED:
            continue
        if ras is not None and capture.ras_rank is not None:
            fields = ras_event.fields(ras, capture.pk)
            head = (job.cluster.pk, job.ranks[capture.ras_rank].row.node_id, job.now_ns, "e", next(number))
            text = (ras_event.SOURCE, ras_event.KIND, "info", ras_event.sentence(fields), Jsonb(fields))
            rows.add("event", (*head, *text, job.job.pk, job.job.attempt, "", capture.ras_rank))
        wanted = capture.ranks if capture.ranks is not None else sorted(job.ranks)
        for rank in wanted:
            head = (
                job.cluster.pk,
                job.ranks[rank].row.node_id,
                job.now_ns,
                "e",
                next(number) + 1000 * capture.pk,
            )
            who = (job.job.pk, job.job.attempt, "", rank, job.ranks[rank].row.pid, capture.pk)
            if rings is not None and rank not in set(without):
                columns = pack(decode(rings.pickled(rank), rank, "test"))
                rows.add(
                    "trace", (*head, *who, "ring", "generic", b"junk" if rank in set(damaged) else columns)
                )
            if stacks and rank in stacks:
                threads = [{"name": "MainThread", "main": True, "frames": list(stacks[rank])}]
                rows.add(
                    "stacks", (*head, *who, "hook", "", (state or {}).get(rank, "S"), "", Jsonb(threads))
                )
        capture.state, capture.done_at = Capture.State.DONE, datetime.now(UTC)
        capture.save()
    rows.write()
