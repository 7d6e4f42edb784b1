"""Connects a command to the database of this installation; only such commands pay for Django's start."""

from __future__ import annotations

import os

import django
from django.db import OperationalError, connection

from clusterwatch.ops.errors import OpsError


def use_database() -> None:
    """Sets Django up and checks that the database answers.

    Raises:
        OpsError: it does not.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")
    django.setup()
    try:
        connection.ensure_connection()
    except OperationalError as fault:
        reason = str(fault).strip().splitlines()[0]
        raise OpsError(
            f"The database does not answer ({reason}): start it with `clusterwatch up`."
        ) from fault
