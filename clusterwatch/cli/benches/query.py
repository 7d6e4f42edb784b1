"""`clusterwatch bench query`: how fast questions about telemetry are answered, at the size of a cluster.

Starts a PostgreSQL and a Valkey of its own, writes a day of data (`--hours`, `--gpus` make it smaller), asks
each question several times with a warm cache, checks every answer against numpy, and asks VictoriaMetrics
and Prometheus what they can answer too, on the same numbers. All it wrote is deleted at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import django

from clusterwatch.cli.benches import options, scratch
from clusterwatch.ops.errors import OpsError

GPUS: Final = 24_576
HOURS: Final = 24
BYTES_PER_GPU_HOUR: Final = 8_300
"""Of rollups and frames on disk, with the write-ahead log; measured at 24,576 GPUs."""
BYTES_PER_GPU: Final = 60_000
"""Of 15 minutes of raw blocks and node rollups; measured."""


def run(argv: list[str]) -> dict[str, Any]:
    """Generates, measures, deletes; returns the figures, whose names end in their units."""
    arguments = _arguments(argv)
    base = Path(arguments.folder) if arguments.folder else None
    _need_space(base, arguments)
    with scratch.servers(base, arguments.shared_buffers_mb) as server:
        os.environ["DJANGO_SETTINGS_MODULE"] = "clusterwatch.project.settings"
        django.setup()
        # Models and queries may be imported only after django.setup().
        from django.core.management import call_command
        from django.db import connection

        from clusterwatch.cli.benches import query_data, query_measure, query_peers

        call_command("migrate", interactive=False, verbosity=0)
        plan = query_data.Plan(
            gpus=arguments.gpus,
            hours=arguments.hours,
            fleet_raw_minutes=arguments.raw_minutes,
            end_minute=int(time.time() // 60) - 3,
        )
        _say(f"Writing {plan.hours} h of {plan.gpus} GPUs x {len(query_data.NAMES)} metrics:")
        made = query_data.generate(plan, _say)
        figures: dict[str, Any] = {
            "bench": "query",
            **_described(arguments, plan),
            **query_measure.sizes(made),
            "shared_buffers_mb": server.shared_buffers_mb,
        }
        try:
            figures |= query_measure.measure(made, arguments.rounds, _say)
            if arguments.peers != "none":
                figures["peers"] = query_peers.compare(made, arguments.peers, arguments.rounds, _say)
        finally:
            connection.close()
    return figures


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = options.parser_of("query", __doc__)
    options.add_data(parser, GPUS)
    parser.add_argument("--hours", type=int, default=HOURS, help=f"of rollups, default {HOURS}")
    parser.add_argument("--raw-minutes", type=int, default=15, help="of raw blocks of all GPUs, default 15")
    parser.add_argument("--rounds", type=int, default=25, help="times each question is asked, default 25")
    parser.add_argument("--shared-buffers-mb", type=int, default=1024, help="of PostgreSQL, default 1024")
    arguments = parser.parse_args(argv)
    options.check_gpus(gpus=arguments.gpus)
    if not 1 <= arguments.hours <= 24 * 7 or not 11 <= arguments.raw_minutes <= 60 * arguments.hours:
        raise OpsError("--hours must be 1 to 168, --raw-minutes 11 to the whole time.")
    if arguments.rounds < 5:
        raise OpsError("--rounds must be at least 5.")
    return arguments


def _need_space(base: Path | None, arguments: argparse.Namespace) -> None:
    needed = arguments.gpus * (
        arguments.hours * BYTES_PER_GPU_HOUR + BYTES_PER_GPU * arguments.raw_minutes // 15
    )
    free = shutil.disk_usage(base or tempfile.gettempdir()).free
    if free < needed * 1.2 + 2**30:
        raise OpsError(
            f"The bench needs about {needed * 1.2 / 2**30 + 1:.0f} GiB, {free / 2**30:.0f} are free: "
            "choose --hours or --gpus smaller, or another --folder."
        )


def _described(arguments: argparse.Namespace, plan: Any) -> dict[str, Any]:
    """Which data there is: not everything is kept raw."""
    return {
        "gpus": plan.gpus,
        "rollup_hours": plan.hours,
        "raw_minutes_of_all": plan.end_minute - plan.first_fleet_raw,
        "raw_hours_of_one_rack": plan.hours,
        "rounds": arguments.rounds,
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
