"""The catalogue of publicly known bugs of NCCL, PyTorch, NVIDIA's driver and ConnectX firmware.

In: nothing. Out: ``CATALOGUE`` and its ``VERSION``. Each row says in its own words what the source tells;
sources were read on 2026-12-03. A row goes in when an issue, a release note or a maintainer names versions
or a line by which the bug is known (docs/known-bugs.md says how to add one).
"""

from __future__ import annotations

import re
from typing import Final

from clusterwatch.analysis.known_bugs_model import Component, KnownBug, Setting, Sign, Sure
from clusterwatch.analysis.known_bugs_versions import Range
from clusterwatch.analysis.signature import TOTALS

VERSION: Final = "2026-12-03.1"
"""Day of the newest row, and a number within the day."""

_JOINED: Final = frozenset({"all_joined_not_finished", "queued_not_started"})
"""Everybody is in the call, and it does not end: what a bug of a library looks like."""
_STARTING: Final = frozenset({"stuck_in_init"})
_ENDING: Final = frozenset({"destroyed_on_one_side", "watchdog_stuck", "outside_collectives", "missing_rank"})
_CRASHED: Final = frozenset({"rank_failed"})
_NUMERIC: Final = frozenset({"numeric"})
_MEMORY: Final = frozenset({"out_of_memory"})
_NO_DUMP: Final = frozenset({"suspect_no_dump"})
_SLOW_NET: Final = frozenset({"slow_nic", "slow_switch", "slow_cause_unknown", "link_degraded"})
_EXCHANGE: Final = TOTALS
_PAIRS: Final = frozenset({"send", "recv", "coalesced"})


def _line(words: str) -> re.Pattern[str]:
    return re.compile(words, re.IGNORECASE)


