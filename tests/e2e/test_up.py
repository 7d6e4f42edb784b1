"""The real table under the real supervisor: started, found, killed, recovered, stopped."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request

import pytest

from clusterwatch.ops.proc import all_processes, process_variable
from clusterwatch.ops.supervisor import RUN_ID_VARIABLE
from tests.e2e.conftest import Figures
from tests.e2e.product import Product, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.limit_s(300)]

NAMES = ["postgres", "valkey", "bootstrap", "web", "gateway", "pulse", "worker", "beat", "agent"]


def processes_of(run_id: str) -> list[int]:
    """Process ids that were started by this run, children included."""
    return [
        p.pid for p in all_processes() if process_variable(p.pid, RUN_ID_VARIABLE) == run_id and p.is_running
    ]


def status_of(product: Product) -> dict[str, object]:
    status: dict[str, object] = json.loads((product.folder / "status.json").read_text())
    return status


def test_everything_is_ready_and_the_address_answers(product: Product) -> None:
    answer = json.loads(product.cli("status", "--json").stdout)
    assert answer["phase"] == "ready"
    assert [row["name"] for row in answer["processes"]] == NAMES
    assert {row["state"] for row in answer["processes"]} <= {"ready", "done"}
    with urllib.request.urlopen(f"{product.url}/login/", timeout=10) as page:
        assert page.status == 200


def test_a_second_up_says_where_it_runs_and_starts_nothing(product: Product) -> None:
    before = status_of(product)
    done = product.cli("up")
    assert done.returncode == 0
    assert done.stdout.startswith("Already running.")
    assert product.url in done.stdout
    assert "correct-horse-battery" in done.stdout
    assert status_of(product) == before


def test_endpoints_are_public_and_hold_no_secret(product: Product) -> None:
    path = product.folder / "endpoints.json"
    assert path.stat().st_mode & 0o777 == 0o644
    endpoints = json.loads(path.read_text())
    assert set(endpoints) == {"web_url", "gateway_url", "hook_socket", "enrolment_token_file"}
    token = (product.folder / "secrets" / "enrolment_token").read_text().strip()
    assert token not in path.read_text()


@pytest.mark.parametrize("name", ["valkey", "gateway", "worker", "postgres"])
def test_what_is_killed_comes_back(product: Product, name: str) -> None:
    killed = product.pid(name)
    product.kill(name)

    def back() -> bool | None:
        record = json.loads((product.folder / "status.json").read_text())["processes"][name]
        return True if record["state"] == "ready" and record["pid"] != killed else None

    wait_for(back, 60, f"{name} is ready again")


def test_after_kill_9_of_the_supervisor_the_next_up_recovers(product: Product, figures: Figures) -> None:
    status = json.loads((product.folder / "status.json").read_text())
    os.kill(status["supervisor"]["pid"], signal.SIGKILL)
    wait_for(
        lambda: json.loads(product.cli("status", "--json").stdout)["phase"] == "killed" or None, 10, "seen"
    )
    assert processes_of(status["run_id"])
    before_s = time.monotonic()
    product.up()
    figures.append(f"up after kill -9 of the supervisor: {time.monotonic() - before_s:.1f} s")
    assert processes_of(status["run_id"]) == []
    assert product.get("/jobs")["results"] == []


def test_down_leaves_no_process_and_a_warm_start_is_quick(product: Product, figures: Figures) -> None:
    run_id = json.loads((product.folder / "status.json").read_text())["run_id"]
    assert product.cli("down").returncode == 0
    assert processes_of(run_id) == []
    before_s = time.monotonic()
    product.up()
    figures.append(f"warm up: {time.monotonic() - before_s:.1f} s")
