"""``clusterwatch export WHAT``: series of this installation as CSV, JSON or Parquet, of any length, streamed.

    clusterwatch export series NODE --gpu 3 --last 24h > gpu.csv
    clusterwatch export minutes gpu_power_w --job 4711 --as parquet --output power.parquet
    clusterwatch export percentiles gpu_temperature_c --from 2026-11-01T00:00Z --to 2026-11-08T00:00Z

Exit codes: 0 written, 1 a fault said in one line, 64 wrong usage, 66 no such cluster, node or job.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from clusterwatch.cli import choices
from clusterwatch.ops.errors import OpsError

if TYPE_CHECKING:
    from clusterwatch.api.export_formats import Table
    from clusterwatch.store.answers import Window

KINDS: Final = ("csv", "json", "parquet")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser(
        "export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    series = what.add_parser("series", help="metrics of one GPU of a node")
    series.add_argument("node", metavar="NODE", help="its name")
    series.add_argument("--gpu", type=int, default=0, help="index on the node, default 0")
    series.add_argument("--metric", action="append", help="may be given several times; default: all")
    series.add_argument("--resolution-s", type=int, help="seconds to a row; default: what fits the time")
    minutes = what.add_parser("minutes", help="one metric of every GPU by the minute")
    percentiles = what.add_parser("percentiles", help="percentiles of the cluster or a job, every 10 s")
    percentiles.add_argument("--resolution-s", type=int, help="seconds to a row, default 10")
    for one in (minutes, percentiles):
        one.add_argument("metric", metavar="METRIC")
        one.add_argument("--job", help="the scheduler's job id, or ours: only this job")
    for one in (series, minutes, percentiles):
        choices.add_arguments(one, last="10m")
        one.add_argument("--as", dest="kind", choices=KINDS, default="csv")
        one.add_argument("--output", type=Path, help="file to write; default: standard output")
    parser.set_defaults(command="export")


def run(args: argparse.Namespace) -> int:
    """Writes the table. Returns the exit code."""
    from clusterwatch.cli.database import use_database

    use_database()
    # Models and queries may be imported only after Django is set up.
    from clusterwatch.api import export_formats
    from clusterwatch.store.answers import QueryRefused

    table_of: Callable[[argparse.Namespace, Window], Table]
    table_of = {"series": _series, "minutes": _minutes, "percentiles": _percentiles}[args.what]
    try:
        table = export_formats.begun(table_of(args, choices.window(args)))
        parts = export_formats.written(table, args.kind)
    except choices.NoSuchThing as missing:
        print(f"clusterwatch: {missing}", file=sys.stderr)
        return choices.EXIT_NO_INPUT
    except QueryRefused as refused:
        raise OpsError(f"That cannot be exported at once: {refused}.") from refused
    except export_formats.ParquetMissing as missing:
        raise OpsError(f"Parquet needs a library: {missing}.") from missing
    with _output(args.output) as file:
        for part in parts:
            file.write(part)
    return 0


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[IO[bytes]]:
    """The file, which appears whole or not at all; else standard output."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except OSError as fault:
        raise OpsError(f"{path} cannot be written: {fault.strerror or fault}.") from fault
    finally:
        partial.unlink(missing_ok=True)


def _series(args: argparse.Namespace, window: Window) -> Table:
    from clusterwatch.api import export_tables
    from clusterwatch.fleet.models import Node
    from clusterwatch.store import node_series

    cluster = choices.cluster(args.cluster)
    node = Node.objects.filter(cluster=cluster, name=args.node).first()
    if node is None:
        raise choices.NoSuchThing(f"cluster {cluster.name} has no node {args.node!r}")
    step_s = node_series.step_of(window, args.resolution_s)
    return export_tables.series(node.pk, node.name, args.gpu, window, args.metric, step_s)


def _minutes(args: argparse.Namespace, window: Window) -> Table:
    import numpy as np

    from clusterwatch.api import export_tables
    from clusterwatch.fleet import places
    from clusterwatch.jobs.places import slots_of

    cluster = choices.cluster(args.cluster)
    if args.job:
        slots = slots_of(choices.job(cluster, args.job)).slots
        named = places.names(cluster.pk, slots.tolist())
    else:
        named = places.names(cluster.pk)
        slots = np.array(list(named), np.int64)
    return export_tables.minutes(cluster.pk, args.metric, window, slots, named)


def _percentiles(args: argparse.Namespace, window: Window) -> Table:
    from clusterwatch.api import export_tables
    from clusterwatch.store import fleet_queries

    cluster = choices.cluster(args.cluster)
    scope = fleet_queries.scope_of_job(choices.job(cluster, args.job).pk) if args.job else fleet_queries.FLEET
    return export_tables.percentiles(cluster.pk, scope, args.metric, window, args.resolution_s)
