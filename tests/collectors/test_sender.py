"""The sender delivers every spooled record once, whatever the gateway does."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from collectors import inventory, sender
from collectors.clock import SystemClock
from collectors.sender import Sender
from collectors.sources.tree import Tree
from collectors.spool import Spool
from collectors.wire import codec, records
from collectors.wire.records import LaneNext
from tests.collectors.fakes import FakeGateway, config, until


def event(number: int) -> records.Event:
    return records.Event(t_ns=number, source="s", kind="k", severity="info", text=str(number))


class Bench:
    """A spool and a sender against a fake gateway."""

    def __init__(self, folder: Path, gateway: FakeGateway, **settings: Any) -> None:
        self.gateway = gateway
        self.settings = config(folder, **({"url": gateway.url} | settings))
        self.settings.state_dir.mkdir(parents=True, exist_ok=True)
        self.spool = Spool(self.settings.state_dir / "spool")
        self.orders: list[records.CaptureOrder] = []
        self.new_epochs = 0
        self.sender = Sender(
            self.settings, self.spool, SystemClock(), self._hello, self.orders.append, self._epoch
        )
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.sender.run())

    async def stop(self) -> None:
        await self.sender.stop()
        if self.task is not None:
            await asyncio.wait_for(self.task, 5)

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.spool.append(event(number))
        self.sender.wake()

    def arrived(self) -> list[int]:
        return [record.t_ns for record in self.gateway.stored_records(records.Event)]

    def _hello(self, credential: str | None, token: str | None) -> records.Hello:
        return inventory.hello(
            self.settings,
            Tree(),
            SystemClock(),
            self.spool.epoch,
            self.spool.next_sequences(),
            credential,
            token,
        )

    def _epoch(self) -> None:
        self.new_epochs += 1


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    fake = FakeGateway()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "BACKOFF_FIRST_S", 0.05)
    monkeypatch.setattr(sender, "BACKOFF_MAX_S", 0.2)


@pytest.fixture
async def bench(tmp_path: Path, gateway: FakeGateway) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, gateway)
    yield made
    await made.stop()


async def test_enrols_with_the_token_and_keeps_the_credential_private(bench: Bench) -> None:
    bench.start()
    await until(lambda: bench.sender.connected)
    assert bench.gateway.hellos[0].enrolment_token == "enrol-me"
    path = bench.settings.state_dir / "credential"
    assert path.read_text().strip() == "credential-of-n1"
    assert path.stat().st_mode & 0o777 == 0o600


async def test_comes_back_with_the_credential_and_without_the_token(bench: Bench) -> None:
    (bench.settings.state_dir / "credential").write_text("mine\n")
    bench.start()
    await until(lambda: bench.gateway.hellos)
    assert bench.gateway.hellos[0].credential == "mine"
    assert bench.gateway.hellos[0].enrolment_token is None


async def test_records_arrive_in_order_and_are_deleted_after_the_ack(bench: Bench) -> None:
    bench.start()
    bench.put(*range(1, 601))
    await until(lambda: bench.spool.pending_records == 0)
    assert bench.arrived() == list(range(1, 601))
    assert bench.gateway.duplicates == 0


async def test_nothing_is_lost_while_the_gateway_is_away(tmp_path: Path) -> None:
    gateway = FakeGateway()
    await gateway.start()
    await gateway.stop()
    bench = Bench(tmp_path, gateway)
    bench.start()
    bench.put(1, 2, 3)
    await asyncio.sleep(0.3)
    await gateway.start()
    bench.put(4)
    await until(lambda: bench.arrived() == [1, 2, 3, 4])
    await bench.stop()
    await gateway.stop()


async def test_a_restarted_gateway_gets_the_rest_and_nothing_twice(
    bench: Bench, gateway: FakeGateway
) -> None:
    bench.start()
    for number in range(1, 301):
        bench.put(number)
        if number % 50 == 0:
            await asyncio.sleep(0.01)
        if number in (100, 200):
            await gateway.stop()
            await gateway.start()
    await until(lambda: bench.spool.pending_records == 0)
    assert bench.arrived() == list(range(1, 301))


async def test_records_sent_but_not_acknowledged_go_again(bench: Bench, gateway: FakeGateway) -> None:
    gateway.ack = False
    bench.start()
    bench.put(1, 2)
    await asyncio.sleep(0.2)
    assert bench.spool.pending_records == 2
    await gateway.stop()
    gateway.ack = True
    await gateway.start()
    await until(lambda: bench.arrived() == [1, 2])


async def test_an_ack_lost_on_its_way_causes_no_second_copy(bench: Bench, gateway: FakeGateway) -> None:
    bench.spool.append(event(1))
    bench.spool.append(event(2))
    bench.spool.sync()
    gateway.acked[(bench.spool.epoch, "urgent")] = 1  # committed before this connection
    bench.start()
    await until(lambda: bench.spool.pending_records == 0)
    assert bench.arrived() == [2]


async def test_what_the_server_already_has_is_let_go_on_connecting(
    bench: Bench, gateway: FakeGateway
) -> None:
    bench.spool.append(event(1))
    bench.spool.sync()
    gateway.acked[(bench.spool.epoch, "urgent")] = 1
    bench.start()
    await until(lambda: bench.spool.pending_records == 0)
    assert gateway.stored == {}


async def test_a_server_ahead_of_the_spool_begins_a_new_epoch(bench: Bench, gateway: FakeGateway) -> None:
    old = bench.spool.epoch
    gateway.acked[(old, "urgent")] = 50
    bench.put(1)
    bench.start()
    await until(lambda: bench.arrived() == [1])
    assert bench.spool.epoch != old
    assert bench.new_epochs == 1


async def test_a_rejected_record_is_reported_and_the_others_go_on(bench: Bench, gateway: FakeGateway) -> None:
    gateway.reject = {"event"}
    bench.start()
    bench.put(1, 2)
    await until(lambda: bench.spool.acked("urgent") == 2)
    gateway.reject = set()
    bench.spool.report_drops()
    bench.put(3)
    await until(lambda: bench.arrived() == [3])
    report = gateway.stored_records(records.Dropped)[0]
    assert (report.counts, report.reason) == ({"event": 2}, "rejected: future")


async def test_slow_holds_one_lane_and_lets_hot_frames_pass(bench: Bench, gateway: FakeGateway) -> None:
    bench.start()
    await until(lambda: bench.sender.connected)
    await gateway.send(records.Slow(lane="urgent", pause_s=0.6))
    await asyncio.sleep(0.1)
    bench.put(1)
    bench.spool.append(records.Steps(9, records.RankId("j", 0), [], [], [], [], [], [], []))
    bench.sender.wake()
    bench.sender.hot(records.HotFrame(t_ns=5))
    await until(lambda: gateway.hot and gateway.stored_records(records.Steps))
    assert bench.arrived() == []
    await until(lambda: bench.arrived() == [1], 3)


async def test_a_hot_frame_is_never_kept_for_later(bench: Bench, gateway: FakeGateway) -> None:
    bench.sender.hot(records.HotFrame(t_ns=1))
    bench.start()
    await until(lambda: bench.sender.connected)
    bench.sender.hot(records.HotFrame(t_ns=2))
    await until(lambda: gateway.hot)
    assert [frame.t_ns for frame in gateway.hot] == [2]


async def test_capture_orders_reach_the_agent(bench: Bench, gateway: FakeGateway) -> None:
    bench.start()
    await until(lambda: bench.sender.connected)
    order = records.CaptureOrder(capture_id=7, job="j", want=["ring"])
    await gateway.send(order)
    await until(lambda: bench.orders == [order])


@pytest.mark.parametrize("code", ["bad_enrolment", "revoked", "foreign_machine", "bad_version"])
async def test_a_refused_agent_waits_says_why_and_loses_nothing(
    bench: Bench, gateway: FakeGateway, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    gateway.refuse = records.Refuse(code=code, reason="ask the operator", retry_after_s=1.0)
    with caplog.at_level(logging.ERROR):
        bench.put(1)
        bench.start()
        await until(lambda: gateway.hellos)
        await asyncio.sleep(0.3)
    assert len(gateway.hellos) == 1
    assert f"code={code} reason=ask the operator" in caplog.text
    gateway.refuse = None
    await until(lambda: bench.arrived() == [1])


async def test_a_credential_the_server_does_not_know_is_renewed_with_the_token(
    bench: Bench, gateway: FakeGateway
) -> None:
    (bench.settings.state_dir / "credential").write_text("of another server\n")
    gateway.refuse = records.Refuse(code="bad_credential", reason="unknown")
    bench.start()
    await until(lambda: gateway.hellos)
    gateway.refuse = None
    await until(lambda: bench.sender.connected)
    assert gateway.hellos[-1].enrolment_token == "enrol-me"
    assert (bench.settings.state_dir / "credential").read_text().strip() == "credential-of-n1"


async def test_a_gateway_that_commits_nothing_is_left_and_tried_again(
    bench: Bench, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ACK_TIMEOUT_S", 0.2)
    gateway.ack = False
    bench.start()
    bench.put(1)
    await until(lambda: len(gateway.hellos) > 1)
    gateway.ack = True
    await until(lambda: bench.arrived() == [1])


async def test_garbage_from_a_gateway_costs_the_connection_only(bench: Bench, gateway: FakeGateway) -> None:
    bench.start()
    await until(lambda: bench.sender.connected)
    for connection in list(gateway._connections):
        await connection.send(b"\xff garbage")
    await until(lambda: len(gateway.hellos) == 2)
    bench.put(1)
    await until(lambda: bench.arrived() == [1])


async def test_no_more_is_in_flight_than_the_window_allows(
    bench: Bench, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "IN_FLIGHT_MAX_RECORDS", 10)
    gateway.ack = False
    bench.start()
    bench.put(*range(1, 31))
    await asyncio.sleep(0.3)
    assert bench.sender._lanes["urgent"].sent == 10


async def test_a_clean_stop_says_goodbye(bench: Bench, gateway: FakeGateway) -> None:
    bench.start()
    await until(lambda: bench.sender.connected)
    await bench.stop()
    await until(lambda: gateway.byes == 1)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_over_tls_only_a_gateway_that_proves_its_name_gets_the_records(tmp_path: Path) -> None:
    certificate, key = tmp_path / "gateway.pem", tmp_path / "gateway.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    gateway = FakeGateway(tls=context)
    await gateway.start()
    url = f"wss://localhost:{gateway.port}"
    doubtful = Bench(tmp_path / "a", gateway, url=url)
    doubtful.start()
    doubtful.put(1)
    trusting = Bench(tmp_path / "b", gateway, url=url, gateway_ca=certificate)
    trusting.start()
    trusting.put(2)
    await until(lambda: trusting.arrived() == [2])
    wrong_name = Bench(tmp_path / "c", gateway, url=f"wss://127.0.0.1:{gateway.port}", gateway_ca=certificate)
    wrong_name.start()
    wrong_name.put(3)
    await asyncio.sleep(0.5)
    assert len(gateway.hellos) == 1
    for bench in (doubtful, trusting, wrong_name):
        await bench.stop()
    await gateway.stop()


def test_tls_verifies_names_and_old_versions_are_refused(tmp_path: Path) -> None:
    context = sender.tls_context(config(tmp_path, "wss://gateway.example:8443"))
    assert context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"
    assert context.minimum_version.name == "TLSv1_2"


def test_an_ack_of_something_never_sent_moves_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakeGateway(port=1))
    bench.spool.append(event(1))
    bench.spool.sync()
    bench.sender._acknowledged(records.Ack(lane="urgent", sequence=1))
    assert bench.spool.pending_records == 1
    assert codec.VERSION == "1.0"
    assert bench.spool.next_sequences() == LaneNext(urgent=2, bulk=1)
