"""What goes into a distribution: the folder that a job's PYTHONPATH gets must be in it."""

from __future__ import annotations

from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).resolve().parents[3]


def test_the_loader_is_packaged() -> None:
    assert "collectors.hook.path" in find_packages(str(ROOT), include=["collectors*"])
