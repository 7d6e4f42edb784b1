"""A running product in a folder of its own, and a REST client for it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 150.0
T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: Callable[[], T | None], timeout_s: float, said: str, every_s: float = 0.2) -> T:
    """The first answer that is not None; fails with ``said`` when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = what()
        if found is not None:
            return found
        time.sleep(every_s)
    raise AssertionError(f"not within {timeout_s:.0f} s: {said}")


@dataclass
class Product:
    """``clusterwatch up`` in ``folder``. Use as a context manager."""

    folder: Path
    demo_gpus: int = 0
    web_port: int = field(default_factory=free_port)
    gateway_port: int = field(default_factory=free_port)
    _token: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def environ(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CLUSTERWATCH_", "DJANGO_"))}
        return inherited | {
            "CLUSTERWATCH_STATE_DIR": str(self.folder),
            "CLUSTERWATCH_BIND": f"127.0.0.1:{self.web_port}",
            "CLUSTERWATCH_GATEWAY_BIND": f"127.0.0.1:{self.gateway_port}",
            "CLUSTERWATCH_ADMIN_PASSWORD": "correct-horse-battery",
        }

    def __enter__(self) -> Product:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.down()

    def cli(self, *argv: str, timeout_s: float = START_LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Runs one ``clusterwatch`` command against this product."""
        return subprocess.run(
            [sys.executable, "-m", "clusterwatch.cli.main", *argv],
            env=self.environ,
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=timeout_s,
        )

    def up(self) -> None:
        done = self.cli("up", "-d", "--demo-gpus", str(self.demo_gpus))
        assert done.returncode == 0, done.stdout + done.stderr

    def down(self) -> None:
        self.cli("down", timeout_s=90)

    def pid(self, name: str) -> int:
        """Process id of a process of the table, from the supervisor's own status."""
        status = json.loads((self.folder / "status.json").read_text())
        return int(status["processes"][name]["pid"])

    def kill(self, name: str) -> None:
        """kill -9 of one process of the table."""
        os.kill(self.pid(name), signal.SIGKILL)

    @property
    def token(self) -> str:
        if not self._token:
            done = self.cli("token", "create", "--kind", "user", "--scope", "read")
            assert done.returncode == 0, done.stderr
            self._token = done.stdout.split()[-1]
        return self._token

    def get(self, path: str) -> Any:
        """GET of REST v1; ``path`` starts after ``/api/v1``."""
        request = urllib.request.Request(
            f"{self.url}/api/v1{path}", headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def try_get(self, path: str) -> Any | None:
        """The same, None while the product cannot answer."""
        try:
            return self.get(path)
        except (OSError, urllib.error.HTTPError, ValueError):
            return None

    def job(self, key: str) -> dict[str, Any] | None:
        """The job with the launcher's id ``key``, None while it is not known."""
        jobs = (self.try_get("/jobs") or {"results": []})["results"]
        return next((job for job in jobs if job["key"] == key), None)

    def incidents(self, job_id: int) -> list[dict[str, Any]]:
        """All incidents of a job, newest first, in every state."""
        answer = self.try_get(f"/incidents?job={job_id}")
        return answer["results"] if answer else []


@contextmanager
def temporary_product(prefix: str, demo_gpus: int = 0) -> Iterator[Product]:
    """A running product whose every byte lies in a temporary folder.

    As root, PostgreSQL runs as another user: it must be able to enter the folder, else its data would go to
    ``/var/lib/clusterwatch`` and stay there.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        with Product(Path(folder) / "state", demo_gpus=demo_gpus) as running:
            yield running
