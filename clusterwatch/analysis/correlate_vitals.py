"""What the newest values of GPUs and ports say of ranks that all wait in one call.

In: ``Vitals`` by rank. Out: whether the network moves the job's data, and the one GPU that does not do what
its peers do. In a call that never ends GPUs spin in the collective's kernel: they look busy and move nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from clusterwatch.analysis.correlate_model import Vitals

IDLE_MIB_PER_S: Final = 1.0
"""Keep-alives of a job that stands still are far below, a collective far above."""
KNOWN_MIN_RATIO: Final = 0.5
IDLE_MIN_RATIO: Final = 0.95
BUSY_MIN_RATIO: Final = 0.2
SPINS_RATIO: Final = 0.9
RESTS_RATIO: Final = 0.1
ODD_PEERS_MIN: Final = 7
"""Others of which it is known; of fewer one is odd by chance."""


class Network(StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    UNKNOWN = "unknown"


def network(ranks: Iterable[int], vitals: Mapping[int, Vitals]) -> Network:
    """Whether RDMA moves data of these ranks; unknown where too few ports tell, or they disagree."""
    wanted = list(ranks)
    told = [vitals[rank].port_mib_per_s for rank in wanted if rank in vitals]
    rates = [rate for rate in told if rate is not None]
    if not rates or len(rates) < KNOWN_MIN_RATIO * len(wanted):
        return Network.UNKNOWN
    idle_ratio = sum(rate < IDLE_MIB_PER_S for rate in rates) / len(rates)
    if idle_ratio >= IDLE_MIN_RATIO:
        return Network.IDLE
    return Network.BUSY if 1.0 - idle_ratio > BUSY_MIN_RATIO else Network.UNKNOWN


def busy_ratio(ranks: Iterable[int], vitals: Mapping[int, Vitals]) -> float | None:
    """Share of the GPUs that are busy; None where too few tell."""
    wanted = list(ranks)
    known = [vitals[rank].util_ratio for rank in wanted if rank in vitals]
    told = [ratio for ratio in known if ratio is not None]
    if not told or len(told) < KNOWN_MIN_RATIO * len(wanted):
        return None
    return sum(ratio >= SPINS_RATIO for ratio in told) / len(told)


def odd_gpu(ranks: Iterable[int], vitals: Mapping[int, Vitals]) -> int | None:
    """The one rank whose GPU rests while all others' spin; None: nobody, several, or not all are known."""
    ratios = {rank: vitals[rank].util_ratio if rank in vitals else None for rank in ranks}
    if len(ratios) <= ODD_PEERS_MIN or any(ratio is None for ratio in ratios.values()):
        return None
    rests = [rank for rank, ratio in ratios.items() if ratio is not None and ratio <= RESTS_RATIO]
    spins = sum(ratio is not None and ratio >= SPINS_RATIO for ratio in ratios.values())
    return rests[0] if len(rests) == 1 and spins == len(ratios) - 1 else None
