"""Which cluster, which job and which time a command is asked about.

In: words of the command line. Out: rows of ours, ns UTC. Wrong words end the command with one line.
"""

from __future__ import annotations

import argparse
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Final

from clusterwatch.ops.errors import OpsError

if TYPE_CHECKING:
    from clusterwatch.fleet.models import Cluster
    from clusterwatch.jobs.models import Job
    from clusterwatch.store.answers import Window

EXIT_NO_INPUT: Final = 66
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class NoSuchThing(Exception):
    """The cluster, node or job that was named is not there."""


def add_arguments(parser: argparse.ArgumentParser, last: str) -> None:
    """Arguments for a cluster and a time. ``last``: the default length."""
    parser.add_argument("--cluster", help="needed where there are several real ones")
    parser.add_argument("--from", dest="start", help="ISO 8601 with a time zone")
    parser.add_argument("--to", dest="end", help="ISO 8601 with a time zone, default now")
    parser.add_argument("--last", default=last, help=f"time before --to, as 10m, 24h, 7d; default {last}")


def window(args: argparse.Namespace) -> Window:
    """The span asked for. Raises ``OpsError`` for words that are no time."""
    from clusterwatch.store.answers import SECOND_NS, QueryRefused, Window

    end_ns = _moment(args.end) if args.end else time.time_ns()
    if args.start:
        try:
            return Window(_moment(args.start), end_ns)
        except QueryRefused as refused:
            raise OpsError(f"That span cannot be asked for: {refused}.") from refused
    found = re.fullmatch(r"(\d{1,6})([smhd])", args.last)
    if not found or not int(found[1]):
        raise OpsError(f"--last takes a number and s, m, h or d, as 24h, not {args.last!r}.")
    return Window(end_ns - int(found[1]) * _UNITS_S[found[2]] * SECOND_NS, end_ns)


def _moment(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError(text)
        return round(found.timestamp() * 1_000_000) * 1_000
    except (ValueError, OverflowError) as fault:
        words = f"{text!r} is no ISO 8601 time with a time zone, as 2026-01-31T08:00Z."
        raise OpsError(words) from fault


def cluster(name: str | None) -> Cluster:
    """The one named, else the only real one, else the only one."""
    from clusterwatch.fleet.models import Cluster

    found = list(Cluster.objects.filter(name=name) if name else Cluster.objects.order_by("name"))
    chosen = [one for one in found if not one.simulated] if len(found) > 1 else found
    if len(chosen) == 1:
        return chosen[0]
    if name or not found:
        raise NoSuchThing(f"there is no cluster {name or ''}".rstrip())
    raise NoSuchThing(f"name one with --cluster: {', '.join(one.name for one in found)}")


def job(cluster: Cluster, word: str) -> Job:
    """The newest job of that key on the cluster, else the one of that id of ours."""
    from clusterwatch.jobs.models import Job

    found = Job.objects.filter(cluster=cluster, key=word).order_by("-id").first()
    if found is None and word.isascii() and word.isdecimal() and len(word) < 19:
        found = Job.objects.filter(cluster=cluster, pk=int(word)).first()
    if found is None:
        raise NoSuchThing(f"cluster {cluster.name} has no job {word!r}")
    return found
