"""A node that measures how long the gateway takes to acknowledge, once in a while."""

from __future__ import annotations

import time
from typing import Self

from websockets.sync.client import ClientConnection, connect

from collectors.wire import codec, records
from tests.e2e.product import Product
from tests.faults.feeder import block, event

TIMEOUT_S = 60.0


class AckProbe:
    """Use as a context manager; one connection for as long as it lasts."""

    def __init__(self, product: Product, node: str = "node-probe") -> None:
        token = (product.folder / "secrets" / "enrolment_token").read_text().strip()
        self._url = f"ws://127.0.0.1:{product.gateway_port}"
        self._hello = records.Hello(
            version=codec.VERSION, cluster="default", node=node, machine_id=f"machine-{node}", boot_id="boot",
            epoch=f"epoch-{time.time_ns()}", agent_version="test", t_ns=time.time_ns(),
            next=records.LaneNext(1, 1), enrolment_token=token,
        )  # fmt: skip
        self._sent = {"urgent": 0, "bulk": 0}
        self._connection: ClientConnection

    def __enter__(self) -> Self:
        self._connection = connect(self._url, compression=None, max_size=None)
        self._connection.send(codec.encode(self._hello))
        assert isinstance(self._next(), records.Welcome)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._connection.close()

    def event_s(self) -> float:
        """Seconds from sending an event to its acknowledgement."""
        return self._ack_s("urgent", event(self._sent["urgent"] + 1))

    def block_s(self) -> float:
        """The same of a block."""
        return self._ack_s("bulk", block(self._sent["bulk"] + 1))

    def _ack_s(self, lane: records.Lane, record: records.Spooled) -> float:
        self._sent[lane] += 1
        begun_s = time.monotonic()
        item = records.PutItem(self._sent[lane], codec.encode(record))
        self._connection.send(codec.encode(records.Put(lane=lane, items=[item])))
        while True:
            answer = self._next()
            if isinstance(answer, records.Ack) and answer.lane == lane and answer.sequence == item.sequence:
                return time.monotonic() - begun_s

    def _next(self) -> records.FromGateway:
        data = self._connection.recv(TIMEOUT_S)
        assert isinstance(data, bytes)
        return codec.decode_from_gateway(data)
