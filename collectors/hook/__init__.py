"""Inside the training process: standard library and the job's own torch only.

In: torch's public hooks, its flight recorder, the interpreter's own state. Out: ``protocol`` frames to the
agent on a unix socket. Only ``path/`` goes on the job's PYTHONPATH; it loads this folder under the name
``clusterwatch_hook``, so modules here import each other relatively and nothing else of ``collectors``.
The hook never raises into the job, never installs a signal handler and never holds the GIL over 5 ms
outside a capture.

Three ways in: ``clusterwatch-run`` (no line of code), ``import clusterwatch_hook`` with ``path/`` on
PYTHONPATH, or ``from collectors.hook import attach; attach()`` where the distribution is installed.
Runs on Python 3.9 and newer, which is why nothing here uses newer syntax at run time.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_C10D = "torch.distributed.distributed_c10d"


def attach() -> None:
    """Starts watching this process, now if its process group exists, else as soon as it is made.

    Safe to call twice and before ``init_process_group``. Never raises.
    """
    first = sys.modules.setdefault("clusterwatch_hook", sys.modules[__name__])
    if first is not sys.modules[__name__]:
        first.attach()  # clusterwatch-run loaded the hook already: one per process
        return
    follow_torch()


def follow_torch() -> None:
    """Wraps ``init_process_group`` of a torch that is already imported; attaches if a world is up."""
    if _C10D not in sys.modules:
        return
    from . import entry  # here, so that importing this package costs a process without torch nothing

    entry.on_import(sys.modules[_C10D], late=True)


def on_import(module: Any) -> None:
    """Called by the loader when torch's process groups were just imported, before anybody holds them."""
    from . import entry

    entry.on_import(module, late=False, early_wrappers="RANK" in os.environ)
