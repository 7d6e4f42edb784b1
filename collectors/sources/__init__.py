"""What is watched on a node, one file per thing; each gives samples and events and knows no agent.

In: a ``Tree`` (the machine's own files, or a recorded copy of them) and the recorded or real output of tools.
Out: ``Reading``: samples with entity, value and quality, and events. To add one: a file with a class that
fulfils ``base.Source``, a line in ``REGISTRY``, a test against a recorded tree.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from collectors.sources.base import Source

REGISTRY: Final[dict[str, str]] = {
    "clock": "collectors.sources.clock:ClockSource",
    "disks": "collectors.sources.disks:DisksSource",
    "drift": "collectors.sources.drift:DriftSource",
    "edac": "collectors.sources.edac:EdacSource",
    "ethernet": "collectors.sources.ethernet:EthernetSource",
    "expected": "collectors.sources.expected:ExpectedSource",
    "fabric_manager": "collectors.sources.fabric_manager:FabricManagerSource",
    "fuse_daemons": "collectors.sources.fuse_daemons:FuseDaemonsSource",
    "gpu_amd": "collectors.sources.gpu_amd:GpuAmdSource",
    "gpu_dcgm": "collectors.sources.gpu_dcgm:GpuDcgmSource",
    "gpu_nvml": "collectors.sources.gpu_nvml:GpuNvmlSource",
    "host": "collectors.sources.host:HostSource",
    "infiniband": "collectors.sources.infiniband:InfinibandSource",
    "job_logs": "collectors.sources.job_logs:JobLogsSource",
    "kernel_log": "collectors.sources.kernel_log:KernelLogSource",
    "limits": "collectors.sources.limits:LimitsSource",
    "kubernetes_pods": "collectors.sources.kubernetes_pods:KubernetesPodsSource",
    "lustre": "collectors.sources.lustre:LustreSource",
    "memory": "collectors.sources.memory:MemorySource",
    "mount_probe": "collectors.sources.mount_probe:MountProbeSource",
    "mounts": "collectors.sources.mounts:MountsSource",
    "nccl_inspector": "collectors.sources.nccl_inspector:NcclInspectorSource",
    "nfs_servers": "collectors.sources.nfs_servers:NfsServersSource",
    "nvlink": "collectors.sources.nvlink:NvlinkSource",
    "optics": "collectors.sources.optics:OpticsSource",
    "pcie": "collectors.sources.pcie:PcieSource",
    "scheduler_env": "collectors.sources.scheduler_env:SchedulerEnvSource",
    "versions": "collectors.sources.versions:VersionsSource",
    "weka": "collectors.sources.weka:WekaSource",
}
"""Source name (the file's name, as ``--sources`` takes it) -> its class, imported when it is used."""


def names() -> list[str]:
    return sorted(REGISTRY)


def make(name: str) -> Source:
    """A new source. Raises ``KeyError`` for a name that is not in ``REGISTRY``."""
    module, _, attribute = REGISTRY[name].partition(":")
    source: Source = getattr(import_module(module), attribute)()
    return source
