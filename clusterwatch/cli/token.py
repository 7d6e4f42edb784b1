"""`clusterwatch token`: makes tokens. The secret is shown once, as the last word."""

from __future__ import annotations

import argparse

from clusterwatch.cli.database import use_database
from clusterwatch.ops.errors import OpsError

KINDS = ("user", "enrolment")
SCOPES = ("read", "write", "admin", "ingest")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser("token", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a token")
    create.add_argument("--kind", choices=KINDS, default="user")
    create.add_argument("--scope", choices=SCOPES, default="read")
    create.add_argument("--user", default="admin", help="whose token it is (default admin)")
    create.add_argument("--name", default="", help="what it is for")
    create.add_argument(
        "--cluster", default="",
        help="limit it to one cluster; needed for enrolment, which makes the cluster where there is none",
    )  # fmt: skip
    create.add_argument("--simulated", action="store_true", help="that cluster is a simulated one")
    parser.set_defaults(command="token")


def run(args: argparse.Namespace) -> int:
    """Makes the token."""
    use_database()
    from clusterwatch.accounts.models import User
    from clusterwatch.accounts.services import create_token
    from clusterwatch.fleet.services import ensure_cluster

    owner = User.objects.filter(username=args.user).first() if args.kind == "user" else None
    if args.kind == "user" and owner is None:
        raise OpsError(f"There is no user {args.user!r}.")
    if args.kind == "enrolment" and not args.cluster:
        raise OpsError("An enrolment token belongs to a cluster: --cluster NAME.")
    scope = args.scope
    if args.kind == "enrolment":
        scope = "ingest"
        try:
            ensure_cluster(args.cluster, simulated=args.simulated)
        except ValueError as error:
            raise OpsError(f"{error}.") from error
    _, secret = create_token(
        args.kind, scope, user=owner, name=args.name, cluster=args.cluster, actor="clusterwatch token"
    )
    print(f"{args.kind} token with scope {scope}: {secret}")
    return 0
