"""Hook protocol v1: what a training process and its node's agent say to each other.

A unix stream socket. One frame = 8 bytes (``!II``: header length, blob length), a UTF-8 JSON header, a raw
blob (only dumps carry one). Standard library only: this file is read by the agent and runs inside the job.

From the hook (``k``):

========== ===================================================================================
hello      v, pid, rank, world_size, local_rank, job, attempt, world, role, torch, backend,
           started_ns, command, blind [words], gpu_index, gpu_uuid, job_name, user,
           labels {name: value}
groups     groups [{index, name, desc, backend, ranks, recorder_id}] (whole list, on change)
progress   t_ns, step, phase, phase_since_ns, groups [[index, enqueued, completed, sequence]],
           p2p {count, open [{op, peer, group, since_ns}]}, cost_s of the hook so far and
           wrapper_s of it, wakes of its thread, dropped frames
steps      columns as in ``collectors.wire.records.Steps`` without id; ``late_launch`` may be missing
edges      t_ns, ops [words], columns as in ``collectors.wire.records.Edges`` without id
allocator  t_ns, retries, ooms, allocated_bytes, allocated_peak_bytes, reserved_bytes; once CUDA is up,
           at most once a minute
phase      t_ns, phase, before, before_s, detail
exception  type, message, traceback, t_ns
finish     t_ns (the interpreter ends normally)
dump       id, recorder ("nccl" | "generic"), format ("pickle" | "json"), error; blob = the raw dump
stacks     id, threads [{name, frames [outermost first], main}], error
========== ===================================================================================

From the agent: ``want`` with id and what ("window" | "ring" | "stacks"), ``bye``. A ``want`` of a dump may
name its ``recorder`` (else the one that holds open calls answers) and say ``frames`` true: stacks in the
dump, the first of which holds the GIL for up to 2 s.
From ``clusterwatch-run`` (its own connection): ``run`` (pid of the child, job), ``exit`` (pid, code, signal).

Unknown ``k`` and unknown fields are ignored; an unknown ``v`` closes the connection.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

VERSION: Final = 1
HEADER_MAX_BYTES: Final = 1024 * 1024
BLOB_MAX_BYTES: Final = 64 * 1024 * 1024
_LENGTHS: Final = struct.Struct("!II")


class ProtocolError(ValueError):
    """The other side sent something that is no frame; the connection is closed."""


def pack(header: dict[str, Any], blob: bytes = b"") -> bytes:
    """One frame as bytes. Raises ``ProtocolError`` when it is over a limit."""
    text = json.dumps(header, separators=(",", ":")).encode()
    if len(text) > HEADER_MAX_BYTES or len(blob) > BLOB_MAX_BYTES:
        raise ProtocolError(f"frame of {len(text)} + {len(blob)} bytes is over the limit")
    return _LENGTHS.pack(len(text), len(blob)) + text + blob


class Reader:
    """Feeds on bytes, gives frames. Keeps at most one frame of HEADER_MAX + BLOB_MAX bytes.

    ``blob_max_bytes`` may be lowered, e.g. to 0 while no dump was asked for.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.blob_max_bytes = BLOB_MAX_BYTES

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Returns the frames completed by ``data``. Raises ``ProtocolError`` on the first bad one."""
        if self._buffer:
            self._buffer += data
            return self._frames(self._buffer)
        return self._frames(data)  # as it comes mostly: whole frames, which are not copied first

    def _frames(self, data: bytes | bytearray) -> list[tuple[dict[str, Any], bytes]]:
        frames: list[tuple[dict[str, Any], bytes]] = []
        start, size = 0, len(data)
        while size - start >= _LENGTHS.size:
            header_bytes, blob_bytes = _LENGTHS.unpack_from(data, start)
            if header_bytes > HEADER_MAX_BYTES or blob_bytes > self.blob_max_bytes:
                raise ProtocolError(f"frame of {header_bytes} + {blob_bytes} bytes is over the limit")
            blob_at = start + _LENGTHS.size + header_bytes
            end = blob_at + blob_bytes
            if size < end:
                break
            text = bytes(data[start + _LENGTHS.size : blob_at])
            frames.append((self.header(text), bytes(data[blob_at:end])))
            start = end
        if data is self._buffer:
            del self._buffer[:start]
        elif start < size:
            self._buffer += data[start:]
        return frames

    def header(self, text: bytes) -> dict[str, Any]:
        """The header of a frame. The agent overrides it to get typed messages at once."""
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"header is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise ProtocolError("header is not a JSON object")
        return header
