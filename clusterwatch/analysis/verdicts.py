"""The catalogue of verdicts: class, severity, owner, what to do, and how far the evidence goes.

One row per word of DESIGN section 4. Pages, alerts and exit codes read their colours from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.model import Owner, Severity


@dataclass(frozen=True, slots=True)
class Verdict:
    """``doc`` is the page under docs/verdicts/; ``decisive`` opens an incident at once."""

    word: str
    fault_class: str
    severity: Severity
    owner: Owner
    action: str
    decisive: bool = False

    @property
    def doc(self) -> str:
        return f"verdicts/{self.word}"


_CRITICAL, _WARNING = Severity.CRITICAL, Severity.WARNING
_INFO, _UNKNOWN = Severity.INFO, Severity.UNKNOWN

_ROWS: Final = (
    Verdict("missing_rank", "hang", _CRITICAL, Owner.UNKNOWN,
            "Look at the stack of the named rank: it is outside any collective. Free what it waits for, or "
            "restart the job without its host."),
    Verdict("dead_rank", "hang", _CRITICAL, Owner.UNKNOWN,
            "Restart the job from its last checkpoint; read the kernel log of the host for the reason of the "
            "death (out of memory, Xid).", decisive=True),
    Verdict("dead_node", "hang", _CRITICAL, Owner.INFRA,
            "Drain the host and restart the job from its last checkpoint without it.", decisive=True),
    Verdict("queued_not_started", "hang", _CRITICAL, Owner.INFRA,
            "Check the named rank's GPU for Xids and a stuck kernel; drain its host if it does not answer."),
    Verdict("op_mismatch", "hang", _CRITICAL, Owner.USER,
            "Fix the named rank's code path: it issues another collective than its peers at this point.",
            decisive=True),
    Verdict("order_mismatch", "hang", _CRITICAL, Owner.USER,
            "Fix the order of the two collectives on the named rank; all members must issue them alike.",
            decisive=True),
    Verdict("size_mismatch", "hang", _CRITICAL, Owner.USER,
            "Fix the tensor the named rank passes: its element count differs.", decisive=True),
    Verdict("dtype_mismatch", "hang", _CRITICAL, Owner.USER,
            "Fix the type the named rank passes; look for a cast that only it takes.", decisive=True),
    Verdict("p2p_unmatched", "hang", _CRITICAL, Owner.USER,
            "Compare the pipeline schedule of the two ranks: one send or receive has no counterpart."),
    Verdict("cross_group_cycle", "hang", _CRITICAL, Owner.USER,
            "Make all ranks issue the calls of these groups in one order, or put them on one stream."),
    Verdict("all_joined_not_finished", "hang", _CRITICAL, Owner.INFRA,
            "Nobody is missing: check links, GPUs and Xids of the group's hosts, and native stacks."),
    Verdict("suspect_no_dump", "hang", _CRITICAL, Owner.UNKNOWN,
            "Look at the suspect's host first: is its process alive, is its GPU? It left no trace."),
    Verdict("suspect_stale_dump", "hang", _CRITICAL, Owner.UNKNOWN,
            "Get a fresh dump or stack of the suspect: its file is of an earlier time."),
    Verdict("stuck_in_init", "hang", _CRITICAL, Owner.UNKNOWN,
            "Look at the named rank's stack: it never made the group its peers use. Check rendezvous, its "
            "network interface and its GPU, then restart the job."),
    Verdict("destroyed_on_one_side", "hang", _CRITICAL, Owner.USER,
            "Fix the order of shutdown: the named rank destroyed a group in which its peers still wait."),
    Verdict("outside_collectives", "hang", _CRITICAL, Owner.UNKNOWN,
            "Nobody waits in a collective: read the merged stacks for what the ranks do instead."),
    Verdict("rank_failed", "crash", _CRITICAL, Owner.USER,
            "Read the failure quoted as evidence; the errors of other ranks follow from it.", decisive=True),
    Verdict("out_of_memory", "crash", _CRITICAL, Owner.USER,
            "Lower the memory need of the named rank (batch, sequence, activation checkpointing).",
            decisive=True),
    Verdict("recorder_blind", "blind", _UNKNOWN, Owner.UNKNOWN,
            "The recorder did not see all calls (CUDA graphs, GPU-initiated traffic): judge by GPU counters, "
            "native stacks and NCCL RAS, or run once without graphs."),
    Verdict("watchdog_stuck", "blind", _UNKNOWN, Owner.UNKNOWN,
            "Take a native stack of the suspects (py-spy dump --native): their watchdog does not run, so the "
            "states of their calls are old."),
    Verdict("numeric", "crash", _CRITICAL, Owner.USER,
            "Do not resume from a checkpoint written after the first NaN; check the last good step's data, "
            "the loss scale, and whether one host is in all bad runs.", decisive=True),
    Verdict("restart_loop", "crash", _CRITICAL, Owner.USER,
            "Stop the restarts: each attempt fails in the same way. Fix the one quoted as evidence first.",
            decisive=True),
    Verdict("ended_by_scheduler", "crash", Severity.WARNING, Owner.SCHEDULER,
            "The logs tell of no failure: the scheduler ended the job. Requeue it from its last checkpoint."),
    Verdict("slow_gpu", "hardware", _WARNING, Owner.INFRA,
            "Compare the GPU's clocks, temperature and throttle reasons with its neighbours'; run a "
            "diagnosis on it, and take its host out at the next restart."),
    Verdict("slow_nic", "hardware", _WARNING, Owner.INFRA,
            "Read the port's rate, errors and retransmissions on both ends of its cable; reseat or replace "
            "the cable, and take the host out until then."),
    Verdict("slow_nvlink", "hardware", _WARNING, Owner.INFRA,
            "Read the NVLink error and replay counters of the named GPUs; take the host out and reset it."),
    Verdict("slow_switch", "hardware", _WARNING, Owner.INFRA,
            "Read discards, pause and errors of the named leaf and its uplinks; move jobs off it if it "
            "stays."),
    Verdict("slow_host", "host", _WARNING, Owner.INFRA,
            "Look for what takes the host's processors: other processes, frequency, interrupts, memory "
            "pressure. The GPUs wait for launches."),
    Verdict("slow_dataloader", "host", _WARNING, Owner.USER,
            "Look at the named rank's data loader: workers, their storage, decompression; its peers are fed "
            "in time."),
    Verdict("slow_storage", "storage", _WARNING, Owner.INFRA,
            "Look at the mounts of the named host and at the storage service behind them; all ranks wait for "
            "its checkpoint."),
    Verdict("slow_cause_unknown", "unknown", _WARNING, Owner.UNKNOWN,
            "Something is slow and no single part explains it: read link counters of the named group's "
            "hosts, then compare two steps in the timeline."),
    Verdict("gc_pauses", "software", _INFO, Owner.USER,
            "Let all ranks collect garbage at the same step (gc.disable and gc.collect every N steps)."),
    Verdict("stage_imbalance", "workload", _INFO, Owner.USER,
            "Move layers between stages; the longest stage sets the pace of all."),
    Verdict("replica_skew", "workload", _INFO, Owner.USER,
            "Compare the data shards of the replicas; one has more to do in each step."),
    Verdict("sequence_imbalance", "workload", _INFO, Owner.USER,
            "Sort or pack sequences by length, so that replicas of a step have alike much to do."),
    Verdict("gpu_lost", "health", _CRITICAL, Owner.INFRA,
            "Drain the host; power-cycle it, and replace the GPU if it is lost again.", decisive=True),
    Verdict("gpu_fault", "health", _CRITICAL, Owner.INFRA,
            "Do what the driver asks for (reset, reboot, replacement); drain the host until then."),
    Verdict("link_down", "health", _CRITICAL, Owner.INFRA,
            "Look at both ends of the cable: transceiver, cable, port; reseat it, then replace it."),
    Verdict("link_degraded", "health", _WARNING, Owner.INFRA,
            "Read errors, width and light of both ends; clean or replace the cable at the next stop."),
    Verdict("power_fault", "health", _CRITICAL, Owner.INFRA,
            "Check feeds, power supplies and batteries of what is named before more of it fails."),
    Verdict("cooling_fault", "health", _WARNING, Owner.INFRA,
            "Check fans, coolant and inlet temperature of what is named; its GPUs slow down first."),
    Verdict("node_fault", "health", _CRITICAL, Owner.INFRA,
            "Read the kernel's log of the host; drain it, and take it out at the next stop of its job."),
    Verdict("storage_stalled", "health", _CRITICAL, Owner.INFRA,
            "Look at the named server or mount first: its clients wait in the kernel and cannot be killed."),
    Verdict("agents_silent", "blind", _WARNING, Owner.INFRA,
            "Find out why agents are not heard: their hosts, their network, the gateway."),
    Verdict("ingest_down", "blind", _CRITICAL, Owner.INFRA,
            "Start the gateway again: until then nothing is seen and nothing else is reported."),
    Verdict("stalled_unnamed", "blind", _WARNING, Owner.UNKNOWN,
            "Look at the jobs on these nodes; start them with clusterwatch-run: then a rank can be named."),
    Verdict("no_fault", "none", _INFO, Owner.UNKNOWN, "Nothing to do."),
    Verdict("not_enough_data", "none", _UNKNOWN, Owner.UNKNOWN,
            "Collect dumps of all ranks, or turn the recorder on (TORCH_FR_BUFFER_SIZE)."),
)  # fmt: skip

CATALOGUE: Final = {row.word: row for row in _ROWS}

SLOW_CLASSES: Final = frozenset({"hardware", "host", "storage", "unknown"})
"""Classes of what slows a job down, which goes on; ``unknown``: no part is told apart."""

_EXIT_CODES: Final = {"none": 0, "workload": 0, "software": 0, "hang": 2, "crash": 2, "blind": 3}


def exit_code(verdict: str, fault_class: str, severity: Severity) -> int:
    """Exit code of ``analyze`` and ``why``: 0 OK, 1 warning (slow), 2 critical (hang, crash), 3 unknown."""
    if verdict == "not_enough_data" or fault_class == "blind":
        return 3
    if fault_class in _EXIT_CODES:
        return _EXIT_CODES[fault_class]
    return 2 if severity is Severity.CRITICAL and fault_class == "health" else 1
