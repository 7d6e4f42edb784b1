"""A small language model trained with tensor, pipeline and data parallelism: plain PyTorch over gloo.

In: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of the environment, options of the command line.
Out: one log line per step, checkpoints. Rank order: tensor fastest, then data, then pipeline.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, cast

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from examples.faults import KINDS, Fault
from examples.model import Stage

VOCABULARY, LENGTH, WIDTH, BLOCKS = 128, 32, 64, 2
MICRO_BATCHES, MICRO_BATCH = 2, 4
SLOW_S = 20.0
"""How long the slow things of the healthy scenarios take."""
SCENARIOS = ("healthy", "slow_first_step", "evaluation", "slow_checkpoint", "reinit", "elastic_restart")


class Tokens(Dataset[torch.Tensor]):
    """Endless repeatable token sequences, LENGTH + 1 ids each."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        self._fault.in_dataset()
        start = torch.arange(LENGTH + 1) * (1 + index % 7) + index
        return start % VOCABULARY


@dataclass
class Mesh:
    """Process groups of this rank and its place in them."""

    rank: int
    tensor: Any
    data: Any
    pipe: Any
    stage: int
    replica: int
    previous: int | None
    following: int | None


def make_mesh(tensor: int, pipeline: int) -> Mesh:
    """Makes every group on every rank, in one order, as torch demands. Cost: one rendezvous per group."""
    rank, world = dist.get_rank(), dist.get_world_size()
    data = world // (tensor * pipeline)
    grid = torch.arange(world).view(pipeline, data, tensor)
    lists = {
        "tp": grid.reshape(-1, tensor).tolist(),
        "dp": grid.transpose(1, 2).reshape(-1, data).tolist(),
        "pp": grid.permute(1, 2, 0).reshape(-1, pipeline).tolist(),
    }
    own: dict[str, tuple[Any, list[int]]] = {}
    for desc, members in lists.items():
        for ranks in members:
            group = dist.new_group(ranks, group_desc=desc)
            if rank in ranks:
                own[desc] = (group, ranks)
    pipe = own["pp"][1]
    stage = pipe.index(rank)
    return Mesh(
        rank=rank,
        tensor=own["tp"][0],
        data=own["dp"][0],
        pipe=own["pp"][0],
        stage=stage,
        replica=own["dp"][1].index(rank),
        previous=pipe[stage - 1] if stage else None,
        following=pipe[stage + 1] if stage + 1 < len(pipe) else None,
    )


