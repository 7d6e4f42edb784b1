"""Makes hostile messages out of valid ones: torn, flipped and spliced bytes, and trees with a wrong leaf.

A mutant of bytes is mostly refused at once; one of the tree behind MessagePack is well-formed and lies in one
place, so it comes further. Everything follows from the ``random.Random`` given: a seed is a test case.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import zstandard

Chance = random.Random

ROUNDS_MAX: Final = 4
"""A mutant has one to so many changes."""
LONG: Final = 70_000
"""Length of a text, list or byte string that is longer than anything sound."""
GROWN_BYTES: Final = 16 * 1024 * 1024
"""No mutant grows beyond this: the gateway reads no frame of a quarter of it."""
BOMB_BYTES: Final = 48 * 1024 * 1024
"""Larger than any part may become when it is unpacked."""
INTEGERS: Final = (
    0, -1, 1, 59, 60, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1,
    2**63, 2**64 - 1, -(2**31), -(2**63), 1_796_000_040_000_000_000,
)  # fmt: skip
FLOATS: Final = (0.0, -0.0, 1e-308, 5e-324, 3.5e38, 1.7e308, float("inf"), float("-inf"), float("nan"))
TEXTS: Final = (
    "",
    "\0",
    "a\nb",
    "\x1b[2J",
    "\u202egnp",
    "\U0001f600",
    "x" * 256,
    "x" * LONG,
    "../../etc/passwd",
)


def mutant(chance: Chance, samples: Sequence[bytes]) -> bytes:
    """A changed copy of one of the samples."""
    data = chance.choice(samples)
    for _ in range(chance.randint(1, ROUNDS_MAX)):
        data = chance.choice((_change_tree, _change_tree, _change_bytes))(chance, data, samples)[:GROWN_BYTES]
    return data


# --- bytes -----------------------------------------------------------------------------------------------


def _change_bytes(chance: Chance, data: bytes, samples: Sequence[bytes]) -> bytes:
    return chance.choice(_BYTE_CHANGES)(chance, data, samples)


def _flip(chance: Chance, data: bytes, samples: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(min(len(data), chance.choice((1, 1, 2, 8)))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(chance: Chance, data: bytes, samples: Sequence[bytes]) -> bytes:
    return data[: chance.randint(0, len(data))]


def _drop(chance: Chance, data: bytes, samples: Sequence[bytes]) -> bytes:
    start = chance.randint(0, len(data))
    return data[:start] + data[start + chance.choice((1, 2, 4, 8, 64)) :]


def _insert(chance: Chance, data: bytes, samples: Sequence[bytes]) -> bytes:
    place = chance.randint(0, len(data))
    return data[:place] + chance.randbytes(chance.choice((1, 2, 4, 8, 64))) + data[place:]


def _splice(chance: Chance, data: bytes, samples: Sequence[bytes]) -> bytes:
    other = chance.choice(samples)
    return data[: chance.randint(0, len(data))] + other[chance.randint(0, len(other)) :]


_BYTE_CHANGES: Final[tuple[Callable[[Chance, bytes, Sequence[bytes]], bytes], ...]] = (
    _flip, _cut, _drop, _insert, _splice,
)  # fmt: skip


# --- trees -----------------------------------------------------------------------------------------------


def _change_tree(chance: Chance, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Changes one place of the tree; what is no MessagePack any more is changed as bytes."""
    try:
        tree = msgspec.msgpack.decode(data)
        return msgspec.msgpack.encode(_changed(chance, tree, samples))
    except (msgspec.MsgspecError, OverflowError, RecursionError, UnicodeError, TypeError):
        return _change_bytes(chance, data, samples)


def _changed(chance: Chance, node: Any, samples: Sequence[bytes]) -> Any:
    """A copy of the tree with one change, somewhere on a random way down."""
    if isinstance(node, dict) and node and chance.random() < 0.85:
        return _changed_dict(chance, node, samples)
    if isinstance(node, list) and node and chance.random() < 0.85:
        place = chance.randrange(len(node))
        return [_changed(chance, one, samples) if at == place else one for at, one in enumerate(node)]
    return _changed_leaf(chance, node, samples)


def _changed_dict(chance: Chance, node: dict[Any, Any], samples: Sequence[bytes]) -> dict[Any, Any]:
    key = chance.choice(list(node))
    what = chance.random()
    if what < 0.08:
        return {name: value for name, value in node.items() if name != key}
    if what < 0.12:
        return node | {chance.choice(TEXTS): node[key]}
    return node | {key: _changed(chance, node[key], samples)}


def _changed_leaf(chance: Chance, node: Any, samples: Sequence[bytes]) -> Any:
    if chance.random() < 0.15:
        return chance.choice((None, True, 0, -1, "", b"", [], {}, 1.5, [[]] * 8, {"a": {"b": {}}}))
    if isinstance(node, bool):
        return not node
    if isinstance(node, int):
        return chance.choice((*INTEGERS, node + 1, node - 1, -node, node * 2))
    if isinstance(node, float):
        return chance.choice((*FLOATS, -node, node * 1e6))
    if isinstance(node, str):
        return chance.choice((*TEXTS, node + "\0", node * 2))
    if isinstance(node, bytes):
        return _changed_part(chance, node, samples)
    if isinstance(node, list):
        return chance.choice(
            (_repeated(node, 2), node[:-1], _repeated(node, LONG // max(1, len(node)) // 32))
        )
    return node


def _repeated(node: list[Any], times: int) -> list[Any]:
    return node * min(times, GROWN_BYTES // len(msgspec.msgpack.encode(node)))


def _changed_part(chance: Chance, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Bytes inside a message: columns, or a compressed frame, which is changed behind its compression too."""
    if chance.random() < 0.5:
        return _change_bytes(chance, data, samples)
    try:
        if zstandard.frame_content_size(data) > GROWN_BYTES:  # a torn header may tell any size
            return data * 2
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=2**20)
    except zstandard.ZstdError:
        return chance.choice((b"", data * 2, data[:-8], data[8:], bytes(len(data)), b"\xff" * len(data)))
    changed = chance.choice((_change_bytes(chance, raw, samples), raw * 2, raw[:-8], raw))
    return _compressed(chance, changed)


def _compressed(chance: Chance, raw: bytes) -> bytes:
    """One frame, sometimes of a kind that must be refused."""
    if chance.random() < 0.03:
        return _bomb()
    return zstandard.ZstdCompressor(
        write_checksum=chance.random() < 0.8, write_content_size=chance.random() < 0.8
    ).compress(raw)


def _bomb() -> bytes:
    """A few kilobytes that unpack to more than any part may hold."""
    if not _BOMBS:
        _BOMBS.append(zstandard.ZstdCompressor(write_checksum=True).compress(bytes(BOMB_BYTES)))
    return _BOMBS[0]


_BOMBS: Final[list[bytes]] = []
