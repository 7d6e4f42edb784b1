"""Ranks of a node: the driver's word before the environment's, launchers are no ranks, secrets stay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.process_identity import Group, Identity
from collectors.sources.rank_gpu import Placement, placement
from collectors.sources.scheduler_env import SchedulerEnvSource
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import given_lines, look, write

GPUS = [f"GPU-0000000{number}-1111-2222-3333-444444444444" for number in range(8)]
INDICES = dict(enumerate(GPUS))
MIG = "MIG-aaaa1111-1111-2222-3333-444444444444"
JOB = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_{0}\n"
POD = "0f3c9d1e-5a44-4d1b-9c55-6a2f7b8c9d10"
CLOSED = Group(job="7", is_closed=True)


def process(
    pid: int, cgroup: str = JOB.format(0), parent: str = "1", **values: str
) -> dict[str, str | bytes]:
    """Files of one process. ``values``: its environment, beside which there is a secret."""
    environ = b"".join(f"{name}={value}".encode() + b"\0" for name, value in values.items())
    stat = f"{pid} (a ) b) S {parent} " + "0 " * 17 + f"{pid} 0"
    return {
        f"proc/{pid}/environ": b"API_TOKEN=do-not-print-this\0" + environ,
        f"proc/{pid}/cgroup": cgroup,
        f"proc/{pid}/stat": stat,
    }


def rank(pid: int, number: int, local: int, parent: str = "1", **values: str) -> dict[str, str | bytes]:
    named = {"SLURM_JOB_ID": "7", "RANK": str(number), "LOCAL_RANK": str(local)} | values
    return process(pid, JOB.format(local), parent, **named)


def holders(
    by_uuid: Mapping[str, list[int]] | None, order: list[str] | None = None
) -> dict[str, str | bytes]:
    said: dict[str, Any] = {
        "nvml_index": {str(n): uuid for n, uuid in enumerate(GPUS if order is None else order)}
    }
    if by_uuid is not None:
        said["by_uuid"] = by_uuid
    return {"commands/gpu_processes.json": json.dumps(said)}


def mapped(
    root: Path, *parts: Mapping[str, str | bytes], source: SchedulerEnvSource | None = None
) -> dict[str, Any]:
    """entity of each rank -> (pid, GPU's number, map_source); every line of a rank once, without a secret."""
    for part in parts:
        write(root, part)
    _, events = look(source or SchedulerEnvSource(), root)
    assert "do-not-print-this" not in repr(events)
    told = [event for event in events if event.kind == "rank_map"]
    assert len({event.entity for event in told}) == len(told)
    numbers: dict[Any, Any] = {uuid: number for number, uuid in enumerate(GPUS)}
    return {
        event.entity: (
            event.attributes["pid"],
            numbers.get(event.attributes["gpu_uuid"], event.attributes["gpu_uuid"]),
            event.attributes["map_source"],
        )
        for event in told
    }


RANK_3 = "job/7/rank/3"


# --- the order of trust ------------------------------------------------------------------------------------


def test_the_driver_is_believed_before_the_environment(tmp_path: Path) -> None:
    found = mapped(
        tmp_path, rank(50, 3, 0, CUDA_VISIBLE_DEVICES="0"), holders({GPUS[5]: [50], GPUS[0]: [49]})
    )
    assert found == {RANK_3: (50, 5, "nvml_pid")}


def test_each_process_of_a_gpu_is_looked_at_and_not_only_the_first(tmp_path: Path) -> None:
    found = mapped(tmp_path, process(40), rank(50, 3, 0), holders({GPUS[5]: [39, 40, 50]}))
    assert found == {RANK_3: (50, 5, "nvml_pid")}


def test_a_rank_that_holds_a_neighbours_gpu_too_is_on_its_own(tmp_path: Path) -> None:
    """Each rank has a context on the first GPU, as when one forgets to set the device."""
    parts = [rank(50 + n, n, n) for n in range(4)]
    held = {GPUS[0]: [50, 51, 52, 53], GPUS[1]: [51], GPUS[2]: [52], GPUS[3]: [53]}
    found = mapped(tmp_path, *parts, holders(held))
    assert [found[f"job/7/rank/{n}"][1] for n in range(4)] == [0, 1, 2, 3]


UUIDS = ",".join(GPUS[4:])


@pytest.mark.parametrize(
    ("values", "gpu", "source"),
    [
        ({"CUDA_VISIBLE_DEVICES": UUIDS}, 6, "env_uuid"),
        ({"CUDA_VISIBLE_DEVICES": GPUS[5]}, 5, "env_uuid"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000001,GPU-00000002,GPU-00000003"}, 3, "env_uuid"),
        ({"CUDA_VISIBLE_DEVICES": f"{GPUS[0]},{GPUS[1]}"}, None, "unknown"),
        ({"CUDA_VISIBLE_DEVICES": f"{GPUS[0]},-1,{GPUS[1]},{GPUS[2]}"}, 0, "env_uuid"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0"}, None, "unknown"),
        ({"CUDA_VISIBLE_DEVICES": MIG}, MIG, "env_uuid"),
        ({"CUDA_VISIBLE_DEVICES": f"MIG-{GPUS[6]}/9/0"}, 6, "env_uuid"),
        ({"NVIDIA_VISIBLE_DEVICES": ",".join(reversed(GPUS[4:]))}, 6, "env_uuid"),
        ({"NVIDIA_VISIBLE_DEVICES": UUIDS, "CUDA_VISIBLE_DEVICES": "3"}, 7, "env_uuid"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, 2, "env_index"),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 6, "env_index"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_JOB_GPUS": "4-7"}, 6, "env_index"),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "6", "SLURM_JOB_GPUS": "4,6"}, 6, "env_index"),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURM_JOB_GPUS": "4,5,6,7"}, 6, "env_index"),
        ({"SLURM_JOB_GPUS": "1,3,5"}, 5, "env_index"),
        ({"NVIDIA_VISIBLE_DEVICES": "5", "CUDA_VISIBLE_DEVICES": "0"}, 5, "env_index"),
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "1,2"}, None, "unknown"),
        ({"LOCAL_WORLD_SIZE": "8"}, 2, "env_index"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None, "unknown"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, None, "unknown"),
        ({"CUDA_VISIBLE_DEVICES": "9"}, None, "unknown"),
    ],
)  # fmt: skip
def test_what_an_environment_says_of_the_gpu(
    tmp_path: Path, values: dict[str, str], gpu: int | str | None, source: str
) -> None:
    assert mapped(tmp_path, rank(50, 3, 2, **values), holders({})) == {RANK_3: (50, gpu, source)}


