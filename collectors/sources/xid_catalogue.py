"""What Xid and SXid codes mean: reads ``fault_catalogue.toml``, a versioned data file."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Final

from collectors.wire.records import Severity

UNKNOWN_ACTION: Final = "CONTACT_SUPPORT"


@dataclass(frozen=True, slots=True)
class Meaning:
    """One row.

    Attributes:
        text: empty for a code that the catalogue does not know: then the driver's own words stand.
        echo_of: None: a fault of its own; empty: an echo of whatever came before it on that GPU.
        across_gpus: its root may be on another GPU of the node.
    """

    code: int
    text: str
    action: str
    severity: Severity
    source: str = ""
    echo_of: tuple[int, ...] | None = None
    across_gpus: bool = False


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The whole file. ``date``: of the knowledge in it, as ISO 8601."""

    version: int
    date: str
    xids: dict[int, Meaning]
    sxids: dict[int, Meaning]


@functools.cache
def catalogue() -> Catalogue:
    """The catalogue of this release. Raises ``ValueError`` or ``KeyError`` for a damaged file."""
    text = resources.files("collectors.sources").joinpath("fault_catalogue.toml").read_text(encoding="utf-8")
    told = tomllib.loads(text)
    tables = {}
    for table in ("xid", "sxid"):
        rows = [
            Meaning(**row | {"echo_of": tuple(row["echo_of"]) if "echo_of" in row else None})
            for row in told[table]
        ]
        tables[table] = {row.code: row for row in rows}
    return Catalogue(told["version"], told["date"], tables["xid"], tables["sxid"])


def meaning(code: int) -> Meaning:
    """What an Xid means; one that the catalogue does not know is a warning of its own."""
    return catalogue().xids.get(code) or Meaning(code, "", UNKNOWN_ACTION, "warning")


def switch_meaning(code: int) -> Meaning:
    """What an SXid means; one that the catalogue does not know is a warning."""
    return catalogue().sxids.get(code) or Meaning(code, "", UNKNOWN_ACTION, "warning")
