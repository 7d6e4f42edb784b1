"""One product for all tests of a file, and the figures of each fault at the end of the run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.product import Product

FIGURES: list[str] = []
"""One line per fault or scenario, printed in the summary of the run."""


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with (
        tempfile.TemporaryDirectory(prefix="cw-e2e-", ignore_cleanup_errors=True) as folder,
        Product(passable(folder) / "state") as running,
    ):
        yield running


def passable(folder: str) -> Path:
    """A temporary folder that PostgreSQL's account may pass through when the tests run as root."""
    Path(folder).chmod(0o711)
    return Path(folder)


@pytest.fixture
def figures() -> list[str]:
    return FIGURES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES:
        terminalreporter.section("times from the fault, s")
        for line in FIGURES:
            terminalreporter.write_line(line)
