"""Who a rank is, from the variables its launcher sets."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from collectors.hook import identity


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({"CLUSTERWATCH_JOB_ID": "mine", "SLURM_JOB_ID": "17", "TORCHELASTIC_RUN_ID": "run"}, "mine"),
        ({"SLURM_JOB_ID": "17", "TORCHELASTIC_RUN_ID": "run"}, "17"),
        ({"TORCHELASTIC_RUN_ID": "run"}, "run"),
        ({"CLUSTERWATCH_JOB_ID": "run-1a2b", "CLUSTERWATCH_JOB_ID_MADE": "1"}, "run-1a2b"),
        (
            {
                "CLUSTERWATCH_JOB_ID": "run-1a2b",
                "CLUSTERWATCH_JOB_ID_MADE": "1",
                "TORCHELASTIC_RUN_ID": "run",
            },
            "run",
        ),
        (
            {
                "CLUSTERWATCH_JOB_ID": "run-1a2b",
                "CLUSTERWATCH_JOB_ID_MADE": "1",
                "TORCHELASTIC_RUN_ID": "none",
            },
            "run-1a2b",
        ),
    ],
)
def test_job_id_by_order_of_trust(environ: dict[str, str], job: str) -> None:
    assert identity.job_id(environ) == job


def test_a_job_nobody_named_is_called_by_its_process() -> None:
    assert identity.job_id({}) == f"pid-{os.getpid()}"


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, 0),
        ({"TORCHELASTIC_RESTART_COUNT": "2", "SLURM_RESTART_COUNT": "5"}, 2),
        ({"SLURM_RESTART_COUNT": "5"}, 5),
        ({"TORCHELASTIC_RESTART_COUNT": "?"}, 0),
    ],
)
def test_attempt_counts_restarts(environ: dict[str, str], attempt: int) -> None:
    assert identity.attempt(environ) == attempt


def test_world_is_named_by_its_rendezvous_and_its_number() -> None:
    environ = {"MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}
    assert identity.world_name(environ, {}, 0) == "node-1:29500"
    assert identity.world_name(environ, {}, 1) == "node-1:29500#1"
    assert identity.world_name(environ, {"init_method": "env://"}, 0) == "node-1:29500"
    assert identity.world_name(environ, {"init_method": "tcp://node-2:7?rank=1"}, 0) == "node-2:7"
    assert identity.world_name({}, {"init_method": "file:///shared/store"}, 0) == "/shared/store"
    assert identity.world_name({}, {}, 0) == ""


def test_start_of_this_process_lies_in_the_near_past() -> None:
    assert 0 <= time.time_ns() - identity.started_ns() < 3_600 * 10**9


def cuda(initialised: bool) -> SimpleNamespace:
    properties = SimpleNamespace(uuid="abc")
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: initialised,
            current_device=lambda: 1,
            get_device_properties=lambda index: properties,
        )
    )


def test_cuda_is_never_initialised_to_learn_the_gpu() -> None:
    assert identity.gpu(cuda(False), {}) == (None, None)
    assert identity.gpu(SimpleNamespace(), {}) == (None, None)


def test_gpu_index_counts_before_visible_devices() -> None:
    assert identity.gpu(cuda(True), {}) == (1, "GPU-abc")
    assert identity.gpu(cuda(True), {"CUDA_VISIBLE_DEVICES": "4,6"}) == (6, "GPU-abc")
    assert identity.gpu(cuda(True), {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}) == (None, "GPU-abc")


def test_labels_are_slurms_and_the_owners_own_which_win() -> None:
    environ = {
        "SLURM_JOB_PARTITION": "batch", "SLURM_JOB_QOS": "",
        "CLUSTERWATCH_LABELS": "team=vision, model=7b,odd,=x,partition=debug,empty=",
    }  # fmt: skip
    assert identity.labels(environ) == {"partition": "debug", "team": "vision", "model": "7b"}
    assert identity.labels({}) == {}


def test_labels_are_few_and_short() -> None:
    many = ",".join(f"{n}={'v' * 300}" for n in range(40))
    told = identity.labels({"CLUSTERWATCH_LABELS": many})
    assert len(told) == 16 and {len(value) for value in told.values()} == {200}
