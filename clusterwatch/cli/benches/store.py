"""`clusterwatch bench store`: what keeping telemetry costs, in CPU and in bytes on disk.

Starts a PostgreSQL and a Valkey of its own. A real gateway takes blocks at the pace of 3,072 nodes; then
`--minutes` of blocks of `--gpus` GPUs x 20 metrics are stored by the gateway's own check and commit.
VictoriaMetrics and Prometheus get the numbers of `--peer-gpus` GPUs over `--peer-minutes`, which we store
once more for comparison. Blocks arrive by the minute: the view of each second comes from hot frames (`bench
ingest`), so the peers are written to in both ways, a second at a time and a minute at a time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import django

from clusterwatch.cli.benches import options, scratch
from clusterwatch.ops.errors import OpsError

GPUS: Final = 24_576
CPU_LIMIT_S_PER_MILLION: Final = 0.05
BYTES_LIMIT_PER_VALUE: Final = 1.0
"""What the design asks for."""


def run(argv: list[str]) -> dict[str, Any]:
    """Measures, deletes; returns the figures, whose names end in their units."""
    arguments = _arguments(argv)
    with scratch.servers(Path(arguments.folder) if arguments.folder else None, 512) as server:
        os.environ["DJANGO_SETTINGS_MODULE"] = "clusterwatch.project.settings"
        django.setup()
        # Models may be imported only after django.setup().
        from django.core.management import call_command
        from django.db import connection

        from clusterwatch.cli.benches import store_gateway, store_ours, store_peers
        from clusterwatch.store import partitions

        call_command("migrate", interactive=False, verbosity=0)
        partitions.ensure_ahead()
        figures: dict[str, Any] = {
            "bench": "store",
            "cpu_limit_s_per_million": CPU_LIMIT_S_PER_MILLION,
            "bytes_limit_per_value": BYTES_LIMIT_PER_VALUE,
        }
        try:
            if arguments.seconds:  # first: vacuum of what the others wrote would be counted with it
                figures["gateway"] = store_gateway.measure(arguments.seconds, server.postgres, _say)
            end_minute = int(time.time() // 60) - 3
            plan = store_ours.Plan("full", arguments.gpus, arguments.minutes, end_minute)
            figures["full"] = store_ours.measure(plan, server.postgres, _say)
            if arguments.peers != "none":
                small = store_ours.Plan("peers", arguments.peer_gpus, arguments.peer_minutes, end_minute)
                figures["beside_peers"] = store_peers.compare(small, server.postgres, arguments.peers, _say)
        finally:
            connection.close()
    return figures


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = options.parser_of("store", __doc__)
    options.add_data(parser, GPUS)
    parser.add_argument("--minutes", type=int, default=3, help="of all GPUs, default 3")
    parser.add_argument(
        "--seconds", type=int, default=20, help="of blocks through a gateway, default 20; 0: none"
    )
    parser.add_argument("--peer-gpus", type=int, default=256, help="default 256")
    parser.add_argument("--peer-minutes", type=int, default=30, help="default 30")
    arguments = parser.parse_args(argv)
    options.check_gpus(gpus=arguments.gpus, peer_gpus=arguments.peer_gpus)
    if arguments.minutes < 1 or not 2 <= arguments.peer_minutes <= 300 or not 0 <= arguments.seconds <= 600:
        raise OpsError("--minutes must be at least 1, --peer-minutes 2 to 300, --seconds 0 to 600.")
    return arguments


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
