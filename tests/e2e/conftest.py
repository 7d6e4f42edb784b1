"""One product for all tests of a file, and the figures of each fault at the end of the run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.product import Product


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


class Figures:
    """Lines of a test, one per fault or scenario; they travel with its report, from another process too."""

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties

    def append(self, line: str) -> None:
        self._properties.append(("figure", line))


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    return Figures(request.node.user_properties)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    figures = [str(line) for report in reports for name, line in report.user_properties if name == "figure"]
    if figures:
        terminalreporter.section("times from the fault, s")
        for line in figures:
            terminalreporter.write_line(line)
