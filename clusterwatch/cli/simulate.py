"""`clusterwatch simulate`: a simulated cluster on the real wire, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from clusterwatch.ops.errors import OpsError
from clusterwatch.simulate.cluster import Cluster, Settings
from collectors import config

DEFAULT_CLUSTER = "simulated"
DEFAULT_GPUS = 512
GPUS_MAX = 131_072


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser("simulate", description=__doc__)
    parser.add_argument(
        "--gpus", type=int, default=DEFAULT_GPUS, help=f"size of the cluster ({DEFAULT_GPUS})"
    )
    parser.add_argument("--cluster", default=DEFAULT_CLUSTER, help=f"its name ({DEFAULT_CLUSTER})")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same cluster")


def run(arguments: argparse.Namespace) -> int:
    """Runs the simulator."""
    settings = read_settings(arguments, os.environ)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # One line per node and event is for an agent of its own machine, not for thousands in one process.
    logging.getLogger("collectors.sender").setLevel(logging.ERROR)
    try:
        cluster = Cluster(settings)
    except OSError as fault:
        raise OpsError(f"the simulator cannot use the state folder {settings.root}: {fault}") from fault
    print(f"simulating {settings.gpu_count} GPUs on {len(cluster.nodes)} nodes as cluster {settings.cluster}")
    asyncio.run(_until_stopped(cluster))
    return 0


def read_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Arguments, then the environment, then what the supervisor left in the state folder.

    Raises:
        OpsError: a bad value, no gateway address or no enrolment token.
    """
    if not 0 < arguments.gpus <= GPUS_MAX:
        raise OpsError(f"--gpus must lie between 1 and {GPUS_MAX}")
    if arguments.seed < 0:
        raise OpsError("--seed must not be negative")
    try:
        agent = config.load({**environ, "CLUSTERWATCH_CLUSTER": arguments.cluster})
    except config.ConfigError as fault:
        raise OpsError(str(fault)) from fault
    root = config.state_root(environ)
    token_file = environ.get("CLUSTERWATCH_TOKEN_FILE")
    return Settings(
        cluster=agent.cluster,
        gpu_count=arguments.gpus,
        seed=arguments.seed,
        root=root,
        gateway_url=agent.gateway_url,
        token=agent.token,
        # What the state folder names for agents is the real cluster's; this one has a token of its own.
        token_file=Path(token_file) if token_file else root / "secrets" / f"enrolment_token_{agent.cluster}",
        gateway_ca=agent.gateway_ca,
    )


async def _until_stopped(cluster: Cluster) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await cluster.run(stop)
