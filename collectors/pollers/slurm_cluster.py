"""A Slurm cluster from one place: its nodes by state, why each is out, and how jobs ended.

In: the table ``slurm_cluster`` of pollers.toml; ``scontrol show nodes --json`` (``sinfo --json`` where that
has no JSON yet), ``sacct --json`` or ``squeue --json``. Out: a ``DeviceReading`` of the scheduler, with
``node_down`` and ``node_drained`` while they stand, ``job_ended`` once for each run of a job. Who submitted
it is not told. What ended before the first look is history; what ended while nobody looked is told later.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from collectors.pollers import command, slurm_nodes, slurm_outcomes
from collectors.pollers.command import CommandError
from collectors.pollers.device import ConfigError, Device, DeviceReading
from collectors.pollers.slurm_nodes import DRAINED, DRAINING, OUT, STATES, Node, Nodes
from collectors.pollers.slurm_outcomes import NO_FAULT, NODE_FAIL, Outcome
from collectors.pollers.tables import Table
from collectors.sources import hostlist
from collectors.sources.base import FIRST_SAMPLE, OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.tree import printable
from collectors.wire.records import Severity

NAME: Final = "slurm_cluster"
PERIOD_S: Final = 60.0
LOOK_S: Final = 30.0
JSON_MAX_BYTES: Final = 128 * 1024 * 1024
NODE_COMMANDS: Final = (("scontrol", "show", "nodes", "--json"), ("sinfo", "--all", "--json"))
_STATES: Final = "BF,CA,CD,DL,F,NF,OOM,PR,TO"
OUTCOMES: Final = ("auto", "sacct", "squeue", "none")
LATE_S: Final = 300.0
"""The accounting daemon may hear of a job's end so much later."""
BACK_MAX_S: Final = 86_400.0
EVENTS_MAX: Final = 200
"""ended jobs of one look; those that failed come first"""
TOLD_MAX: Final = 200_000
MEMORY_FILE: Final = "slurm_cluster.json"
MEMORY_MAX_BYTES: Final = 16 * 1024 * 1024
_HOSTS_SHOWN: Final = 200
_FAILED_MAX: Final = 16
_KEYS: Final = ("look_s", "name", "outcomes", "period_s", "prefix")

Run = Callable[[Sequence[str]], bytes]
"""An argument list -> what it says. Raises ``CommandError``."""