@pytest.mark.parametrize("visible", ["0", "0,1,2,3", None])
def test_inside_a_group_of_devices_index_0_is_not_gpu_0(visible: str | None) -> None:
    values = {"LOCAL_RANK": "0"} | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    assert placement(Identity(1, values, CLOSED), (), INDICES) == Placement()
    assert placement(Identity(1, values, Group()), (), INDICES).uuid == GPUS[0]


def test_a_mig_instance_is_named_by_its_gpu_where_that_is_told() -> None:
    assert placement(Identity(1), (GPUS[2], MIG), INDICES) == Placement(GPUS[2], "nvml_pid")
    assert placement(Identity(1), (MIG,), INDICES) == Placement(MIG, "nvml_pid")
    assert placement(Identity(1), (f"MIG-{GPUS[2]}/3/0",), INDICES) == Placement(GPUS[2], "nvml_pid", 3)


def test_of_two_held_gpus_nobody_can_tell_it_is_unknown() -> None:
    assert placement(Identity(1), (GPUS[0], GPUS[1]), INDICES) == Placement()


# --- indices that change -----------------------------------------------------------------------------------


def inventory() -> dict[str, str]:
    uuids = ", ".join(f'"{uuid}"' for uuid in GPUS)
    return {"etc/clusterwatch/agent.toml": f"[gpu]\nuuids = [{uuids}]\n"}


