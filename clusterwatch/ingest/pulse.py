"""Pulse: once a second, from hot state to the numbered frames that pages show.

In: hot arrays of all gateways, slots and processes from the database. Out: frames of ``cluster:<id>`` and of
the ``job:<id>`` topics somebody watches; percentiles of each metric every 10 s. One process leads by a lease,
others stand by and take over within about 4 s of a ``kill -9``; a new leader starts new epochs. Source:
DESIGN 2 (Pulse).

Run: ``python -m clusterwatch.ingest.pulse``.
"""

from __future__ import annotations

import os
import signal
import sys

import django


def main() -> int:
    """Runs until SIGTERM or SIGINT."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")
    django.setup()
    from clusterwatch.ingest.pulse_loop import Pulse  # models load only after Django is set up

    pulse = Pulse()
    signal.signal(signal.SIGTERM, pulse.stop)
    signal.signal(signal.SIGINT, pulse.stop)
    pulse.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
