"""The embedded PostgreSQL: rights, secrets, crashes, leftovers."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from clusterwatch.ops.account import Account, can_reach, server_account
from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.postgres import clear_leftover, plan_postgres, prepare_postgres
from clusterwatch.ops.state import StateFolder
from tests.stack import Stack, plan_stack

pytestmark = pytest.mark.stack

DEBIAN_POSTGRES = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture(scope="module")
def module_stack() -> Iterator[Stack]:
    """A pair of servers of this file alone: its tests kill them."""
    planned = plan_stack(plan_stack_folder())
    planned.start_postgres()
    yield planned
    planned.stop()


@pytest.fixture
def own_stack(module_stack: Stack) -> Stack:
    """The same with PostgreSQL running and no table left of another test."""
    if not module_stack.is_running("postgres"):
        module_stack.start_postgres()
    with psycopg.connect(module_stack.database_url) as connection:
        connection.execute("drop table if exists numbers")
    return module_stack


def setting(server: Stack, name: str) -> str:
    with psycopg.connect(server.database_url) as connection:
        row = connection.execute("select current_setting(%s)", (name,)).fetchone()
    assert row
    return str(row[0])


def write_number(server: Stack, number: int) -> None:
    with psycopg.connect(server.database_url) as connection:
        connection.execute("create table if not exists numbers (n integer)")
        connection.execute("insert into numbers values (%s)", (number,))


def read_numbers(server: Stack) -> list[int]:
    with psycopg.connect(server.database_url) as connection:
        return [row[0] for row in connection.execute("select n from numbers order by n")]


def test_listens_on_its_socket_only_and_syncs_and_checks_its_pages(stack: Stack) -> None:
    assert setting(stack, "listen_addresses") == ""
    assert setting(stack, "fsync") == "on"
    assert setting(stack, "data_checksums") == "on"
    assert setting(stack, "synchronous_commit") == "on"


def test_refuses_a_wrong_password_even_on_the_socket(stack: Stack) -> None:
    wrong = stack.database_url.replace(stack.postgres.app_password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_the_product_is_no_superuser(stack: Stack) -> None:
    assert setting(stack, "is_superuser") == "off"


def test_the_password_leaves_no_file_that_others_can_read(own_stack: Stack) -> None:
    state = StateFolder(own_stack.folder)
    secret = state.secret_path("postgres_password")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert not (own_stack.postgres.home / "initial-password").exists()
    assert own_stack.postgres.app_password not in " ".join(own_stack.postgres.argv())


def test_folders_keep_their_rights(own_stack: Stack) -> None:
    assert stat.S_IMODE(own_stack.folder.stat().st_mode) == 0o711
    assert stat.S_IMODE(own_stack.postgres.home.stat().st_mode) == 0o700
    assert stat.S_IMODE(own_stack.postgres.data_dir.stat().st_mode) == 0o700


@pytest.mark.root
def test_root_lends_an_account_that_is_not_root(own_stack: Stack) -> None:
    status = Path(f"/proc/{own_stack.pid('postgres')}/status").read_text()
    uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
    assert own_stack.postgres.account is not None
    assert set(uids) == {str(own_stack.postgres.account.uid)}
    groups = next(line for line in status.splitlines() if line.startswith("Groups:")).split()[1:]
    assert "0" not in groups


@pytest.mark.root
def test_parent_folders_that_are_closed_stay_closed_and_the_data_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "home-of-root"
    closed.mkdir(mode=0o700)
    elsewhere = StateFolder.open(plan_stack_folder()).root
    monkeypatch.setattr("clusterwatch.ops.postgres.INSTALLED_STATE_DIR", elsewhere)
    state = StateFolder.open(closed / "state")
    server = plan_postgres(state, os.environ)
    assert server.home.parent == elsewhere
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert plan_postgres(state, os.environ).home == server.home, "the next start must find the same data"


@pytest.mark.root
def test_binaries_the_account_cannot_read_are_copied_beside_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = server_account()
    monkeypatch.setattr(
        "clusterwatch.ops.postgres.can_reach",
        lambda path, account: "site-packages" not in str(path),
    )
    server = plan_postgres(StateFolder.open(plan_stack_folder()), os.environ)
    assert server.binaries.folder.is_relative_to(server.home)
    program = server.binaries.folder / "postgres"
    assert account is not None
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, **account.identity())
    assert "PostgreSQL" in answer.stdout


def plan_stack_folder() -> Path:
    """A new state folder under this run's own, which a server account can reach."""
    base = Path(os.environ["CLUSTERWATCH_STATE_DIR"])
    return base / f"extra-{time.monotonic_ns()}"


