"""A Slurm cluster: every dialect tells the same nodes and ends; an end is told once, also after a restart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.pollers import slurm_nodes, slurm_outcomes
from collectors.pollers.command import CommandError
from collectors.pollers.device import ConfigError, DeviceReading
from collectors.pollers.slurm_cluster import SlurmClusterPoller, from_config
from collectors.pollers.slurm_outcomes import exit_of
from collectors.sources.base import SourceEvent

NOW_S = 1_796_277_202
NO_JSON = 'scontrol: Try "scontrol --help" for more information'


def boxed(value: int | None) -> dict[str, Any]:
    """A number as newer dialects write it."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


def old(name: str, state: str, *flags: str, reason: str = "", held: int = 0) -> dict[str, Any]:
    return {
        "name": name, "hostname": name, "state": state, "state_flags": list(flags), "reason": reason,
        "reason_changed_at": NOW_S if reason else 0, "reason_set_by_user": "root" if reason else None,
        "gres": "gpu:h100:8(S:0-1)", "gres_used": f"gpu:h100:{held}(IDX:0-{held})", "tres_used": None,
    }  # fmt: skip


def new(row: dict[str, Any]) -> dict[str, Any]:
    """The same of ``scontrol show nodes --json`` from 23.02 on."""
    return {name: value for name, value in row.items() if name != "state_flags"} | {
        "state": [row["state"].upper(), *row["state_flags"]],
        "reason_changed_at": boxed(row["reason_changed_at"] or None),
        "reason_set_by_user": row["reason_set_by_user"] or "",
        "tres": "cpu=192,mem=2T,billing=192,gres/gpu=8",
    }


def group(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """The same of ``sinfo --json`` from 23.02 on."""
    told = new(row)
    return {
        "port": 6818,
        "node": {"state": told["state"]},
        "nodes": {"allocated": 0, "idle": 1, "other": 0, "total": 1, "nodes": list(names or (row["name"],))},
        "gres": {"total": row["gres"], "used": ""},
        "reason": {
            "description": row["reason"],
            "time": told["reason_changed_at"],
            "user": told["reason_set_by_user"],
        },
        "partition": {"name": "train"},
    }  # fmt: skip


ROWS = [
    old("gtn-0101", "allocated", held=8),
    old("gtn-0102", "idle", "DRAIN", reason="bad gpu 3"),
    old("gtn-0103", "down", "NOT_RESPONDING", reason="Not responding"),
    old("gtn-0104", "idle"),
    old("gtn-0105", "mixed", "DRAIN", reason="check ib", held=4),
]
DIALECTS: dict[str, dict[str, Any]] = {
    "22.05": {"errors": [], "nodes": ROWS},
    "scontrol 24.05": {"errors": [], "nodes": [new(row) for row in ROWS]},
    "sinfo 24.05": {"errors": [], "sinfo": [group(row) for row in ROWS + ROWS[:2]]},
}
DRAINED = {
    "node": "gtn-0102", "state": "drained", "reason": "bad gpu 3", "by": "root", "since_s": NOW_S,
}  # fmt: skip


class Slurm:
    """What each of Slurm's commands says, and the poller that asks it."""

    def __init__(self, folder: Path | None = None, **config: Any) -> None:
        self.now_s = float(NOW_S)
        self.asked: list[Sequence[str]] = []
        self.says: dict[str, Any] = {
            "scontrol": DIALECTS["scontrol 24.05"], "sinfo": DIALECTS["sinfo 24.05"], "sacct": {"jobs": []},
            "squeue": {"jobs": []},
        }  # fmt: skip
        self.config = config
        self.folder = folder
        self.poller = self.made()

    def made(self) -> SlurmClusterPoller:
        poller = SlurmClusterPoller("train", self.run, wall=lambda: self.now_s, **self.config)
        if self.folder is not None:
            poller.keep_in(self.folder)
        return poller

    def run(self, argv: Sequence[str]) -> bytes:
        self.asked.append(argv)
        said = self.says[argv[0]]
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, bytes) else json.dumps(said).encode()

    def look(self, *jobs: dict[str, Any]) -> DeviceReading:
        self.now_s += 60.0
        if jobs:
            self.says["sacct"] = {"jobs": list(jobs)}
        (told,) = self.poller.poll(0.0)
        return told


