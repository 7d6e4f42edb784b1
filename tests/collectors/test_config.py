"""Settings come from the environment, a file or the supervisor, and a bad one stops the start with words."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from collectors import config as settings
from collectors import doctor, sources
from collectors.agent import AlreadyRunning, lock_folder
from collectors.config import ConfigError
from collectors.hook.endpoints import hook_socket
from collectors.hook.socket_path import short_socket_path
from collectors.sources.base import Reading, Sample
from collectors.sources.needs import NEEDS


def environment(folder: Path, **changes: str) -> dict[str, str]:
    base = {"CLUSTERWATCH_STATE_DIR": str(folder), "CLUSTERWATCH_GATEWAY_URL": "ws://127.0.0.1:9"}
    return base | {f"CLUSTERWATCH_{name}": text for name, text in changes.items()}


def test_the_environment_is_enough(tmp_path: Path) -> None:
    found = settings.load(
        environment(tmp_path, NODE="h1", CLUSTER="c", RACK="r", LEAF="l", BOOT_ID="b", TOKEN="t")
    )
    assert (found.node, found.cluster, found.rack, found.leaf, found.boot_id) == ("h1", "c", "r", "l", "b")
    assert found.state_dir == tmp_path / "agent"
    assert found.enrolment_token() == "t"


def test_what_is_not_said_is_the_machines_own(tmp_path: Path) -> None:
    found = settings.load(environment(tmp_path))
    assert found.node == socket.gethostname()
    assert found.cluster == "default"
    assert found.rack is None
    assert found.enrolment_token() is None


def test_what_the_supervisor_wrote_fills_the_gaps(tmp_path: Path) -> None:
    token = tmp_path / "token"
    endpoints = {
        "gateway_url": "ws://127.0.0.1:4711",
        "hook_socket": str(tmp_path / "h.sock"),
        "enrolment_token_file": str(token),
        "web_url": 5,
    }
    (tmp_path / "endpoints.json").write_text(json.dumps(endpoints))
    found = settings.load({"CLUSTERWATCH_STATE_DIR": str(tmp_path)})
    assert found.gateway_url == "ws://127.0.0.1:4711"
    assert found.hook_socket == tmp_path / "h.sock"
    assert found.enrolment_token() is None
    token.write_text("later\n")  # written after the agent started
    assert found.enrolment_token() == "later"


def test_the_environment_wins_over_file_and_supervisor(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text(json.dumps({"gateway_url": "ws://endpoints:1"}))
    (tmp_path / "agent.toml").write_text('gateway_url = "ws://toml:1"\nnode = "from-toml"\n')
    found = settings.load({"CLUSTERWATCH_STATE_DIR": str(tmp_path)})
    assert (found.gateway_url, found.node) == ("ws://toml:1", "from-toml")
    assert settings.load(environment(tmp_path)).gateway_url == "ws://127.0.0.1:9"


@pytest.mark.parametrize("text", ["{half", "[]", '"text"', "\x00"])
def test_a_damaged_endpoints_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "endpoints.json").write_text(text)
    with pytest.raises(ConfigError, match="no gateway"):
        settings.load({"CLUSTERWATCH_STATE_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("GATEWAY_URL", "http://x", "no ws:// or wss:// address"),
        ("GATEWAY_URL", "ws://", "no ws:// or wss:// address"),
        ("GATEWAY_URL", "ws://x:99999", "no ws:// or wss:// address"),
        ("NODE", "n" * 300, "CLUSTERWATCH_NODE must be"),
        ("NODE", "a\nb", "CLUSTERWATCH_NODE must be"),
        ("TOKEN_FILE", "/does/not/exist", "CLUSTERWATCH_TOKEN_FILE=/does/not/exist cannot be read"),
        ("GATEWAY_CA", "/does/not/exist", "CLUSTERWATCH_GATEWAY_CA=/does/not/exist cannot be read"),
        ("SPOOL_MAX_BYTES", "lots", "must be a number of at least 1048576"),
        ("SPOOL_MAX_BYTES", "5", "must be a number of at least 1048576"),
        ("AGENT_CONFIG", "/does/not/exist", "does not exist"),
    ],
)
def test_a_bad_value_is_named_in_one_line(tmp_path: Path, name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings.load(environment(tmp_path, **{name: value}))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value).replace("a\nb", "")


def test_an_unknown_setting_in_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text("nodename = 'x'\n")
    with pytest.raises(ConfigError, match="unknown setting 'nodename'"):
        settings.load(environment(tmp_path))


def test_a_long_socket_path_moves_to_a_short_folder_of_this_user(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 100) / "hook.sock"
    short = short_socket_path(long)
    assert len(os.fsencode(short)) <= 90
    assert str(os.geteuid()) in short.parent.name
    assert short != short_socket_path(tmp_path / ("e" * 100) / "hook.sock")
    assert short_socket_path(Path("/run/x.sock")) == Path("/run/x.sock")
    assert settings.load(environment(tmp_path, HOOK_SOCKET=str(long))).hook_socket == short


def test_clusterwatch_run_finds_an_agent_without_a_supervisor(tmp_path: Path) -> None:
    found = settings.load(environment(tmp_path))
    settings.publish_hook_socket(tmp_path, found.hook_socket)
    assert hook_socket({"CLUSTERWATCH_STATE_DIR": str(tmp_path)}) == str(found.hook_socket)


def test_what_the_supervisor_said_of_the_socket_stays(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text(json.dumps({"hook_socket": "/a/b", "web_url": "http://x"}))
    settings.publish_hook_socket(tmp_path, Path("/c/d"))
    assert json.loads((tmp_path / "endpoints.json").read_text())["hook_socket"] == "/a/b"


def test_only_one_agent_holds_a_state_folder(tmp_path: Path) -> None:
    fd = lock_folder(tmp_path / "agent")
    with pytest.raises(AlreadyRunning):
        lock_folder(tmp_path / "agent")
    os.close(fd)
    os.close(lock_folder(tmp_path / "agent"))
    assert (tmp_path / "agent").stat().st_mode & 0o777 == 0o700


def diagnose(environ: dict[str, str]) -> tuple[int, str]:
    out = io.StringIO()
    return doctor.run(environ, out), out.getvalue()


def test_the_doctor_names_what_is_wrong(tmp_path: Path) -> None:
    pollers = tmp_path / "pollers.toml"
    told = environment(tmp_path, GATEWAY_URL="ws://127.0.0.1:1", POLLERS_FILE=str(pollers))
    code, text = diagnose(told)
    assert code == 1
    assert f"FAIL devices are not asked: {pollers} cannot be read" in text
    assert "FAIL the gateway ws://127.0.0.1:1 cannot be reached" in text
    assert "FAIL not enrolled and no enrolment token" in text
    assert diagnose({"CLUSTERWATCH_STATE_DIR": str(tmp_path)})[1].startswith("FAIL no gateway")


def test_the_doctor_is_content_with_a_working_agent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"ws://127.0.0.1:{server.getsockname()[1]}"
        fd = lock_folder(tmp_path / "agent")
        code, text = diagnose(environment(tmp_path, GATEWAY_URL=url, TOKEN="t"))
        os.close(fd)
    assert code == 0
    assert f"OK   the gateway {url} answers" in text
    assert "OK   an agent runs on this state folder" in text


def test_the_doctor_does_not_trust_a_gateway_without_a_certificate(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.listen()
        url = f"wss://127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            peer, _ = server.accept()
            peer.recv(10)
            peer.sendall(b"HTTP/1.1 400 no\r\n\r\n")
            peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        code, text = diagnose(environment(tmp_path, GATEWAY_URL=url, TOKEN="t"))
        thread.join()
    assert code == 1
    assert f"FAIL the gateway {url}" in text


def test_the_doctor_says_what_each_source_sees_and_what_it_needs(tmp_path: Path) -> None:
    text = diagnose(environment(tmp_path, SOURCES_OFF="pcie"))[1]
    assert set(NEEDS) == set(sources.names())
    for name in sources.names():
        assert f"source {name}: " in text
    assert "source pcie: switched off" in text and "source host: " in text
    assert "needs an inventory in /etc/clusterwatch/agent.toml" in text


def test_the_doctor_tells_a_source_that_fails_and_one_that_hangs() -> None:
    assert doctor._seen("host", None, 2.0) == ("WARN", "source host: no answer within 2 s")
    assert doctor._seen("host", OSError("gone"), 2.0) == ("WARN", "source host: OSError: gone")
    reading = Reading([Sample("host", "kernel_log_readable_count", None, "eperm")])
    mark, line = doctor._seen("kernel_log", reading, 2.0)
    assert mark == "WARN" and "unknown: 1 eperm" in line and "CAP_SYSLOG" in line


def test_sources_are_switched_off_by_name(tmp_path: Path) -> None:
    assert settings.load(environment(tmp_path)).sources_off == frozenset()
    found = settings.load(environment(tmp_path, SOURCES_OFF="disks, pcie"))
    assert found.sources_off == {"disks", "pcie"}
    with pytest.raises(ConfigError, match="no source 'gpus'"):
        settings.load(environment(tmp_path, SOURCES_OFF="gpus"))
