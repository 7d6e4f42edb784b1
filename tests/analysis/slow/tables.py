"""Small jobs as arrays: work and transfers drawn with noise, one fault each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow.layout import Layout, Members
from clusterwatch.analysis.slow.steps import StepTable, Transfer

Floats = NDArray[np.float64]


def layout(tp: int = 2, pp: int = 2, dp: int = 4, gpus: int = 4) -> Layout:
    """Tensor ranks nearest, then data, then stages; a leaf for each rail."""
    rank = np.arange(tp * pp * dp)
    node, gpu = rank // gpus, rank % gpus
    nic = tuple(f"nic:n{n}:g{g}" for n, g in zip(node, gpu, strict=True))
    return Layout(rank // (tp * dp), rank // tp % dp, node, gpu, nic, tuple(f"leaf-r{g}" for g in gpu))


def residual(steps: int = 80, ranks: int = 16, noise: float = 0.003, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).normal(0.0, noise, (steps, ranks))


def bare(work: Floats, told: Layout, **changes: object) -> StepTable:
    """A table of this work, in which everything else is as it should be."""
    steps, ranks = work.shape
    random = np.random.default_rng(9)
    values: dict[str, object] = {
        "steps": np.arange(steps),
        "work": work,
        "usual": np.ones_like(work),
        "first_gap": 0.005 * random.normal(1.0, 0.01, work.shape),
        "rare_gap": np.full(work.shape, np.nan),
        "late_launch": np.zeros(work.shape),
        "step_s": np.full(steps, 1.2),
        "stage_work": np.ones(int(told.stage.max()) + 1),
        "transfers": (),
        "layout": told,
        "paths": Members(np.zeros(1, np.int64), np.zeros(0, np.int64)),
        "path_names": (),
    }
    return StepTable(**(values | changes))  # type: ignore[arg-type]


def ports(told: Layout, steps: int = 60, seed: int = 3) -> tuple[Members, tuple[str, ...], Floats]:
    """(paths, names, noise by step and path): data groups by stage and tensor rank, then pipeline pairs."""
    rank = np.arange(told.rank_count)
    tensor = rank % 2
    groups = [rank[(told.stage == s) & (tensor == t)] for s in (0, 1) for t in (0, 1)]
    half = told.rank_count // 2
    groups += [np.array([r, r + half]) for r in range(half)]
    start = np.concatenate(([0], np.cumsum([len(g) for g in groups])))
    names = tuple(f"path {n}" for n in range(len(groups)))
    noise = np.random.default_rng(seed).normal(0.0, 0.013, (steps, len(groups)))
    return Members(start, np.concatenate(groups)), names, noise


def transfers(log_s: Floats) -> tuple[Transfer, ...]:
    """Logarithms of transfer times of ``ports``' paths as two kinds of calls."""
    groups = np.arange(log_s.shape[1])
    return (
        Transfer("reduce_scatter", 2**31, True, groups[:4], 0.014 * np.exp(log_s[:, :4]), 1.0),
        Transfer("p2p_f", 2**25, True, groups[4:], 0.0005 * np.exp(log_s[:, 4:]), 4.0),
    )
