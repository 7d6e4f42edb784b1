"""A real snmpd on loopback that answers with the rows of a file for the tables of a switch."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from collectors.pollers import switch_snmp_tables as mib
from collectors.pollers.switch_snmp_walk import Oid

SNMPD = shutil.which("snmpd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
SCRIPT = Path(__file__).with_name("switch_data") / "mib_rows.py"
TABLES = (
    "1.3.6.1.2.1.2.2",
    "1.3.6.1.2.1.31.1.1",
    "1.3.6.1.2.1.10.7",
    "1.3.6.1.4.1.9.9",
    "1.0.8802.1.1.2.1",
    "1.3.6.1.2.1.99.1.1",
    "1.3.6.1.2.1.47.1.1.1",
)
COMMUNITY, USER, PASSWORD = "a-community", "watcher", "a-long-password"


class SnmpPeer:
    """``rows``: OID -> (type of pass_persist, value). ``own``: the machine's own ports instead."""

    def __init__(self, folder: Path, own: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.rows: dict[Oid, tuple[str, str]] = {}
        self.save()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        lines = [
            f"agentAddress udp:127.0.0.1:{self.port}",
            f"rocommunity {COMMUNITY} 127.0.0.1",
            f'createUser {USER} SHA-256 "{PASSWORD}" AES "{PASSWORD}"',
            f"rouser {USER} priv",
        ]
        if not own:
            lines += [f"pass_persist .{oid} {sys.executable} -S {SCRIPT} {folder / 'rows'}" for oid in TABLES]
        (folder / "snmpd.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        modules = [] if own else ["-I", "-ifTable,ifXTable"]
        assert SNMPD
        self.process = subprocess.Popen(
            [SNMPD, "-f", "-Lf", str(folder / "log"), "-C", "-c", str(folder / "snmpd.conf"), *modules],
            env={**os.environ, "SNMP_PERSISTENT_DIR": str(folder), "SNMPCONFPATH": str(folder)},
        )

        self._wait()

    def _wait(self) -> None:
        """Until snmpd has its port, so that nobody else may have it; what is sent before is lost."""
        for _ in range(100):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                try:
                    other.bind(("127.0.0.1", self.port))
                except OSError:
                    return
            time.sleep(0.02)

    def save(self) -> None:
        """A file in one move, so that the script never reads half of it."""
        text = "".join(
            f".{'.'.join(map(str, oid))} {kind} {value}\n" for oid, (kind, value) in sorted(self.rows.items())
        )
        (self.folder / "new").write_text(text, encoding="utf-8")
        (self.folder / "new").replace(self.folder / "rows")

    def set(self, column: Oid, *index: int, text: str | None = None, **value: int) -> None:
        """One row: ``text=``, or the number under its type: ``counter64=5``."""
        kind, said = ("string", text) if text is not None else next(iter(value.items()))
        self.rows[(*column, *index)] = (kind, str(said))

    def add_port(self, index: int, name: str, octets: int = 0, high_speed: int = 400_000) -> None:
        self.set(mib.NAME, index, text=name)
        self.set(mib.TYPE, index, integer=6)
        self.set(mib.OPER, index, integer=1)
        self.set(mib.ADMIN, index, integer=1)
        self.set(mib.HIGH_SPEED, index, gauge=high_speed)
        self.set(mib.HC_IN, index, counter64=octets)
        self.set(mib.HC_OUT, index, counter64=octets)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)
