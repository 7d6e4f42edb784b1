"""``clusterwatch receiver``: who is told of incidents, by mail or webhook.

    clusterwatch receiver add night-shift --kind email --address oncall@example.org
    clusterwatch receiver add pager --kind webhook --address https://pager.example.org/hook
    clusterwatch receiver test pager
    clusterwatch receiver list

Mail needs CLUSTERWATCH_SMTP_URL and CLUSTERWATCH_MAIL_FROM. ``add`` prints the key that signs what a webhook
gets.

Exit codes: 0 done, 1 a fault said in one line (of ``test``: the receiver did not take it), 64 wrong usage.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from clusterwatch.ops.errors import OpsError

if TYPE_CHECKING:
    from clusterwatch.alerts.services import ReceiverView

ACTOR = "clusterwatch receiver"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser(
        "receiver", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="make a receiver")
    add.add_argument("name")
    add.add_argument("--kind", choices=("email", "webhook"), required=True)
    add.add_argument("--address", required=True, help="mail addresses, separated by commas, or a URL")
    add.add_argument("--cluster", help="only of this cluster; a simulated one only so")
    actions.add_parser("list", help="all receivers and how they do")
    for action, text in (
        ("test", "send a notice that says it is a test"),
        ("key", "print the key that signs what a webhook gets"),
        ("remove", "forget a receiver and what was sent to it"),
    ):
        actions.add_parser(action, help=text).add_argument("name")
    parser.set_defaults(command="receiver")


def run(args: argparse.Namespace) -> int:
    """Does it. Returns the exit code."""
    from clusterwatch.cli.database import use_database

    use_database()
    # Models may be imported only after Django is set up.
    from clusterwatch.alerts import deliver, secrets, services
    from clusterwatch.alerts.models import Receiver

    if args.action == "list":
        print("\n".join(_lines(services.receivers())) or "There is no receiver: nobody is told of incidents.")
        return 0
    if args.action == "add":
        print(_added(args))
        return 0
    receiver = Receiver.objects.filter(name=args.name).first()
    if receiver is None:
        raise OpsError(f"There is no receiver {args.name!r}.")
    if args.action == "test":
        outcome = deliver.test(receiver, ACTOR)
        print(f"{receiver.name}: {outcome.said}")
        return 0 if outcome.is_sent else 1
    if args.action == "key":
        print(secrets.signing_key(receiver.salt))
        return 0
    services.remove_receiver(receiver, ACTOR)
    print(f"{args.name} is told nothing any more.")
    return 0


def _added(args: argparse.Namespace) -> str:
    from clusterwatch.alerts import secrets, services
    from clusterwatch.alerts.receivers import BadAddress
    from clusterwatch.fleet.models import Cluster

    cluster = Cluster.objects.filter(name=args.cluster).first() if args.cluster else None
    if args.cluster and cluster is None:
        raise OpsError(f"There is no cluster {args.cluster!r}.")
    try:
        made = services.add_receiver(args.name, args.kind, args.address, cluster, ACTOR)
    except BadAddress as fault:
        raise OpsError(f"That is no receiver: {fault}.") from fault
    where = cluster.name if cluster else "all clusters that are not simulated"
    told = f"{made.name} is told of incidents of {where}."
    if made.kind == "webhook":
        told += f"\nKey of its signatures: {secrets.signing_key(made.salt)}"
    return told


def _lines(found: list[ReceiverView]) -> list[str]:
    lines = []
    for one in found:
        row, last = one.receiver, one.last
        how = "nothing sent yet"
        if last is not None:
            how = f"last {last.state} {last.done_at:%Y-%m-%d %H:%M} UTC: {last.said}"
        failing = f"; fails since {row.failing_since:%Y-%m-%d %H:%M} UTC" if row.failing_since else ""
        lines.append(f"{row.name:<20}{row.kind:<9}{row.address:<40} {one.waiting} waiting; {how}{failing}")
    return lines
