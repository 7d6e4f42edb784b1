"""The example's own machinery: options, starting lines, stopping everything, the link that can be cut."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from examples import hosts, network
from examples.run import Example, ExampleError, Plan, parse

pytestmark = [pytest.mark.torch]


def state(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "web_url": "http://127.0.0.1:8642",
        "gateway_url": "ws://127.0.0.1:9",
        "enrolment_token_file": str(folder / "token"),
    }
    (folder / "endpoints.json").write_text(json.dumps(found))
    return folder


def test_make_passes_the_fault_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "spin")
    monkeypatch.setenv("FAULT_RANK", "3")
    plan = parse(["--checkpoint-every=7"])
    assert (plan.fault, plan.fault_rank, plan.scenario) == ("spin", 3, "healthy")
    assert plan.arguments == ["--checkpoint-every=7"]


def test_without_a_running_server_one_line_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ExampleError, match="make up"):
        Example(Plan(state_dir=tmp_path))


def test_four_hosts_of_two_ranks(tmp_path: Path) -> None:
    example = Example(Plan(state_dir=state(tmp_path), job="job-1"))
    assert example.world_size == 8
    assert example.host_of(5).name == "host-c"
    assert example.job_url == "http://127.0.0.1:8642/search?q=job-1"
    assert example.pids() == {} and example.step(0) == 0


def test_reads_step_process_and_fault_from_a_ranks_log(tmp_path: Path) -> None:
    plan = Plan(state_dir=state(tmp_path / "state"), folder=tmp_path / "job", fault="spin", fault_step=3)
    example = Example(plan)
    log = example.host_of(5).log(5)
    log.parent.mkdir(parents=True)
    log.write_text("rank 5 pid 4711\nstep 1 loss 4.1 took 0.2 s\nstep 2 loss 4.0 took 0.2 s\n")
    assert example.pids() == {5: 4711} and example.step(5) == 2
    example.poll()
    assert example.fault_at_ns is None
    with log.open("a") as file:
        file.write("FAULT 1234567890 kind=spin step=3\n")
    assert example.wait_for_fault(timeout_s=1) == 1234567890


def test_stop_ends_frozen_processes_and_their_children() -> None:
    script = (
        "import subprocess, time; subprocess.Popen(['sleep', '60']); print(1, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    hosts.send(process, signal.SIGSTOP)
    hosts.stop([process], patience_s=2)
    assert process.returncode is not None
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a child outlived stop()")


def test_the_relay_carries_both_ways() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    relay = network.Relay("127.0.0.1", server.getsockname())
    near = socket.create_connection(("127.0.0.1", relay.port))
    far, _address = server.accept()
    near.sendall(b"up")
    far.sendall(b"down")
    assert (far.recv(8), near.recv(8)) == (b"up", b"down")
    far.close()
    assert near.recv(8) == b""
    near.close()
    relay.close()
    server.close()


def test_a_cut_link_needs_root_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(network.NetworkError, match="root"):
        network.HostLink().up(hosts.Gateway("ws://127.0.0.1:9", "token"))