LOST = GPUS[:2] + GPUS[3:]
"""The order of the driver after GPU 2 was lost: those behind it count one less."""


def test_an_index_keeps_the_meaning_it_had_when_the_rank_began(tmp_path: Path) -> None:
    source = SchedulerEnvSource()
    started = rank(50, 3, 0, CUDA_VISIBLE_DEVICES="5,6,7")
    assert mapped(tmp_path, started, holders({}), inventory(), source=source)[RANK_3][1] == 5
    assert mapped(tmp_path, holders({}, LOST), source=source)[RANK_3][1] == 5


@pytest.mark.parametrize(
    ("visible", "local", "gpu"),
    [("1", 0, 1), ("4,5", 0, None), ("6,7", 1, 7), ("0,1,2,3,4,5,6,7", 4, 4), ("2", 0, None)],
)
def test_after_a_loss_only_indices_with_one_meaning_are_of_use(
    tmp_path: Path, visible: str, local: int, gpu: int | None
) -> None:
    part = rank(50, 3, local, CUDA_VISIBLE_DEVICES=visible)
    assert mapped(tmp_path, part, holders({}, LOST), inventory())[RANK_3][1] == gpu


def test_a_lost_gpu_that_a_rank_still_holds_is_named_by_its_uuid(tmp_path: Path) -> None:
    write(tmp_path, rank(50, 3, 2) | holders({GPUS[2]: [50]}, LOST))
    messages = [event.message for event in look(SchedulerEnvSource(), tmp_path)[1]]
    assert f"rank 3 on {GPUS[2]}" in messages


# --- which process is a rank -------------------------------------------------------------------------------


def test_a_launcher_is_no_rank(tmp_path: Path) -> None:
    """srun + torchrun: the launcher has SLURM_PROCID 1, the ranks of this second node are 8 to 11."""
    launcher = process(40, SLURM_JOB_ID="7", SLURM_PROCID="1", SLURM_LOCALID="0")
    workers = [rank(50 + n, 8 + n, n, parent="40", SLURM_PROCID="1", SLURM_LOCALID="0") for n in range(4)]
    found = mapped(tmp_path, launcher, *workers, holders({GPUS[n]: [50 + n] for n in range(4)}))
    assert found == {f"job/7/rank/{8 + n}": (50 + n, n, "nvml_pid") for n in range(4)}


def test_a_node_number_that_an_operator_calls_rank_is_no_rank(tmp_path: Path) -> None:
    pod = f"0::/kubepods/pod{POD}/{'a' * 64}\n"
    launcher = process(40, pod, TORCHELASTIC_RUN_ID="r", RANK="1", WORLD_SIZE="2")
    worker = process(50, pod, parent="40", TORCHELASTIC_RUN_ID="r", RANK="9", LOCAL_RANK="1", WORLD_SIZE="16")
    assert set(mapped(tmp_path, launcher, worker, holders({}))) == {"job/r/rank/9"}


def test_tasks_of_srun_alone_are_ranks(tmp_path: Path) -> None:
    tasks = [
        process(50 + n, JOB.format(n), SLURM_JOB_ID="7", SLURM_PROCID=str(8 + n), SLURM_LOCALID=str(n))
        for n in range(2)
    ]
    batch = process(
        40,
        "0::/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0",
        SLURM_JOB_ID="7",
        SLURM_PROCID="0",
    )
    found = mapped(tmp_path, *tasks, batch, holders({GPUS[4]: [50], GPUS[5]: [51]}))
    assert found == {"job/7/rank/8": (50, 4, "nvml_pid"), "job/7/rank/9": (51, 5, "nvml_pid")}


