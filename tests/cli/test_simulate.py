"""What `clusterwatch simulate` makes of its arguments and the environment."""

import argparse
from pathlib import Path

import pytest

from clusterwatch.cli import simulate
from clusterwatch.cli.main import build_parser
from clusterwatch.ops.errors import OpsError


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
