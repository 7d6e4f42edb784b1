"""All faults by name, and how requests become part of a scenario."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from clusterwatch.simulate.faults import agents, gpus, hangs, hosts, links, pace
from clusterwatch.simulate.faults.places import Case
from clusterwatch.simulate.faults.requests import FaultError, Request, parse
from clusterwatch.simulate.faults.truth import Truth
from clusterwatch.simulate.scenario import Scenario

_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A fault that can be asked for."""

    text: str
    inject: Callable[[Case], Truth]


FAULTS: Final = {
    "slow_gpu": FaultKind("GPU: clocks 23 % down without a reason", gpus.slow_gpu),
    "thermal_throttle": FaultKind("GPU: heats up and throttles", gpus.thermal_throttle),
    "hbm_error": FaultKind(
        "GPU: uncorrectable memory error (Xid 48, 63, 94), its rank fails", gpus.hbm_error
    ),
    "gpu_off_bus": FaultKind("GPU: falls off the bus (Xid 79), no values, its rank fails", gpus.gpu_off_bus),
    "nvlink_degraded": FaultKind("GPU: NVLink at a third of its bandwidth", gpus.nvlink_degraded),
    "nic_down": FaultKind("GPU: its port goes down, the job stands still", links.nic_down),
    "nic_slow": FaultKind("GPU: its port has a quarter of its bandwidth", links.nic_slow),
    "link_flap": FaultKind("GPU: its port goes down for 4 s every 20 s", links.link_flap),
    "dirty_optics": FaultKind("GPU: its port's FEC repairs a thousand times as much", links.dirty_optics),
    "pfc_storm": FaultKind("GPU: its port pauses all ports behind its leaf", links.pfc_storm),
    "leaf_slow": FaultKind("LEAF: ports behind it have 40 % of their bandwidth", links.leaf_slow),
    "spine_hash": FaultKind("SPINE: hash polarisation, half of its pod's nodes share it", links.spine_hash),
    "cpu_hog": FaultKind("NODE: its CPUs are taken", hosts.cpu_hog),
    "data_loader_slow": FaultKind("RANK: waits for its data in every step", hosts.data_loader_slow),
    "nfs_hung": FaultKind("NODE: a mount does not answer during a checkpoint", hosts.nfs_hung),
    "checkpoint_slow": FaultKind("NODE: writes checkpoints at a fifth of the speed", hosts.checkpoint_slow),
    "psu_lost": FaultKind("NODE: a power supply has no input", hosts.psu_lost),
    "power_brake": FaultKind("RACK: power brake on all of its GPUs", hosts.power_brake),
    "rank_killed": FaultKind("RANK: killed with signal 9", hangs.rank_killed),
    "rank_stuck": FaultKind("RANK: stays in its own code", hangs.rank_stuck),
    "op_mismatch": FaultKind("RANK: makes another call than its peers", hangs.op_mismatch),
    "p2p_lost": FaultKind("RANK: a send of the pipeline goes astray", hangs.p2p_lost),
    "cross_group_cycle": FaultKind(
        "RANK: two calls of two groups in the other order", hangs.cross_group_cycle
    ),
    "symmetric_stall": FaultKind("JOB: all ranks in one call that never ends", hangs.symmetric_stall),
    "gc_pauses": FaultKind("JOB: unsynchronised garbage collection", pace.gc_pauses),
    "stage_imbalance": FaultKind("JOB: the last stage has more to do", pace.stage_imbalance),
    "sequence_imbalance": FaultKind("JOB: longer sequences here and there", pace.sequence_imbalance),
    "agent_dead": FaultKind("NODE: its agent is gone", agents.agent_dead),
    "agent_lagging": FaultKind("NODE: its agent is late", agents.agent_lagging),
    "clock_stepped": FaultKind("NODE: its clock jumps ahead by 300 s", agents.clock_stepped),
}


def inject(scene: Scenario, texts: Sequence[str]) -> list[Truth]:
    """Puts faults into a scenario, in the order of their times; returns what is true then.

    Raises:
        FaultError: one does not exist, or has no place here.
    """
    wanted = sorted(enumerate(map(parse, texts)), key=lambda item: item[1].start_s)
    return [_inject(scene, number, request) for number, request in wanted]


def _inject(scene: Scenario, number: int, request: Request) -> Truth:
    kind = FAULTS.get(request.name)
    if kind is None:
        raise FaultError(f"no fault is called {request.name!r}; --list-faults names them")
    start_ns = scene.begun_ns + int(request.start_s * _S)
    end_ns = None if request.duration_s is None else start_ns + int(request.duration_s * _S)
    seed = [scene.seed, zlib.crc32(request.name.encode()), number]
    return kind.inject(Case(scene, request, start_ns, end_ns, np.random.default_rng(seed)))
