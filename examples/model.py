"""One pipeline stage of a small language model, its blocks split over the tensor-parallel group.

In: token ids or activations, shape (batch, length[, width]). Out: activations or the mean loss.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn


class AllReduce(Protocol):
    """Sums a tensor over a group, in place."""

    def __call__(self, values: torch.Tensor, group: dist.ProcessGroup) -> None: ...


class _SumBackward(torch.autograd.Function):
    """Passes forward, sums gradients over the group: the entry of a split block."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: dist.ProcessGroup, reduce: AllReduce) -> torch.Tensor:
        ctx.group, ctx.reduce = group, reduce
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].contiguous().clone()
        ctx.reduce(gradient, ctx.group)
        return gradient, None, None


class _SumForward(torch.autograd.Function):
    """Sums over the group forward, passes gradients: the exit of a split block."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: dist.ProcessGroup, reduce: AllReduce) -> torch.Tensor:
        total = values.contiguous().clone()
        reduce(total, group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None, None


class Block(nn.Module):
    """A feed-forward block, columns of the first and rows of the second matrix split over the group."""

    def __init__(self, width: int, group: dist.ProcessGroup, reduce: AllReduce) -> None:
        super().__init__()
        share = 4 * width // dist.get_world_size(group)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, share)
        self.down = nn.Linear(share, width, bias=False)
        self._group, self._reduce = group, reduce

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = _SumBackward.apply(self.norm(values), self._group, self._reduce)  # type: ignore[no-untyped-call]
        part = self.down(torch.nn.functional.gelu(self.up(hidden)))
        total: torch.Tensor = values + _SumForward.apply(part, self._group, self._reduce)  # type: ignore[no-untyped-call]
        return total


class Stage(nn.Module):
    """First stage: embedding and blocks. Last stage: blocks and the output layer."""

    def __init__(
        self,
        first: bool,
        last: bool,
        vocabulary: int,
        width: int,
        blocks: int,
        group: dist.ProcessGroup,
        reduce: AllReduce,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width) if first else None
        self.blocks = nn.Sequential(*(Block(width, group, reduce) for _ in range(blocks)))
        self.output = nn.Linear(width, vocabulary) if last else None

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Activations for the next stage, or the mean loss against ``labels`` on the last one."""
        if self.embedding is not None:
            values = self.embedding(values)
        values = self.blocks(values)
        if self.output is None:
            return values
        return torch.nn.functional.cross_entropy(self.output(values).flatten(0, 1), labels.flatten())