class SlurmClusterPoller:
    """One cluster. Remembers which ends it told, also when it starts again."""

    name = NAME

    def __init__(
        self,
        cluster: str,
        run: Run,
        outcomes: str = "auto",
        period_s: float = PERIOD_S,
        look_s: float = LOOK_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.period_s = period_s
        self.deadline_s = look_s * 4 + 10.0
        self._device = Device("scheduler", cluster)
        self._run = run
        self._outcomes = outcomes
        self._wall = wall
        self._told: dict[str, int] = {}
        """ended run of a job -> when"""
        self._last_s: float | None = None
        """of the last look at ended jobs, seconds since 1970"""
        self._file: Path | None = None
        self._nodes_by = 0
        """of ``NODE_COMMANDS``; one that this Slurm does not have is not run again"""

    def keep_in(self, folder: Path) -> None:
        self._file = folder / MEMORY_FILE
        with contextlib.suppress(OSError, ValueError, RecursionError):
            with self._file.open("rb") as file:
                kept = json.loads(file.read(MEMORY_MAX_BYTES))
            mine = kept.get(self._device.name) if isinstance(kept, dict) else None
            told, last_s = (mine.get("told"), mine.get("last_s")) if isinstance(mine, dict) else (None, None)
            if isinstance(told, dict) and isinstance(last_s, int | float) and not isinstance(last_s, bool):
                self._told = {key: end_s for key, end_s in told.items() if isinstance(end_s, int)}
                self._last_s = float(last_s)

    def poll(self, at_s: float) -> Iterator[DeviceReading]:
        try:
            found = self._nodes()
        except (CommandError, ValueError) as error:
            text = printable(str(error))[:300]
            yield DeviceReading(self._device, Reading((), [self._failure(text)]), text[:120])
            return
        samples = list(self._counts(found))
        events = [event for node in found.nodes.values() if (event := _out(node)) is not None]
        problems = list(found.errors)
        if self._outcomes != "none":
            try:
                ended = self._ended()
            except (CommandError, ValueError) as error:
                problems.append(printable(str(error)))
            else:
                problems += ended.errors
                samples += self._outcome_counts(ended.ended)
                events += self._news(ended.ended, found)
        if problems:
            events.append(self._failure("; ".join(problems)[:300]))
        yield DeviceReading(self._device, Reading(samples, events))

    def close(self) -> None:
        """Nothing stays open."""

    def _nodes(self) -> Nodes:
        for place in range(self._nodes_by, len(NODE_COMMANDS)):
            try:
                found = slurm_nodes.parse(self._run(NODE_COMMANDS[place]))
            except CommandError as error:
                is_last = place == len(NODE_COMMANDS) - 1
                if is_last or not _is_unknown_option(str(error)):
                    raise
                continue
            self._nodes_by = place
            return found
        raise CommandError("no way to ask for nodes")

    def _ended(self) -> slurm_outcomes.Outcomes:
        """Raises ``CommandError`` or ``ValueError``."""
        now_s = self._wall()
        back_s = min(now_s - self._last_s + LATE_S if self._last_s is not None else LATE_S, BACK_MAX_S)
        if self._outcomes != "squeue":
            argv = ("sacct", "--json", "-a", "-X", "-D", "-s", _STATES, "-E", "now")
            try:
                return slurm_outcomes.parse(self._run((*argv, "-S", f"now-{int(max(back_s, 60.0))}seconds")))
            except CommandError as error:
                if self._outcomes == "sacct" or "accounting storage is disabled" not in str(error):
                    raise
            self._outcomes = "squeue"  # for as long as the process lives
        return slurm_outcomes.parse(self._run(("squeue", "--all", "--json", f"--states={_STATES}")))

    def _counts(self, found: Nodes) -> Iterator[Sample]:
        entity = f"scheduler/{self._device.name}"
        nodes = found.nodes.values()
        tally = Counter(node.state for node in nodes)
        yield Sample(entity, "nodes_count", len(nodes))
        for state in STATES:
            yield Sample(entity, f"nodes_{state}_count", tally[state])
        known = [node for node in nodes if node.gpus is not None]
        if known:
            yield Sample(entity, "gpus_count", sum(node.gpus or 0 for node in known))
            yield Sample(entity, "gpus_out_count", sum(node.gpus or 0 for node in known if node.state in OUT))
        held = [node.gpus_held for node in nodes if node.gpus_held is not None]
        if held:
            yield Sample(entity, "gpus_allocated_count", sum(held))

    def _outcome_counts(self, ended: list[Outcome]) -> Iterator[Sample]:
        entity = f"scheduler/{self._device.name}"
        new = [one for one in ended if one.key not in self._told]
        counts = {
            "jobs_ended_count": len(new),
            "jobs_failed_count": sum(one.state not in NO_FAULT for one in new),
            "jobs_node_fail_count": sum(one.state in NODE_FAIL for one in new),
        }
        for metric, count in counts.items():
            is_first = self._last_s is None
            yield Sample(entity, metric, None if is_first else count, FIRST_SAMPLE if is_first else OK)

    def _news(self, ended: list[Outcome], found: Nodes) -> list[SourceEvent]:
        """Ends that were not told; none at the very first look."""
        now_s = self._wall()
        new = [one for one in ended if one.key not in self._told] if self._last_s is not None else []
        new.sort(key=lambda one: (_severity(one) == "info", _severity(one) == "warning", -one.end_s))
        self._told |= {one.key: one.end_s for one in ended}
        oldest_s = min(self._last_s or now_s, now_s) - BACK_MAX_S - LATE_S
        still = {one.key for one in ended}
        self._told = {key: end_s for key, end_s in self._told.items() if end_s >= oldest_s or key in still}
        self._told = dict(sorted(self._told.items(), key=lambda one: one[1])[-TOLD_MAX:])
        self._last_s = now_s
        self._remember()
        return [_ended_event(one, found) for one in new[:EVENTS_MAX]]

    def _remember(self) -> None:
        if self._file is None:
            return
        mine = {self._device.name: {"last_s": self._last_s, "told": self._told}}
        aside = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk costs the memory only
            aside.write_text(json.dumps(mine), encoding="utf-8")
            aside.replace(self._file)

    def _failure(self, text: str) -> SourceEvent:
        return SourceEvent(
            f"scheduler/{self._device.name}", "scheduler_error", text, "warning", standing=True
        )


def _out(node: Node) -> SourceEvent | None:
    """A node that is down or drained, as long as it is."""
    if node.state in (DRAINED, DRAINING):
        kind, severity = "node_drained", "warning"
    elif node.state in (slurm_nodes.DOWN, slurm_nodes.NOT_RESPONDING):
        kind, severity = "node_down", "critical"
    else:
        return None
    why = f": {node.reason}" if node.reason else ""
    who = f" ({node.by})" if node.by else ""
    attributes: dict[str, Attribute] = {
        "node": node.name,
        "state": node.state,
        "reason": node.reason or None,
        "by": node.by or None,
        "since_s": node.since_s,
    }
    text = f"{node.name} is {node.state.replace('_', ' ')}{why}{who}"[:300]
    level: Severity = "critical" if severity == "critical" else "warning"
    return SourceEvent(f"node/{node.name}", kind, text, level, attributes=attributes, standing=True)


def _severity(one: Outcome) -> Severity:
    if one.state in NODE_FAIL:
        return "critical"
    return "info" if one.state in NO_FAULT else "warning"


def _ended_event(one: Outcome, found: Nodes) -> SourceEvent:
    failed = _failed(one, found)
    how = (
        f" by signal {one.signal}"
        if one.signal
        else f" with exit code {one.exit_code}"
        if one.exit_code
        else ""
    )
    where = f" on {one.nodes} node{'s'[: one.nodes != 1]}" if one.nodes is not None else ""
    lost = f"; failed: {', '.join(failed[:4])}" if failed else ""
    attributes: dict[str, Attribute] = {
        "state": one.state,
        "exit_code": one.exit_code,
        "signal": one.signal,
        "reason": one.reason or None,
        "nodes": one.nodes,
        "hosts": one.hosts[:_HOSTS_SHOWN] or None,
        "failed_nodes": failed or None,
        "gpus": one.gpus,
        "restarts": one.restarts,
    }
    return SourceEvent(
        f"job/{one.id}", "job_ended", f"{one.name} ended {one.state}{how}{where}{lost}"[:300], _severity(one),
        t_ns=one.end_s * 10**9, attributes=attributes,
    )  # fmt: skip


def _failed(one: Outcome, found: Nodes) -> list[str]:
    """Nodes that failed: as Slurm says, else those of the job that are down now, else its only one."""
    if one.failed:
        return list(one.failed[:_FAILED_MAX])
    if one.state not in NODE_FAIL:
        return []
    hosts = hostlist.expand(one.hosts)
    bad = (slurm_nodes.DOWN, slurm_nodes.NOT_RESPONDING)
    down = [name for name in hosts if name in found.nodes and found.nodes[name].state in bad]
    return down[:_FAILED_MAX] or (hosts if len(hosts) == 1 else [])


def _is_unknown_option(text: str) -> bool:
    return any(words in text for words in ("unrecognized option", "invalid option", "--help", "No such file"))


def from_config(config: Mapping[str, object], folder: Path) -> SlurmClusterPoller:
    """Raises ``ConfigError`` that names the key."""
    table = Table(NAME, config, folder)
    table.only(*_KEYS)
    look_s = table.seconds("look_s", LOOK_S, 1.0, 300.0)
    prefix = table.texts("prefix", ())
    name = table.name("name", "slurm")
    if not name:
        raise ConfigError(f"{NAME}.name must not be empty")

    def run(argv: Sequence[str]) -> bytes:
        return command.run([*prefix, *argv], look_s, JSON_MAX_BYTES).output

    return SlurmClusterPoller(
        name,
        run,
        table.choice("outcomes", "auto", OUTCOMES),
        table.seconds("period_s", PERIOD_S, 15.0, 3_600.0),
        look_s,
    )
