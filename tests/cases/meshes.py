"""Device meshes of up to five dimensions, and the training programs that run on them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from tests.cases.jobs import Batch, Call, Half, Job, Move, Program, Sync, recv, send
from tests.cases.writer import Flavour, Group

NCCL: Final = Flavour()

DIMENSIONS: Final = ("tp", "cp", "ep", "dp", "pp")
"""Innermost first: neighbours in tp are neighbours in rank."""


def mesh(
    tp: int = 1, cp: int = 1, pp: int = 1, dp: int = 1, ep: int = 1, *,
    flavour: Flavour = NCCL, desc: str = "mesh_{}", one_name: bool = False, **options: object,
) -> Job:  # fmt: skip
    """A job with the groups of every dimension longer than one.

    Args:
        desc: description of a group; ``{}`` is its dimension. ``new_group`` without one writes "undefined".
        one_name: all groups of a dimension have one name, as ``split_group`` gives them.
    """
    lengths = {"tp": tp, "cp": cp, "ep": ep, "dp": dp, "pp": pp}
    strides: dict[str, int] = {}
    world = 1
    for name in DIMENSIONS:
        strides[name] = world
        world *= lengths[name]
    job = Job(world, flavour, **options)  # type: ignore[arg-type]
    number = 0
    for name in DIMENSIONS:
        if lengths[name] == 1:
            continue
        number += one_name
        for members in _lines(lengths, strides, name):
            number += not one_name
            job.group(str(number), desc.format(name), members)
    return job


def _lines(lengths: dict[str, int], strides: dict[str, int], along: str) -> Iterator[tuple[int, ...]]:
    others = [name for name in DIMENSIONS if name != along]
    for place in product(*(range(lengths[name]) for name in others)):
        base = sum(at * strides[name] for at, name in zip(place, others, strict=True))
        yield tuple(base + step * strides[along] for step in range(lengths[along]))


def line_of(job: Job, rank: int, dimension: str, desc: str = "mesh_{}") -> Group | None:
    """The group of a rank along a dimension; None where that has length one."""
    fitting = [g for g in job.groups[1:] if g.desc == desc.format(dimension) and rank in g.ranks]
    return fitting[0] if fitting else None


def step_of(job: Job, rank: int, layers: int = 2) -> Program:
    """One training step: layers forward and back, the exchange of stages, gradients, the norm."""
    groups = {name: line_of(job, rank, name) for name in DIMENSIONS}
    moves: Program = []
    stage = groups["pp"]
    place = stage.ranks.index(rank) if stage is not None else 0
    if stage is not None and place > 0:
        moves.append(recv(stage, stage.ranks[place - 1], (512,)))
    for _ in range(layers):
        moves += _layer(groups)
    if stage is not None and place + 1 < len(stage.ranks):
        moves += [send(stage, stage.ranks[place + 1], (512,)), recv(stage, stage.ranks[place + 1], (512,))]
    for _ in range(layers):
        moves += _layer(groups)
    if stage is not None and place > 0:
        moves.append(send(stage, stage.ranks[place - 1], (512,)))
    data = groups["dp"]
    if data is not None:
        width = len(data.ranks)
        moves.append(Call(data, "_reduce_scatter_base", ((4096 * width,),), ((4096,),)))
        moves.append(Call(data, "_all_gather_base", ((4096,),), ((4096 * width,),), "BFloat16"))
    return [*moves, Call(job.default, inputs=((1,),)), Sync()]


def _layer(groups: dict[str, Group | None]) -> list[Move]:
    moves: list[Move] = []
    if (tensor := groups["tp"]) is not None:
        moves.append(Call(tensor, inputs=((2048,),)))
    if (context := groups["cp"]) is not None:
        width = len(context.ranks)
        moves.append(Call(context, "_all_gather_base", ((256,),), ((256 * width,),)))
    if (expert := groups["ep"]) is not None:
        moves.append(Call(expert, "all_to_all", ((1024,),), ((1024,),)))
    return moves


def train(job: Job, steps: int = 3, layers: int = 2) -> Job:
    """Gives every rank the same number of steps."""
    for rank in range(job.world):
        job.programs[rank] += step_of(job, rank, layers) * steps
    return job


def one_f_one_b(stage: Group, rank: int, micro: int, batched: bool = True) -> Program:
    """The 1F1B schedule of Megatron-LM: warm-up, steady pairs of exchanges, cool-down.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters".
    """
    place, last = stage.ranks.index(rank), len(stage.ranks) - 1
    before = stage.ranks[place - 1] if place > 0 else None
    after = stage.ranks[place + 1] if place < last else None
    warm = min(last - place, micro)
    steady = micro - warm
    moves: list[list[Half]] = []
    for _ in range(warm):
        moves += [_to(stage, before, recvs=True), _to(stage, after)]
    if steady:
        moves.append(_to(stage, before, recvs=True))
    for number in range(steady):
        moves.append(_to(stage, after) + _to(stage, after, recvs=True))
        again = number + 1 < steady
        moves.append(_to(stage, before) + (_to(stage, before, recvs=True) if again else []))
    for _ in range(warm):
        moves += [_to(stage, after, recvs=True), _to(stage, before)]
    return _issued(stage, moves, batched)


def _to(stage: Group, peer: int | None, recvs: bool = False) -> list[Half]:
    return [] if peer is None else [recv(stage, peer) if recvs else send(stage, peer)]


def _issued(stage: Group, moves: list[list[Half]], batched: bool) -> Program:
    program: Program = []
    for halves in moves:
        if halves:
            program += [Batch(stage, tuple(halves))] if batched else halves
            program.append(Sync())
    return program


def interleaved(stage: Group, rank: int, chunks: int, micro: int) -> Program:
    """Virtual stages round and round the ranks: the last one hands on to the first.

    Every rank takes all chunks of a micro-batch in turn; both edges of the pipeline are exchanges too.
    """
    width = len(stage.ranks)
    place = stage.ranks.index(rank)
    before, after = stage.ranks[place - 1], stage.ranks[(place + 1) % width]
    program: Program = []
    for _ in range(micro):
        for chunk in range(chunks):
            if place > 0 or chunk > 0:
                program.append(Batch(stage, (recv(stage, before),)))
            program.append(Sync())
            if place < width - 1 or chunk < chunks - 1:
                program.append(Batch(stage, (send(stage, after),)))
    return [*program, Sync()]


def zero_bubble(stage: Group, rank: int, micro: int) -> Program:
    """ZB-H1: as 1F1B, but the weight gradients fill the cool-down, so its exchanges come apart from the rest.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism".
    """
    program: Program = []
    for move in one_f_one_b(stage, rank, micro):
        if isinstance(move, Batch) and len(move.halves) == 2:  # neighbours begin with different halves
            first, second = move.halves if stage.ranks.index(rank) % 2 == 0 else move.halves[::-1]
            program += [Batch(stage, (first,)), Batch(stage, (second,))]
        else:
            program.append(move)
    return program
