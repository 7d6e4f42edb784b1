"""A plain TCP balancer: connections go round the backends in turn, on loopback, in a thread of its own.

It stands in for whatever a site puts before its gateways: it knows nothing of what flows through it. A
backend that refuses is passed over, as balancers do. Tests choose which backends are in the turn, and
cut connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

CHUNK_BYTES = 64 * 1024


class Balancer:
    """Use as a context manager; ``port`` is where it listens."""

    def __init__(self, backends: Sequence[int]) -> None:
        """``backends``: ports on loopback."""
        self.backends = list(backends)
        """those in the turn; a test may replace the list at any time"""
        self.served: Counter[int] = Counter()
        """backend -> connections it was given"""
        self.port = 0
        self._turn = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="balancer", daemon=True)
        self._listening = threading.Event()
        self._stop = asyncio.Event()

    def __enter__(self) -> Balancer:
        self._thread.start()
        assert self._listening.wait(10), "the balancer does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def cut(self) -> None:
        """Ends every connection without a word (RST on both sides)."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()
        self._cut()
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        backend = await self._connect()
        if backend is None:
            writer.transport.abort()
            return
        sides = {writer, backend[1]}
        self._open |= sides
        try:
            await asyncio.gather(_pump(reader, backend[1]), _pump(backend[0], writer))
        finally:
            self._open -= sides
            for side in sides:
                side.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The next backend that answers; None when none does."""
        backends = self.backends
        for _ in backends:
            port = backends[self._turn % len(backends)]
            self._turn += 1
            with contextlib.suppress(OSError):
                streams = await asyncio.open_connection("127.0.0.1", port)
                self.served[port] += 1
                return streams
        return None


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copies until the source ends; either end of a broken connection ends the other."""
    try:
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        # A half-closed websocket is of no use: the other direction ends too.
        target.transport.abort() if target.transport.is_closing() else target.close()
