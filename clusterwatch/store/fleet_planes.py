"""Bytes of ``fleet_minute.data`` and ``map_frame.data`` <-> numpy arrays. Pure.

A minute of one metric is one zstd frame over four float32 planes (low, mean, high, last) of all slots, byte
shuffled together: all lowest bytes first. A map frame is one zstd frame of one byte per slot.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

PLANES: Final = 4
_FLOAT_BYTES: Final = 4
LEVEL: Final = 1
"""Of zstd: float32 with noise in its low bytes gains 1 % from level 3, for twice the time."""
SLOTS_MAX: Final = 4_194_304


class PlanesDamaged(ValueError):
    """Bytes that are no planes or no frame."""


def encode_planes(planes: NDArray[np.float32]) -> bytes:
    """Planes of shape (4, slots), NaN where a slot has no number."""
    shuffled = np.ascontiguousarray(planes, "<f4").view(np.uint8).reshape(-1, _FLOAT_BYTES).T
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(shuffled.tobytes())


def decode_plane(data: bytes, plane: int) -> NDArray[np.float32]:
    """One plane of ``encode_planes``. Raises ``PlanesDamaged``."""
    return _joined(_shuffled(data)[:, plane])


def decode_planes(data: bytes) -> NDArray[np.float32]:
    """All of ``encode_planes``, shape (4, slots). Raises ``PlanesDamaged``."""
    return _joined(_shuffled(data))


def _shuffled(data: bytes) -> NDArray[np.uint8]:
    """Bytes of shape (4 of each number, lowest first; planes; slots)."""
    raw = _decompressed(data, SLOTS_MAX * PLANES * _FLOAT_BYTES)
    if len(raw) % (PLANES * _FLOAT_BYTES):
        raise PlanesDamaged(f"{len(raw)} bytes are no four planes")
    return np.frombuffer(raw, np.uint8).reshape(_FLOAT_BYTES, PLANES, -1)


def _joined(lowest_first: NDArray[np.uint8]) -> NDArray[np.float32]:
    words = lowest_first[-1].astype(np.uint32)
    for one in lowest_first[-2::-1]:  # shifts are four times faster than a transposed copy of bytes
        words <<= 8
        words |= one
    found: NDArray[np.float32] = words.view(np.float32)
    return found


def encode_frame(slots: NDArray[np.uint8]) -> bytes:
    """One byte per slot."""
    return zstandard.ZstdCompressor(level=LEVEL).compress(slots.tobytes())


def decode_frame(data: bytes) -> NDArray[np.uint8]:
    """What ``encode_frame`` was given. Raises ``PlanesDamaged``."""
    return np.frombuffer(_decompressed(data, SLOTS_MAX), np.uint8)


def _decompressed(data: bytes, most_bytes: int) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=most_bytes)
    except zstandard.ZstdError as fault:
        raise PlanesDamaged(str(fault)) from fault
