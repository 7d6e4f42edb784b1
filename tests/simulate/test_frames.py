"""Frames made by the thousand are the very messages the codec makes one by one, masked as the RFC wants."""

from __future__ import annotations

import numpy as np
import pytest

from clusterwatch.simulate.frames import FrameKind, FrameTemplate, message
from clusterwatch.simulate.progress import Columns
from collectors.wire import codec, hot_values, records

NODES = 5
KINDS = (FrameKind(8), FrameKind(8, 8, 8), FrameKind(4, 4, 5, 9), FrameKind(72, 72, 8), FrameKind(1, 1, 1))


def columns(kind: FrameKind) -> Columns | None:
    random = np.random.default_rng(1)
    if not kind.ranks:
        return None

    def numbers(*shape: int) -> np.ndarray:
        return random.integers(-1, 2**61, (NODES, kind.ranks, *shape))

    phase = random.integers(0, 6, (NODES, kind.ranks)).astype(np.uint8)
    pairs = [numbers(kind.groups) for _ in range(3)]
    return Columns(numbers(), phase, numbers(), numbers(), numbers(), *pairs)


def unmasked(frame: memoryview) -> bytes:
    """The payload of one websocket frame that a client sends."""
    raw = bytes(frame)
    assert raw[0] == 0x82 and raw[1] & 0x80, "one final binary frame, masked"
    size, head = raw[1] & 0x7F, 2
    if size >= 126:
        head = 4 if size == 126 else 10
        size = int.from_bytes(raw[2:head], "big")
    mask, payload = raw[head : head + 4], raw[head + 4 :]
    assert len(payload) == size
    return bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


def made(kind: FrameKind) -> tuple[np.ndarray, np.ndarray, Columns | None, tuple[memoryview, ...]]:
    t_ns = np.arange(NODES) + 1_796_000_000_000_000_000
    values = np.random.default_rng(2).normal(size=(NODES, kind.series)).astype(np.float32)
    values[2, 0] = np.nan
    progress = columns(kind)
    return t_ns, values, progress, FrameTemplate(kind).frames(t_ns, values, progress)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_holds_the_bytes_of_the_codec(kind: FrameKind):
    t_ns, values, progress, frames = made(kind)
    everybody = np.ones(kind.ranks, bool)
    for row in range(NODES):
        expected = message(kind, int(t_ns[row]), values[row], progress, row, everybody)
        assert unmasked(frames[row]) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_gateway_reads_what_was_put_in(kind: FrameKind):
    t_ns, values, progress, frames = made(kind)
    found = codec.decode_from_node(unmasked(frames[2]))
    assert isinstance(found, records.HotFrame) and found.t_ns == t_ns[2]
    flat = [value for row in hot_values.unpack(found.metrics).values() for value in row]
    assert flat[0] is None and np.allclose(flat[1:], values[2, 1:].astype(float))
    if progress is None:
        assert found.progress is None
    else:
        assert np.frombuffer(found.progress.enqueued, "<i8").tolist() == progress.enqueued[2].ravel().tolist()
        assert np.frombuffer(found.progress.ref, "<u4")[0] == kind.first_ref


def test_every_frame_has_a_mask_of_its_own():
    masks = {bytes(frame[4:8]) for frame in made(KINDS[1])[3]}
    assert len(masks) == NODES


def test_ranks_that_are_gone_are_not_in_the_message():
    kind = KINDS[1]
    t_ns, values, progress, _ = made(kind)
    living = np.array([True, False] + [True] * 6)
    found = codec.decode_from_node(message(kind, int(t_ns[0]), values[0], progress, 0, living))
    assert np.frombuffer(found.progress.ref, "<u4").tolist() == [1, 3, 4, 5, 6, 7, 8]
    assert len(found.progress.enqueued) == 7 * 8 * 8
    nobody = codec.decode_from_node(message(kind, int(t_ns[0]), values[0], progress, 0, np.zeros(8, bool)))
    assert nobody.progress is None and nobody.metrics is not None
