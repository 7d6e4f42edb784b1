"""``import clusterwatch_hook``: one line of code that loads the hook where ``clusterwatch-run`` is not used.

Replaces itself by the hook package one folder up, so that the hook needs no installed distribution and puts
no other name of ours on the job's path. Imported by hand in a job that already runs, it also attaches.
"""

import importlib.util
import sys
from pathlib import Path

_folder = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location(
    "clusterwatch_hook", _folder / "__init__.py", submodule_search_locations=[str(_folder)]
)
if _spec is None or _spec.loader is None:
    raise ImportError(f"no clusterwatch hook in {_folder}")
_package = importlib.util.module_from_spec(_spec)
sys.modules["clusterwatch_hook"] = _package
_spec.loader.exec_module(_package)
_package.follow_torch()