def test_a_child_that_holds_the_gpu_without_saying_its_rank_counts_for_its_parent(tmp_path: Path) -> None:
    child = process(60, JOB.format(0), parent="50", PATH="/bin")
    assert mapped(tmp_path, rank(50, 3, 0), child, holders({GPUS[5]: [60]})) == {RANK_3: (50, 5, "nvml_pid")}


def test_without_parents_its_control_group_tells_whose_child_it_is(tmp_path: Path) -> None:
    files = rank(50, 3, 0) | process(60, JOB.format(0)) | rank(51, 4, 1) | holders({GPUS[5]: [60]})
    write(tmp_path, {name: content for name, content in files.items() if not name.endswith("stat")})
    found = mapped(tmp_path)
    assert found[RANK_3] == (50, 5, "nvml_pid")
    assert found["job/7/rank/4"][1] is None


def test_a_worker_that_loads_data_is_not_taken_for_its_rank(tmp_path: Path) -> None:
    parts = [rank(50, 3, 0), rank(60, 3, 0, parent="50"), rank(61, 3, 0, parent="50")]
    assert mapped(tmp_path, *parts, holders({}))[RANK_3][0] == 50
    assert mapped(tmp_path, holders({GPUS[5]: [50]}))[RANK_3] == (50, 5, "nvml_pid")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"SLURM_RESTART_COUNT": "1"}),
        ({"SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "2"}, {"SLURM_RESTART_COUNT": "2"}),
        ({"TORCHELASTIC_RESTART_COUNT": "0"}, {"TORCHELASTIC_RESTART_COUNT": "1"}),
        ({"SLURM_STEP_ID": "0"}, {"SLURM_STEP_ID": "1"}),
    ],
)
def test_the_new_life_of_a_rank_is_told_while_the_old_one_still_dies(
    tmp_path: Path, old: dict[str, str], new: dict[str, str]
) -> None:
    parts = [rank(60, 3, 0, **old), rank(50, 3, 0, CUDA_VISIBLE_DEVICES=GPUS[4], **new)]
    assert mapped(tmp_path, *parts, holders({GPUS[5]: [60]})) == {RANK_3: (50, 4, "env_uuid")}


def test_of_two_lives_that_count_the_same_the_later_process_is_the_rank(tmp_path: Path) -> None:
    found = mapped(tmp_path, rank(50, 3, 0), rank(60, 3, 0), holders({GPUS[5]: [50, 60]}))
    assert found == {RANK_3: (60, 5, "nvml_pid")}


# --- what is told ------------------------------------------------------------------------------------------


def test_a_pod_is_told_with_its_uid(tmp_path: Path) -> None:
    pod = f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope\n"
    write(tmp_path, process(50, pod, RANK="0", LOCAL_RANK="0", WORLD_SIZE="8", TORCHELASTIC_RUN_ID="r"))
    _, events = look(SchedulerEnvSource(), tmp_path)
    assert {(event.entity, event.attributes["pod_uid"]) for event in events} == {
        ("job/r/rank/0", POD),
        ("job/r", POD),
    }


def test_a_job_is_told_by_its_node_where_nobody_else_knows_it(tmp_path: Path) -> None:
    values = {
        "SLURM_JOB_NAME": "tune", "SLURM_JOB_NUM_NODES": "4", "SLURM_NODEID": "2", "SLURM_RESTART_COUNT": "1",
        "SLURM_JOB_START_TIME": "1000", "SLURM_JOB_END_TIME": "4600",
    }  # fmt: skip
    write(
        tmp_path,
        {"proc/sys/kernel/hostname": "n3\n", "etc/slurm/topology.conf": "SwitchName=l1 Nodes=n[1-4]"},
    )
    write(tmp_path, rank(50, 3, 0, **values))
    (job,) = [event for event in look(SchedulerEnvSource(), tmp_path)[1] if event.kind == "job"]
    assert (job.entity, job.message) == ("job/7", "tune running on 4 nodes")
    assert job.attributes == {
        "nodes": 4, "gpus": None, "restarts": 1, "state": "RUNNING", "node_index": 2, "time_limit_s": 3_600,
        "switch": "l1",
    }  # fmt: skip