def test_committed_rows_survive_kill_9_and_a_restart(own_stack: Stack) -> None:
    write_number(own_stack, 1)
    own_stack.kill("postgres")
    own_stack.start_postgres()
    write_number(own_stack, 2)
    assert read_numbers(own_stack) == [1, 2]


def test_a_lock_file_that_names_a_living_stranger_is_no_obstacle(own_stack: Stack) -> None:
    write_number(own_stack, 1)
    own_stack.kill("postgres")
    stranger = subprocess.Popen(
        ["/bin/sleep", "60"],
        cwd="/",
        **(own_stack.postgres.account.identity() if own_stack.postgres.account else {}),
    )
    try:
        lock = own_stack.postgres.data_dir / "postmaster.pid"
        lines = lock.read_text().splitlines()
        lock.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        own_stack.start_postgres()
        assert read_numbers(own_stack) == [1]
        assert stranger.poll() is None, "a stranger must not be stopped"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_left_running_is_stopped_before_the_next_start(own_stack: Stack) -> None:
    write_number(own_stack, 1)
    left = own_stack._running.pop("postgres")
    clear_leftover(own_stack.postgres.data_dir)
    assert left.wait(10) == 0, "a fast shutdown, not a kill"
    own_stack.start_postgres()
    assert read_numbers(own_stack) == [1]


def test_a_shell_in_the_data_folder_is_left_alone(own_stack: Stack) -> None:
    own_stack.kill("postgres")
    identity = own_stack.postgres.account.identity() if own_stack.postgres.account else {}
    shell = subprocess.Popen(["/bin/sleep", "60"], cwd=own_stack.postgres.data_dir, **identity)
    try:
        own_stack.start_postgres()
        assert shell.poll() is None
    finally:
        shell.kill()
        shell.wait()


def test_a_half_made_data_folder_is_made_anew(tmp_path: Path) -> None:
    state = StateFolder.open(plan_stack_folder())
    server = plan_postgres(state, os.environ)
    (server.home / "data.partial").mkdir()
    (server.home / "data.partial" / "PG_VERSION").write_text("18\n")
    prepare_postgres(server)
    assert (server.data_dir / "PG_VERSION").exists()
    assert not (server.home / "data.partial").exists()


def test_data_of_another_version_is_left_alone_and_named(tmp_path: Path) -> None:
    server = plan_postgres(StateFolder.open(plan_stack_folder()), os.environ)
    server.data_dir.mkdir(parents=True)
    (server.data_dir / "PG_VERSION").write_text("14\n")
    with pytest.raises(OpsError, match="written by PostgreSQL 14"):
        prepare_postgres(server)
    assert (server.data_dir / "PG_VERSION").read_text() == "14\n"


def test_a_long_path_still_gives_a_socket_the_kernel_takes() -> None:
    deep = plan_stack_folder() / ("deep" * 20)
    stack = plan_stack(deep)
    try:
        stack.start_postgres()
        stack.start_valkey()
        assert len(str(stack.valkey.socket_path)) <= 90
        assert stat.S_IMODE(stack.postgres.socket_dir.stat().st_mode) == 0o700
        assert setting(stack, "server_encoding") == "UTF8"
    finally:
        stack.stop()
        for folder in (stack.postgres.socket_dir, stack.valkey.socket_path.parent):
            if folder.parent != stack.folder:
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()


@pytest.mark.skipif(not DEBIAN_POSTGRES.exists(), reason="Debian's PostgreSQL 15 is not installed")
def test_debians_postgresql_15_works_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERWATCH_PG_BIN", str(DEBIAN_POSTGRES))
    stack = plan_stack(plan_stack_folder())
    assert (stack.postgres.binaries.origin, stack.postgres.binaries.major) == ("chosen", 15)
    try:
        stack.start_postgres()
        write_number(stack, 7)
        assert read_numbers(stack) == [7]
    finally:
        stack.stop()


def test_valkey_writes_nothing_and_opens_no_port(stack: Stack) -> None:
    argv = stack.valkey.argv()
    assert argv[argv.index("--port") + 1] == "0"
    assert argv[argv.index("--appendonly") + 1] == "no"
    assert stat.S_IMODE(stack.valkey.socket_path.stat().st_mode) == 0o700


def test_a_closed_folder_is_seen_from_outside(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    stranger = Account("stranger", 65533, 65533)
    assert not can_reach(tmp_path / "closed" / "file", stranger)
    assert can_reach(Path("/usr/bin/env"), stranger)
    assert can_reach(tmp_path / "closed" / "file", None)
