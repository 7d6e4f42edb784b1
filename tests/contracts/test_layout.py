"""What the repository promises about its own files."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "THREAT_MODEL.md",
)


def pinned(path: Path) -> dict[str, str]:
    """Name -> version of every requirement of a file."""
    return dict(re.findall(r"^([a-z0-9._-]+)==([^\s;]+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_there_are_requirements_for_each_use() -> None:
    assert {path.stem for path in REQUIREMENTS} >= {"base", "server", "dev", "build"}


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_requirements_hold_no_address(path: Path) -> None:
    assert "://" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_each_requirement_is_pinned_and_hashed(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"^[a-z0-9._-]+(\[[a-z,-]+\])?==", line), line
        assert "--hash=sha256:" in line, line


def test_the_files_agree_on_versions() -> None:
    newest = pinned(ROOT / "requirements" / "dev.txt")
    for name in ("base", "server"):
        older = pinned(ROOT / "requirements" / f"{name}.txt")
        assert {package: newest.get(package) for package in older} == older


def test_torch_is_in_no_hashed_file() -> None:
    assert not any("torch" in pinned(path) for path in REQUIREMENTS)


def test_the_base_distribution_is_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=\[ ]", requirement)[0] for requirement in project["dependencies"]}
    assert names.isdisjoint({"django", "numpy", "celery", "torch", "psycopg"})
    assert len(names) <= 6


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_documents_are_there_and_their_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(text) > 200
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / target).exists(), f"{name} links to {target}"


def test_every_test_folder_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_no_file_is_tracked_that_a_build_makes() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    tracked = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    made = [
        name
        for name in tracked
        if re.search(r"\.pyc$|egg-info|^build/|^dist/|^\.venv/|\.clusterwatch/", name)
    ]
    assert made == []
