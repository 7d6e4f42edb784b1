"""Second processes of the product's own table, as an operator of several machines starts them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clusterwatch.ops.probes import is_listening
from clusterwatch.ops.processes import Address, ProcessSpec, product_processes
from tests.e2e.product import ROOT, Product, free_port, wait_for

START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0


def spec_of(name: str, gateway_port: int = 0, demo_gpus: int = 1) -> ProcessSpec:
    """The table's own line."""
    table = product_processes(Address("127.0.0.1", 0), Address("127.0.0.1", gateway_port), demo_gpus)
    return next(spec for spec in table if spec.name == name)


class Another:
    """One more process of a kind, with the product's environment; it may be killed and started again."""

    def __init__(self, product: Product, name: str, *arguments: str, demo_gpus: int = 1) -> None:
        """``arguments`` follow those of the table; ``demo_gpus`` is the size of a simulator."""
        self.port = free_port()
        """where it listens, if it is a gateway"""
        self.log = product.folder / "logs" / f"{name}-2.log"
        self._product = product
        self._arguments = arguments
        self._spec = spec_of(name, self.port, demo_gpus)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        environment = self._product.environ | {"CLUSTERWATCH_GATEWAY_BIND": f"127.0.0.1:{self.port}"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                (*self._spec.command(), *self._arguments),
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self._is_up, START_LIMIT_S, f"a second {self._spec.name} is up", every_s=0.05)

    def _is_up(self) -> bool | None:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-2000:]
        return self._spec.name != "gateway" or is_listening(self.port) or None

    def kill(self) -> None:
        """kill -9 of it and of what it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(self._spec.stop_signal)
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def another(product: Product, name: str, *arguments: str, demo_gpus: int = 1) -> Iterator[Another]:
    """A second process of the kind, running while inside."""
    process = Another(product, name, *arguments, demo_gpus=demo_gpus)
    try:
        process.start()
        yield process
    finally:
        process.stop()


def log_lines(path: Path, said: Callable[[str], bool]) -> list[str]:
    """Lines of a log for which ``said`` holds; none where there is no log yet."""
    if not path.exists():
        return []
    return [line for line in path.read_text(errors="replace").splitlines() if said(line)]
