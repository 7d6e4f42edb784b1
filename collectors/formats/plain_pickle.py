"""Reads a pickle that holds plain data only: dict, list, tuple, str, int, float, bool, None.

In: the bytes of a flight-recorder dump. Out: the object. A dump of PyTorch's recorder needs 22 opcodes, none
of which names code; everything else (GLOBAL, REDUCE, BUILD, persistent ids, extensions, huge integers, byte
strings) is refused before anything is built. The walk also bounds what the C unpickler does on the word of
the file. Its memo table grows to twice the index of a LONG_BINPUT, so six bytes could ask for 64 GiB. And a
tuple as the key of a dict is hashed with all that is in it: tuples a million deep end the process, forty that
hold the one before twice take for ever. So a tuple becomes a list, which is no key, where it is made.

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

_PUT: Final = rb"(?:q.|r..[\x00-\x1f]\x00)"
"""BINPUT, and LONG_BINPUT below 2 million: a memo table of at most 32 MiB."""

_PAIR: Final = rb"h.h.\x86(?=[hjXu])"
"""A group's name and description as the recorder writes them: two memo values, in no memo themselves, then
the next key or the end of the dict. This tuple may stay one: without POP nothing brings it back to the top of
the stack, so no memo number ever names it, and what it holds is no tuple but ``()``.
"""

_KEY: Final = rb"h."
_TEXT: Final = rb"h."
_NUMBER: Final = rb"(?:K.|M..|J....)"
_TIME: Final = rb"(?:\x8a\x08........|N)"
_FLAG: Final = rb"[\x88\x89]"
_HEAD: Final = (
    (_KEY + _NUMBER) * 2  # record_id, pg_id
    + _KEY + _PAIR + (_KEY + _TEXT) * 2  # process_group; the thread's name and id
    + (_KEY + _NUMBER) * 3 + _KEY + _TEXT + _KEY + _TIME + _KEY  # three sequences, name, time created
)  # fmt: skip
_TAIL: Final = _KEY + _TEXT + (_KEY + _TIME) * 2 + _KEY + _FLAG + _KEY + _NUMBER + _KEY + _FLAG + rb"u"
_FRAME: Final = rb"\}\(h.(?:h.|j....)h.(?:h.|j....)h.(?:K.|M..)u" + _PUT
"""An entry up to and from its sizes, and a stack frame, as PyTorch 2.13 writes them. All in them is harmless
one by one too; they are most of a file, so each is taken at one go.
"""

_HARMLESS: Final = (
    _HEAD,
    _TAIL,
    _PAIR,
    rb"[hKq\x80].",  # one byte follows: BINGET, BININT1, BINPUT, PROTO
    _FRAME,
    rb"[})\](Naesu\x88\x89\x94]++",  # none: containers, MARK, NONE, bools, appends, MEMOIZE
    _PUT,
    rb"M..",  # BININT2
    rb"[Jj]....",  # BININT, LONG_BINGET
    rb"[G\x95]........",  # BINFLOAT, FRAME
    _LONG1,
)
"""The first that fits is taken, so what is longer stands first."""

_RUN: Final = re.compile(rb"(?:" + rb"|".join(_HARMLESS) + rb")++", re.DOTALL)
"""A run of harmless opcodes; strings are stepped over in Python, since a pattern cannot count."""

_TUPLES: Final = frozenset((b"t", b"\x85", b"\x86", b"\x87"))
_BINPERSID: Final = b"Q"
"""Makes the unpickler give what it built last to ``persistent_load``; refused where the file has it."""

_STRING_MAX_BYTES: Final = 1024 * 1024
"""The longest string of a real dump is the rank list of the world: 165 kB at 24,576 ranks."""

_REFUSED: Final = {
    b"0": "POP",
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


def _walked(data: bytes) -> bytes:
    """``data`` with its tuples made into lists. Cost: linear, builds no object of the file.

    Raises:
        TraceError: it is not plain opcodes up to a STOP.
    """
    parts: list[bytes] = []
    position, done, size, match = 0, 0, len(data), _RUN.match
    while position < size:
        run = match(data, position)
        if run is not None:
            position = run.end()
        opcode = data[position : position + 1]
        if opcode in _TUPLES:
            position += 1
            parts.append(data[done:position])
            done = position
        elif opcode == b"X":
            width = int.from_bytes(data[position + 1 : position + 5], "little")
            position = _after_string(position, 5, width)
        elif opcode == b"\x8c":
            width = int.from_bytes(data[position + 1 : position + 2], "little")
            position = _after_string(position, 2, width)
        elif opcode == b".":
            return _BINPERSID.join((*parts, data[done:]))
        else:
            break
    if position >= size:
        raise TraceError("cut off: the pickle has no end")
    name = _REFUSED.get(opcode)
    if name is None:
        raise TraceError(f"it is no pickle of a recorder, or damaged at byte {position}")
    raise TraceError(f"opcode {name} at byte {position}: a dump holds plain data only, or it is cut off here")


def _after_string(position: int, head: int, width: int) -> int:
    if width > _STRING_MAX_BYTES:
        raise TraceError(f"a string of {width} bytes at byte {position}")
    return position + head + width


class _Refusing(pickle.Unpickler):
    """The second lock: even an opcode that slipped through the walk finds no class."""

    persistent_load = list
    """What the walk put after each tuple."""

    def find_class(self, module: str, name: str) -> Any:
        raise TraceError(f"names the global {module[:100]}.{name[:100]}")


class _Whole(io.BytesIO):
    """The C unpickler asks ``peek`` for more; given all at once it never comes back (2.5x faster)."""

    def peek(self, size: int = -1, /) -> memoryview:
        return self.getbuffer()[self.tell() :]


def loads(data: bytes) -> Any:
    """The object in ``data``; tuples may come as lists. Raises ``TraceError`` unless it is plain data."""
    plain = _walked(data)
    try:
        return _Refusing(_Whole(plain)).load()
    except TraceError:
        raise
    except Exception as error:  # noqa: BLE001  hostile opcodes in a wrong order raise nearly anything
        raise TraceError(f"not a usable pickle: {type(error).__name__}: {str(error)[:200]}") from error
