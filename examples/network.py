"""A host in a network namespace of its own, whose link can go down without a connection being closed.

In: root and iproute2. Out: a namespace, a pair of virtual links, a relay from the link to the gateway's
loopback address. All of it is taken down again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from urllib.parse import urlsplit

from examples.hosts import Gateway

CHUNK_BYTES = 65_536


class NetworkError(Exception):
    """No such network can be made here; the text is one line for people."""


class HostLink:
    """One namespace and its link, named by this process so that two examples do not meet."""

    def __init__(self) -> None:
        number = os.getpid() % 16_384
        self.name = f"cw{number}"
        self._outer, self._inner = f"cwo{number}", f"cwi{number}"
        first = number * 4
        base = f"198.18.{first // 256 % 256}"  # 198.18.0.0/15 is set aside for such tests (RFC 2544)
        self.outer_address = f"{base}.{first % 256 + 1}"
        self.inner_address = f"{base}.{first % 256 + 2}"
        self._relay: Relay | None = None
        self._made = False

    def up(self, gateway: Gateway) -> tuple[list[str], Gateway]:
        """Makes the namespace. Returns what to put before a command in it, and the gateway as seen from it.

        Raises: ``NetworkError`` without root or iproute2.
        """
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise NetworkError("host_netns needs root and iproute2 (apt-get install iproute2)")
        self._made = True
        inside = ["netns", "exec", self.name, "ip"]
        _ip("netns", "add", self.name)
        _ip("link", "add", self._outer, "type", "veth", "peer", "name", self._inner, "netns", self.name)
        _ip("address", "add", f"{self.outer_address}/30", "dev", self._outer)
        _ip("link", "set", self._outer, "up")
        _ip(*inside, "address", "add", f"{self.inner_address}/30", "dev", self._inner)
        _ip(*inside, "link", "set", self._inner, "up")
        _ip(*inside, "link", "set", "lo", "up")
        address = urlsplit(gateway.url)
        self._relay = Relay(self.outer_address, (address.hostname or "127.0.0.1", address.port or 80))
        seen = f"{address.scheme}://{self.outer_address}:{self._relay.port}{address.path}"
        return ["ip", "netns", "exec", self.name], Gateway(seen, gateway.token_file)

    def environment(self, inside: bool) -> dict[str, str]:
        """gloo's choice of interface for a rank inside the namespace or outside."""
        return {"GLOO_SOCKET_IFNAME": self._inner if inside else self._outer}

    def cut(self) -> None:
        """The link goes down: packets vanish, no connection is told."""
        _ip("netns", "exec", self.name, "ip", "link", "set", self._inner, "down")

    def down(self) -> None:
        """Takes everything away; the namespace takes its end of the link with it."""
        if self._relay is not None:
            self._relay.close()
        if self._made:
            subprocess.run(["ip", "link", "delete", self._outer], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "delete", self.name], capture_output=True, check=False)


class Relay:
    """Carries TCP connections from ``address`` to ``target``; two threads for each."""

    def __init__(self, address: str, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server((address, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _address = self._listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(source, sink), daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
