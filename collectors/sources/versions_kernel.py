"""How the kernel and the board are set up: version, parameters, sysctls, processors, firmware.

In: files of /proc and /sys. Out: facts of ``host``. Of the command line the parameters in ``PARAMETERS`` are
told and the rest as a hash, without what names one machine. Source: admin-guide/kernel-parameters.rst and
admin-guide/sysctl of Linux; os-release(5).
"""

from __future__ import annotations

import re
from typing import Final

from collectors.sources.base import HOST
from collectors.sources.tree import Tree
from collectors.sources.versions_facts import Facts, counted, digest, field, without_addresses

PARAMETERS: Final = (
    "amd_iommu", "amd_pstate", "default_hugepagesz", "hugepages", "idle", "intel_idle.max_cstate",
    "intel_iommu", "intel_pstate", "iommu", "iommu.passthrough", "iommu.strict", "isolcpus", "mitigations",
    "nohz_full", "nosmt", "numa_balancing", "pci", "pcie_aspm", "pcie_ports", "processor.max_cstate", "psi",
    "rcu_nocbs", "transparent_hugepage", "tsc",
)  # fmt: skip
NOT_SET: Final = "not set"
SYSCTLS: Final = (
    "kernel.core_uses_pid", "kernel.numa_balancing", "kernel.panic", "kernel.panic_on_oops",
    "kernel.perf_event_paranoid", "kernel.pid_max", "kernel.sched_autogroup_enabled",
    "kernel.yama.ptrace_scope", "net.core.default_qdisc", "net.core.netdev_max_backlog",
    "net.core.optmem_max", "net.core.rmem_default", "net.core.rmem_max", "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max", "net.ipv4.conf.all.arp_announce", "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter", "net.ipv4.tcp_congestion_control", "net.ipv4.tcp_ecn", "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem", "vm.compaction_proactiveness", "vm.dirty_background_ratio", "vm.dirty_ratio",
    "vm.max_map_count", "vm.nr_hugepages", "vm.overcommit_memory", "vm.swappiness", "vm.zone_reclaim_mode",
)  # fmt: skip
"""Without those that the kernel computes from the size of the memory."""
_FILES: Final = {
    "kernel": "proc/sys/kernel/osrelease",
    "kernel.build": "proc/sys/kernel/version",
    "clocksource": "sys/devices/system/clocksource/clocksource0/current_clocksource",
    "cpu.online": "sys/devices/system/cpu/online",
    "cpu.isolated": "sys/devices/system/cpu/isolated",
    "cpu.smt": "sys/devices/system/cpu/smt/control",
    "cpu.scaling_driver": "sys/devices/system/cpu/cpufreq/policy0/scaling_driver",
    "cpu.energy_preference": "sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference",
    "cpu.boost": "sys/devices/system/cpu/cpufreq/boost",
    "cpu.no_turbo": "sys/devices/system/cpu/intel_pstate/no_turbo",
    "cpu.idle_driver": "sys/devices/system/cpu/cpuidle/current_driver",
    "numa.nodes": "sys/devices/system/node/online",
    "bios.vendor": "sys/class/dmi/id/bios_vendor",
    "bios.version": "sys/class/dmi/id/bios_version",
    "bios.date": "sys/class/dmi/id/bios_date",
    "board.vendor": "sys/class/dmi/id/sys_vendor",
    "board.product": "sys/class/dmi/id/product_name",
    "board.name": "sys/class/dmi/id/board_name",
}
_CHOSEN: Final = {
    "thp.enabled": "sys/kernel/mm/transparent_hugepage/enabled",
    "thp.defrag": "sys/kernel/mm/transparent_hugepage/defrag",
}
"""Files that put the choice in brackets."""
_CPUINFO_MAX_BYTES: Final = 4_096
"""The first processor's lines; the kernel makes them anew for each of all."""
_CPUFREQ: Final = "sys/devices/system/cpu/cpufreq"
_POLICIES_MAX: Final = 2_048
_PTP: Final = "sys/class/ptp"
_PTP_MAX: Final = 64
_IOMMU: Final = "sys/class/iommu"
_BMC_FOLDER: Final = "sys/bus/platform/devices"
_PLACES: Final = re.compile(
    r"BOOT_IMAGE|BOOTIF|bootdev|hostname|ifname|initrd|inst\..*|ip|netroot|nfsroot|rd\..*"
)
"""Parameters that say where from and as whom a machine boots."""
_MORE_PLACES: Final = frozenset({"resume", "root", "systemd.hostname", "systemd.machine_id", "vlan"})


