"""What every test has: an environment of its own, the embedded servers on demand, limits, honest skips.

The servers are planned here, before Django reads its settings, and started only when a test asks for `stack`
or for pytest-django's `db`. Each pytest process (each xdist worker too) has its own pair in its own folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType

import django
import pytest
import redis

from tests.stack import Stack, own_folder, plan_stack

IN_CI = os.environ.get("CI") == "true"
TEST_LIMIT_S = 120.0
FOLDER_PREFIX = "cw-test-"
# A test with one of these marks must run in CI: a skip there would hide that the feature was never tried.
MUST_RUN_IN_CI = ("stack", "torch", "browser", "e2e", "wheel")
DATABASE_FIXTURES = {"stack", "valkey", "db", "transactional_db", "django_db_setup"}


def _isolate_environment() -> Stack:
    """Takes foreign settings away and points every CLUSTERWATCH_* variable at this run's own folder."""
    for name in [name for name in os.environ if name.startswith("CLUSTERWATCH_")]:
        if not name.startswith("CLUSTERWATCH_TEST_"):
            del os.environ[name]
    planned = plan_stack(own_folder(FOLDER_PREFIX))
    os.environ["CLUSTERWATCH_STATE_DIR"] = str(planned.folder)
    os.environ["CLUSTERWATCH_SECRET_KEY"] = "only-for-tests-" + "0" * 40
    os.environ["CLUSTERWATCH_DATABASE_URL"] = planned.database_url
    os.environ["CLUSTERWATCH_VALKEY_URL"] = planned.valkey_url
    os.environ["DJANGO_SETTINGS_MODULE"] = "clusterwatch.project.settings"
    return planned


_planned = _isolate_environment()


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The embedded PostgreSQL and Valkey, running; started once per pytest process."""
    try:
        _planned.start_postgres()
        _planned.start_valkey()
        yield _planned
    finally:
        _planned.stop()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(stack: Stack) -> None:
    """pytest-django makes its database on the embedded server; each process has its own, so no suffix."""


@pytest.fixture
def valkey(stack: Stack) -> Iterator[redis.Redis]:
    """A client of the embedded Valkey, emptied before the test."""
    with redis.Redis.from_url(stack.valkey_url) as client:
        client.flushall()
        yield client


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Debian's Chromium; tests that use it are marked `browser`."""
    path = _chromium()
    if path is None:
        pytest.skip("Chromium is not installed")
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests marked long")


def pytest_configure() -> None:
    """Sets Django up; pytest-django does so only for settings that were named before this file was read."""
    django.setup()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Workers must not inherit the settings: they would read them, with our servers, before this file."""
    del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what needs the servers, and leaves long tests for `make long`."""
    kept: list[pytest.Item] = []
    for item in items:
        needs_servers = DATABASE_FIXTURES & set(getattr(item, "fixturenames", ()))
        if needs_servers or item.get_closest_marker("django_db"):
            item.add_marker("stack")
        if item.get_closest_marker("long") is None or config.getoption("--long"):
            kept.append(item)
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Says plainly what a skipped test would need."""
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")
    if item.get_closest_marker("torch") and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install torch==2.13.0")
    if item.get_closest_marker("browser") and _chromium() is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test that runs longer than its limit (120 s, or what `@pytest.mark.limit_s(N)` says)."""
    marker = item.get_closest_marker("limit_s")
    limit_s = float(marker.args[0]) if marker else TEST_LIMIT_S

    def over(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"over its limit of {limit_s:g} s")

    previous = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skip of a test that must run there is a failure."""
    report = yield
    not_root = item.get_closest_marker("root") and os.geteuid() != 0
    must_run = not not_root and any(item.get_closest_marker(name) for name in MUST_RUN_IN_CI)
    if IN_CI and must_run and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} must run in CI, but was skipped: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI a whole file may not skip itself away."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
    return report


def pytest_unconfigure() -> None:
    """Leaves no folder behind."""
    shutil.rmtree(_planned.folder, ignore_errors=True)


def _chromium() -> str | None:
    chosen = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    return chosen if chosen and Path(chosen).exists() else None
