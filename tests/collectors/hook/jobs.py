# mypy: disable-error-code="arg-type,var-annotated,assignment,no-untyped-call"
"""Training processes for the hook's tests: ``python jobs.py NAME``. Plain torch; none starts the hook itself
but ``attached``. Lines on stdout are JSON for the test."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def steps() -> int:
    """What the hook has counted, straight from its counter."""
    return int(sys.modules["clusterwatch_hook.entry"]._process.session.steps.step)


def watch() -> Any:
    return sys.modules["clusterwatch_hook.entry"]._process.watch


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(4, 4)


def backward(model: torch.nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def endless() -> None:
    """Two ranks, groups whose local numbers differ between ranks, a loader worker and a forked child."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.new_group([0], group_desc="alone")
    pair = dist.new_group([0, 1], group_desc="pair")
    if os.fork() == 0:
        list(DataLoader(list(range(4)), batch_size=2))
        time.sleep(60)
        os._exit(0)
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        for _batch in DataLoader(list(range(64)), batch_size=2, num_workers=1):
            optimizer.zero_grad()
            backward(model)
            dist.all_reduce(torch.ones(3), group=pair)
            if rank == 0:
                dist.send(torch.ones(2), 1, group=pair)
            else:
                dist.recv(torch.ones(2), 0, group=pair)
            optimizer.step()
            time.sleep(0.05)
            if os.path.exists(os.environ["STOP_RECEIVING"]) and rank == 1:
                time.sleep(600)


def counting() -> None:
    """The step counter's hard cases, one after the other; each says how many steps it made and counted."""
    dist.init_process_group("gloo")
    for case in (plain, chained, accumulating, in_backward, repeated, skipping, generator_and_critic):
        before = steps()
        made = case()
        say(case=case.__name__, made=made, counted=steps() - before)
    wrapped()


def short() -> None:
    dist.init_process_group("gloo")
    say(made=plain())


def plain() -> int:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _step in range(5):
        backward(model)
        optimizer.step()
    return 5


def chained() -> int:
    model = linear()
    optimizers = [torch.optim.SGD([p], 0.1) for p in model.parameters()]
    for _step in range(5):
        backward(model)
        for optimizer in optimizers:
            optimizer.step()
    return 5


def accumulating() -> int:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _step in range(5):
        for _micro in range(4):
            backward(model)
        optimizer.step()
    return 5


def in_backward() -> int:
    model = torch.nn.Sequential(*(linear() for _ in range(3)))
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], 0.1)
        parameter.register_post_accumulate_grad_hook(
            lambda p, own=optimizer: (own.step(), own.zero_grad())[0]
        )
    for _step in range(5):
        model(torch.ones(2, 4)).sum().backward()
        dist.all_reduce(torch.ones(1))
    return 5


def repeated() -> int:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _step in range(5):
        backward(model)
        optimizer.step()
        optimizer.step()
    return 5