def events(told: DeviceReading, kind: str) -> list[SourceEvent]:
    return [event for event in told.reading.events if event.kind == kind]


def values(told: DeviceReading) -> dict[str, float | None]:
    return {one.metric: one.value for one in told.reading.samples}


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_each_dialect_tells_the_same_nodes(dialect: str) -> None:
    slurm = Slurm()
    slurm.says["scontrol"] = DIALECTS[dialect]
    told = slurm.look()
    assert (told.device.kind, told.device.name, told.state) == ("scheduler", "train", "ok")
    found = values(told)
    assert found["nodes_count"] == 5
    states = {name: count for name, count in found.items() if name.startswith("nodes_") and count}
    assert states == {
        "nodes_count": 5, "nodes_allocated_count": 1, "nodes_drained_count": 1, "nodes_draining_count": 1,
        "nodes_down_count": 1, "nodes_idle_count": 1,
    }  # fmt: skip
    assert (found["gpus_count"], found["gpus_out_count"]) == (40, 24)
    drained = {event.entity: event for event in events(told, "node_drained")}
    assert sorted(drained) == ["node/gtn-0102", "node/gtn-0105"]
    assert drained["node/gtn-0102"].attributes == DRAINED
    assert drained["node/gtn-0102"].message == "gtn-0102 is drained: bad gpu 3 (root)"
    (down,) = events(told, "node_down")
    assert (down.entity, down.severity, down.standing) == ("node/gtn-0103", "critical", True)


def test_gpus_that_jobs_hold_are_counted_where_slurm_tells_them() -> None:
    assert values(Slurm().look())["gpus_allocated_count"] == 12
    slurm = Slurm()
    slurm.says["scontrol"] = DIALECTS["sinfo 24.05"]
    assert "gpus_allocated_count" not in values(slurm.look())


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (["IDLE"], "idle"),
        (["IDLE", "PLANNED"], "reserved"),
        (["MIXED", "RESERVED"], "mixed"),
        (["IDLE", "COMPLETING"], "completing"),
        (["ALLOCATED", "DRAIN"], "draining"),
        (["DOWN", "DRAIN"], "down"),
        (["IDLE", "NOT_RESPONDING"], "not_responding"),
        (["IDLE", "POWERED_DOWN", "CLOUD"], "powered_down"),
        (["ALLOCATED", "MAINTENANCE"], "maintenance"),
        (["IDLE", "FAIL"], "down"),
        (["SOMETHING_NEW"], "unknown"),
        ([], "unknown"),
    ],
)
def test_every_node_is_in_one_state(words: list[str], state: str) -> None:
    assert slurm_nodes.state_of(words) == state
    assert state in slurm_nodes.STATES


def test_a_group_names_its_nodes_as_a_host_list_too() -> None:
    said = {"sinfo": [group(ROWS[3], "gtn-[0201-0203]", "login1")]}
    assert sorted(slurm_nodes.parse(json.dumps(said)).nodes) == ["gtn-0201", "gtn-0202", "gtn-0203", "login1"]


def test_an_old_scontrol_is_asked_once_and_then_sinfo() -> None:
    slurm = Slurm()
    slurm.says["scontrol"] = CommandError(NO_JSON)
    assert values(slurm.look())["nodes_count"] == 5
    slurm.look()
    assert [argv[0] for argv in slurm.asked if argv[0] != "sacct"] == ["scontrol", "sinfo", "sinfo"]


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (CommandError("scontrol: timeout"), "scontrol: timeout"),
        (CommandError("slurm_load_node: Unable to contact slurm controller"), "slurm_load_node: Unable"),
        (b"{", "Expecting"),
        (b"[" * 100_000, "nested too deep"),
        (b"{}", "no list of nodes"),
    ],
)
def test_a_controller_that_does_not_answer_is_told(said: Any, state: str) -> None:
    slurm = Slurm()
    slurm.says["scontrol"] = said
    told = slurm.look()
    assert told.state.startswith(state)
    (event,) = told.reading.events
    assert (event.kind, event.standing) == ("scheduler_error", True)


