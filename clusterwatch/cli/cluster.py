"""``clusterwatch cluster``: clusters and whether anybody is paged for them.

    clusterwatch cluster list
    clusterwatch cluster observe NAME
    clusterwatch cluster page NAME

A new site is observed first: incidents open and are shown with all they say, and no receiver is told, until
``page``. What would have been told meanwhile is not sent later.

Exit codes: 0 done, 1 a fault said in one line, 64 wrong usage.
"""

from __future__ import annotations

import argparse

from clusterwatch.ops.errors import OpsError

ACTOR = "clusterwatch cluster"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser(
        "cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="all clusters")
    actions.add_parser("observe", help="open incidents, tell nobody").add_argument("name")
    actions.add_parser("page", help="tell receivers of incidents").add_argument("name")
    parser.set_defaults(command="cluster")


def run(args: argparse.Namespace) -> int:
    """Does it. Returns the exit code."""
    from clusterwatch.cli.database import use_database

    use_database()
    # Models may be imported only after Django is set up.
    from clusterwatch.fleet import services
    from clusterwatch.fleet.models import Cluster

    if args.action == "list":
        for cluster in Cluster.objects.order_by("name"):
            kind = "simulated" if cluster.simulated else "real"
            print(f"{cluster.name:<24}{kind:<11}{'observed only' if cluster.observe_only else 'pages'}")
        return 0
    observe = args.action == "observe"
    if not services.set_observe_only(args.name, observe, ACTOR):
        raise OpsError(f"There is no cluster {args.name!r}.")
    print(f"Incidents of {args.name} {'open and tell nobody' if observe else 'are told to its receivers'}.")
    return 0
