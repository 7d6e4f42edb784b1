"""A node that several jobs share: srun alone, torchrun, pods, steps that are no ranks, queues in any dialect."""

# ruff: noqa: E501  lines are as tools print them
from __future__ import annotations

import json

from tests.collectors.trap_nodes import Node, base, event, uuid
from tests.collectors.trap_nodes.gpu_node import BUSES

HOST = "gtn-0003-gpu.cluster.example"
POD = "5c6f2a7e-9d1b-4c1e-8a3f-1b2c3d4e5f60"
CONTAINER = "ab" * 32


def process(pid: int, cgroup: str, parent: int, **values: object) -> dict[str, str | bytes]:
    text = "".join(f"{name}={value}\0" for name, value in values.items()).encode("latin-1")
    return {
        f"proc/{pid}/environ": b"LESS_TERMCAP=\x1b[1m\xff\0SECRET=do-not-print-this\0" + text,
        f"proc/{pid}/cgroup": cgroup + "\n",
        f"proc/{pid}/stat": f"{pid} (py) thon) S {parent} 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {pid * 10} 0 0\n",
    }


def table() -> str:
    """NVML's order is not the bus's: index 0 is the third card of the inventory."""
    return "index, uuid, pci.bus_id, temperature.gpu\n" + "".join(
        f"{index}, {uuid(number)}, 00000000:{BUSES[number]}:00.0, 40\n" for index, number in enumerate(ORDER)
    )


ORDER = (2, 3, 0, 1, 4, 5, 6, 7)
SLURM = "0::/system.slice/slurmstepd.scope"
SRUN = {"SLURM_JOB_ID": 71, "SLURM_STEP_ID": 0, "SLURM_NODEID": 2, "SLURM_NNODES": 4}
ELASTIC = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": 2, "MASTER_ADDR": "train-0", "MASTER_PORT": 29500}


def node() -> Node:
    held = {
        uuid(2): [101, 1_101], uuid(3): [102],
        uuid(4): [301], uuid(5): [302, 302, -1, "x"], uuid(6): [501],
    }  # fmt: skip
    files = base(HOST) | {
        # Job 71: srun alone, two tasks with their launcher's batch step; one has a worker for its data.
        **process(100, f"{SLURM}/job_71/step_batch/user/task_0", 1, **SRUN | {"SLURM_PROCID": 0, "CUDA_VISIBLE_DEVICES": "0,1"}),
        **process(101, f"{SLURM}/job_71/step_0/user/task_0", 1, **SRUN | {"SLURM_PROCID": 8, "SLURM_LOCALID": 0, "CUDA_VISIBLE_DEVICES": "0"}),
        **process(1101, f"{SLURM}/job_71/step_0/user/task_0", 101, **SRUN | {"SLURM_PROCID": 8, "SLURM_LOCALID": 0, "CUDA_VISIBLE_DEVICES": "0"}),
        **process(102, f"{SLURM}/job_71/step_0/user/task_1", 1, **SRUN | {"SLURM_PROCID": 9, "SLURM_LOCALID": 1, "CUDA_VISIBLE_DEVICES": "0"}),
        # Job 72: a control group that has a SLUID in the job's place, below a slurmd of its own name.
        **process(201, "0::/system.slice/gtn-0003_slurmstepd.scope/s7KD2Q8Y5ZP00/step_0/user/task_0", 1,
                  SLURM_JOB_ID=72, RANK=5, LOCAL_RANK=0, WORLD_SIZE=8, SLURM_PROCID=1, CUDA_VISIBLE_DEVICES=uuid(7)),
        # A pod of control groups v1, another of v2.
        **process(301, f"12:devices:/kubepods/burstable/pod{POD}/{CONTAINER}\n1:name=systemd:/kubepods/burstable/pod{POD}/{CONTAINER}", 1,
                  **ELASTIC | {"RANK": 0, "LOCAL_RANK": 0}),
        **process(302, f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope", 1,
                  **ELASTIC | {"RANK": 1, "LOCAL_RANK": 1, "NVIDIA_VISIBLE_DEVICES": f"{uuid(4)},{uuid(5)}"}),
        # Slurm with control groups v1; the environment is another user's.
        "proc/401/cgroup": "9:memory:/slurm/uid_1000/job_74/step_3/task_0\n1:name=systemd:/\n",
        "proc/401/environ": b"SLURM_JOB_ID=9999\0RANK=3\0",
        # Of no job; a thread of the kernel; a name that is no process.
        **process(501, "0::/user.slice/user-1000.slice", 1, HOME="/root"),
        "proc/2/environ": b"", "proc/2/cgroup": "0::/\n",
        "proc/self/environ": b"RANK=77\0", "proc/12x/environ": b"RANK=78\0SLURM_JOB_ID=1\0",
        "read_errors.json": json.dumps({"proc/401/environ": "EACCES"}),
        "commands/gpu_processes.json": json.dumps(
            {"by_uuid": held, "nvml_index": {str(index): uuid(number) for index, number in enumerate(ORDER)}}),
        "commands/nvidia-smi_query-gpu.csv": table(),
        "commands/squeue_--json.json": json.dumps(QUEUE),
        "etc/slurm/topology.conf": TOPOLOGY,
    }  # fmt: skip
    return Node(files, files, {}, EVENTS, (), UNLESS)


