"""Hosts from the paths of dumps: told for all ranks or for none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterwatch.readers import hosts


def told(name: Callable[[int], str], count: int = 16) -> dict[int, str]:
    return hosts.of({name(rank): rank for rank in range(count)})


@pytest.mark.parametrize(
    "name",
    [
        lambda r: f"nccl_trace_rank_gpu-{r // 8}_{r}",
        lambda r: f"gpu-{r // 8}/nccl_trace_rank_{r}",
        lambda r: f"dumps/gpu-{r // 8}/tmp/nccl_trace_rank_{r}",
        lambda r: f"all.tgz:gpu-{r // 8}/rank_{r}.json",
    ],
)
def test_a_host_in_the_name_or_a_folder_per_node_is_told(name: Callable[[int], str]) -> None:
    assert told(name) == {rank: f"gpu-{rank // 8}" for rank in range(16)}


def test_ranks_that_left_no_dump_change_nothing() -> None:
    found = hosts.of({f"gpu-{rank // 8}/rank_{rank}": rank for rank in range(16) if rank not in (3, 9, 15)})
    assert found[2] == "gpu-0" and found[10] == "gpu-1" and 3 not in found


@pytest.mark.parametrize(
    "name",
    [
        lambda r: f"nccl_trace_rank_{r}",
        lambda r: f"attempt0/nccl_trace_rank_{r}",
        lambda r: f"run{r // 8}/nccl_trace_rank_{r}",
        lambda r: f"rank{r}/trace.json",
        lambda r: f"{r // 8}/nccl_trace_rank_{r}",
        lambda r: f"nccl_trace_rank_{r // 8}_{r}",
        lambda r: f"{'even' if r % 2 else 'odd'}/nccl_trace_rank_{r}",
        lambda r: f"host{r // 5}/nccl_trace_rank_{r}" if r < 10 else f"nccl_trace_rank_{r}",
    ],
)
def test_what_need_not_be_a_host_is_none(name: Callable[[int], str]) -> None:
    assert told(name) == {}
