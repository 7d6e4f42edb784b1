"""Reads a pickle that holds plain data only: dict, list, tuple, str, int, float, bool, None.

In: the bytes of a flight-recorder dump. Out: the object. A dump of PyTorch's recorder needs 22 opcodes, none
of which names code; everything else (GLOBAL, REDUCE, BUILD, persistent ids, extensions, huge integers, byte
strings) is refused before anything is built. The walk also bounds what the C unpickler allocates on the
word of the file: its memo table grows to twice the index of a LONG_BINPUT, so six bytes could ask for 64 GiB.

Opcodes: Python's Lib/pickletools.py.
"""

from __future__ import annotations

import io
import pickle  # nosec: fed only with bytes that `_walk` let through
import re
from typing import Any, Final

from collectors.formats.trace import TraceError

_LONG1: Final = b"|".join(rb"\x8a" + re.escape(bytes([n])) + b"." * n for n in range(10))
"""LONG1 of at most 9 bytes: what an unsigned 64-bit number takes."""

_RUN: Final = re.compile(
    rb"(?:[Khq\x80]."  # one byte: BININT1, BINGET, BINPUT, PROTO
    rb"|[})\](Naesut0\x85\x86\x87\x88\x89\x94]++"  # none: containers, MARK, NONE, bools, appends, MEMOIZE
    rb"|r..[\x00-\x1f]\x00"  # LONG_BINPUT below 2 million: a memo table of at most 32 MiB
    rb"|M.."  # BININT2
    rb"|[Jj]...."  # BININT, LONG_BINGET
    rb"|[G\x95]........"  # BINFLOAT, FRAME
    rb"|" + _LONG1 + rb")++",
    re.DOTALL,
)
"""A run of harmless opcodes; strings are stepped over in Python, since a pattern cannot count."""

_STRING_MAX_BYTES: Final = 1024 * 1024
"""The longest string of a real dump is the rank list of the world: 165 kB at 24,576 ranks."""

_REFUSED: Final = {
    b"c": "GLOBAL",
    b"\x93": "STACK_GLOBAL",
    b"R": "REDUCE",
    b"b": "BUILD",
    b"i": "INST",
    b"o": "OBJ",
    b"\x81": "NEWOBJ",
    b"\x92": "NEWOBJ_EX",
    b"P": "PERSID",
    b"Q": "BINPERSID",
    b"\x8b": "LONG4",
    b"\x82": "EXT1",
    b"\x83": "EXT2",
    b"\x84": "EXT4",
}
"""Names for the message; any opcode outside ``_RUN`` and the two string opcodes is refused."""


def _walk(data: bytes) -> None:
    """Raises ``TraceError`` unless ``data`` is plain opcodes up to a STOP. Cost: linear, builds nothing."""
    position, size, match = 0, len(data), _RUN.match
    while position < size:
        run = match(data, position)
        if run is not None:
            position = run.end()
        opcode = data[position : position + 1]
        if opcode == b"X":
            start, width = position + 5, int.from_bytes(data[position + 1 : position + 5], "little")
        elif opcode == b"\x8c":
            start, width = position + 2, int.from_bytes(data[position + 1 : position + 2], "little")
        elif opcode == b".":
            return
        else:
            break
        if width > _STRING_MAX_BYTES:
            raise TraceError(f"a string of {width} bytes at byte {position}")
        position = start + width
    if position >= size:
        raise TraceError("cut off: the pickle has no end")
    opcode = data[position : position + 1]
    name = _REFUSED.get(opcode, f"0x{opcode.hex()}")
    raise TraceError(f"opcode {name} at byte {position}: a dump holds plain data only, or it is cut off here")


class _Refusing(pickle.Unpickler):
    """The second lock: even an opcode that slipped through the walk finds no class."""

    def find_class(self, module: str, name: str) -> Any:
        raise TraceError(f"names the global {module[:100]}.{name[:100]}")

    def persistent_load(self, pid: Any) -> Any:
        raise TraceError("holds a persistent id")


class _Whole(io.BytesIO):
    """The C unpickler asks ``peek`` for more; given all at once it never comes back (2.5x faster)."""

    def peek(self, size: int = -1, /) -> memoryview:
        return self.getbuffer()[self.tell() :]


def loads(data: bytes) -> Any:
    """The object in ``data``. Raises ``TraceError`` on anything that is no plain-data pickle."""
    _walk(data)
    try:
        return _Refusing(_Whole(data)).load()
    except TraceError:
        raise
    except Exception as error:  # noqa: BLE001  hostile opcodes in a wrong order raise nearly anything
        raise TraceError(f"not a usable pickle: {type(error).__name__}: {str(error)[:200]}") from error