class Trainer:
    """The loop: load, forward and backward through the pipeline, reduce, step, save, evaluate."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        rank = int(os.environ["RANK"])
        self.fault = Fault(options.fault if rank == options.fault_rank else "", options.fault_step)
        self.mesh = self._join()
        torch.manual_seed(1 + self.mesh.stage)
        self.model = Stage(
            self.mesh.previous is None,
            self.mesh.following is None,
            VOCABULARY,
            WIDTH,
            BLOCKS,
            self.mesh.tensor,
            self._tensor_reduce,
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = iter(
            DataLoader(
                Tokens(self.fault), batch_size=MICRO_BATCHES * MICRO_BATCH, num_workers=options.workers
            )
        )

    def _join(self) -> Mesh:
        dist.init_process_group("gloo", timeout=timedelta(seconds=self.options.timeout_s))
        return make_mesh(self.options.tensor, self.options.pipeline)

    def _tensor_reduce(self, values: torch.Tensor, group: dist.ProcessGroup) -> None:
        if self.model.training:
            self.fault.all_reduce(values, group)
        else:
            dist.all_reduce(values, group=group)

    def run(self) -> None:
        """All steps."""
        options = self.options
        for step in range(1, options.steps + 1):
            began_s = time.monotonic()
            self.fault.step = step
            if step == 1 and options.scenario == "slow_first_step":
                time.sleep(SLOW_S * (0.5 + 0.5 * self.mesh.rank / dist.get_world_size()))
            self.fault.before_step()
            loss = self.train_step(next(self.batches))
            # stands for the accelerator's share of a step: this model is tiny and CPUs are few
            time.sleep(max(0.0, options.step_s - (time.monotonic() - began_s)))
            print(f"step {step} loss {loss:.3f} took {time.monotonic() - began_s:.3f} s", flush=True)
            if step % options.checkpoint_every == 0:
                self.save(step)
            if options.evaluate_every and step % options.evaluate_every == 0:
                self.evaluate()
            if options.scenario == "reinit" and step == options.checkpoint_every:
                self.rejoin()

    def train_step(self, tokens: torch.Tensor) -> float:
        """One optimizer step over MICRO_BATCHES micro-batches. Returns the mean loss over all ranks."""
        losses = []
        for part in tokens.chunk(MICRO_BATCHES):
            losses.append(self._micro_batch(part))
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.mesh.data)
                parameter.grad /= dist.get_world_size(self.mesh.data)
        norm = torch.stack(
            [p.grad.square().sum() for p in self.model.parameters() if p.grad is not None]
        ).sum()
        dist.all_reduce(norm)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad *= min(1.0, 10.0 / (norm.sqrt().item() + 1e-6))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sum(losses) / len(losses)

    def _micro_batch(self, tokens: torch.Tensor) -> float:
        """Forward and backward of one micro-batch through this stage; loss is 0 before the last stage."""
        mesh, labels = self.mesh, tokens[:, 1:]
        source = self._receive(mesh.previous) if mesh.previous is not None else tokens[:, :-1]
        result = self.model(source, labels)
        if mesh.following is None:
            (result / MICRO_BATCHES).backward()
        else:
            dist.send(result.detach(), mesh.following, group=mesh.pipe)
            gradient = torch.empty_like(result)
            dist.recv(gradient, mesh.following, group=mesh.pipe)
            result.backward(gradient)
        if mesh.previous is not None and source.grad is not None:
            dist.send(source.grad, mesh.previous, group=mesh.pipe)
        return float(result.item()) if mesh.following is None else 0.0

    def _receive(self, previous: int) -> torch.Tensor:
        values = torch.empty(MICRO_BATCH, LENGTH, WIDTH)
        dist.recv(values, previous, group=self.mesh.pipe)
        return values.requires_grad_()

    def save(self, step: int) -> None:
        """Replica 0 writes its part, everybody waits for it."""
        if self.mesh.replica == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}
            slow = self.options.scenario == "slow_checkpoint"
            with (self.options.folder / f"checkpoint-{self.mesh.rank}.pt").open("wb") as file:
                torch.save(state, cast(IO[bytes], SlowFile(file)) if slow else file)
        dist.barrier()

    def evaluate(self) -> None:
        """A few batches without gradients; in that scenario the slow part is one rank's own scoring."""
        self.model.eval()
        with torch.no_grad():
            for index in range(self.options.evaluate_batches):
                tokens = torch.stack([torch.arange(LENGTH + 1) * index % VOCABULARY] * MICRO_BATCH)
                mesh = self.mesh
                values = self._receive(mesh.previous) if mesh.previous is not None else tokens[:, :-1]
                values = self.model(values, tokens[:, 1:])
                if mesh.following is not None:
                    dist.send(values, mesh.following, group=mesh.pipe)
        if self.options.scenario == "evaluation" and self.mesh.rank == 0:
            time.sleep(SLOW_S)
        dist.barrier()
        self.model.train()

    def rejoin(self) -> None:
        """Leaves the world and makes a new one, as a job does that reshapes itself."""
        dist.destroy_process_group()
        time.sleep(3)
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
        self.mesh = self._join()
        for module in self.model.modules():
            if hasattr(module, "_group"):
                module._group = self.mesh.tensor


class SlowFile:
    """A file on storage that is slow: the first write takes SLOW_S."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._wait_s = SLOW_S

    def write(self, data: Any) -> int:
        time.sleep(self._wait_s)
        self._wait_s = 0.0
        return int(self._file.write(data))

    def flush(self) -> None:
        self._file.flush()


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Options of the job."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--step-s", type=float, default=0.25, help="shortest step")
    parser.add_argument("--tensor", type=int, default=2, help="tensor-parallel size")
    parser.add_argument("--pipeline", type=int, default=2, help="pipeline stages")
    parser.add_argument("--workers", type=int, default=0, help="data loader workers per rank")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps, 0: never")
    parser.add_argument("--evaluate-batches", type=int, default=4)
    parser.add_argument("--timeout-s", type=float, default=1800.0, help="of a collective call")
    parser.add_argument("--folder", type=Path, default=Path(), help="where checkpoints go")
    parser.add_argument("--scenario", choices=SCENARIOS, default="healthy")
    parser.add_argument("--fault", choices=KINDS, default="")
    parser.add_argument("--fault-rank", type=int, default=5)
    parser.add_argument("--fault-step", type=int, default=60)
    options = parser.parse_args(argv)
    if options.scenario == "evaluation" and not options.evaluate_every:
        options.evaluate_every = options.checkpoint_every
    return options


def main() -> None:
    """Trains, then leaves the world in order."""
    options = parse()
    print(f"rank {os.environ['RANK']} pid {os.getpid()}", flush=True)
    torch.set_num_threads(1)
    Trainer(options).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
