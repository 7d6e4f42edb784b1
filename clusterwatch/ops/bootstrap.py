"""Makes the database ready: migrations, the first admin, the two clusters, their enrolment tokens.

Runs as a process of its own (`python -m clusterwatch.ops.bootstrap`), so that nothing else of `ops` needs
Django. Safe to repeat; a token whose file was lost is made anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import django
from django.core.management import call_command

from clusterwatch.ops.stamp import STAMP_FILE, wanted_stamp
from clusterwatch.ops.state import SECRET_MODE, StateFolder, write_file

ADMIN_NAME = "admin"
CLUSTERS = {"default": False, "simulated": True}
"""Name -> whether it is simulated."""


def main() -> None:
    """Brings the database of the environment up to date."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")
    django.setup()
    state = StateFolder(Path(os.environ["CLUSTERWATCH_STATE_DIR"]))
    call_command("migrate", interactive=False, verbosity=1)
    _ensure_admin(state.secret("admin_password"))
    for name, simulated in CLUSTERS.items():
        _ensure_cluster(state, name, simulated)
    home = os.environ.get("CLUSTERWATCH_POSTGRES_HOME", "")
    if home:
        write_file(Path(home) / STAMP_FILE, wanted_stamp() + "\n", SECRET_MODE)


def _ensure_admin(password: str) -> None:
    """Makes the first admin; one that exists keeps what its owner set."""
    from clusterwatch.accounts.models import User

    if not User.objects.filter(username=ADMIN_NAME).exists():
        User.objects.create_superuser(ADMIN_NAME, password=password, role=User.Role.ADMIN)
        print(f"made user {ADMIN_NAME}")


def _ensure_cluster(state: StateFolder, name: str, simulated: bool) -> None:
    """Makes a cluster and the token its agents enrol with."""
    from clusterwatch.accounts.services import create_token
    from clusterwatch.fleet.models import Cluster

    Cluster.objects.get_or_create(name=name, defaults={"simulated": simulated})
    secret_name = "enrolment_token_simulated" if simulated else "enrolment_token"
    if not state.secret_path(secret_name).exists():
        state.secret(
            secret_name, lambda: create_token("enrolment", "ingest", cluster=name, name=f"agents of {name}")
        )
        print(f"made the enrolment token of {name}")


if __name__ == "__main__":
    main()
