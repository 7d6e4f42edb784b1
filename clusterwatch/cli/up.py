"""`clusterwatch up`: starts everything, prints the address, runs until Ctrl-C."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.processes import Address
from clusterwatch.ops.recovery import running_supervisor
from clusterwatch.ops.state import StateFolder
from clusterwatch.ops.up import Settings, await_ready, run_detached, run_foreground, welcome
from clusterwatch.project import environment

DEMO_GPUS = 24_576
DEMO_GPUS_SMALL = 2_048
CORES_FOR_FULL_DEMO = 4
DEFAULT_BIND = "127.0.0.1:8642"
DEFAULT_GATEWAY_BIND = "127.0.0.1:8643"


def default_demo_gpus() -> int:
    """The published cluster where there are cores for all processes, else a twelfth of it."""
    cores = len(os.sched_getaffinity(0))
    return DEMO_GPUS if cores >= CORES_FOR_FULL_DEMO else DEMO_GPUS_SMALL


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser("up", description=__doc__)
    parser.add_argument("-d", "--detach", action="store_true", help="return when everything is ready")
    parser.add_argument(
        "--demo-gpus",
        type=int,
        metavar="N",
        help=f"GPUs of the simulated cluster (default {default_demo_gpus()} on this machine; 0: none)",
    )
    parser.set_defaults(command="up")


def run(args: argparse.Namespace) -> int:
    """Starts the product, or says where it already runs."""
    state = StateFolder.open(environment.state_dir())
    if running_supervisor(state) is not None:
        status = await_ready(state)
        print(f"Already running.\n{welcome(state, str(status['web_url']))}")
        return 0
    settings = read_settings(os.environ, args.demo_gpus)
    if args.detach:
        return run_detached(state, [] if args.demo_gpus is None else ["--demo-gpus", str(args.demo_gpus)])
    return run_foreground(state, settings, os.environ)


def read_settings(environ: Mapping[str, str], demo_gpus: int | None = None) -> Settings:
    """What the environment chooses.

    Raises:
        OpsError: a value cannot be used; the line names the variable.
    """
    try:
        web = Address(*environment.bind("BIND", DEFAULT_BIND, environ))
        gateway = Address(*environment.bind("GATEWAY_BIND", DEFAULT_GATEWAY_BIND, environ))
        tls = environment.gateway_tls(environ) is not None
        return Settings(
            web=web,
            gateway=gateway,
            gateway_url=environ.get("CLUSTERWATCH_GATEWAY_URL")
            or f"{'wss' if tls else 'ws'}://{Address(gateway.reachable_host, gateway.port)}",
            public_url=environ.get("CLUSTERWATCH_URL") or f"http://{Address(web.reachable_host, web.port)}",
            demo_gpus=_demo_gpus(environ)
            if demo_gpus is None
            else _checked_gpus(str(demo_gpus), "--demo-gpus"),
            database_url=environment.secret("DATABASE_URL", environ) or "",
            valkey_url=environment.secret("VALKEY_URL", environ) or "",
            secrets={
                name: value
                for name in ("secret_key", "admin_password")
                if (value := environment.secret(name.upper(), environ))
            },
        )
    except environment.EnvironmentFault as fault:
        raise OpsError(str(fault)) from fault


def _demo_gpus(environ: Mapping[str, str]) -> int:
    value = environ.get("CLUSTERWATCH_DEMO_GPUS", "")
    return _checked_gpus(value, "CLUSTERWATCH_DEMO_GPUS") if value else default_demo_gpus()


def _checked_gpus(value: str, name: str) -> int:
    if not value.isdigit() or int(value) > 1_000_000:
        raise OpsError(f"{name} must be a number of GPUs from 0 to 1000000, not {value!r}.")
    return int(value)