_NCCL: Final = (
    KnownBug(
        "nccl-proxy-order-hang", Component.NCCL,
        "At large scale the main thread and the proxy thread could take operations in different orders and "
        "hang.",
        (Range("2.28.3", "2.28.9"),), Sign(_JOINED),
        "Go to NCCL 2.28.9 or later.",
        "NVIDIA/nccl, message of the commit that made release 2.28.9-1", Sure.LIKELY,
    ),
    KnownBug(
        "nccl-arm-atomic-hang", Component.NCCL,
        "Built by a GCC before 10, an atomic operation on ARM was not repeated when it failed, which wedges "
        "a collective silently.",
        (Range(None, "2.29.3"),), Sign(_JOINED),
        "Go to NCCL 2.29.3 or later, or build it with GCC 10 or later.",
        "NVIDIA/nccl, release 2.29.3-1; pytorch/pytorch pull request 174338; marin-community/marin pull "
        "request 8038", Sure.CONFIRMED, gpus=("GH200", "GB200", "GB300"),
    ),
    KnownBug(
        "nccl-one-rank-average", Component.NCCL,
        "An average over a group of one rank leaves the last elements of its output as they were.",
        (Range("2.27.5", "2.29.7"),), Sign(_NUMERIC),
        "Go to NCCL 2.29.7 or later, or do not average over groups of one rank.",
        "NVIDIA/nccl issue 1950; pytorch/pytorch issue 168092", Sure.CONFIRMED,
    ),
    KnownBug(
        "nccl-symmetric-small-messages", Component.NCCL,
        "Symmetric kernels could corrupt small messages of less than 8 bytes granularity, and several "
        "symmetric operations in one group.",
        (Range("2.27.3", "2.28.7"),), Sign(_NUMERIC),
        "Go to NCCL 2.28.7 or later, or do not register symmetric windows (NCCL_WIN_ENABLE=0).",
        "NVIDIA/nccl, message of the commit that made release 2.28.7-1", Sure.LIKELY,
        settings=(Setting("NCCL_WIN_ENABLE", but=("0",), unset=True),),
    ),
    KnownBug(
        "nccl-comm-split-corruption", Component.NCCL,
        "Splitting a communicator that shares resources could corrupt memory when the new one spans a "
        "smaller NVLink domain.",
        (Range("2.18.1", "2.27.3"),), Sign(_CRASHED, line=_line(r"comm_?split")),
        "Go to NCCL 2.27.3 or later, or split without sharing resources.",
        "NVIDIA/nccl, message of the commit that made release 2.27.3-1", Sure.LIKELY,
    ),
    KnownBug(
        "nccl-alltoall-80-ranks", Component.NCCL,
        "An all-to-all over more than 80 ranks of a multi-node NVLink domain could hang.",
        (Range(None, "2.26.5"),), Sign(_JOINED, ops=_EXCHANGE),
        "Go to NCCL 2.27.3 or later; 2.26.5 works around it.",
        "NVIDIA/nccl, messages of the commits that made releases 2.26.5-1 and 2.27.3-1", Sure.CONFIRMED,
        gpus=("GB200", "GB300", "GH200"),
    ),
    KnownBug(
        "nccl-shared-split-setup-hang", Component.NCCL,
        "Setting up connections could hang when several communicators that share resources are made in one "
        "group.",
        (Range("2.18.1", "2.26.2"),), Sign(_STARTING),
        "Go to NCCL 2.26.2 or later, or make such communicators one after the other.",
        "NVIDIA/nccl, message of the commit that made release 2.26.2-1", Sure.LIKELY,
    ),
    KnownBug(
        "nccl-send-recv-without-cumem", Component.NCCL,
        "Two sends in a row to a rank of another node hang when cuMem allocation is turned off.",
        (Range("2.26.2", None),), Sign(_JOINED | {"p2p_unmatched", "missing_rank"}, ops=_PAIRS),
        "Leave NCCL_CUMEM_ENABLE unset, or try a newer NCCL: the issue tells of 2.26.2 and is open.",
        "NVIDIA/nccl issue 1721", Sure.REPORTED,
        settings=(Setting("NCCL_CUMEM_ENABLE", values=("0",)),),
    ),
    KnownBug(
        "nccl-mixed-processors-hang", Component.NCCL,
        "Nodes with different processors could choose different algorithms for one call and hang.",
        (Range(None, "2.22.3"),), Sign(_JOINED),
        "Go to NCCL 2.24.3 or later, or run the job on nodes of one kind.",
        "NVIDIA/nccl, messages of the commits that made releases 2.22.3-1 and 2.24.3-1", Sure.CONFIRMED,
        differs="cpu.model",
    ),
    KnownBug(
        "nccl-cross-nic-differs-hang", Component.NCCL,
        "Ranks whose NCCL_CROSS_NIC differs hang instead of failing.",
        (Range(None, "2.21.5"),), Sign(_JOINED | {"stuck_in_init"}),
        "Set NCCL_CROSS_NIC alike on all nodes; NCCL 2.21.5 no longer hangs over it.",
        "NVIDIA/nccl, message of the commit that made release 2.21.5-1", Sure.CONFIRMED,
        differs="env.NCCL_CROSS_NIC",
    ),
    KnownBug(
        "nccl-alltoall-cumem-deadlock", Component.NCCL,
        "Connecting ranks for an all-to-all deadlocks with cuMem allocation, the default since 2.19.",
        (Range("2.19.1", "2.20.3"),), Sign(_JOINED | _STARTING, ops=_EXCHANGE | _PAIRS),
        "Go to NCCL 2.20.3 or later, or set NCCL_CUMEM_ENABLE=0.",
        "NVIDIA/nccl issues 1116 and 1134", Sure.CONFIRMED,
        settings=(Setting("NCCL_CUMEM_ENABLE", but=("0",), unset=True),),
    ),
    KnownBug(
        "nccl-nvls-setup-hang", Component.NCCL,
        "A job hangs while NVLink SHARP is set up, even where the ring algorithm is asked for.",
        (Range("2.19.1", "2.20.3"),), Sign(_STARTING),
        "Set NCCL_NVLS_ENABLE=0 and see whether it is gone; try a newer NCCL.",
        "NVIDIA/nccl issue 1197; NVIDIA/nccl-tests issue 216", Sure.REPORTED,
        gpus=("H100", "H800", "H200"), settings=(Setting("NCCL_NVLS_ENABLE", but=("0",), unset=True),),
    ),
    KnownBug(
        "nccl-usb-network-device", Component.NCCL,
        "The topology search fails where a USB network device is there, as that of a BMC.",
        (Range("2.18.5", "2.20.3"),),
        Sign(_CRASHED | {"stuck_in_init"}, line=_line(r"unhandled system error")),
        "Go to NCCL 2.20.3 or later, or take the USB interface away from the job.",
        "NVIDIA/nccl issues 1051 and 1125", Sure.CONFIRMED,
    ),
    KnownBug(
        "nccl-tree-ll128-corruption", Component.NCCL,
        "Trees with the LL128 protocol could corrupt data where each GPU has a network card of its own.",
        (Range("2.18.1", "2.18.3"),), Sign(_NUMERIC),
        "Go to NCCL 2.18.3 or later.",
        "NVIDIA/nccl, release 2.18.3-1; release notes of NCCL 2.18.1, known issues; coreweave/nccl-tests "
        "pull request 18", Sure.CONFIRMED,
    ),
    KnownBug(
        "nccl-abort-waits-for-peers", Component.NCCL,
        "Aborting a communicator waits for other ranks, so a process that destroys its groups hangs.",
        (Range("2.17.1", "2.18.1"),), Sign(_ENDING, line=_line(r"comm_?abort|destroy_process_group")),
        "Go to a newer NCCL; call destroy_process_group on all ranks in one order.",
        "pytorch/pytorch issue 119215", Sure.CONFIRMED,
    ),
    KnownBug(
        "nccl-nvls-2.17-hang", Component.NCCL,
        "NVLink SHARP hangs now and then.",
        (Range("2.17.1", "2.18.1"),), Sign(_JOINED),
        "Go to NCCL 2.18.1 or later, or set NCCL_NVLS_ENABLE=0.",
        "NVIDIA/JAX-Toolbox pull request 331", Sure.LIKELY,
        gpus=("H100", "H800"), settings=(Setting("NCCL_NVLS_ENABLE", but=("0",), unset=True),),
    ),
    KnownBug(
        "nccl-gid-changes", Component.NCCL,
        "After a port of a RoCE network went down and came back, its GID may stand at another index, and "
        "connections that use the old one end.",
        (Range(),), Sign(line=_line(r"GID table change")),
        "Restart the job; leave NCCL_IB_GID_INDEX unset: NCCL from 2.21 on finds the index of each node.",
        "NVIDIA/nccl issues 1333 and 394", Sure.CONFIRMED,
    ),
    KnownBug(
        "nccl-foreign-connection", Component.NCCL,
        "A connection that is no rank's, as of a port scanner, holds the proxy's service thread, and the job "
        "hangs at its next setup.",
        (Range(),), Sign(line=_line(r"wrong magic [0-9a-f]+ != [0-9a-f]+")),
        "Keep scanners away from the hosts of the job; restart it.",
        "NVIDIA/nccl issue 1808", Sure.REPORTED,
    ),
)  # fmt: skip

