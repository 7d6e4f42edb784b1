"""The built distribution: the wheel carries pages, and the base alone runs a node agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.wheel, pytest.mark.limit_s(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built as `pip` builds it, without fetching anything."""
    source = tmp_path_factory.mktemp("source")
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listing.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    target = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(target),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def node_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty environment with the wheel and the hashed base requirements only."""
    folder = tmp_path_factory.mktemp("node")
    venv.create(folder, with_pip=True)
    pip = [
        str(folder / "bin/python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "install",
        "-q",
    ]
    base = str(ROOT / "requirements" / "base.txt")
    subprocess.run([*pip, "--require-hashes", "-r", base], check=True, capture_output=True)
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    yield folder


def bare_environment(state_dir: Path) -> dict[str, str]:
    """Variables of a node: nothing of this test run."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}
    return kept | {"CLUSTERWATCH_STATE_DIR": str(state_dir), "CLUSTERWATCH_GATEWAY_URL": "ws://127.0.0.1:9"}


def test_the_wheel_carries_every_template_and_static_file(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("templates", "static"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
        wanted = {f"clusterwatch/assets/{path.relative_to(ROOT)}" for path in files}
        assert wanted
        assert wanted - packed == set()


def test_the_wheel_carries_no_tests(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"clusterwatch", "collectors"}


def test_the_wheel_carries_the_hook_that_goes_alone(wheel: Path) -> None:
    assert "collectors/hook/path/sitecustomize.py" in zipfile.ZipFile(wheel).namelist()


def test_the_base_alone_runs_the_agent_once(node_environment: Path, tmp_path: Path) -> None:
    answer = subprocess.run(
        [str(node_environment / "bin/clusterwatch-agent"), "once", "--stdout", "--sources", "host"],
        env=bare_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    records = [json.loads(line) for line in answer.stdout.splitlines()]
    assert records


def test_the_base_alone_has_no_server_parts(node_environment: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('django', 'numpy', 'celery') if u.find_spec(n)])"
    answer = subprocess.run(
        [str(node_environment / "bin/python"), "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


def test_the_installed_command_lists_what_it_can_do(node_environment: Path, tmp_path: Path) -> None:
    answer = subprocess.run(
        [str(node_environment / "bin/clusterwatch"), "--help"],
        env=bare_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert "analyze" in answer.stdout
