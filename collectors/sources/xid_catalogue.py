"""What Xid codes mean: reads ``fault_catalogue.toml``, a versioned data file."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources

from collectors.wire.records import Severity


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """One row. ``echo_of`` None: a fault of its own; empty: an echo of whatever came before it."""

    code: int
    text: str
    action: str
    severity: Severity
    echo_of: tuple[int, ...] | None = None


@functools.cache
def xids() -> dict[int, XidMeaning]:
    """Code -> meaning. Raises ``ValueError`` for a damaged file."""
    text = resources.files("collectors.sources").joinpath("fault_catalogue.toml").read_text(encoding="utf-8")
    found = {}
    for row in tomllib.loads(text)["xid"]:
        echo_of = tuple(row["echo_of"]) if "echo_of" in row else None
        found[row["code"]] = XidMeaning(row["code"], row["text"], row["action"], row["severity"], echo_of)
    return found


def meaning(code: int) -> XidMeaning:
    """What a code means; one that the catalogue does not know is a warning of its own."""
    return xids().get(code) or XidMeaning(code, "not in the catalogue", "CONTACT_SUPPORT", "warning")
