"""A fault that the driver logged and the CUDA error of the process that used the GPU are one failure.

In: own failures of one attempt. Out: the same, with the Xid's words on the rank where nothing else can be
meant: a kernel log often tells neither rank nor a process id as the job sees it (containers have their own).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusterwatch.analysis.log_actors import Actor
from clusterwatch.analysis.log_failures import Failure
from clusterwatch.analysis.model import Owner

_SEEN_AS: Final = frozenset({"cuda_error", "gpu_lost", "ecc_error", "nvlink_error"})
"""What a process says when its GPU broke; an illegal access is its own."""


def joined(failures: Sequence[Failure]) -> list[Failure]:
    """One failure of the two, where there is one of each and no host speaks against it."""
    xids = [failure for failure in failures if _is_hardware(failure)]
    errors = [f for f in failures if f.actor.rank is not None and f.told_best.cause in _SEEN_AS]
    if len(xids) != 1 or len(errors) != 1:
        return list(failures)
    xid, error = xids[0], errors[0]
    if xid.actor.host and error.actor.host and xid.actor.host != error.actor.host:
        return list(failures)
    known = error.actor
    actor = Actor(known.rank, known.host or xid.actor.host, known.pid or xid.actor.pid, known.stream)
    one = Failure(actor, xid.first, [*xid.signs, *error.signs])
    return [one if failure is error else failure for failure in failures if failure is not xid]


def _is_hardware(failure: Failure) -> bool:
    """Whether the driver alone told it, of no known rank, and it is the machine's fault."""
    best = failure.told_best
    return failure.actor.rank is None and best.cause.startswith("xid_") and best.owner is Owner.INFRA
