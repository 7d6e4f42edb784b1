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

CLUSTERS = {"default": "enrolment_token", "simulated": "enrolment_token_simulated"}
"""Name of the cluster -> the secret its agents enrol with."""


def main() -> None:
    """Brings the database of the environment up to date."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")
    django.setup()
    # The models can be imported only now.
    from clusterwatch.accounts.services import create_token, ensure_admin
    from clusterwatch.fleet.services import ensure_cluster

    state = StateFolder(Path(os.environ["CLUSTERWATCH_STATE_DIR"]))
    call_command("migrate", interactive=False, verbosity=1)
    ensure_admin(os.environ.get("CLUSTERWATCH_ADMIN_PASSWORD") or state.secret("admin_password"))
    for cluster, secret_name in CLUSTERS.items():
        ensure_cluster(cluster, simulated=cluster == "simulated")
        if not state.secret_path(secret_name).exists():
            _, secret = create_token("enrolment", "ingest", cluster=cluster, name=f"agents of {cluster}")
            write_file(state.secret_path(secret_name), secret + "\n", SECRET_MODE)
    home = os.environ.get("CLUSTERWATCH_POSTGRES_HOME", "")
    if home:
        write_file(Path(home) / STAMP_FILE, wanted_stamp() + "\n", SECRET_MODE)


if __name__ == "__main__":
    main()