def number(value: int | None) -> dict[str, object]:
    return {"set": value is not None, "infinite": value is None, "number": value or 0}


QUEUE = {
    "meta": {"plugin": {"data_parser": "data_parser/v0.0.41"}},
    "jobs": [
        {
            "job_id": 71, "name": "pretrain \u001b[31m", "job_state": ["RUNNING"], "time_limit": number(None),
            "restart_cnt": 0, "node_count": number(4), "nodes": "gtn-[0001-0003,0010]-gpu",
            "tres_alloc_str": "cpu=4,mem=1G,node=4,billing=4,gres/gpu=32,gres/gpu:h100=32",
            "job_resources": {"nodes": {"count": 4, "list": "gtn-[0001-0003,0010]-gpu", "allocation": [
                {"index": 0, "name": "gtn-0001-gpu"}, {"index": 1, "name": "gtn-0002-gpu"},
                {"index": 2, "name": "gtn-0003-gpu"}, {"index": 3, "name": "gtn-0010-gpu"}]}},
        },
        {  # an old dialect: words and numbers alone, and no TRES
            "job_id": 72, "name": "old", "job_state": "RUNNING", "time_limit": 90, "restart_cnt": 2,
            "node_count": 1, "nodes": "gtn-0003-gpu", "gres_detail": ["gpu:h100:1(IDX:7)"],
            "job_resources": {"nodes": "gtn-0003-gpu", "allocated_nodes": [{"nodename": "gtn-0003-gpu"}]},
        },
        {  # it waits, and will run here
            "job_id": 73, "name": "later", "job_state": ["PENDING"], "time_limit": number(5), "nodes": "",
            "restart_cnt": 0, "node_count": number(1), "scheduled_nodes": "gtn-0003-gpu", "tres_alloc_str": "",
        },
        {  # of other nodes: a longer name, and a neighbour
            "job_id": 75, "name": "others", "job_state": ["RUNNING"], "time_limit": number(5), "node_count": number(2),
            "nodes": "gtn-0003-gpu2,gtn-[0004-0005]-gpu", "restart_cnt": 0, "tres_alloc_str": "gres/gpu=8",
            "job_resources": {"nodes": {"count": 2, "list": "gtn-0003-gpu2,gtn-[0004-0005]-gpu"}},
        },
        {"job_id": 74, "name": "half", "job_state": ["RUNNING", "POWERING_UP_NODE"], "time_limit": 4_294_967_295,
         "node_count": {"set": True, "number": 1}, "nodes": "gtn-[3-4]-gpu,gtn-0003-gpu", "restart_cnt": "1"},
        "damaged", {"job_id": "none"}, {},
    ],
    "errors": [],
}  # fmt: skip
TOPOLOGY = """\
# SwitchName=old Nodes=gtn-[0001-0016]-gpu
SwitchName=core Switches=spine-[a-b]
SwitchName=spine-a Switches=leaf-a[1-2] LinkSpeed=400
switchname=leaf-a2 nodes=gtn-[0017-0032]-gpu
SwitchName=leaf-a1 LinkSpeed=200 Nodes=login1,\\
gtn-[0001-0016]-gpu  # the first row
"""


def mapped(job: object, rank: int, number: int, source: str, **more: object) -> dict[str, object]:
    return event(f"job/{job}/rank/{rank}", "rank_map", None, gpu_uuid=uuid(number), map_source=source, **more)


EVENTS = (
    mapped(71, 8, 2, "nvml_pid", pid=101, local_rank=0, pod_uid=...),
    mapped(71, 9, 3, "nvml_pid", pid=102, local_rank=1),
    mapped(72, 5, 7, "env_uuid", pid=201, local_rank=0, nic=None),
    event("job/71", "job", nodes=4, gpus=32, restarts=0, state="RUNNING", node_index=2, time_limit_s=None,
          switch="leaf-a1"),
    event("job/72", "job", nodes=1, gpus=1, restarts=2, state="RUNNING", node_index=0, time_limit_s=5_400,
          switch="leaf-a1"),
    event("job/74", "job", state="RUNNING", restarts=1, time_limit_s=None, node_index=2, nodes=3),
)  # fmt: skip
UNLESS = (
    lambda one: one["kind"] == "job" and one["entity"] in ("job/73", "job/75", "job/1", "job/9999"),
    lambda one: one["kind"] == "rank_map" and one["attributes"]["pid"] in (100, 401, 501, 1_101),
    lambda one: "do-not-print" in json.dumps(one) or "\x1b" in str(one),
)
