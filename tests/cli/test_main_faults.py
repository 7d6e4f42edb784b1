"""What goes wrong before or after the answer is one line: missing packages, a full disk, wrong files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterwatch.cli.main import main
from clusterwatch.readers.observation import observe
from collectors.hook import run as hook_run
from tests.cases.jobs import Call, Job

Captured = pytest.CaptureFixture[str]
_WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {gone!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from clusterwatch.cli.main import main
sys.exit(main({arguments!r}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job = Job(2)
    for _ in range(3):
        job.every(Call(job.default))
    return job.run().write(tmp_path / "job")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["analyze", "--help"], "analysis"),
        (["why", "7"], "server"),
        (["doctor"], "server"),
        (["up", "--help"], "server"),
        (["token", "create"], "server"),
    ],
)
def test_a_command_whose_packages_are_not_installed_names_the_extra(arguments: list[str], extra: str) -> None:
    gone = ("numpy", "django", "psycopg", "redis", "celery", "channels", "uvicorn")
    code = _WITHOUT.format(gone=gone, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and f"pip install 'clusterwatch[{extra}]'" in done.stderr


def test_a_fault_of_our_own_modules_is_not_taken_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_command: str | None) -> None:
        raise ModuleNotFoundError("No module named 'clusterwatch.gone'", name="clusterwatch.gone")

    monkeypatch.setattr("clusterwatch.cli.main.build_parser", lost)
    with pytest.raises(ModuleNotFoundError):
        main(["analyze", "x"])


def test_an_interrupt_while_the_command_is_loaded_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_command: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterwatch.cli.main.build_parser", interrupted)
    assert main(["analyze", "x"]) == 130


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_an_answer_that_finds_no_room_is_one_line(folder: Path, option: list[str]) -> None:
    command = [sys.executable, "-m", "clusterwatch.cli.main", "analyze", str(folder), *option]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "No space left" in done.stderr


@pytest.mark.parametrize("option", ["--html", "--perfetto"])
def test_an_input_is_never_written_over(folder: Path, tmp_path: Path, option: str, capsys: Captured) -> None:
    dump = next(folder.iterdir())
    log, topology = folder / "train.log", tmp_path / "topology.json"
    log.write_text("step 1\n")
    topology.write_text('{"ranks": [{"rank": 0, "host": "n1"}]}')
    for target in (dump, log, topology):
        before = target.read_bytes()
        assert main(["analyze", str(folder), "--topology", str(topology), option, str(target)]) == 64
        assert "not written over" in capsys.readouterr().err and target.read_bytes() == before


def test_an_earlier_page_in_the_folder_is_written_anew(folder: Path) -> None:
    page = folder / "report.html"
    for _ in range(2):
        assert main(["analyze", str(folder), "--html", str(page)]) == 0
    assert page.read_bytes().startswith(b"<!")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--html", "-"], "name of a file"),
        (["--perfetto", "-"], "name of a file"),
        (["--perfetto-ranks", "0-3"], "needs --perfetto"),
    ],
)
def test_options_that_cannot_work_are_said(
    folder: Path, options: list[str], word: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert main(["analyze", str(folder), *options]) == 64
    assert word in capsys.readouterr().err
    assert not (folder.parent / "-").exists()


@pytest.mark.parametrize("text", ["{", "[]", "", '{"ranks": []}', '{"ranks": [{"host": "a"}]}'])
def test_a_topology_that_is_none_is_wrong_usage_and_a_lost_one_no_input(
    folder: Path, tmp_path: Path, text: str, capsys: Captured
) -> None:
    file = tmp_path / "topology.json"
    assert main(["analyze", str(folder), "--topology", str(file)]) == 66
    file.write_text(text)
    assert main(["analyze", str(folder), "--topology", str(file)]) == 64
    assert str(file) in capsys.readouterr().err


def test_a_notebook_may_give_a_path_as_text(folder: Path) -> None:
    assert len(observe(str(folder)).windows) == 2


def test_an_unknown_bench_is_wrong_usage(capsys: Captured) -> None:
    assert main(["bench", "teleport"]) == 64
    assert "there are: " in capsys.readouterr().err


def test_run_without_a_command_says_how_in_two_lines(capsys: Captured) -> None:
    assert hook_run.main([]) == 64
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 2
    assert hook_run.main(["--help"]) == 0
    assert "====" not in capsys.readouterr().out