def ended(job: int, state: str, end_s: float, **more: Any) -> dict[str, Any]:
    """A row of ``sacct --json``, 23.11."""
    return {
        "job_id": job, "name": "tune-8b", "nodes": "gtn-[0101-0103]", "allocation_nodes": 3,
        "state": {"current": [state], "reason": "None"}, "restart_cnt": 1,
        "exit_code": {"status": ["SUCCESS"], "return_code": boxed(0), "signal": {"id": boxed(None)}},
        "time": {"start": NOW_S - 900, "end": int(end_s)}, "failed_node": "",
        "tres": {"allocated": [{"type": "cpu", "count": 96}, {"type": "gres", "name": "gpu", "count": 24}]},
    } | more  # fmt: skip


def test_what_ended_before_the_first_look_is_history_and_the_rest_is_told_once() -> None:
    slurm = Slurm()
    first = slurm.look(ended(1, "FAILED", NOW_S - 30))
    assert events(first, "job_ended") == []
    assert values(first)["jobs_ended_count"] is None
    second = slurm.look(ended(1, "FAILED", NOW_S - 30), ended(2, "COMPLETED", NOW_S + 90))
    (event,) = events(second, "job_ended")
    assert (event.entity, event.severity, event.t_ns) == ("job/2", "info", (NOW_S + 90) * 10**9)
    assert event.message == "tune-8b ended COMPLETED on 3 nodes"
    assert event.attributes == {
        "state": "COMPLETED", "exit_code": 0, "signal": None, "reason": None, "nodes": 3,
        "hosts": "gtn-[0101-0103]", "failed_nodes": None, "gpus": 24, "restarts": 1,
    }  # fmt: skip
    assert (values(second)["jobs_ended_count"], values(second)["jobs_failed_count"]) == (1, 0)
    assert events(slurm.look(), "job_ended") == []


def test_a_failed_node_is_named_as_slurm_says_or_as_it_is_down_now() -> None:
    slurm = Slurm()
    slurm.look()
    told = slurm.look(
        ended(7, "NODE_FAIL", NOW_S + 61, failed_node="gtn-0102"),
        ended(8, "NODE_FAIL", NOW_S + 62),
        ended(9, "NODE_FAIL", NOW_S + 63, nodes="gtn-0109", allocation_nodes=1),
        ended(10, "NODE_FAIL", NOW_S + 64, nodes="gtn-[0201-0202]"),
    )
    failed = {event.entity: event.attributes["failed_nodes"] for event in events(told, "job_ended")}
    assert failed == {
        "job/7": ["gtn-0102"], "job/8": ["gtn-0103"], "job/9": ["gtn-0109"], "job/10": None,
    }  # fmt: skip
    assert {event.severity for event in events(told, "job_ended")} == {"critical"}
    assert values(told)["jobs_node_fail_count"] == 4


def test_a_job_that_is_put_back_into_the_queue_ends_each_time() -> None:
    slurm = Slurm()
    slurm.look()
    assert len(events(slurm.look(ended(7, "NODE_FAIL", NOW_S + 61)), "job_ended")) == 1
    again = slurm.look(ended(7, "NODE_FAIL", NOW_S + 61), ended(7, "FAILED", NOW_S + 150))
    assert [event.attributes["state"] for event in events(again, "job_ended")] == ["FAILED"]


def test_after_a_restart_only_what_was_not_told_is_told(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path)
    slurm.look()
    slurm.look(ended(1, "FAILED", NOW_S + 70))
    slurm.poller = slurm.made()
    slurm.now_s += 1_800.0
    told = slurm.look(ended(1, "FAILED", NOW_S + 70), ended(2, "TIMEOUT", NOW_S + 900))
    assert [event.entity for event in events(told, "job_ended")] == ["job/2"]
    since = next(word for word in slurm.asked[-1] if word.startswith("now-"))
    assert since == "now-2160seconds"


@pytest.mark.parametrize(
    "kept", [b"", b"[]", b'{"train": {"told": [], "last_s": 1}}', b'{"train": 3}', b"\xff"]
)
def test_a_damaged_memory_is_none(tmp_path: Path, kept: bytes) -> None:
    (tmp_path / "slurm_cluster.json").write_bytes(kept)
    assert events(Slurm(tmp_path).look(ended(1, "FAILED", NOW_S)), "job_ended") == []


