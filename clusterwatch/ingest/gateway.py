"""``python -m clusterwatch.ingest.gateway``: nodes in, hot state and PostgreSQL out.

A plain websockets server on uvloop; database work runs in threads, commits in one thread of their own.
Several gateways may run at once: cursors in PostgreSQL and newest-wins overlays in Valkey join them.
Prints ``gateway ready ws://HOST:PORT`` when it listens. SIGTERM: commits, acknowledges, closes with 1001.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys

import django
import uvloop

from clusterwatch.project import environment


async def run() -> None:
    """Serves until SIGTERM or SIGINT."""
    # Models may be imported only after django.setup().
    from clusterwatch.ingest.hub import CONNECTIONS_MAX, Gateway, GatewayConfig
    from clusterwatch.ingest.open_files import connections_possible

    host, port = environment.bind("GATEWAY_BIND", "127.0.0.1:8643")
    possible = connections_possible(CONNECTIONS_MAX)
    gateway = Gateway(GatewayConfig(host, port, environment.gateway_tls(), possible))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await gateway.start()
    print(f"gateway ready {gateway.url}", flush=True)
    await stopping.wait()
    await gateway.stop()


def _calm_collector() -> None:
    """A second of a fleet makes thousands of short-lived objects and no cycles: the collector's walks over
    all connections would cost a tenth of the gateway. What was imported is never looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def main() -> int:
    """The process table's entry."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")
    django.setup()
    # One line per connection is ours already; the library's own say the same again.
    logging.getLogger("websockets").setLevel(logging.ERROR)
    try:
        _calm_collector()
        uvloop.run(run())
    except (environment.EnvironmentFault, OSError) as error:
        print(f"clusterwatch: the gateway cannot start: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
