"""Readiness probes that leave no trace in the logs of what they ask."""

from __future__ import annotations

import errno
import http.client
import socket
from pathlib import Path

PROBE_TIMEOUT_S = 3.0
_LISTEN = "0A"  # TCP_LISTEN in the kernel's table (proc_net_tcp)


def answers_http(host: str, port: int, path: str) -> bool:
    """Whether a web server answers this path without a server error."""
    if not is_listening(port):
        return False
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"User-Agent": "clusterwatch-probe"})
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def is_listening(port: int) -> bool:
    """Whether some process of this network namespace listens on a TCP port, asked without connecting."""
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and fields[1].endswith(wanted):
                return True
    return False


def bind_fault(host: str, port: int) -> int | None:
    """The errno with which this address cannot be bound now, None when it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror:
            return errno.EADDRNOTAVAIL
        except OSError as fault:
            return fault.errno or errno.EIO
    return None
