"""What this node is, read once at start: for the hello and the ``Inventory`` record."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from collectors import __version__
from collectors.clock import Clock
from collectors.config import AgentConfig
from collectors.sources.tree import Tree
from collectors.wire import codec, records


def cpu_model(tree: Tree) -> str:
    """The processor's name; empty when /proc/cpuinfo does not say."""
    try:
        text = tree.read_text("proc/cpuinfo", 8_192)
    except OSError:
        return ""
    for line in text.splitlines():
        if line.lower().startswith(("model name", "cpu model", "hardware")):
            return line.partition(":")[2].strip()[:255]
    return ""


def memory_bytes(tree: Tree) -> int | None:
    try:
        first = tree.read_text("proc/meminfo", 4_096).splitlines()[0].split()
        return int(first[1]) * 1024
    except (OSError, IndexError, ValueError):
        return None


def os_name() -> str:
    """PRETTY_NAME of /etc/os-release."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")[:255]
    except OSError:
        return ""


def inventory(
    config: AgentConfig, tree: Tree, clock: Clock, gpus: Sequence[records.GpuIdentity] = ()
) -> records.Inventory:
    facts = {"agent_version": __version__, "boot_id": config.boot_id}
    if Path("/proc/pressure").is_dir():
        facts["pressure"] = "yes"
    return records.Inventory(
        t_ns=clock.now_ns(),
        hostname=config.node,
        kernel=platform.release()[:255],
        os=os_name(),
        cpu_model=cpu_model(tree),
        cpu_count=os.cpu_count(),
        memory_bytes=memory_bytes(tree),
        gpus=list(gpus),
        facts=facts,
    )


def hello(
    config: AgentConfig,
    tree: Tree,
    clock: Clock,
    epoch: str,
    next_sequences: records.LaneNext,
    credential: str | None,
    enrolment_token: str | None,
    gpus: Sequence[records.GpuIdentity] = (),
) -> records.Hello:
    return records.Hello(
        version=codec.VERSION,
        cluster=config.cluster,
        node=config.node,
        machine_id=config.machine_id,
        boot_id=config.boot_id,
        epoch=epoch,
        agent_version=__version__,
        t_ns=clock.now_ns(),
        next=next_sequences,
        credential=credential,
        enrolment_token=enrolment_token,
        gpus=list(gpus),
        cpu_count=os.cpu_count(),
        memory_bytes=memory_bytes(tree),
        rack=config.rack,
        leaf=config.leaf,
    )