def test_without_accounting_the_controller_is_asked_for_what_ended() -> None:
    slurm = Slurm()
    slurm.says["sacct"] = CommandError("sacct: Slurm accounting storage is disabled")
    slurm.look()
    slurm.says["squeue"] = {
        "jobs": [
            {
                "job_id": 3, "name": "f", "job_state": "FAILED", "exit_code": 768, "end_time": NOW_S + 60,
                "nodes": "gtn-0104", "node_count": 1, "state_reason": "NonZeroExitCode", "restart_cnt": 0,
                "tres_alloc_str": "cpu=1,node=1,billing=1,gres/gpu=2",
            },
            {"job_id": 4, "job_state": "RUNNING", "end_time": NOW_S + 9_999},
            {"job_id": 5, "job_state": ["CANCELLED", "COMPLETING"], "end_time": NOW_S + 60},
        ]
    }  # fmt: skip
    (event,) = events(slurm.look(), "job_ended")
    assert event.message == "f ended FAILED with exit code 3 on 1 node"
    assert (event.attributes["exit_code"], event.attributes["gpus"]) == (3, 2)
    assert [argv[0] for argv in slurm.asked].count("sacct") == 1


def test_an_accounting_that_does_not_answer_costs_the_ends_only_and_they_come_later() -> None:
    slurm = Slurm()
    slurm.look()
    slurm.says["sacct"] = CommandError("sacct: timeout")
    told = slurm.look()
    assert told.state == "ok" and values(told)["nodes_count"] == 5
    assert events(told, "scheduler_error")[0].message == "sacct: timeout"
    assert events(slurm.look(ended(1, "FAILED", NOW_S + 70)), "job_ended")


def test_jobs_may_be_left_out() -> None:
    slurm = Slurm(outcomes="none")
    slurm.look()
    assert [argv[0] for argv in slurm.asked] == ["scontrol"]


def test_of_very_many_ends_those_that_failed_come_first() -> None:
    slurm = Slurm()
    slurm.look()
    many = [ended(job, "COMPLETED", NOW_S + 61) for job in range(1, 400)]
    told = slurm.look(*many, ended(500, "NODE_FAIL", NOW_S + 61), ended(501, "FAILED", NOW_S + 61))
    assert [event.entity for event in events(told, "job_ended")][:2] == ["job/500", "job/501"]
    assert len(events(told, "job_ended")) == 200
    assert values(told)["jobs_ended_count"] == 401


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (0, (0, None)),
        (768, (3, None)),
        (9, (None, 9)),
        ({"status": "ERROR", "return_code": 1}, (1, None)),
        (
            {"status": ["SIGNALED"], "return_code": boxed(0), "signal": {"id": boxed(11), "name": "SEGV"}},
            (None, 11),
        ),
        ({"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": 9, "name": "KILL"}}, (None, 9)),
        (None, (None, None)),
        (2**32 - 2, (None, None)),
        ({"signal": "SEGV"}, (None, None)),
    ],
)
def test_exit_codes_of_every_dialect(raw: Any, wanted: tuple[int | None, int | None]) -> None:
    assert exit_of(raw) == wanted


KEYS = ["jobs", "nodes", "sinfo", "state", "name", "job_id", "time", "end", "exit_code", "signal", "current"]
MORE_KEYS = ["tres", "allocated", "reason", "errors", "node", "gres", "set", "number", "id"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS + MORE_KEYS), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON, JSON)
def test_no_json_raises_anything_but_what_is_said(rows: Any, other: Any) -> None:
    for said in (rows, {"nodes": rows}, {"sinfo": [rows]}, {"jobs": [rows, other]}, {"errors": rows}):
        for parse in (slurm_nodes.parse, slurm_outcomes.parse):
            try:
                parse(json.dumps(said))
            except ValueError:
                continue


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"outcomes": "all"}, "outcomes must be one of"),
        ({"name": ""}, "name must not be empty"),
        ({"user": "x"}, "unknown key"),
        ({"period_s": 1}, "from 15 to"),
    ],
)
def test_bad_settings_name_their_key(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_config(config, tmp_path)
