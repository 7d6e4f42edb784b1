"""`bench detect` judges answers by the rules of the collective log, and counts what it judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterwatch.cli.bench import REGISTRY, available
from clusterwatch.cli.benches import detect
from clusterwatch.cli.benches.detect_judge import judged, score, verdict_of
from clusterwatch.cli.benches.detect_log import log_of, verdict_on
from clusterwatch.ops.errors import OpsError
from clusterwatch.simulate.step_job import Fault, Kind
from clusterwatch.simulate.step_job_matrix import Cell

NIC: dict[str, Any] = {
    "kind": "slow_nic", "class": "hardware", "culprit_ranks": [8], "acceptable": [[8]], "node": 2,
    "link": "nic:n2:g0", "switch": None, "start_step": 40,
}  # fmt: skip
HEALTHY: dict[str, Any] = {
    "kind": "no_fault", "class": "none", "culprit_ranks": [], "acceptable": [[]], "node": None, "link": None,
    "switch": None, "start_step": None,
}  # fmt: skip
NOBODY: dict[str, Any] = {"verdict": "no_fault", "class": "none", "culprit_ranks": []}


def answer(**changed: Any) -> dict[str, Any]:
    """The right answer to the slow port, but for what is changed."""
    right = {"class": "hardware", "culprit_ranks": [8], "node": 2, "link": "nic:n2:g0", "onset_step": 42}
    return right | changed


def test_the_right_answer_is_exact_and_its_onset_error_is_told() -> None:
    one = judged(NIC, answer())
    assert one.exact and not (one.false_alarm or one.missed or one.wrong_name)
    assert one.onset_error_steps == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"culprit_ranks": [8, 9]},
        {"culprit_ranks": [9]},
        {"class": "host"},
        {"link": "nic:n2:g1"},
        {"node": None},
    ],
)
def test_one_wrong_word_makes_it_a_wrong_name(changed: dict[str, Any]) -> None:
    one = judged(NIC, answer(**changed))
    assert not one.exact and one.wrong_name and not one.missed and not one.false_alarm


@pytest.mark.parametrize("told", ["none", "unknown", "workload", "software"])
def test_naming_nobody_is_a_miss_and_no_wrong_name(told: str) -> None:
    one = judged(NIC, {"class": told, "culprit_ranks": [], "onset_step": None})
    assert one.missed and not one.wrong_name and one.onset_error_steps is None


@pytest.mark.parametrize("told", ["hardware", "host", "storage", "hang"])
@pytest.mark.parametrize("truth", ["none", "software", "workload"])
def test_a_fault_named_where_there_is_none_is_a_false_alarm(truth: str, told: str) -> None:
    one = judged(HEALTHY | {"class": truth}, answer(**{"class": told}))
    assert one.false_alarm and not one.exact and not one.wrong_name


def test_a_healthy_job_explained_wrongly_is_no_false_alarm() -> None:
    one = judged(HEALTHY, {"class": "workload", "culprit_ranks": []})
    assert not one.false_alarm and not one.exact and one.ranks_right


def test_parts_that_the_truth_does_not_name_are_not_compared() -> None:
    assert judged(NIC | {"node": None, "link": None}, answer(node=7, link="x")).exact


def test_a_fault_without_cost_may_be_named_or_not_but_not_as_another() -> None:
    host = NIC | {
        "class": "host",
        "culprit_ranks": [4, 5],
        "acceptable": [[4, 5], []],
        "node": 1,
        "link": None,
    }
    assert judged(host, NOBODY).exact and not judged(host, NOBODY).missed
    assert judged(host, answer(**{"class": "host", "culprit_ranks": [5, 4], "node": 1})).exact
    assert judged(host, answer(culprit_ranks=[4, 5], node=1)).wrong_name


def test_nobody_is_no_answer_to_a_hang_that_has_no_culprit() -> None:
    hang = HEALTHY | {"class": "hang", "start_step": 60}
    assert judged(hang, NOBODY).missed
    assert judged(hang, {"class": "hang", "culprit_ranks": []}).exact


def test_of_two_faults_both_must_be_named_and_either_class_is_right() -> None:
    faults = [{"class": "hardware"}, {"class": "host"}, {"class": "workload"}]
    two = NIC | {"acceptable": [[3, 8]], "severity": {"faults": faults}, "node": None, "link": None}
    assert judged(two, answer(**{"culprit_ranks": [8, 3], "class": "host"})).exact
    assert not judged(two, answer(**{"culprit_ranks": [8, 3], "class": "workload"})).exact
    assert judged(two, answer()).wrong_name


def test_precision_and_recall_are_of_exact_names() -> None:
    found = score(
        [judged(NIC, answer()), judged(NIC, answer(culprit_ranks=[1])), judged(NIC, NOBODY),
         judged(HEALTHY, NOBODY), judged(HEALTHY, answer())]
    )  # fmt: skip
    assert (found.cases, found.exact, found.healthy) == (5, 2, 2)
    assert (found.false_alarms, found.missed, found.wrong_names) == (1, 1, 1)
    assert found.precision == found.recall == pytest.approx(1 / 3)
    empty = score([judged(HEALTHY, NOBODY)])
    assert empty.precision is None and empty.recall is None and empty.onset_error_steps is None


def nobody(folder: Path) -> dict[str, Any]:
    assert {file.name for file in folder.iterdir()} == {"records.jsonl.gz", "topology.json"}
    return NOBODY


def test_a_run_prints_a_table_and_gives_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--only", "slow_gpu 1.3 onset", "--seeds", "2", "--json-cases", "--keep", str(tmp_path)]
    figures = detect.run(options, nobody)
    assert figures["cases"] == figures["missed"] == 2 and figures["recall"] == 0.0
    assert figures["bench"] == "detect" and figures["ranks"] == [16]
    printed = capsys.readouterr().out.splitlines()
    told = [json.loads(line) for line in printed if line.startswith("{")]
    assert [one["exact"] for one in told] == [False, False] and told[0]["truth"]["kind"] == "slow_gpu"
    assert any(line.split()[:4] == ["slow_gpu", "1.3", "onset", "2"] for line in printed)
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 2
    names = {"records.jsonl.gz", "topology.json", "truth.json", "answer.json"}
    assert {file.name for file in kept[0].iterdir()} == names


def test_in_arrays_the_same_is_judged_without_a_file(tmp_path: Path) -> None:
    options = ["--only", "slow_gpu 1.3 onset", "--seeds", "1", "--keep", str(tmp_path)]
    from_files, in_arrays = (detect.run([*options, *more]) for more in ([], ["--arrays"]))
    assert from_files["exact"] == in_arrays["exact"] == 1 and not list(tmp_path.iterdir())
    one = Cell("slow_gpu", "1.3", "onset", (Fault(Kind.GPU, 1.3),)).job(16, 1)
    told = verdict_on(log_of(one)), verdict_of(one.write(tmp_path))
    named = [{name: what[name] for name in what if name not in ("why", "findings")} for what in told]
    assert named[0] == named[1]  # groups of one size are told in the order in which the lines name them


def test_cases_that_are_there_are_judged_where_they_lie(tmp_path: Path) -> None:
    for name, truth in (("one", NIC), ("two", HEALTHY)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "truth.json").write_text(json.dumps(truth))
    figures = detect.run(["--cases", str(tmp_path)], lambda folder: NOBODY)
    assert (figures["cases"], figures["exact"], figures["missed"]) == (2, 1, 1)
    assert figures["folder"] == str(tmp_path)


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    for options, text in (
        (["--ranks", "17"], "--ranks takes"), (["--seeds", "0"], "--seeds takes"),
        (["--only", "nothing"], "no such case"), (["--cases", str(tmp_path)], "no such case"),
    ):  # fmt: skip
        with pytest.raises(OpsError, match=text):
            detect.run(options, nobody)


def test_the_bench_is_there_by_its_name() -> None:
    assert REGISTRY["detect"] == "clusterwatch.cli.benches.detect:run" and "detect" in available()
