"""What `clusterwatch simulate` makes of its arguments and the environment."""

import argparse
from pathlib import Path

import pytest

from clusterwatch.cli import simulate
from clusterwatch.cli.main import build_parser
from clusterwatch.ops.errors import OpsError
from clusterwatch.simulate.faults.catalogue import FAULTS


def parsed(*words: str) -> argparse.Namespace:
    return build_parser("simulate").parse_args(["simulate", *words])


def environ(root: Path, **more: str) -> dict[str, str]:
    return {"CLUSTERWATCH_STATE_DIR": str(root), "CLUSTERWATCH_GATEWAY_URL": "ws://127.0.0.1:9", **more}


def test_without_arguments_it_is_the_demo_cluster_with_its_own_token(tmp_path: Path):
    found = simulate.read_settings(parsed(), environ(tmp_path))
    assert (found.cluster, found.gpu_count, found.seed) == ("simulated", 512, 0)
    assert found.token_file == tmp_path / "secrets" / "enrolment_token_simulated"


def test_a_named_token_wins(tmp_path: Path):
    secret = tmp_path / "token"
    secret.write_text("secret\n")
    assert (
        simulate.read_settings(parsed(), environ(tmp_path, CLUSTERWATCH_TOKEN_FILE=str(secret))).token_file
        == secret
    )
    assert simulate.read_settings(parsed(), environ(tmp_path, CLUSTERWATCH_TOKEN="direct")).token == "direct"


def test_the_gateway_may_come_from_the_supervisor(tmp_path: Path):
    (tmp_path / "endpoints.json").write_text('{"gateway_url": "ws://127.0.0.1:7777"}')
    found = simulate.read_settings(parsed("--cluster", "lab"), {"CLUSTERWATCH_STATE_DIR": str(tmp_path)})
    assert (found.gateway_url, found.cluster) == ("ws://127.0.0.1:7777", "lab")


@pytest.mark.parametrize(
    "words", [("--gpus", "0"), ("--gpus", "999999999"), ("--seed", "-1"), ("--cluster", "a\nb")]
)
def test_a_bad_value_is_one_line(tmp_path: Path, words: tuple[str, ...]):
    with pytest.raises(OpsError, match=r"^[^\n]+$"):
        simulate.read_settings(parsed(*words), environ(tmp_path))


def test_without_a_gateway_it_says_what_to_do(tmp_path: Path):
    with pytest.raises(OpsError, match="CLUSTERWATCH_GATEWAY_URL"):
        simulate.read_settings(parsed(), {"CLUSTERWATCH_STATE_DIR": str(tmp_path)})


def test_shape_jobs_faults_and_truth_come_from_the_arguments(tmp_path: Path):
    words = ("--gpus-per-node", "4", "--nvlink-domain", "72", "--fabric", "infiniband", "--jobs", "3")
    more = ("--fault", "slow_gpu", "--fault", "rank_stuck@9+2", "--truth", str(tmp_path / "truth.json"))
    found = simulate.read_settings(parsed(*words, *more), environ(tmp_path))
    assert (found.shape.gpus_per_node, found.shape.domain_nodes, found.shape.fabric) == (4, 18, "infiniband")
    assert (found.jobs_max, found.faults) == (3, ("slow_gpu", "rank_stuck@9+2"))
    assert found.truth == tmp_path / "truth.json"


@pytest.mark.parametrize("words", [("--gpus-per-node", "0"), ("--nvlink-domain", "12"), ("--jobs", "0")])
def test_an_impossible_shape_is_one_line(tmp_path: Path, words: tuple[str, ...]):
    with pytest.raises(OpsError, match=r"^[^\n]+$"):
        simulate.read_settings(parsed(*words), environ(tmp_path))


def test_the_faults_are_listed_with_a_line_each(capsys: pytest.CaptureFixture[str]):
    assert simulate.run(parsed("--list-faults")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(FAULTS) == len({line.split()[0] for line in lines})


def test_an_unknown_fault_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in environ(tmp_path, CLUSTERWATCH_TOKEN="t").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OpsError, match="--list-faults"):
        simulate.run(parsed("--gpus", "16", "--fault", "melted"))