def tell(facts: Facts, tree: Tree) -> None:
    """What is read at each look. Cost: about a file for each processor and eighty more."""
    for fact, name in _FILES.items():
        facts.file(tree, fact, name)
    for fact, name in _CHOSEN.items():
        facts.file(tree, fact, name, chosen)
    for sysctl in SYSCTLS:
        facts.file(tree, f"sysctl.{sysctl}", f"proc/sys/{sysctl.replace('.', '/')}")
    facts.file(tree, "os", "etc/os-release", pretty_name)
    _processor(facts, tree)
    _parameters(facts, tree)
    _governors(facts, tree)
    _devices(facts, tree)


def tell_bmc(facts: Facts, tree: Tree) -> None:
    """The firmware of the management controller, which the kernel may have to ask: rarely."""
    for name in tree.list(_BMC_FOLDER):
        if name.startswith("ipmi_bmc."):
            for fact in ("firmware_revision", "aux_firmware_revision", "manufacturer_id", "product_id"):
                facts.file(tree, f"bmc.{fact}", f"{_BMC_FOLDER}/{name}/{fact}")
            return


def _parameters(facts: Facts, tree: Tree) -> None:
    text = facts.file(tree, "kernel.cmdline_hash", "proc/cmdline", line_hash)
    if text is None or not text.strip():
        return
    for name, value in chosen_parameters(text).items():
        facts.tell(f"kernel.param.{name}", value)


def line_hash(text: str) -> str | None:
    """A hash of the command line, whatever its order, without what names one machine; None: it is empty."""
    kept = []
    for word in text.split():
        name = word.partition("=")[0]
        if not _PLACES.fullmatch(name) and name not in _MORE_PLACES:
            kept.append(without_addresses(word))
    return digest(" ".join(sorted(kept))) if text.strip() else None


def chosen_parameters(text: str) -> dict[str, str]:
    """Each of ``PARAMETERS`` with all it is given, ``set`` where it has no value."""
    found: dict[str, list[str]] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if name in PARAMETERS:
            found.setdefault(name, []).append(without_addresses(value) if equals else "set")
    return {name: " ".join(found[name]) if name in found else NOT_SET for name in PARAMETERS}


def chosen(text: str) -> str | None:
    """The word in brackets: ``always [madvise] never``."""
    match = re.search(r"\[([a-z+_]{1,32})\]", text)
    return match[1] if match else None


def pretty_name(text: str) -> str | None:
    for line in text.splitlines()[:64]:
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip("\"'")
    return None


def _processor(facts: Facts, tree: Tree) -> None:
    """Model and microcode as the first processor has them."""
    try:
        text = tree.read_text("proc/cpuinfo", _CPUINFO_MAX_BYTES)
    except OSError:
        return
    facts.tell("cpu.model", field(text, "model name"))
    facts.tell("cpu.microcode", field(text, "microcode"))


def _governors(facts: Facts, tree: Tree) -> None:
    """Of all processors: one that is left at another governor slows its rank."""
    found = []
    for policy in tree.list(_CPUFREQ)[:_POLICIES_MAX]:
        try:
            found.append(tree.read_text(f"{_CPUFREQ}/{policy}/scaling_governor", 64).strip()[:32])
        except OSError:
            continue
    if found:
        facts.tell("cpu.governor", counted(found))


def _devices(facts: Facts, tree: Tree) -> None:
    """Clocks of network cards by the names of their drivers, and translation units."""
    clocks = []
    for name in tree.list(_PTP)[:_PTP_MAX]:
        try:
            clocks.append(without_addresses(tree.read_text(f"{_PTP}/{name}/clock_name", 128).strip())[:32])
        except OSError:
            continue
    if clocks:
        facts.tell("ptp.clocks", ", ".join(f"{one} {clocks.count(one)}" for one in sorted(set(clocks))))
    if tree.exists(_IOMMU):
        units = [name.rstrip("0123456789") for name in tree.list(_IOMMU)]
        facts.tell(
            "iommu", ", ".join(f"{one} {units.count(one)}" for one in sorted(set(units))) or "off", HOST
        )
