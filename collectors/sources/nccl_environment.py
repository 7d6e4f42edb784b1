"""Settings of NCCL: of a rank's environment and of the node's ``/etc/nccl.conf``.

In: bytes of /proc/PID/environ and of the file. Out: the variables in ``ALLOWED`` only; all others, which may
hold secrets or differ from node to node by intent, are dropped where they were read. Source: NCCL user
guide, "Environment Variables".
"""

from __future__ import annotations

import re
from typing import Final

from collectors.formats.nccl_log import bounded
from collectors.sources.tree import printable

VALUE_MAX_BYTES: Final = 4_096
DEBUG_FILE: Final = "NCCL_DEBUG_FILE"
_SIZES: Final = frozenset({"WORLD_SIZE", "LOCAL_WORLD_SIZE"})
ALLOWED: Final = frozenset({
    "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_CHECKS_DISABLE", "NCCL_COLLNET_ENABLE", "NCCL_COMM_BLOCKING",
    "NCCL_CROSS_NIC", "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE", "NCCL_DEBUG", "NCCL_DMABUF_ENABLE",
    "NCCL_GRAPH_FILE", "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_AR_THRESHOLD", "NCCL_IB_CUDA_SUPPORT", "NCCL_IB_DISABLE", "NCCL_IB_ECE_ENABLE",
    "NCCL_IB_FIFO_TC", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_IB_MERGE_NICS", "NCCL_IB_MERGE_VFS",
    "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_RETRY_CNT",
    "NCCL_IB_RETURN_ASYNC_EVENTS", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_SL", "NCCL_IB_SPLIT_DATA_ON_QPS",
    "NCCL_IB_TC", "NCCL_IB_TIMEOUT", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_LAUNCH_MODE", "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MNNVL_ENABLE",
    "NCCL_NCHANNELS_PER_NET_PEER",
    "NCCL_NET", "NCCL_NET_FORCE_FLUSH", "NCCL_NET_GDR_C2C", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ",
    "NCCL_NET_MERGE_LEVEL", "NCCL_NET_PLUGIN", "NCCL_NET_SHARED_BUFFERS", "NCCL_NSOCKS_PERTHREAD",
    "NCCL_NTHREADS", "NCCL_NVB_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_P2P_DIRECT_DISABLE", "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_PROTO", "NCCL_PXN_C2C", "NCCL_PXN_DISABLE",
    "NCCL_RAS_ENABLE", "NCCL_RUNTIME_CONNECT", "NCCL_SHM_DISABLE", "NCCL_SOCKET_FAMILY",
    "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_NTHREADS", "NCCL_TOPO_FILE", "NCCL_TUNER_PLUGIN",
    "NCCL_WIN_ENABLE", "NCCL_WORK_FIFO_BYTES",
})  # fmt: skip
_NAMES: Final = {name.encode(): name for name in (*ALLOWED, *_SIZES, DEBUG_FILE)}


def environment(data: bytes) -> dict[str, str]:
    """Allowed variables, the job's size, NCCL's own log; of a name that is there twice the first."""
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        raw, equals, value = entry.partition(b"=")
        name = _NAMES.get(raw) if equals else None
        if name is not None and name not in found:
            found[name] = _text(value)
    return found


def config(data: bytes) -> dict[str, str]:
    """Allowed settings of an ``nccl.conf``: ``NAME=VALUE`` lines, of one that is there twice the last."""
    found = {}
    for line in data.split(b"\n")[:1_024]:
        raw, equals, value = line.partition(b"=")
        name = _NAMES.get(raw.strip()) if equals else None
        if name in ALLOWED:
            found[name] = _text(value.strip())
    return found


def told(values: dict[str, str]) -> dict[str, str]:
    """What is told of an environment: sorted, short."""
    return {name: bounded(values[name]) for name in sorted(values.keys() & ALLOWED)}


def is_multi_node(values: dict[str, str]) -> bool:
    """Whether the environment says that the job has ranks elsewhere."""
    world, local = (_number(values.get(name)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return world is not None and local is not None and world > local > 0


def asked_for(values: dict[str, str]) -> str:
    """The setting by which sockets were wished for; empty: none."""
    for name, wanted in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "socket")):
        if values.get(name, "").lower() == wanted:
            return f"{name}={values[name]}"
    return ""


def log_pattern(value: str) -> re.Pattern[str] | None:
    """Paths that an ``NCCL_DEBUG_FILE`` may have become: %h is the host, %p the process."""
    if not value.startswith("/") or len(value) > 1_024:
        return None
    parts = re.split(r"(%[hp])", value)
    words = {"%h": "[^/]{1,255}", "%p": "[0-9]{1,10}"}
    return re.compile("".join(words.get(part) or re.escape(part) for part in parts))


def _text(value: bytes) -> str:
    return printable(value[:VALUE_MAX_BYTES].decode("utf-8", "replace"))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 9 else None
