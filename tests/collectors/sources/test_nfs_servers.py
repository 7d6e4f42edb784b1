"""RPCs that wait, by the server they wait for; the same RPC is known again at the next look."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.nfs_servers import NfsServersSource, Task, address_of, parse_tasks
from tests.collectors.sources.trees import look, write

ROOT = "sys/kernel/debug/sunrpc/rpc_clnt"
READ = (
    "  {0} 0501 {1:6d} 0x5 0x{2:x}    60000 nfs_pgio_common_ops [nfs] nfsv4 READ "
    "a:call_status [sunrpc] q:xprt_pending\n"
)


def client(root: Path, number: str, address: str, tasks: str) -> Path:
    info = f"netns: 4026531840\nnetid: tcp\naddr:  {address}\nport:  2049\nstate: 0x11\n"
    return write(root, {f"{ROOT}/{number}/tasks": tasks, f"{ROOT}/{number}/xprt/info": info})


def test_a_line_of_the_kernel() -> None:
    assert parse_tasks(READ.format(4242, -11, 0xBEEF)) == [Task(5, 4242, 0xBEEF, "READ")]
    plain = "   17 0001      0 0x2 0x0      -12 rpc_default_ops nfsv3 NULL a:call_start q:none\n"
    assert parse_tasks(plain + "no task\n") == [Task(2, 17, 0, "NULL")]


def test_a_server_that_answers_has_nothing_that_grows_old(tmp_path: Path) -> None:
    source = NfsServersSource()
    for look_number in range(5):
        client(tmp_path, "5", "10.0.0.9", READ.format(100 + look_number, 0, look_number))
        found, events = look(source, tmp_path, look_number * 15.0)
        assert found["nfs_server/10.0.0.9", "rpc_tasks_count"] == (1, "ok")
        assert found["nfs_server/10.0.0.9", "rpc_oldest_wait_s"] == (0.0, "ok") and events == []


def test_a_data_server_that_is_dead_is_named(tmp_path: Path) -> None:
    client(tmp_path, "2", "10.0.0.1", "")
    client(tmp_path, "5", "10.0.0.9", READ.format(7, 0, 1) + READ.format(8, 0, 2))
    source = NfsServersSource()
    kinds = [[(e.entity, e.kind) for e in look(source, tmp_path, at_s)[1]] for at_s in (0.0, 15.0, 30.0)]
    assert kinds == [[], [], [("nfs_server/10.0.0.9", "nfs_server_stalled")]]
    found, (event,) = look(source, tmp_path, 45.0)
    assert dict(event.attributes) == {"server": "10.0.0.9", "procedure": "READ"} and event.standing
    assert found["nfs_server/10.0.0.1", "rpc_tasks_count"] == (0, "ok")
    assert found["nfs_server/10.0.0.9", "rpc_oldest_wait_s"] == (45.0, "ok")


def test_clients_of_one_server_are_counted_together(tmp_path: Path) -> None:
    client(tmp_path, "2", "fd00::9%eth0", READ.format(1, 0, 1))
    client(tmp_path, "3", "fd00::9%eth0", READ.format(2, 0, 2).replace("0x5", "0x6"))
    found, _ = look(NfsServersSource(), tmp_path)
    assert found == {
        ("nfs_server/fd00::9%eth0", "rpc_tasks_count"): (2, "ok"),
        ("nfs_server/fd00::9%eth0", "rpc_oldest_wait_s"): (0.0, "ok"),
    }


def test_a_client_without_an_address_and_a_node_without_debugfs_say_nothing(tmp_path: Path) -> None:
    assert look(NfsServersSource(), tmp_path) == ({}, [])
    write(tmp_path, {f"{ROOT}/1/tasks": READ.format(1, 0, 1), f"{ROOT}/1/xprt/info": "netid: local\n"})
    assert look(NfsServersSource(), tmp_path) == ({}, [])


@pytest.mark.parametrize("text", ["", "addr:", "addr: \x1b[2J", "netid: tcp"])
def test_an_address_that_is_none(text: str) -> None:
    assert address_of(text) is None


@given(st.text(max_size=300))
def test_garbage_gives_no_error(text: str) -> None:
    parse_tasks(text)
    address_of(text)
