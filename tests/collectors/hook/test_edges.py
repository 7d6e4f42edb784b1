"""Rows of (step, group, op, size): what is counted, what is kept of many, what is left out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from collectors.hook.edges import KEYS_MAX, ROWS_MAX, SAMPLES_MAX, EdgeQueue, EdgeStep, Samples, size_of
from tests.collectors.hook.fake_job import Tensor

ALL_REDUCE = ("0", "all_reduce", 1 << 20)


def row_of(durations_ns: list[int]) -> tuple[int, float, float, float, float]:
    samples = Samples()
    for duration_ns in durations_ns:
        samples.add(duration_ns)
    return samples.row()


def test_a_row_has_count_sum_smallest_and_two_quantiles() -> None:
    assert row_of([7_000_000]) == (1, 0.007, 0.007, 0.007, 0.007)
    durations_ns = [number * 1_000_000 for number in range(1, 101)]
    random.Random(1).shuffle(durations_ns)
    assert row_of(durations_ns) == (100, 5.05, 0.001, 0.010, 0.050)


def test_of_many_calls_a_part_is_kept_and_count_sum_and_smallest_are_of_all() -> None:
    durations_ns = [random.Random(2).randrange(1, 10**9) for _ in range(1)] + [
        (number * 7_919) % 100_003 + 1 for number in range(20_000)
    ]
    samples = Samples()
    for duration_ns in durations_ns:
        samples.add(duration_ns)
        assert len(samples.kept) <= SAMPLES_MAX
    count, sum_s, min_s, p10_s, p50_s = samples.row()
    assert (count, min_s) == (20_001, min(durations_ns) / 1e9) and sum_s == sum(durations_ns) / 1e9
    assert samples.kept == durations_ns[:: samples.every] and len(samples.kept) > SAMPLES_MAX // 2
    ordered = sorted(durations_ns)
    assert p10_s == pytest.approx(ordered[2_000] / 1e9, rel=0.25)
    assert p50_s == pytest.approx(ordered[10_000] / 1e9, rel=0.15)


def test_ranks_keep_the_same_calls_of_many() -> None:
    first, second = Samples(), Samples()
    for number in range(3_000):
        first.add(number)
        second.add(number)
    assert first.kept == second.kept


def test_of_many_kinds_of_calls_the_first_are_told() -> None:
    edges = EdgeStep()
    for number in range(KEYS_MAX + 20):
        edges.add(("0", "all_to_all", number), 5)
    edges.add(("0", "all_to_all", 0), 7)
    assert [key[2] for key in edges.samples] == list(range(KEYS_MAX))
    assert edges.samples[("0", "all_to_all", 0)].count == 2


def test_a_frame_names_groups_by_index_and_ops_once() -> None:
    queue = EdgeQueue()
    for step in (8, 16):
        edges = EdgeStep()
        edges.add(("", "all_reduce", 64), 2_000_000)
        edges.add(("7", "send", 32), 1_000_000)
        edges.add(("0", "all_reduce", 64), 4_000_000)
        edges.add(("7", "all_reduce", 64), 3_000_000)
        edges.add(("gone", "all_reduce", 64), 3_000_000)
        queue.put(step, edges)
    frame = queue.frame({"": 0, "0": 0, "7": 2})
    assert frame is not None and frame.pop("t_ns") > 0
    assert frame == {
        "k": "edges",
        "ops": ["all_reduce", "send"],
        "step": [8, 8, 8, 16, 16, 16],
        "group": [0, 2, 2, 0, 2, 2],
        "op": [0, 1, 0, 0, 1, 0],
        "size_bytes": [64, 32, 64, 64, 32, 64],
        "count": [2, 1, 1] * 2,
        "sum_s": [0.006, 0.001, 0.003] * 2,
        "min_s": [0.002, 0.001, 0.003] * 2,
        "p10_s": [0.002, 0.001, 0.003] * 2,
        "p50_s": [0.002, 0.001, 0.003] * 2,
    }
    assert queue.frame({"": 0}) is None, "told once"


def test_a_frame_is_bounded_and_the_rest_goes_with_the_next() -> None:
    queue = EdgeQueue()
    for step in range(20):
        edges = EdgeStep()
        for size in range(KEYS_MAX):
            edges.add(("", "send", size), 1)
        queue.put(step, edges)
    first, second = queue.frame({"": 0}), queue.frame({"": 0})
    assert first is not None and second is not None
    assert len(first["step"]) == ROWS_MAX and len(second["step"]) == 20 * KEYS_MAX - ROWS_MAX
    assert set(first["step"]).isdisjoint(second["step"])


def test_a_step_without_calls_is_not_told() -> None:
    queue = EdgeQueue()
    queue.put(3, EdgeStep())
    assert queue.frame({"": 0}) is None


def all_reduce(tensor: Any, op: Any = None, group: Any = None) -> None: ...
def all_gather(tensor_list: Any, tensor: Any, group: Any = None) -> None: ...
def all_gather_single(output_tensor: Any, input_tensor: Any, group: Any = None) -> None: ...
def reduce_scatter(output: Any, input_list: Any, op: Any = None) -> None: ...
def reduce_scatter_single(output: Any, input: Any, op: Any = None) -> None: ...  # noqa: A002 - torch's name
def barrier(group: Any = None) -> None: ...


FOUR, EIGHT = Tensor(4), Tensor(8)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "size_bytes"),
    [
        (all_reduce, (FOUR,), {}, 16),
        (all_reduce, (), {"tensor": EIGHT}, 32),
        (all_reduce, ("no tensor",), {}, None),
        (all_reduce, (), {}, None),
        (all_gather, ([EIGHT, EIGHT], FOUR), {}, 16),
        (all_gather_single, (EIGHT,), {"input_tensor": FOUR}, 16),
        (reduce_scatter, (FOUR, [FOUR, EIGHT]), {}, 48),
        (reduce_scatter_single, (FOUR, EIGHT), {}, 32),
        (barrier, (), {}, 0),
    ],
)
def test_the_size_is_what_this_rank_passes(
    function: Any, args: Any, kwargs: Any, size_bytes: int | None
) -> None:
    assert size_of(function)(args, kwargs) == size_bytes