_TORCH: Final = (
    KnownBug(
        "torch-device-id-hang", Component.TORCH,
        "Jobs that pass device_id to init_process_group hang at random in a later collective.",
        (Range("2.7.0", None),), Sign(_JOINED),
        "Call init_process_group without device_id and see whether it is gone.",
        "pytorch/pytorch issue 153960; NVIDIA-NeMo/Automodel pull request 378", Sure.REPORTED,
    ),
    KnownBug(
        "torch-abort-one-by-one", Component.TORCH,
        "A process group that holds several communicators aborts them one after the other, which hangs "
        "between sends and receives.",
        (Range(None, "2.8.0"),), Sign(_ENDING, line=_line(r"comm_?abort|abort(?:ing)? .{0,60}communicator")),
        "Go to PyTorch 2.8 or later, with NCCL 2.22 or later.",
        "pytorch/pytorch pull request 150690 and issue 119797", Sure.LIKELY,
    ),
    KnownBug(
        "torch-teardown-leaves-no-dump", Component.TORCH,
        "A rank that raised and is destroying its groups answers no request for a flight-recorder dump, so "
        "the one to blame is the one without a dump.",
        (Range("2.13.0", None),), Sign(_NO_DUMP),
        "Read the log of the rank without a dump for its own exception first.",
        "pytorch/pytorch issue 196968", Sure.REPORTED,
    ),
    KnownBug(
        "torch-2.1-loader-memory", Component.TORCH,
        "Worker processes of the data loader hold several times the memory of later versions.",
        (Range("2.1.2", "2.1.3"),), Sign(_MEMORY),
        "Go to a newer PyTorch; only 2.1.2 and a build of 2.4 were compared.",
        "pytorch/pytorch issue 122935", Sure.REPORTED,
    ),
)  # fmt: skip

_PARTS: Final = (
    KnownBug(
        "driver-525-gsp-timeout", Component.DRIVER,
        "The GPU's system processor stops answering the driver (Xid 119).",
        (Range("525", "525.105.17"),), Sign(xids=frozenset({119, 120})),
        "Go to driver 525.105.17 or later; reset the GPU.",
        "NVIDIA Data Center GPU Driver Release Notes 525, version 525.105.17; NVIDIA/open-gpu-kernel-modules "
        "issue 446", Sure.CONFIRMED,
    ),
    KnownBug(
        "driver-open-lock-after-unregister", Component.DRIVER,
        "A process that ends can leave the open kernel module's lock held: every later call to the driver "
        "hangs in the kernel.",
        (Range("595.71.05", None),), Sign(line=_line(r"nvidia_dev_put_uuid|nv\.c:5461")),
        "Reboot the host; no fixed version is known.",
        "NVIDIA/open-gpu-kernel-modules issue 1333", Sure.REPORTED, gpus=("H100",),
        facts=(("nvidia.open", "open"),),
    ),
    KnownBug(
        "nic-fw-28.47-probes-dropped", Component.NIC_FIRMWARE,
        "Probe packets may be dropped when several congestion control flows are active.",
        (Range("28.47.1026", "28.48"),), Sign(_SLOW_NET),
        "Compare with a port of another firmware; ask the vendor for the release that has 4604969.",
        "NVIDIA ConnectX-7 firmware release notes 28.47.1026 and 28.47.1088, known issue 4604969",
        Sure.CONFIRMED,
    ),
)  # fmt: skip

CATALOGUE: Final = (*_NCCL, *_TORCH, *_PARTS)
