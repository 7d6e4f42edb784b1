"""A small HTTP server on loopback that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """What a path answers. ``hang_s``: before the first byte; ``drip``: a byte a moment, for ever."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    drip: bool = False


Tree = dict[str, Any]
"""path -> JSON, bytes, an ``Answer``, or what makes one of a request"""


@dataclass
class Peer:
    """A running server. ``asked``: (method, path, headers) of each request."""

    tree: Tree
    address: str = ""
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    ends: threading.Event = field(default_factory=threading.Event)

    def paths(self, method: str = "GET") -> list[str]:
        return [path for asked, path, _ in self.asked if asked == method]


@contextlib.contextmanager
def peer(tree: Tree) -> Iterator[Peer]:
    """Serves a tree until the end of the block."""
    running = Peer(tree)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(running))
    server.daemon_threads = True
    server.block_on_close = False
    running.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.ends.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def _handler(running: Peer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65_536
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._do("GET")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._do("POST")

        def do_DELETE(self) -> None:
            self._do("DELETE")

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

        def _do(self, method: str) -> None:
            running.asked.append((method, self.path, dict(self.headers)))
            key = self.path if method == "GET" else f"{method} {self.path}"
            found = running.tree.get(key, running.tree.get(key.rstrip("/"), Answer(404)))
            if callable(found):
                found = found(dict(self.headers))
            with contextlib.suppress(OSError):
                self._say(found)

        def _say(self, found: Any) -> None:
            if isinstance(found, bytes):
                found = Answer(body=found)
            if not isinstance(found, Answer):
                found = Answer(body=json.dumps(found).encode())
            running.ends.wait(found.hang_s)
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            length = 1_000_000 if found.drip else len(found.body)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            while found.drip and not running.ends.is_set():
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
            self.wfile.write(found.body)

    return Handler
