"""What is watched from one place for many nodes, one file per thing; each is a ``Source`` like a node's own.

In: the recorded or real output of a cluster's own tools. Out: ``Reading``. A poller tells what concerns the
node of its tree only. To add one: a file with a class that fulfils ``sources.base.Source``, a line in
``REGISTRY``, a test against a recorded tree.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from collectors.sources.base import Source

REGISTRY: Final[dict[str, str]] = {
    "ib_fabric": "collectors.pollers.ib_fabric:IbFabricPoller",
    "slurm": "collectors.pollers.slurm:SlurmPoller",
}
"""Poller name (the file's name, as ``--sources`` takes it) -> its class, imported when it is used."""
DEVICE_POLLERS: Final[dict[str, str]] = {
    "ib_cluster": "collectors.pollers.ib_cluster",
    "redfish": "collectors.pollers.redfish",
    "slurm_cluster": "collectors.pollers.slurm_cluster",
    "switch_fboss": "collectors.pollers.switch_fboss",
    "switch_gnmi": "collectors.pollers.switch_gnmi",
    "switch_snmp": "collectors.pollers.switch_snmp",
    "ufm": "collectors.pollers.ufm",
}
"""Table of pollers.toml -> the module whose ``from_config`` makes a ``device.Poller`` of it."""


def names() -> list[str]:
    return sorted(REGISTRY)


def make(name: str) -> Source:
    """A new poller. Raises ``KeyError`` for a name that is not in ``REGISTRY``."""
    module, _, attribute = REGISTRY[name].partition(":")
    poller: Source = getattr(import_module(module), attribute)()
    return poller
