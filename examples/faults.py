"""What can go wrong in one rank of the example, each as a user's own mistake or a machine's fault would look.

In: kind, rank and step from the command line. Out: at that step the fault, after one log line that says so.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

LASTING = ("slow", "slow_loader")
"""Faults that slow the rank down from their step on; the job goes on."""
IN_RANK = (
    "dataloader", "spin", "sigstop", "sigkill", "op_mismatch", "wrong_size", "extra_call", "raise", *LASTING,
)  # fmt: skip
"""Faults that the rank itself makes."""
ON_HOST = ("agent_kill", "host_freeze", "host_netns")
"""Faults that happen to the host a rank runs on; ``run`` makes them."""
KINDS = IN_RANK + ON_HOST
LATER_S = 0.3
"""How much longer a step's work, or its data, takes by a lasting fault."""


@dataclass
class Fault:
    """One fault of this rank; ``kind`` is empty in all others."""

    kind: str = ""
    at_step: int = 0
    step: int = 0
    """the step under way, set by the training loop"""
    done: bool = False

    def is_due(self, *kinds: str) -> bool:
        """True once, at the step, when this rank's kind is among ``kinds``; logs the moment."""
        if self.done or self.kind not in kinds or self.step != self.at_step:
            return False
        self.done = True
        print(f"FAULT {time.time_ns()} kind={self.kind} step={self.step}", flush=True)
        return True

    def lasts(self, kind: str) -> bool:
        """True in every step from the fault's own on."""
        return self.is_due(kind) or (self.done and self.kind == kind)

    def before_step(self) -> None:
        """Faults in the loop's own code."""
        if self.lasts("slow"):
            time.sleep(LATER_S)
        if self.is_due("spin"):
            preprocess_forever()
        if self.is_due("raise"):
            raise RuntimeError(f"loss is not finite at step {self.step}")
        if self.is_due("sigstop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.is_due("sigkill"):
            os.kill(os.getpid(), signal.SIGKILL)

    def in_dataset(self) -> None:
        """A read that never comes back."""
        if self.is_due("dataloader"):
            read_from_dead_mount()
        if self.lasts("slow_loader"):
            time.sleep(LATER_S)

    def all_reduce(self, values: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Sums ``values`` over ``group`` in place, or does the wrong thing instead."""
        if self.is_due("op_mismatch"):
            parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, values, group=group)
            return
        if self.is_due("wrong_size"):
            half = values.flatten()[: values.numel() // 2].clone()
            dist.all_reduce(half, group=group)
            return
        if self.is_due("extra_call"):
            dist.all_reduce(values.clone(), group=group)
        dist.all_reduce(values, group=group)


def preprocess_forever() -> None:
    """User code that computes and never ends."""
    total = 0
    while True:
        total = (total * 31 + 7) % 1_000_003


def read_from_dead_mount() -> None:
    """User code that waits for input that never comes."""
    while True:
        time.sleep(1)
