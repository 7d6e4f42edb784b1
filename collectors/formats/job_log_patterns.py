"""What a line of a job log can say: kinds, the words that give them away, and the fields in them.

In: the text of one line without its labels. Out: kind and fields, or None. Every pattern has a trigger, a
literal that must be in the line, so most lines cost a few substring searches; every repetition in a pattern
is bounded or over one class of characters, so no line costs more than its length.

Sources: torch's ProcessGroupNCCL.cpp (all wordings from 1.13 to 2.14), torch.distributed.elastic, NCCL's
transport/net_ib.cc and misc/socket.cc, gloo's transport/tcp, Slurm's slurmstepd and srun, the kernel's
oom_kill.c, NVIDIA's Xid catalogue, Kubernetes' pod reasons and events, DeepSpeed's launcher/launch.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

Fields = dict[str, str | int]

VALUE_MAX_CHARS: Final = 300

TRIGGERS: Final = (
    b"rror", b"Traceback", b"imeout", b"imed out", b"aught ", b"last completed", b"NCCL WARN", b"Xid", b"oom",
    b"OOM", b"NaN", b"nan", b"exitcode", b"ignal", b"CANCELLED", b"onnection", b"watchdog", b"Assertion",
    b"nranks",
    b"estart", b"of memory", b"Evicted", b"egmentation", b"loss scal", b"terminate", b"Preempt", b"ailure",
    b"TCPStore", b"return code", b"initialization options",
)  # fmt: skip
"""A line without any of these says nothing we know. The fewer, the faster: each is one pass over the
bytes."""


class Pattern(NamedTuple):
    kind: str
    trigger: str
    regex: re.Pattern[str]


def _pattern(kind: str, trigger: str, regex: str) -> Pattern:
    return Pattern(kind, trigger, re.compile(regex))


_PATTERNS: Final = (
    _pattern("watchdog_timeout", "collective operation timeout",
             r"caught collective operation timeout: Work"),
    _pattern("progress", "last completed", r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18})"
             r", last completed (?:NCCL )?work: (?P<completed>-?\d{1,18})"),
    _pattern("watchdog_stuck", "watchdog got stuck",
             r"watchdog got stuck for (?P<stuck_s>\d{1,9}) ?(?P<unit>s|ms|milli)?"),
    _pattern("watchdog_stuck", "eartbeat monitor timed out", r"[Hh]eartbeat monitor timed out"),
    _pattern("abort", "from checkTimeout", r"Exception raised from checkTimeout"),
    _pattern("abort", "taking the entire process down", r"taking the entire process down"),
    _pattern("abort", "detected by watchdog", r"\(either an error or timeout\) detected by watchdog"),
    _pattern("abort", "operations have failed or timed out", r"operations have failed or timed out"),
    _pattern("port_event", "sync", r"NET/IB ?: (?P<nic>[\w.:-]{1,64})\b.{0,80}?"
             r"[Gg]ot (?:non-fatal )?async (?:fatal )?event ?: (?P<what>[^\r\n]{1,80})"),
    _pattern("net_error", "Got completion",
             r"NET/IB ?: .{0,40}?Got completion from peer (?P<peer>[^\s<]{1,64})"
             r"(?:<\d{1,6}>)? with (?:status=|error )(?:\w{1,40}\()?(?P<status>\d{1,5})"),
    _pattern("net_error", "protection",
             r"NET/IB ?: .{0,120}?[Ll]ocal (?:memory )?protection(?P<what>.{0,80})"),
    _pattern("net_error", "ibv_", r"Call to (?P<call>ibv_\w{1,40}) failed(?P<what>.{0,120})"),
    _pattern("peer_closed", "closed by remote peer",
             r"[Cc]onnection closed by remote peer ?(?P<peer>[^\s<>]{0,255})"),
    _pattern("peer_closed", "NET/Socket", r"NCCL WARN .{0,80}?NET/Socket :? ?(?P<what>.{1,120})"),
    _pattern("peer_closed", "communicator was aborted", r"NCCL communicator was aborted"),
    _pattern("peer_closed", "remote process exited", r"remote process exited or there was a network error"),
    _pattern("peer_closed", "closed by peer",
             r"[Cc]onnection closed by peer(?: \[(?P<peer>[^\]\s]{1,64})\])?"),
    _pattern("peer_closed", "reset by peer", r"[Cc]onnection reset by peer"),
    _pattern("peer_timeout", "Timed out waiting",
             r"Timed out waiting (?P<ran_ms>\d{1,12})ms for (?P<op>recv|send)\w{0,16} operation"),
    _pattern("peer_closed", "TCPStore", r"(?:recvValue|sendBytes|recvBytes|recvVector)\w{0,20} failed"),
    _pattern("device_assert", "Assertion", r"block: \[[\d,]{1,40}\], thread: \[[\d,]{1,40}\]"
             r" Assertion [`'\"](?P<what>[^`'\"]{1,200})"),
    _pattern("out_of_memory", "CUDA out of memory", r"CUDA out of memory\.?(?P<what>.{0,200})"),
    _pattern("cuda_error", "Cuda failure", r"Cuda failure (?:\d{1,5} )?'(?P<what>[^']{1,160})"),
    _pattern("cuda_error", "CUDA error", r"CUDA error(?: \d{1,5})?: (?P<what>.{1,160})"),
    _pattern("kernel_oom", "Killed process",
             r"[Oo]ut of memory: Killed process (?P<pid>\d{1,10}) \((?P<what>[^)]{1,64})\)"),
    _pattern("slurm_oom", "oom", r"Detected (?P<count>\d{1,9}) oom[_-]kill event"),
    _pattern("slurm_oom", "memory limit",
             r"slurmstepd: error: .{0,80}?[Ee]xceeded (?:\w{1,12} )?memory limit"),
    _pattern("kubernetes_oom", "OOMKilled", r"\bOOMKilled\b"),
    _pattern("xid", "Xid", r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{4,20})\): (?P<xid>\d{1,5})"
             r"(?:, pid=['\"]?(?P<pid>\d{1,10}))?"),
    _pattern("elastic_exit", "exitcode",
             r"failed \(exitcode: (?P<exit>-?\d{1,6})\) local_rank: (?P<local>\d{1,7})"
             r" \(pid: (?P<pid>\d{1,10})\)"),
    _pattern("elastic_exit", "exits with return code",
             r"(?:^(?P<host>[A-Za-z][\w.-]{0,254}): )?.{0,2000}?exits with return code = "
             r"(?P<exit>-?\d{1,6})"),
    _pattern("told_to_end", "closing signal",
             r"Sending process (?P<pid>\d{1,10}) closing signal (?P<what>\w{1,32})"),
    _pattern("told_to_end", "death signal", r"Received (?P<what>[\w.]{1,32}) death signal"),
    _pattern("restart", "restart_count", r"restart_count=(?P<count>\d{1,7})"),
    _pattern("restart", "will restart worker group", r"will restart worker group"),
    _pattern("task_exit", "task",
             r"srun: error: (?P<host>[\w.-]{1,255}): tasks? (?P<tasks>[\d,-]{1,200}): (?P<what>.{1,120})"),
    _pattern("node_failure", "ode failure on", r"[Nn]ode failure on (?P<host>[\w.-]{1,255})"),
    _pattern("scheduler", "CANCELLED", r"(?:JOB|STEP) [\w.+\[\]-]{1,64} (?:ON (?P<host>[\w.-]{1,255}) )?"
             r"CANCELLED AT (?P<at>[\w:.-]{1,40})(?: DUE TO (?P<what>[A-Z ]{1,60}))?"),
    _pattern("scheduler", "Evicted", r"(?:[Rr]eason|STATUS|phase)\S{0,4}[: ]{1,4}[\"']?(?P<what>Evicted)\b|"
             r"\bpod was (?P<what2>evicted)|^\S{1,255} {1,40}\d+/\d+ {1,40}(?P<what3>Evicted)\b"),
    _pattern("scheduler", "", r"^\s{0,8}(?:\S{1,16}\s{1,40})?(?:Normal|Warning)\s{1,40}"
             r"(?P<what>Evicted|Preempted)\s"),
    _pattern("scheduler", "Preempt",
             r"(?:[Rr]eason|TerminationTarget)\S{0,4}[: ]{1,4}[\"']?(?P<what>Preempt\w{0,30})"),
    _pattern("fatal_signal", "Fatal Python error", r"Fatal Python error: (?P<what>[\w ]{1,60})"),
    _pattern("fatal_signal", "aught signal",
             r"[Cc]aught signal (?P<signal>\d{1,3})(?: \((?P<what>[\w ]{1,60}))?"),
    _pattern("fatal_signal", "Signal: ", r"Signal: (?P<what>[A-Z][\w ]{1,40}?) \((?P<signal>\d{1,3})\)"),
    _pattern("fatal_signal", "egmentation fault", r"Segmentation fault(?: \(core dumped\))?\s{0,4}$"),
    _pattern("terminate", "terminate called",
             r"terminate called after throwing an instance of '(?P<what>[^']{1,120})"),
    _pattern("group_size", "initialization options",
             r"initialization options: size: (?P<size>\d{1,7}), global rank: (?P<rank>\d{1,7})"),
    _pattern("comm_init", "nranks", r"\brank (?P<rank>\d{1,7}) nranks (?P<nranks>\d{1,7})"
             r"(?: cudaDev (?P<gpu>\d{1,4}))?"),
    _pattern("numeric", "an",
             r"(?i)found (?P<what>nan|inf)\b.{0,160}|(?:nan|inf) (?:or inf )?(?:found|detected|encountered)\b"
             r"|(?:loss|grad(?:ient)?|norm)\w{0,20}['\"]? (?:is|became|contains) (?:nan|inf)\b"),
    _pattern("nan_value", "an", r"(?i)\bloss\b['\"]?\s{0,3}[:=|]\s{0,3}(?:tensor\()?nan\b"),
    _pattern("numeric", "oss scal",
             r"(?i)loss scale (?:is )?already at (?:the )?minimum|minimum loss scale reached"),
    _pattern("nccl_warn", "NCCL WARN", r"NCCL WARN (?P<what>.{1,200})"),
    _pattern("peer_closed", "nccl", r"ncclRemoteError|ncclSystemError|unhandled system error"),
    _pattern("peer_closed", "unhandled system error", r"unhandled system error"),
    _pattern("raised", "rror", r"^(?:[A-Za-z_]\w{0,99}\.){0,12}(?P<type>[A-Z]\w{0,99}(?:Error|Exception)):"
             r" (?P<what>.{1,300})"),
)  # fmt: skip

_OWNED: Final = (
    ("rank", re.compile(r"\[(?:PG (?:ID )?[\w.()-]{1,64}(?: PG GUID [^\]]{1,160}?)? )?Rank (\d{1,7})\]")),
    ("pg", re.compile(r"\[PG (?:ID )?([\w.()-]{1,64}) ")),
    ("guid", re.compile(r"PG GUID ([^\]\s]{1,160})")),
    ("size", re.compile(r"\b(?:group |world |pg )?size[:=] ?(\d{1,7})\b", re.IGNORECASE)),
)
_WATCHDOG: Final = (
    ("seq", re.compile(r"SeqNum=(\d{1,18})")),
    ("op", re.compile(r"OpType=(\w{1,64})")),
    ("numel_in", re.compile(r"NumelIn=(\d{1,18})")),
    ("numel_out", re.compile(r"NumelOut=(\d{1,18})")),
    ("shape", re.compile(r"TensorShape=\[([\d, ]{0,120})\]")),
    ("timeout_ms", re.compile(r"Timeout\(ms\)=(\d{1,12})")),
    ("ran_ms", re.compile(r"ran for (\d{1,12}) milliseconds")),
)
_NET: Final = (
    ("vendor", re.compile(r"vendor err (\d{1,6})")),
    ("nic", re.compile(r"\bhca ([\w.:-]{1,64})")),
)
_BUS: Final = (("bus", re.compile(r"\bbusId ([0-9a-fA-F]{1,16})\b")),)
_NCCL: Final = re.compile(
    r"(?:^|[\s\]])(?P<host>[A-Za-z0-9][\w.-]{0,254}):(?P<pid>\d{1,10}):\d{1,10} \[(?P<gpu>\d{1,4})\]"
)
_MPI_PID: Final = re.compile(r"\[(?P<host>[A-Za-z][\w.-]{0,254}):(?P<pid>\d{2,10})\] ")
_EXTRA: Final = {
    "watchdog_timeout": (*_OWNED, *_WATCHDOG),
    "progress": (*_OWNED, ("at_seq", re.compile(r"[Tt]imeout at (?:collective|NCCL work): (\d{1,18})"))),
    "watchdog_stuck": _OWNED,
    "abort": _OWNED,
    "net_error": _NET,
    "comm_init": _BUS,
    "peer_closed": _OWNED,
    "group_size": _OWNED[1:3],
    "elastic_exit": (("local", re.compile(r"--local[_-]rank[= ](\d{1,7})\b")),),
}
_NUMBERS: Final = frozenset({
    "seq", "numel_in", "numel_out", "timeout_ms", "ran_ms", "rank", "enqueued", "completed", "at_seq", "pid",
    "gpu", "status", "vendor", "xid", "exit", "local", "count", "signal", "nranks", "stuck_s", "size",
})  # fmt: skip


def recognise(text: str) -> tuple[str, Fields] | None:
    """Kind and fields of a line; the first pattern that fits."""
    for kind, trigger, regex in _PATTERNS:
        if trigger in text and (match := regex.search(text)) is not None:
            fields = _typed(match.groupdict())
            for name, extra in _EXTRA.get(kind, ()):
                if (found := extra.search(text)) is not None:
                    fields[name] = int(found[1]) if name in _NUMBERS else found[1]
            fields |= _process(text)
            return kind, fields
    return None


def _process(text: str) -> Fields:
    """host:pid:tid [gpu] of NCCL, or [host:pid] of Open MPI."""
    match = _NCCL.search(text[:600]) if "NCCL " in text else _MPI_PID.match(text)
    return _typed(match.groupdict()) if match is not None else {}


def _typed(groups: Mapping[str, str | None]) -> Fields:
    fields: Fields = {}
    for name, value in groups.items():
        if value:
            key = name.rstrip("23")
            fields[key] = int(value) if key in _NUMBERS else value.strip()[:VALUE_MAX_CHARS]
    return fields
