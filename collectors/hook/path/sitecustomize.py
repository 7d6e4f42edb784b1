"""Loaded by every Python that ``clusterwatch-run`` starts, because this folder is first on PYTHONPATH.

It does two things and stays out of the way: it runs the ``sitecustomize`` it hides, and it leaves a finder
that waits for torch's process groups. A process that never imports torch pays the finder's set look-up per
import and nothing else. Nothing here may raise into the interpreter's start.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is not imported: it costs each start of Python 5 ms
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 10 ms at each start
_WAITED_FOR = {
    "torch.distributed.distributed_c10d",
    "torch.distributed.checkpoint.state_dict_saver",
    "torch._dynamo.callback",
}


class _Finder:
    """Watches for the modules in ``_WAITED_FOR``; lets every other finder do the finding."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _WAITED_FOR:
            return None
        _WAITED_FOR.discard(name)  # the search below comes past here again
        try:
            from importlib.util import find_spec

            spec = find_spec(name)
            if spec is not None:
                _run_after(spec.loader)
        except Exception:  # noqa: BLE001 - the job's own import must go on as if we were not here
            return None
        return spec


def _run_after(loader: Any) -> None:
    """Makes ``loader`` hand its module to the hook once it is complete."""
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        original(module)
        try:
            from importlib import import_module

            import_module("clusterwatch_hook").on_import(module)
        except Exception as error:  # noqa: BLE001 - the job runs without us rather than not at all
            sys.stderr.write(f"clusterwatch: the hook stays out of this process: {error!r}\n")

    loader.exec_module = exec_module


def _chain() -> None:
    """Runs the ``sitecustomize`` that this one hides, if there is one."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]  # noqa: PTH100
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec("sitecustomize", others) if find_spec is not None else None
        if spec is not None and spec.loader is not None:
            from importlib.util import module_from_spec

            module = module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return


if os.environ.get("CLUSTERWATCH_HOOK_SOCKET"):
    sys.meta_path.insert(0, _Finder)
_chain()
