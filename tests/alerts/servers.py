"""A real SMTP and a real HTTP server on the loopback address, the latter failing in every way."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from aiosmtpd.controller import Controller

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Hook:
    """What came in at a webhook, and what it answers."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answer: Answer = lambda handler: status(handler, 200)

    @property
    def events(self) -> list[tuple[str, str]]:
        """(event, state) of each notice."""
        told = [json.loads(body) for body in self.bodies]
        return [(one["event"], one.get("incident", {}).get("state", "")) for one in told]


def status(handler: BaseHTTPRequestHandler, code: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def reset(handler: BaseHTTPRequestHandler) -> None:
    """Breaks the connection off in the middle."""
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()


def slow(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(0.5)
    status(handler, 200)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A header, a byte at a time, for ever."""
    for _ in range(30):
        try:
            handler.wfile.write(b"H")
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.1)


@contextmanager
def webhook(context: ssl.SSLContext | None = None) -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            hook.headers.append(dict(self.headers))
            hook.answer(self)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A broken connection is what some tests want."""

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    hook.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_port}/hook"
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()


class Mailbox:
    """Takes mails; ``refuse`` is the answer instead, such as ``550 no such user``."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.refuse = ""

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.refuse:
            return self.refuse
        mail = message_from_bytes(envelope.content, policy=policy.default)
        self.mails.append(cast(EmailMessage, mail))
        return "250 taken"


@contextmanager
def mail_server(box: Mailbox) -> Iterator[int]:
    """Runs; gives its port."""
    controller = Controller(box, hostname="127.0.0.1", port=_free_port())
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
