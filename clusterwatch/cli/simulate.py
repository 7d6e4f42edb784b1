"""`clusterwatch simulate`: a simulated cluster on the real wire, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import uvloop

from clusterwatch.ops.errors import OpsError
from clusterwatch.simulate import start
from clusterwatch.simulate.cluster import Cluster
from clusterwatch.simulate.faults import catalogue
from clusterwatch.simulate.faults.requests import FaultError
from clusterwatch.simulate.kept import Settings
from clusterwatch.simulate.plans import JOBS_MAX
from clusterwatch.simulate.topology import FABRICS, GPUS_PER_NODE, Shape
from collectors import config

DEFAULT_CLUSTER: Final = "simulated"
DEFAULT_GPUS: Final = 512
GPUS_MAX: Final = 131_072
_OTHER_FILES: Final = 256

EPILOG: Final = """
A fault is NAME[:TARGET][@START[+DURATION]], times in seconds after the start of the simulator; --fault may be
given several times. TARGET is a NODE, NODE/GPU, RACK, leaf or spine switch, JOB, JOB/RANK or JOB/ROLE/RANK;
without one the seed chooses. Without a START a fault comes after 60 s, without a DURATION it stays. Examples:
  --fault slow_gpu --fault rank_stuck:88213/17@120 --fault link_flap:gpu-r001-n01/3@60+4
`clusterwatch simulate --list-faults` names them all.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser(
        "simulate",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--gpus", type=int, default=DEFAULT_GPUS, help=f"size of the cluster ({DEFAULT_GPUS})"
    )
    parser.add_argument("--cluster", default=DEFAULT_CLUSTER, help=f"its name ({DEFAULT_CLUSTER})")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same cluster")
    parser.add_argument("--jobs", type=int, default=JOBS_MAX, help=f"at most so many jobs ({JOBS_MAX})")
    parser.add_argument(
        "--gpus-per-node", type=int, default=GPUS_PER_NODE, help=f"GPUs of a node ({GPUS_PER_NODE})"
    )
    parser.add_argument(
        "--nvlink-domain", type=int, default=0, metavar="GPUS", help="GPUs joined by NVLink (those of a node)"
    )
    parser.add_argument("--fabric", choices=FABRICS, default=FABRICS[0], help=f"({FABRICS[0]})")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="FAULT", help="inject a fault; see below"
    )
    parser.add_argument("--truth", type=Path, metavar="FILE", help="write what was injected as JSON")
    parser.add_argument("--list-faults", action="store_true", help="name the faults and leave")


def run(arguments: argparse.Namespace) -> int:
    """Runs the simulator."""
    if arguments.list_faults:
        width = max(map(len, catalogue.FAULTS))
        for name, kind in sorted(catalogue.FAULTS.items()):
            print(f"{name:{width}}  {kind.text}")
        return 0
    settings = read_settings(arguments, os.environ)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    _allow_connections(settings)
    try:
        cluster = start.cluster(settings)
    except OSError as fault:
        raise OpsError(f"the simulator cannot use the state folder {settings.root}: {fault}") from fault
    except FaultError as fault:
        raise OpsError(str(fault)) from fault
    nodes = len(cluster.scenario.nodes)
    print(f"simulating {settings.gpu_count} GPUs on {nodes} nodes as cluster {settings.cluster}", flush=True)
    uvloop.run(_until_stopped(cluster))
    return 0


def read_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Arguments, then the environment, then what the supervisor left in the state folder.

    Raises:
        OpsError: a bad value, no gateway address or no enrolment token.
    """
    if not 0 < arguments.gpus <= GPUS_MAX:
        raise OpsError(f"--gpus must lie between 1 and {GPUS_MAX}")
    if arguments.seed < 0 or arguments.jobs < 1:
        raise OpsError("--seed must not be negative, --jobs at least 1")
    try:
        shape = Shape(arguments.gpus_per_node, arguments.nvlink_domain, arguments.fabric)
        agent = config.load({**environ, "CLUSTERWATCH_CLUSTER": arguments.cluster})
    except (config.ConfigError, ValueError) as fault:
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
        shape=shape,
        jobs_max=arguments.jobs,
        faults=tuple(arguments.fault),
        truth=arguments.truth,
    )


def _allow_connections(settings: Settings) -> None:
    """One connection a node: raises the limit of open files where the system lets us."""
    wanted = -(-settings.gpu_count // settings.shape.gpus_per_node) + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        print(f"only {allowed} open files are allowed, {wanted} are needed: raise ulimit -n", file=sys.stderr)


async def _until_stopped(cluster: Cluster) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await cluster.run(stop)
