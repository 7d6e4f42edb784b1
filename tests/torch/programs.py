# mypy: disable-error-code="no-untyped-call"
"""The programs of the scenarios, by name; built on each rank after the world is up.

``all_reduce`` and the other names of ``collectives`` give that call three times, then a barrier, with the
mark at the third; ``tp/all_reduce`` the same in the two halves of the world.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.torch import collectives
from tests.torch.moves import Move, Program

SIZE = 64


def build(name: str) -> Program:
    """The program of this rank."""
    kind, _, call = name.rpartition("/")
    if call in collectives.ALL:
        group = dist.group.WORLD if not kind else halves(kind)
        return repeated(call, group)
    made: Callable[[], Program] = globals()[name]
    return made()


def halves(desc: str) -> Any:
    """Two groups, each half of the world. Returns that of this rank."""
    world = list(range(dist.get_world_size()))
    half = len(world) // 2
    groups = [dist.new_group(part, group_desc=desc) for part in (world[:half], world[half:])]
    return groups[dist.get_rank() // half]


def repeated(name: str, group: Any) -> Program:
    """Three equal calls, then one of all ranks."""
    call = partial(collectives.ALL[name], group, SIZE)
    # gloo makes a reduce_scatter of all_reduces, so for both another call must be the wrong one
    other = "broadcast" if "all_reduce" in name or "reduce_scatter" in name else "all_reduce"
    return Program(
        [call, call, call, dist.barrier],
        mark=2,
        wrong_size=partial(collectives.ALL[name], group, SIZE + 1),
        wrong_op=partial(collectives.ALL[other], group, SIZE),
    )


# --- sends and receives: gloo records none of them ------------------------------------------------------


def pipeline() -> Program:
    """Each rank hands on what it received, the last tells all; two steps."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1

    def step() -> None:
        values = torch.ones(SIZE)
        if rank > 0:
            dist.recv(values, rank - 1)
        if rank < last:
            dist.send(values, rank + 1)
        dist.all_reduce(values)

    return Program([step, step, step, dist.barrier], mark=2)


def ring_exchange() -> Program:
    """Everybody sends to the right and receives from the left at once, as context parallelism does."""
    rank, world = dist.get_rank(), dist.get_world_size()

    def step() -> None:
        sent, received = torch.ones(SIZE), torch.empty(SIZE)
        moves = [
            dist.P2POp(dist.isend, sent, (rank + 1) % world),
            dist.P2POp(dist.irecv, received, (rank - 1) % world),
        ]
        for work in dist.batch_isend_irecv(moves):
            work.wait()
        dist.all_reduce(received)

    return Program([step, step, step, dist.barrier], mark=2)


# --- training -------------------------------------------------------------------------------------------


def ddp() -> Program:
    """Two buckets per backward pass, reduced from autograd's own threads."""
    model = DistributedDataParallel(_model(), bucket_cap_mb=0.01)
    step = _step(model, lambda: model(torch.ones(2, 32)))
    return Program([step, step, step, dist.barrier], mark=2)


def ddp_accumulating() -> Program:
    """Gradients are reduced at every second pass only."""
    model = DistributedDataParallel(_model())
    reducing = _step(model, lambda: model(torch.ones(2, 32)))

    def quiet() -> None:
        with model.no_sync():
            model(torch.ones(2, 32)).sum().backward()

    return Program([quiet, reducing, quiet, reducing, dist.barrier], mark=3)


def fsdp() -> Program:
    """Parameters gathered before each layer, gradients scattered after it."""
    model = _model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    step = _step(model, lambda: model(torch.ones(2, 32)))
    return Program([step, step, step, dist.barrier], mark=2)


def hybrid_fsdp() -> Program:
    """Sharded within two ranks, replicated over two."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = _model()
    fully_shard(model, mesh=mesh)
    step = _step(model, lambda: model(torch.ones(2, 32)))
    return Program([step, step, step, dist.barrier], mark=2)


def _model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


def _step(model: Any, forward: Callable[[], torch.Tensor]) -> Move:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        forward().sum().backward()
        optimizer.step()

    return step


# --- meshes ---------------------------------------------------------------------------------------------


def mesh_2d() -> Program:
    """Tensor groups of 2, data groups of 2; the fault lies in a tensor group."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return _on_mesh(mesh, "tp", ("tp", "tp", "dp"))


def mesh_2d_data() -> Program:
    """The same, with the fault in a data group."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return _on_mesh(mesh, "dp", ("tp", "tp", "dp"))


def mesh_3d() -> Program:
    """Eight ranks: stages, replicas, tensor groups; a slice of two dimensions flattened to one group."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    mesh["dp", "tp"]._flatten("dp_tp")
    return _on_mesh(mesh, "tp", ("tp", "tp", "dp", "dp_tp", "pp"))


def _on_mesh(mesh: DeviceMesh, faulty: str, dimensions: tuple[str, ...]) -> Program:
    groups = {name: mesh[name].get_group() for name in dict.fromkeys(dimensions)}

    step = [partial(collectives.all_reduce, groups[name], SIZE) for name in dimensions]
    return Program(
        [*(step * 3), dist.barrier],
        mark=2 * len(dimensions) + dimensions.index(faulty),
        wrong_op=partial(collectives.broadcast, groups[faulty], SIZE),
    )


def tensors() -> Program:
    """A tensor sharded, gathered, sharded along its other dimension (an all-to-all), on a 2-D mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def step() -> None:
        values = distribute_tensor(torch.ones(8, 8), mesh, [Replicate(), Shard(0)])
        values = values.redistribute(mesh, [Replicate(), Shard(1)])
        values.redistribute(mesh, [Replicate(), Replicate()]).sum()

    return Program([step, step, step, dist.barrier], mark=2)


# --- groups that come and go ----------------------------------------------------------------------------


def subgroups() -> Program:
    """Groups that overlap, one of a single rank, one of three; not every rank is in each."""
    trio = dist.new_group([0, 1, 2], group_desc="trio")
    alone = dist.new_group([3], group_desc="alone")
    mine = alone if dist.get_rank() == 3 else trio
    call = partial(collectives.all_reduce, mine, SIZE)
    return Program(
        [call, call, call, dist.barrier],
        mark=2,
        wrong_size=partial(collectives.all_reduce, mine, SIZE + 1),
        wrong_op=partial(collectives.broadcast, mine, SIZE),
    )


def remade_group() -> Program:
    """A group is destroyed and made again with the same members, as elastic code does."""
    world = list(range(dist.get_world_size()))
    first = dist.new_group(world, group_desc="again")
    for _ in range(3):
        collectives.all_reduce(first, SIZE)
    dist.destroy_process_group(first)
    call = partial(collectives.all_reduce, dist.new_group(world, group_desc="again"), SIZE)
    return Program([call, call, dist.barrier], mark=1)


def long_job() -> Program:
    """More calls than a ring of 50 holds."""
    group = halves("tp")
    step = [partial(collectives.all_reduce, group, SIZE), partial(collectives.all_gather, None, SIZE)]
    return Program([*(step * 60), dist.barrier], mark=100)
