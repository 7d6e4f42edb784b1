"""Who a process is: control groups of every kind, an allow-list of variables, and nothing else of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.process_identity import ALLOWED, Group, Identity, environment, group

UID = "0f3c9d1e-5a44-4d1b-9c55-6a2f7b8c9d10"
CONTAINER = "a" * 64


@pytest.mark.parametrize(
    ("text", "job", "step", "pod"),
    [
        ("0::/system.slice/slurmstepd.scope/job_55012/step_0/user/task_1\n", "55012", "0", None),
        ("0::/system.slice/gtn-0101_slurmstepd.scope/job_7/step_batch/user/task_0\n", "7", "batch", None),
        ("0::/system.slice/slurmstepd.scope/s4Q8X2M0GDT00/step_3/user/task_0\n", None, "3", None),
        ("11:devices:/slurm/uid_1000/job_7/step_0/task_0\n4:cpu:/\n1:name=systemd:/x\n", "7", "0", None),
        ("4:memory:/slurm_gtn-0101/uid_1000/job_7/step_extern\n", "7", "extern", None),
        (f"0::/kubepods/burstable/pod{UID}/{CONTAINER}\n", None, None, UID),
        (
            f"0::/kubepods.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
            f"cri-containerd-{CONTAINER}.scope\n",
            None,
            None,
            UID,
        ),
        (f"0::/../../kubepods-pod{'0a' * 16}.slice/cri-containerd-{CONTAINER}.scope", None, None, "0a" * 16),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None, None, None),
        ("0::/user.slice/job_5/step_0\n", None, None, None),
        ("", None, None, None),
    ],
)
def test_a_control_group_tells_job_step_and_pod(
    text: str, job: str | None, step: str | None, pod: str | None
) -> None:
    found = group(text)
    assert (found.job, found.step, found.pod_uid) == (job, step, pod)


@pytest.mark.parametrize(
    ("text", "is_closed"),
    [
        ("0::/system.slice/slurmstepd.scope/s4Q8X2M0GDT00/step_3/user/task_0", True),
        (f"0::/system.slice/docker-{CONTAINER}.scope", True),
        ("0::/user.slice/user-1000.slice/session-3.scope", False),
    ],
)
def test_a_group_that_may_hide_gpus_is_closed(text: str, is_closed: bool) -> None:
    assert group(text).is_closed is is_closed


def test_only_allowed_variables_are_kept_and_the_first_of_a_name() -> None:
    data = (
        b"API_TOKEN=s\0RANK=3\0RANK=4\0XRANK=5\0NO_EQUALS\0=x\0SLURM_JOB_NAME=a\nb\0WORLD_SIZE=" + b"9" * 500
    )
    assert environment(data) == {"RANK": "3"}
    assert not {name for name in ALLOWED if any(word in name for word in ("TOKEN", "KEY", "SECRET", "PASS"))}


@pytest.mark.parametrize(
    ("values", "where", "job"),
    [
        ({"SLURM_JOB_ID": "5", "TORCHELASTIC_RUN_ID": "r"}, Group(job="6"), "5"),
        ({"TORCHELASTIC_RUN_ID": "r"}, Group(job="6"), "6"),
        ({"TORCHELASTIC_RUN_ID": "r"}, Group(pod_uid=UID), "r"),
        ({"TORCHELASTIC_RUN_ID": "none"}, Group(pod_uid=UID), UID),
        ({"CLUSTERWATCH_JOB_ID": "mine", "SLURM_JOB_ID": "5"}, Group(), "mine"),
        (
            {"CLUSTERWATCH_JOB_ID": "m", "CLUSTERWATCH_JOB_ID_MADE": "1", "TORCHELASTIC_RUN_ID": "r"},
            Group(),
            "r",
        ),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}, Group(), "h:29500"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "29500"}, Group(), None),
        ({"SLURM_JOB_ID": "../x"}, Group(), None),
        ({"RANK": "0"}, Group(), None),
        ({}, Group(), None),
    ],
)
def test_the_job_is_named_as_the_hook_names_it(values: dict[str, str], where: Group, job: str | None) -> None:
    assert Identity(1, values, where).job == job


@pytest.mark.parametrize("text", ["-1", "x", "", "1.0", "٣", "9" * 13, "10000001"])
def test_a_rank_that_is_no_number_is_none(text: str) -> None:
    assert Identity(1, {"RANK": text}).rank is None


@given(st.binary(max_size=300))
def test_garbage_gives_printable_text_only(data: bytes) -> None:
    assert all(value.isprintable() for value in environment(data).values())
    group(data.decode("utf-8", "replace"))
