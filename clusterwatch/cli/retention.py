"""`clusterwatch retention`: what is kept how long, the disk it takes, and when the disk will be full.

The gateway makes partitions ahead and drops expired ones by itself; `--now` does one round at once. How long
each class is kept is set by CLUSTERWATCH_RETENTION_DAYS_<CLASS>.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from clusterwatch.cli.database import use_database

if TYPE_CHECKING:
    from clusterwatch.store.disk import DiskForecast, TableDisk

_HEADINGS = ("class", "kept days", "oldest", "partitions", "GiB now", "GiB a day", "GiB when full")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser(
        "retention", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--now", action="store_true", help="make partitions ahead and drop expired ones first"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable, in bytes")
    parser.set_defaults(command="retention")


def run(args: argparse.Namespace) -> int:
    """Prints the forecast."""
    use_database()
    from clusterwatch.store import disk, partitions

    changed = partitions.maintain() if args.now else {}
    found = disk.forecast()
    if args.json:
        print(json.dumps(as_json(found) | changed))
        return 0
    for what, names in changed.items():
        print(f"{what}: {', '.join(names) or 'none'}")
    print("\n".join(table(found.tables)))
    print(sentence(found))
    return 0


def as_json(found: DiskForecast) -> dict[str, Any]:
    """Every number in bytes and ns; null where it is not known."""
    return {
        "tables": [dataclasses.asdict(one) for one in found.tables],
        "other_bytes": found.other_bytes,
        "size_bytes": found.size_bytes,
        "full_bytes": found.full_bytes,
        "free_bytes": found.free_bytes,
        "unknown_reason": found.unknown_reason,
        "days_left": found.days_left,
    }


def table(tables: tuple[TableDisk, ...]) -> list[str]:
    """One line per class, columns aligned."""
    rows = [_HEADINGS, *(_cells(one) for one in tables)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return [
        "  ".join(
            cell.ljust(width) if column in (0, 2) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def sentence(found: DiskForecast) -> str:
    """What to make of it, in one or two lines."""
    said = f"The database takes {_gib(found.size_bytes)} GiB"
    if found.full_bytes is None:
        return f"{said}. It has not grown long enough to tell how fast it grows."
    said += f" and will take {_gib(found.full_bytes)} when every class is as old as it is kept."
    if found.free_bytes is None:
        return f"{said}\nFree disk: not known. {found.unknown_reason}."
    said += f"\nFree disk: {_gib(found.free_bytes)} GiB, "
    if found.days_left is None:
        return f"{said}which is enough."
    return f"{said}FULL IN {found.days_left:.1f} DAYS: keep less, or give it more."


def _cells(one: TableDisk) -> tuple[str, ...]:
    oldest = (
        "-" if one.oldest_ns is None else f"{datetime.fromtimestamp(one.oldest_ns / 1e9, UTC):%Y-%m-%d %H:%M}"
    )
    return (
        one.table,
        str(one.retention_days),
        oldest,
        str(one.partition_count),
        _gib(one.size_bytes),
        _gib(one.bytes_per_day),
        _gib(one.full_bytes),
    )


def _gib(size_bytes: float | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 2**30:,.2f}"