def test_an_environment_that_may_not_be_read_leaves_the_job_of_the_control_group(tmp_path: Path) -> None:
    write(tmp_path, rank(50, 3, 0) | {"read_errors.json": '{"proc/50/environ": "EACCES"}'})
    (event,) = look(SchedulerEnvSource(), tmp_path)[1]
    assert (event.entity, event.kind) == ("job/7", "job")
    assert event.attributes["restarts"] is None


def test_a_process_of_no_job_is_nobodys(tmp_path: Path) -> None:
    write(
        tmp_path,
        process(50, "0::/user.slice\n", RANK="0", CUDA_VISIBLE_DEVICES="0") | holders({GPUS[0]: [50]}),
    )
    assert look(SchedulerEnvSource(), tmp_path)[1] == []


def test_a_live_machine_is_asked_again_only_about_what_is_new(tmp_path: Path) -> None:
    """Processes of no job are read twice at most; those of jobs at every look."""

    class Live(Tree):
        is_live = True
        names: list[str] = []

        def read_bytes(self, name: str, max_bytes: int = 0) -> bytes:
            self.names.append(name)
            return super().read_bytes(name, max_bytes or 4_096)

    write(tmp_path, process(40, "0::/user.slice\n") | rank(50, 3, 0))
    source, tree = SchedulerEnvSource(), Live(tmp_path)
    for number in range(5):
        source.read(tree, number * 15.0)
    assert tree.names.count("proc/40/environ") == 2
    assert tree.names.count("proc/50/environ") == 5


LISTS = st.text(alphabet="0123456789,GPUMIG-abcdef/ ", max_size=60)


@given(visible=LISTS, given_gpus=LISTS, allotted=LISTS, local=st.text(alphabet="0123456789-x", max_size=4))
def test_any_environment_gives_a_known_gpu_or_none(
    visible: str, given_gpus: str, allotted: str, local: str
) -> None:
    values = {
        "CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": given_gpus, "SLURM_JOB_GPUS": allotted,
        "LOCAL_RANK": local,
    }  # fmt: skip
    found = placement(Identity(1, values, CLOSED), (), INDICES)
    assert found.uuid is None or found.uuid in GPUS or found.uuid.startswith(("MIG-", "GPU-"))


@pytest.mark.parametrize(
    "said",
    ["", "[]", "{}", '{"by_uuid": [], "nvml_index": 1}', '{"by_uuid": {"GPU-12": [true, -1]}}', "[" * 99_999],
)  # fmt: skip
def test_a_damaged_list_of_processes_costs_the_gpu_only(tmp_path: Path, said: str) -> None:
    found = mapped(
        tmp_path, rank(50, 3, 0, CUDA_VISIBLE_DEVICES=GPUS[5]), {"commands/gpu_processes.json": said}
    )
    assert found == {RANK_3: (50, 5, "env_uuid")}


def test_gives_the_expected_lines_of_the_sample_node() -> None:
    assert given_lines(SchedulerEnvSource(), "job/55012/rank/") == []


def test_a_slot_keeps_its_number_when_the_driver_counts_anew_after_a_loss(tmp_path: Path) -> None:
    inventory = "".join(f'"{uuid}", ' for uuid in GPUS)
    write(tmp_path, {"etc/clusterwatch/agent.toml": f"[gpu]\nuuids = [{inventory}]\n"})
    write(tmp_path, rank(50, 3, 0) | holders({GPUS[6]: [50]}, [*GPUS[:5], *GPUS[6:]]))
    _, events = look(SchedulerEnvSource(), tmp_path)
    assert [event.message for event in events if event.kind == "rank_map"] == ["rank 3 on GPU 6"]
