"""One question over gRPC to a socket of this machine, without a library: gRPC's own takes 17 MB of memory.

In: a socket's path, a method, a message. Out: the answer's message. A connection carries one call, no header
that is compressed is ever read, and everything is bounded: the answer, its frames, the time. Source: RFC 9113
(HTTP/2), RFC 7541 (its header fields), gRPC over HTTP2 in the documents of grpc.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Final

ANSWER_MAX_BYTES: Final = 4 * 1024 * 1024
FRAME_MAX_BYTES: Final = 16_384
"""RFC 9113 4.2: what a peer may send unless we allow it more."""
FRAMES_MAX: Final = 8_192
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_STREAM: Final = 1
_WINDOW_START: Final = 65_535
_ROOM: Final = ANSWER_MAX_BYTES + 65_536
"""More than an answer may have, so that one that is too large is seen and not waited for."""
_NO_PUSH: Final = struct.pack(">HIHIHI", 0x1, 0, 0x2, 0, 0x4, _ROOM)
"""No table of header fields, no push, room for the whole answer."""


def ask(path: str, method: str, message: bytes, timeout_s: float) -> bytes:
    """The answer to one call.

    Args:
        path: of a Unix socket.
        method: such as ``/v1.PodResourcesLister/List``.
        timeout_s: for all of it.

    Raises:
        OSError: it cannot be reached, takes too long (ETIMEDOUT), refuses (EIO) or is no gRPC (EPROTO).
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        conversation = _Conversation(peer, time.monotonic() + timeout_s)
        try:
            conversation.begin(path, _request(method, message))
            return _message(conversation.answer())
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), path) from None


class _Conversation:
    """One connection with one call."""

    def __init__(self, peer: socket.socket, ends_s: float) -> None:
        self._peer = peer
        self._ends_s = ends_s

    def begin(self, path: str, request: bytes) -> None:
        self._hurry()
        self._peer.connect(path)
        self._send(request)

    def answer(self) -> bytes:
        """All data of the answer, until the other side says that there is no more."""
        body = bytearray()
        for kind, flags, stream, content in self._frames():
            if kind == _SETTINGS and not flags & _ACK:
                self._acknowledge(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._acknowledge(_frame(_PING, _ACK, 0, content))
            elif kind == _GO_AWAY or (kind == _RESET and stream == _STREAM):
                raise OSError(errno.EIO, "the call was refused")
            elif stream == _STREAM and kind in (_DATA, _HEADERS):
                if kind == _DATA:
                    body += _unpadded(flags, content)
                if len(body) > ANSWER_MAX_BYTES:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
                if flags & _END_STREAM:
                    return bytes(body)
        raise OSError(errno.EPROTO, "too many frames")

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """(kind, flags, stream, content)"""
        for _ in range(FRAMES_MAX):
            head = self._exactly(9)
            size = int.from_bytes(head[:3], "big")
            if size > FRAME_MAX_BYTES:
                raise OSError(errno.EPROTO, "no HTTP/2")
            stream = int.from_bytes(head[5:], "big") & 0x7FFF_FFFF
            yield head[3], head[4], stream, self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._hurry()
            chunk = self._peer.recv(size - len(found))
            if not chunk:
                raise OSError(errno.EPROTO, "the connection ended")
            found += chunk
        return bytes(found)

    def _send(self, data: bytes) -> None:
        self._hurry()
        self._peer.sendall(data)

    def _acknowledge(self, frame: bytes) -> None:
        """A peer that has said everything may have gone."""
        with contextlib.suppress(ConnectionError):
            self._send(frame)

    def _hurry(self) -> None:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._peer.settimeout(left_s)


def _request(method: str, message: bytes) -> bytes:
    data = b"\0" + struct.pack(">I", len(message)) + message
    room = struct.pack(">I", _ROOM - _WINDOW_START)
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, _NO_PUSH)
        + _frame(_WINDOW, 0, 0, room)
        + _frame(_HEADERS, _END_HEADERS, _STREAM, _fields(method))
        + _frame(_DATA, _END_STREAM, _STREAM, data)
    )


def _fields(method: str) -> bytes:
    """Header fields in the plainest form of RFC 7541: indices of its static table, and plain texts."""
    return (
        b"\x83\x86"  # :method POST, :scheme http
        + b"\x04" + _text(method)  # :path
        + b"\x01" + _text("localhost")  # :authority
        + b"\x0f\x10" + _text("application/grpc")  # content-type
        + b"\x00" + _text("te") + _text("trailers")
    )  # fmt: skip


def _text(text: str) -> bytes:
    raw = text.encode("ascii")
    assert len(raw) < 127
    return bytes([len(raw)]) + raw


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def _unpadded(flags: int, content: bytes) -> bytes:
    if not flags & _PADDED:
        return content
    if not content or content[0] >= len(content):
        raise OSError(errno.EPROTO, "no HTTP/2")
    return content[1 : len(content) - content[0]]


def _message(body: bytes) -> bytes:
    """The one message of an answer; none is a refusal, whose status stands in fields that are not read."""
    if not body:
        raise OSError(errno.EIO, "the call was refused")
    if len(body) < 5 or body[0] != 0 or int.from_bytes(body[1:5], "big") != len(body) - 5:
        raise OSError(errno.EPROTO, "no plain gRPC message")
    return body[5:]
