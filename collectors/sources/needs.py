"""What each source needs of a machine, in words: ``doctor`` says it where a source finds nothing."""

from __future__ import annotations

from typing import Final

NEEDS: Final[dict[str, str]] = {
    "clock": "a Linux kernel; chronyc, for what chrony knows of its servers",
    "disks": "/proc/diskstats; nvme-cli and root, for the health of NVMe drives",
    "drift": "ranks that use NCCL, and the right to read their /proc/PID/environ (root or CAP_SYS_PTRACE)",
    "edac": "a driver of the memory controller: /sys/devices/system/edac",
    "ethernet": "network devices on a bus in /sys/class/net",
    "expected": "an inventory in /etc/clusterwatch/agent.toml",
    "fabric_manager": "/var/log/fabricmanager.log (nodes with NVSwitches), and root to read it",
    "fuse_daemons": "FUSE mounts; root, to see which process serves which",
    "gpu_amd": "AMD's driver (amdgpu), and amd-smi of ROCm 6 or later in PATH or in /opt/rocm/bin",
    "gpu_dcgm": "CLUSTERWATCH_DCGM_URL, the address of this machine's dcgm-exporter",
    "gpu_nvml": "the NVIDIA driver and its library NVML",
    "host": "/proc",
    "infiniband": "an RDMA driver: /sys/class/infiniband",
    "job_logs": "ranks that write to files on this node's own disks, and root or CAP_SYS_PTRACE to see them",
    "kernel_log": "the right to read /dev/kmsg (root or CAP_SYSLOG), or journalctl",
    "limits": "/proc; ranks, and the right to read their /proc/PID (root or CAP_SYS_PTRACE)",
    "kubernetes_pods": "the kubelet's socket in /var/lib/kubelet/pod-resources, and root to ask it",
    "lustre": "Lustre's client; root, where its files are in debugfs",
    "memory": "ranks, and the right to read their /proc/PID/environ (root or CAP_SYS_PTRACE)",
    "mount_probe": "network or FUSE mounts in /proc/self/mountinfo, and stat of coreutils or busybox",
    "mounts": "NFS or FUSE mounts in /proc/self/mountinfo",
    "nccl_inspector": "ranks with NCCL_INSPECTOR_ENABLE=1, logs on this node's disks; root or CAP_SYS_PTRACE",
    "nfs_servers": "NFS mounts and root: /sys/kernel/debug/sunrpc",
    "nvlink": "nvidia-smi and GPUs with NVLink",
    "optics": "ports with pluggable modules; root and ethtool, for InfiniBand mlxlink or mstlink",
    "pcie": "/sys/bus/pci",
    "scheduler_env": "ranks on a GPU, and the right to read their /proc/PID/environ (root or CAP_SYS_PTRACE)",
    "versions": "/proc and /sys; root for PCIe bridges, and to see what ranks of other users have mapped",
    "weka": "WEKA's client: /proc/wekafs",
}
"""Source name -> what it needs."""
