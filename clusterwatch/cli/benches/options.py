"""Options that measurements share: the parser of a bench, where its data goes, how many GPUs it is about."""

from __future__ import annotations

import argparse

from clusterwatch.ops.errors import OpsError

GPUS_MIN = 64


def parser_of(name: str, text: str | None) -> argparse.ArgumentParser:
    """The parser of ``clusterwatch bench NAME``; ``text`` is the module's docstring."""
    return argparse.ArgumentParser(prog=f"clusterwatch bench {name}", description=text)


def add_data(parser: argparse.ArgumentParser, gpus: int) -> None:
    """``--gpus``, ``--folder`` and ``--peers`` of a bench that makes a database and compares it."""
    parser.add_argument("--gpus", type=int, default=gpus, help=f"default {gpus}")
    parser.add_argument("--folder", help="where the data goes for as long as the bench runs")
    parser.add_argument(
        "--peers", default="", help="folder of prometheus and victoria-metrics (else PATH), or `none`"
    )


def check_gpus(**given: int) -> None:
    """Raises ``OpsError`` on a number of GPUs that whole nodes of eight do not make."""
    for name, gpus in given.items():
        if gpus < GPUS_MIN or gpus % 8:
            option = name.replace("_", "-")
            raise OpsError(f"--{option} must be a multiple of 8, at least {GPUS_MIN}.")