def skipping() -> int:
    """What a gradient scaler does after an overflow: the 7th step is not made, its collectives are."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(10):
        backward(model)
        if step != 6:
            optimizer.step()
    return 10


def generator_and_critic() -> int:
    first, second = linear(), linear()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (first, second)]
    for _step in range(5):
        for model, optimizer in zip((first, second), optimizers, strict=True):
            backward(model)
            optimizer.step()
    return 5


def wrapped() -> None:
    """What the wrappers must leave alone."""
    compiled = torch.compile(linear(), backend="eager")
    compiled(torch.ones(2, 4)).sum().backward()
    frozen, trained = linear(), linear()
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    labels = []
    for _step in range(4):
        trained.train()
        frozen.eval()
        labels.append(watch().evaluating is not None)
        backward(trained)
        optimizer.step()
    trained.eval()
    evaluating = watch().evaluating is not None
    trained.train()
    loader = DataLoader([1, 2, 3])
    torch.save({"a": 1}, os.devnull)
    say(
        signature=str(inspect.signature(torch.save)),
        name=torch.save.__name__,
        pickled=pickle.loads(pickle.dumps(dist.isend)) is dist.isend,
        p2p_op=isinstance(dist.P2POp(dist.isend, torch.ones(1), 0), dist.P2POp),
        iterator=type(iter(loader)).__name__,
        batches=len(list(loader)),
        compile_s=watch().compiling.total_ns / 1e9,
        checkpoint_s=watch().checkpoint.total_ns / 1e9,
        frozen_evaluating=labels,
        evaluating=evaluating,
        evaluating_after_train=watch().evaluating is not None,
    )


def raising() -> None:
    """Fails after its world came up, on a torch of a version nobody has tried."""
    torch.__version__ = "9.9.0"
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    time.sleep(1.5)
    raise ValueError("loss is not finite")


def attached() -> None:
    """Loads the hook by one line after the world is up, then makes another world."""
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{os.environ['RENDEZVOUS']}-1")
    from collectors.hook import attach

    attach()
    attach()
    time.sleep(2)
    dist.destroy_process_group()
    time.sleep(1.5)
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{os.environ['RENDEZVOUS']}-2")
    dist.all_reduce(torch.ones(1))
    time.sleep(2)


def phases() -> None:
    """Sits in each thing for longer than a tick."""
    dist.init_process_group("gloo")
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(count: int) -> None:
        for _step in range(count):
            backward(model)
            optimizer.step()
            time.sleep(0.1)

    train(20)
    model.eval()
    time.sleep(2.2)
    model.train()
    train(15)
    torch.save({"a": torch.ones(1)}, Slow())
    train(15)
    list(DataLoader(SlowItems()))
    train(15)
    dist.destroy_process_group()
    time.sleep(1.5)


class Slow:
    """A file whose first write takes two seconds."""

    wait_s = 2.2

    def write(self, data: bytes) -> int:
        time.sleep(self.wait_s)
        self.wait_s = 0.0
        return len(data)

    def flush(self) -> None:
        return


class SlowItems:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        time.sleep(2.2)
        return index


def lagging() -> None:
    """Ways to wait for peers, one after the other; in each one rank 2 has 60 ms more to do a step."""
    dist.init_process_group("gloo")
    for way in (by_call, by_work, by_native, by_comm_hook, with_buffers, by_group, in_checkpoint):
        first = steps()
        way()
        say(way=way.__name__, first=first, last=steps())
    time.sleep(1.3)


def lag() -> None:
    """Own work, on a processor: 5 ms, on rank 2 more."""
    ends_s = time.perf_counter() + (0.065 if dist.get_rank() == 2 else 0.005)
    while time.perf_counter() < ends_s:
        pass


def train(model: torch.nn.Module, reduce: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _step in range(10):
        optimizer.zero_grad()
        lag()
        model(torch.ones(2, 4)).sum().backward()
        reduce([p.grad for p in model.parameters()])
        optimizer.step()


def by_call() -> None:
    train(linear(), lambda gradients: [dist.all_reduce(gradient) for gradient in gradients])


def by_work() -> None:
    def reduce(gradients: list[torch.Tensor]) -> None:
        works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
        [work.wait() for work in works]

    train(linear(), reduce)


def by_native() -> None:
    """All-reduce and wait in C++."""
    train(torch.nn.parallel.DistributedDataParallel(linear()), lambda _gradients: None)


def by_comm_hook() -> None:
    """All-reduce in Python, wait in C++."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model = torch.nn.parallel.DistributedDataParallel(linear())
    model.register_comm_hook(None, allreduce_hook)
    train(model, lambda _gradients: None)


def with_buffers() -> None:
    """The forward pass begins with a broadcast in C++."""
    model = torch.nn.Sequential(linear(), torch.nn.BatchNorm1d(4))
    train(torch.nn.parallel.DistributedDataParallel(model), lambda _gradients: None)


def by_group() -> None:
    """Calls that no wrapper sees being made."""
    world = dist.group.WORLD
    train(linear(), lambda gradients: [world.allreduce([gradient]).wait() for gradient in gradients])


def in_checkpoint() -> None:
    """Waiting for peers inside a checkpoint is the checkpoint's time."""

    class Shared:
        def __reduce__(self) -> Any:
            lag()
            dist.barrier()
            return (int, ())

    train(linear(), lambda _gradients: (dist.barrier(), torch.save(Shared(), os.devnull)))


def remapped() -> None:
    """What torch.compile makes of collectives it knows by identity: graphs of a compiled step."""
    from torch.distributed._functional_collectives import traceable_collective_remaps

    dist.init_process_group("gloo")
    names = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    explained = torch._dynamo.explain(step)(torch.ones(4))
    say(
        known=[getattr(dist, name) in traceable_collective_remaps for name in names],
        graphs=explained.graph_count,
        breaks=explained.graph_break_count,
        pickled=pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce,
        signature=str(inspect.signature(dist.all_reduce)),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
