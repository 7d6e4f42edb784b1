"""An answer of NCCL's RAS <-> the fields of the event it travels as.

In: ``ras.RasAnswer``. Out: texts, bounded: what it says (``status``) and the answer's own words in parts.
The whole answer is judged here, where it came; of a long one only the start travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from collectors.formats import ras_status
from collectors.formats.ras_status import RasStatus
from collectors.ras import RasAnswer

SOURCE: Final = "nccl_ras"
KIND: Final = "nccl_ras"
PARTS_MAX: Final = 4
PART_MAX_CHARS: Final = 16_000

_status: Final = msgspec.json.Decoder(RasStatus)


@dataclass(frozen=True, slots=True)
class Told:
    """An event of RAS as it is read again."""

    address: str
    form: str
    error: str
    """why RAS gave no whole answer; empty when it did"""
    length_bytes: str
    status: RasStatus
    answer: str
    """its start, where it is long"""


def fields(answer: RasAnswer, capture_id: int) -> dict[str, str]:
    """Never raises: what cannot be read is said to be so."""
    text = "".join(
        char if char.isprintable() or char in "\n\t" else "?"
        for char in answer.data.decode("utf-8", "replace")
    )
    status = ras_status.parse(text) if text else RasStatus()
    parts = [text[at : at + PART_MAX_CHARS] for at in range(0, len(text), PART_MAX_CHARS)][:PARTS_MAX]
    return {
        "capture_id": str(capture_id),
        "address": answer.address,
        "form": answer.form,
        "error": answer.error[:1_000],
        "length_bytes": str(len(answer.data)),
        "status": msgspec.json.encode(status).decode(),
        **{f"answer_{number}": part for number, part in enumerate(parts)},
    }


def sentence(told: Mapping[str, str]) -> str:
    """One line for people, of the fields of an event."""
    found = read(told)
    if not found.answer:
        return f"NCCL RAS gave no answer: {found.error or 'it is empty'}"
    broken = f"; broken off: {found.error}" if found.error else ""
    return f"NCCL RAS: {found.status.sentence}{broken}"


def read(told: Mapping[str, str]) -> Told:
    """Fields of an event of a node, checked again; what is not there is empty."""
    try:
        status = _status.decode(told.get("status", "{}"))
    except (msgspec.MsgspecError, RecursionError):
        status = RasStatus(damaged="the node's own words of it cannot be read")
    answer = "".join(told.get(f"answer_{number}", "") for number in range(PARTS_MAX))
    return Told(
        told.get("address", "")[:255],
        told.get("form", "")[:16],
        told.get("error", "")[:1_000],
        told.get("length_bytes", "")[:20],
        status,
        answer,
    )
