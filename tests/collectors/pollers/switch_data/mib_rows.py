"""A program for ``pass_persist`` of snmpd: answers with the rows of a file, as a switch's own agent would.

Usage: ``mib_rows.py FILE``; a line of the file is ``OID TYPE VALUE``. Source: snmpd.conf(5), pass_persist.
"""

from __future__ import annotations

import bisect
import sys
from pathlib import Path

Oid = tuple[int, ...]


def parsed(text: str) -> Oid:
    return tuple(int(part) for part in text.strip().strip(".").split("."))


def rows(path: Path) -> dict[Oid, tuple[str, str]]:
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        oid, kind, value = line.split(" ", 2)
        found[parsed(oid)] = (kind, value)
    return found


def main() -> None:
    path = Path(sys.argv[1])
    stamp, table, order = 0, {}, []
    while command := sys.stdin.readline().strip():
        if command == "PING":
            print("PONG", flush=True)
            continue
        asked = parsed(sys.stdin.readline())
        if path.stat().st_mtime_ns != stamp:
            stamp, table = path.stat().st_mtime_ns, rows(path)
            order = sorted(table)
        at = bisect.bisect_right(order, asked)
        found = asked if command == "get" else (order[at] if at < len(order) else None)
        if found not in table:
            print("NONE", flush=True)
            continue
        kind, value = table[found]
        print("." + ".".join(map(str, found)), kind, value, sep="\n", flush=True)


if __name__ == "__main__":
    main()
