from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clusterwatch.cli import why, why_remote
from clusterwatch.ops.errors import OpsError

NOW = datetime(2026, 3, 1, 3, 7, 41, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def stack(role: str, ranks: list[int], innermost: str) -> dict[str, Any]:
    return {"frames": ["main (a.py:1)", innermost], "ranks": ranks, "source": "hook", "role": role}


def incident(**changes: Any) -> dict[str, Any]:
    diagnosis = {
        "verdict": "missing_rank", "class": "hang", "severity": "critical", "cause": "data_loading",
        "culprit_ranks": [3], "suspect_ranks": [], "confidence": 0.92,
        "culprits": [{"rank": 3, "host": "host-1", "gpu": 1, "gpu_uuid": None, "pid": 1003}],
        "coverage": {"expected": 8, "reported": 8, "stale": 0, "truncated": 0},
        "downstream": {"groups": 2, "ranks": 7},
        "why": ["rank 3 stands in its data loader"],
        "recommended_action": "Look at the storage of host-1.",
        "stacks": [
            stack("culprit", [3], "__getitem__ (data.py:33)"),
            stack("waiting", [0, 1, 2], "all_reduce (d.py:9)"),
        ],
    }  # fmt: skip
    return {
        "id": 5, "state": "open", "severity": "critical",
        "summary": "Job run-1 stands still: rank 3 (host-1).",
        "since": ago(252), "suspected_at": ago(249), "opened_at": ago(240), "acknowledged_at": None,
        "resolution": "", "threshold_s": 10.0, "threshold_source": "at least 10 s", "diagnosis": diagnosis,
    } | changes  # fmt: skip


def report(found: dict[str, Any] | None = None, *, stale: tuple[str, ...] = (), **job: Any) -> dict[str, Any]:
    known = {
        "id": 1, "key": "run-1", "name": "", "cluster": "tiny", "state": "running", "attempt": 0, "step": 812,
        "last_progress_at": ago(1), "reported": 8, "expected": 8,
    }  # fmt: skip
    return {"job": known | job, "incident": found, "stale": list(stale)}


def screen(answer: dict[str, Any]) -> str:
    return "\n".join(why.screen(answer, NOW))


def test_the_sentence_comes_first_and_one_screen_holds_it_all() -> None:
    text = screen(report(incident()))
    assert text.startswith("Job run-1 stands still: rank 3 (host-1).")
    for part in ("4 min 12 s ago", "open", "rank 3 (host-1, GPU 1, pid 1003)", "confidence 0.92", "8 of 8",
                 "Look at the storage of host-1."):  # fmt: skip
        assert part in text
    assert text.index("data.py:33") < text.index("d.py:9")
    assert len(text.splitlines()) <= 30


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (report(), 0),
        (report(incident()), 2),
        (report(incident(state="resolved", resolution="moved again")), 0),
        (report(incident(), stale=("no gateway has written for 40 s",)), 3),
        (report(stale=("no gateway has written for 40 s",)), 3),
        (report(reported=0), 3),
        (report(state="unknown"), 3),
        (report(state="ended", reported=None), 0),
        (
            report(
                incident(diagnosis=incident()["diagnosis"] | {"class": "blind", "verdict": "agents_silent"})
            ),
            3,
        ),
        (report(incident(diagnosis=incident()["diagnosis"] | {"class": "workload", "severity": "info"})), 0),
    ],
)
def test_exit_codes(answer: dict[str, Any], code: int) -> None:
    assert why.code(answer) == code


def test_a_healthy_job_is_said_to_be_well() -> None:
    text = screen(report())
    assert "all well. Last progress 1 s ago, step 812." in text
    assert "8 of 8 ranks reported" in text


def test_old_data_are_never_called_well() -> None:
    text = screen(report(stale=("no gateway has written for 40 s",)))
    assert text.startswith("UNKNOWN: no gateway has written for 40 s.")
    assert "all well" not in text
    assert "all well" not in screen(report(reported=0))


def test_what_is_over_is_told_as_over() -> None:
    text = screen(report(incident(state="resolved", resolution="the job moves again after 30 s")))
    assert text.splitlines()[0].endswith("step 812.")
    assert "Resolved: the job moves again after 30 s" in text


def test_names_from_nodes_do_not_steer_the_terminal() -> None:
    assert "\x1b" not in screen(report(incident(summary="rank \x1b[2J3")))


def test_json_has_the_diagnosis_on_top() -> None:
    said = why.as_json(report(incident()))
    assert (said["verdict"], said["incident"]["id"], said["job"]["key"]) == ("missing_rank", 5, "run-1")
    assert why.as_json(report())["verdict"] == "no_fault"
    assert why.as_json(report(stale=("x",)))["verdict"] == "not_enough_data"


class FakeApi:
    """A REST server as a table of paths."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def get(self, path: str, missing: tuple[int, ...] = ()) -> dict[str, Any]:
        return self.answers.get(path, {"results": []})

    def results(self, path: str, **query: str) -> list[dict[str, Any]]:
        return self.get(f"{path}?{'&'.join(f'{k}={v}' for k, v in query.items())}")["results"]


def ask(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, answers: dict[str, Any], word: str = "run-1"
) -> tuple[int, str, str]:
    monkeypatch.setenv("CLUSTERWATCH_URL", "http://cw.example")
    monkeypatch.setenv("CLUSTERWATCH_TOKEN", "secret")
    monkeypatch.setattr(why_remote, "_Api", lambda server, token: FakeApi(answers))
    code = why.run(argparse.Namespace(job=word, cluster="", json=True))
    out, err = capsys.readouterr()
    return code, out, err


JOB = report()["job"] | {"ranks_reported": 8}


def test_another_server_is_asked_through_its_rest_api(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    answers = {
        "jobs?key=run-1": {"results": [JOB, JOB | {"id": 0}]},
        "incidents?job=1": {
            "results": [incident(state="resolved", id=9), incident(severity="warning", id=8), incident()]
        },
        "health": {"status": "ok", "reasons": []},
    }
    code, out, _err = ask(monkeypatch, capsys, answers)
    assert (code, json.loads(out)["incident"]["id"]) == (2, 5)


def test_our_own_id_of_a_job_is_understood(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    code, out, _err = ask(monkeypatch, capsys, {"jobs/1": JOB, "health": {"reasons": []}}, word="1")
    assert (code, json.loads(out)["job"]["key"]) == (0, "run-1")


def test_no_such_job_is_66_with_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    code, out, err = ask(monkeypatch, capsys, {}, word="nothing")
    assert (code, out, err.count("\n")) == (66, "", 1)


def test_one_id_on_two_clusters_asks_which(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    answers = {"jobs?key=run-1": {"results": [JOB, JOB | {"cluster": "big"}]}, "health": {"reasons": []}}
    code, _out, err = ask(monkeypatch, capsys, answers)
    assert code == 66
    assert "--cluster big, tiny" in err


def test_a_server_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(OpsError, match="does not answer"):
        why_remote.reports("http://127.0.0.1:9", "secret", "run-1")


def test_another_scheme_is_refused() -> None:
    with pytest.raises(OpsError, match="must start with http"):
        why_remote.reports("file:///etc", "secret", "run-1")
