"""The command line: one line per fault, the right exit code, no import that is not needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterwatch.cli import main as cli
from clusterwatch.cli.bench import REGISTRY, available
from clusterwatch.cli.up import read_settings
from clusterwatch.ops.errors import OpsError

ROOT = Path(__file__).parents[2]


def test_lists_each_command_that_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for name in cli.available_commands():
        assert f"  {name} " in text


def test_a_command_that_is_not_installed_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "teleport", "not there")
    assert "teleport" not in cli.available_commands()
    assert "up" in cli.available_commands()


@pytest.mark.parametrize("arguments", [[], ["teleport"], ["up", "--no-such-option"]])
def test_wrong_usage_ends_with_64(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 64
    assert capsys.readouterr().err


def test_a_known_fault_is_one_line_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTERWATCH_BIND", "nowhere")
    assert cli.main(["doctor"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("clusterwatch: ")
    assert "CLUSTERWATCH_BIND" in error
    assert error.count("\n") == 1


def test_status_of_nothing_is_down_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTERWATCH_STATE_DIR", str(tmp_path))
    assert cli.main(["status"]) == 1
    assert "clusterwatch is down" in capsys.readouterr().out


def test_down_of_nothing_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTERWATCH_STATE_DIR", str(tmp_path / "none"))
    assert cli.main(["down"]) == 0
    assert capsys.readouterr().out == "Nothing runs here.\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["up", "status", "doctor", "--help"])
def test_starts_without_django(command: str) -> None:
    code = (
        "import sys; from clusterwatch.cli import main\n"
        f"try: main.build_parser({command!r})\n"
        "finally: print(sorted({'django', 'celery', 'numpy', 'torch'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CLUSTERWATCH_BIND", "8642"),
        ("CLUSTERWATCH_GATEWAY_BIND", "host:port"),
        ("CLUSTERWATCH_DEMO_GPUS", "many"),
        ("CLUSTERWATCH_DATABASE_URL_FILE", "/no/such/file"),
    ],
)
def test_a_bad_setting_is_named(variable: str, value: str) -> None:
    with pytest.raises(OpsError, match=variable):
        read_settings({variable: value})


def test_the_address_printed_is_the_one_to_open() -> None:
    assert read_settings({"CLUSTERWATCH_BIND": "0.0.0.0:9000"}).public_url == "http://127.0.0.1:9000"
    assert read_settings({"CLUSTERWATCH_URL": "https://watch.example"}).public_url == "https://watch.example"


def test_agents_of_this_machine_reach_a_gateway_bound_to_every_address() -> None:
    settings = read_settings({"CLUSTERWATCH_GATEWAY_BIND": "0.0.0.0:9001"})
    assert settings.gateway_url == "ws://127.0.0.1:9001"
    assert (
        read_settings({"CLUSTERWATCH_GATEWAY_URL": "wss://watch.example"}).gateway_url
        == "wss://watch.example"
    )


def test_benches_that_are_offered_can_be_called() -> None:
    import importlib

    for name in available():
        module, _, function = REGISTRY[name].partition(":")
        assert callable(getattr(importlib.import_module(module), function)), name


def test_an_unknown_bench_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "luck"]) == 64
    assert "there are:" in capsys.readouterr().err
