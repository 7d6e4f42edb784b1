"""What is decided before the first process starts: environment, secrets, ports, endpoints."""

from __future__ import annotations

import json
import os
import socket
import stat
import uuid
from pathlib import Path

import pytest

from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.processes import Address
from clusterwatch.ops.stamp import ENROLMENT_SECRETS, STAMP_FILE, is_bootstrapped, wanted_stamp
from clusterwatch.ops.state import StateFolder
from clusterwatch.ops.up import Settings, make_plan, run_foreground

WEB = Address("127.0.0.1", 18642)
GATEWAY = Address("0.0.0.0", 18643)


def free_address() -> Address:
    """An address nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", probe.getsockname()[1])


@pytest.fixture
def state() -> StateFolder:
    """A state folder below this run's own: pytest's are closed to the account PostgreSQL runs as."""
    return StateFolder.open(Path(os.environ["CLUSTERWATCH_STATE_DIR"]) / uuid.uuid4().hex)


def settings(**changes: object) -> Settings:
    values: dict[str, object] = {
        "web": WEB,
        "gateway": GATEWAY,
        "public_url": "http://127.0.0.1:18642",
        "gateway_url": "ws://127.0.0.1:18643",
        "demo_gpus": 512,
        "database_url": "postgresql://me:secret-of-mine@db/clusterwatch",
        "valkey_url": "redis://cache:6379/0",
    }
    return Settings(**(values | changes))  # type: ignore[arg-type]


def test_servers_of_ones_own_replace_the_embedded_ones(state: StateFolder) -> None:
    names = [spec.name for spec in make_plan(state, settings(), {}).specs]
    assert "postgres" not in names
    assert "valkey" not in names
    assert {"bootstrap", "web", "gateway", "pulse", "worker", "beat", "agent", "simulator"} == set(names)


def test_embedded_servers_come_first_and_everything_waits_for_them(state: StateFolder) -> None:
    plan = make_plan(state, settings(database_url="", valkey_url=""), os.environ)
    assert [spec.name for spec in plan.specs[:2]] == ["postgres", "valkey"]
    assert all({"postgres", "valkey"} <= set(spec.after) for spec in plan.specs[2:])


def test_no_simulated_cluster_without_gpus(state: StateFolder) -> None:
    assert "simulator" not in [spec.name for spec in make_plan(state, settings(demo_gpus=0), {}).specs]


def test_no_process_carries_a_secret_in_command_or_environment(state: StateFolder) -> None:
    plan = make_plan(state, settings(secrets={"secret_key": "k" * 40}), {"CLUSTERWATCH_SECRET_KEY": "k" * 40})
    everything = json.dumps([dict(plan.env), *[spec.argv for spec in plan.specs]])
    assert "secret-of-mine" not in everything
    assert "k" * 40 not in everything
    path = Path(plan.env["CLUSTERWATCH_DATABASE_URL_FILE"])
    assert path.read_text().strip().endswith("@db/clusterwatch")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_foreign_settings_do_not_reach_the_processes(state: StateFolder) -> None:
    environ = {"PGHOST": "elsewhere", "DJANGO_SETTINGS_MODULE": "other", "CLUSTERWATCH_TOKEN": "of-another"}
    env = make_plan(state, settings(), environ).env
    assert not set(environ) & set(env)


def test_settings_of_a_part_reach_it(state: StateFolder) -> None:
    environ = {"CLUSTERWATCH_RETENTION_DAYS_EVENT": "30", "CLUSTERWATCH_NODE": "head-1", "PATH": "/bin"}
    env = make_plan(state, settings(), environ).env
    assert environ.items() <= env.items()


def test_secrets_stay_the_same_over_starts(state: StateFolder) -> None:
    make_plan(state, settings(), {})
    first = (state.secret("secret_key"), state.secret("admin_password"))
    make_plan(state, settings(), {})
    assert (state.secret("secret_key"), state.secret("admin_password")) == first


def test_a_warm_start_skips_the_bootstrap_only_for_the_same_migrations(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = state.folder("postgres")
    (home / "data").mkdir()
    (home / "data" / "PG_VERSION").write_text("18\n")
    assert not is_bootstrapped(state, home)
    (home / STAMP_FILE).write_text(wanted_stamp() + "\n")
    assert not is_bootstrapped(state, home), "the tokens are not there"
    for name in ENROLMENT_SECRETS:
        state.secret(name)
    assert is_bootstrapped(state, home)
    monkeypatch.setattr("clusterwatch.__version__", "99")
    assert not is_bootstrapped(state, home)


@pytest.mark.parametrize(
    ("name", "variable"), [("web", "CLUSTERWATCH_BIND"), ("gateway", "CLUSTERWATCH_GATEWAY_BIND")]
)
def test_a_port_in_use_is_one_line_with_the_variable(state: StateFolder, name: str, variable: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(OpsError, match=rf"Port {port} .* is in use .*{variable}="):
            addresses = {"web": free_address(), "gateway": free_address()}
            run_foreground(state, settings(**(addresses | {name: Address("127.0.0.1", port)})), {})
    assert not (state.root / "endpoints.json").exists(), "nothing was started"
