# mypy: disable-error-code="no-untyped-call"
"""Every collective that gloo offers, one call each, on a group and of a size; plain torch, no product code.

Source: torch.distributed of torch 2.13; what gloo lacks raises there and is not listed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager as coalescing

Collective = Callable[[Any, int], None]
"""(group, elements) -> makes the call and waits for its end"""


def all_reduce(group: Any, size: int) -> None:
    dist.all_reduce(torch.ones(size), group=group)


def all_reduce_max_of_integers(group: Any, size: int) -> None:
    dist.all_reduce(torch.ones(size, dtype=torch.int64), dist.ReduceOp.MAX, group=group)


def all_reduce_later(group: Any, size: int) -> None:
    works = [dist.all_reduce(torch.ones(size), group=group, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()


def all_reduce_coalesced(group: Any, size: int) -> None:
    dist.all_reduce_coalesced([torch.ones(size), torch.ones(2 * size)], group=group)


def all_reduce_sparse(group: Any, size: int) -> None:
    values = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (size,))
    dist.all_reduce(values, group=group)


def reduce(group: Any, size: int) -> None:
    dist.reduce(torch.ones(size), group_dst=0, group=group)


def broadcast(group: Any, size: int) -> None:
    dist.broadcast(torch.ones(size), group_src=0, group=group)


def all_gather(group: Any, size: int) -> None:
    parts = [torch.empty(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, torch.ones(size), group=group)


def all_gather_into_tensor(group: Any, size: int) -> None:
    whole = torch.empty(size * dist.get_world_size(group))
    dist.all_gather_into_tensor(whole, torch.ones(size), group=group)


def all_gather_coalesced(group: Any, size: int) -> None:
    sizes = (size, 2 * size)
    whole = [[torch.empty(n) for n in sizes] for _ in range(dist.get_world_size(group))]
    dist.all_gather_coalesced(whole, [torch.ones(n) for n in sizes], group=group)


def gather(group: Any, size: int) -> None:
    is_root = dist.get_rank(group) == 0
    parts = [torch.empty(size) for _ in range(dist.get_world_size(group))] if is_root else None
    dist.gather(torch.ones(size), parts, group_dst=0, group=group)


def scatter(group: Any, size: int) -> None:
    is_root = dist.get_rank(group) == 0
    parts = [torch.ones(size) for _ in range(dist.get_world_size(group))] if is_root else None
    dist.scatter(torch.empty(size), parts, group_src=0, group=group)


def reduce_scatter(group: Any, size: int) -> None:
    parts = [torch.ones(size) for _ in range(dist.get_world_size(group))]
    dist.reduce_scatter(torch.empty(size), parts, group=group)


def reduce_scatter_tensor(group: Any, size: int) -> None:
    whole = torch.ones(size * dist.get_world_size(group))
    dist.reduce_scatter_tensor(torch.empty(size), whole, group=group)


def all_to_all(group: Any, size: int) -> None:
    count = dist.get_world_size(group)
    dist.all_to_all(
        [torch.empty(size) for _ in range(count)], [torch.ones(size) for _ in range(count)], group=group
    )


def all_to_all_single(group: Any, size: int) -> None:
    whole = size * dist.get_world_size(group)
    dist.all_to_all_single(torch.empty(whole), torch.ones(whole), group=group)


def all_to_all_uneven(group: Any, size: int) -> None:
    """Member r sends size + 2r + p elements to member p, as a router of experts does: legal, never even."""
    mine, members = dist.get_rank(group), range(dist.get_world_size(group))
    sends = [size + 2 * mine + peer for peer in members]
    receives = [size + 2 * peer + mine for peer in members]
    dist.all_to_all_single(torch.empty(sum(receives)), torch.ones(sum(sends)), receives, sends, group=group)


def barrier(group: Any, size: int) -> None:
    dist.barrier(group=group)


def monitored_barrier(group: Any, size: int) -> None:
    """Made of sends and receives, which gloo does not record."""
    dist.monitored_barrier(group=group)


def all_gather_object(group: Any, size: int) -> None:
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, {"rank": dist.get_rank(group), "said": "x" * size}, group=group)


def broadcast_object_list(group: Any, size: int) -> None:
    dist.broadcast_object_list(["x" * size], group_src=0, group=group)


def functional_all_reduce(group: Any, size: int) -> None:
    functional.all_reduce(torch.ones(size), "sum", group).sum()


def functional_all_gather(group: Any, size: int) -> None:
    functional.all_gather_tensor(torch.ones(size), 0, group).sum()


def functional_reduce_scatter(group: Any, size: int) -> None:
    whole = torch.ones(size * dist.get_world_size(group))
    functional.reduce_scatter_tensor(whole, "sum", 0, group).sum()


def coalesced_manager(group: Any, size: int) -> None:
    with coalescing(group=group):
        dist.all_reduce(torch.ones(size), group=group)
        dist.all_reduce(torch.ones(2 * size), group=group)


ALL: dict[str, Collective] = {
    name: made
    for name, made in list(globals().items())
    if callable(made) and getattr(made, "__module__", "") == __name__
}
