"""The scenarios of a test module, run by ``server`` in one go, and the verdicts on the dumps they left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cases.judged import Verdict, analyzed

ROOT: Final = Path(__file__).resolve().parents[2]
LIMIT_S: Final = 600.0
FLAVOURS: Final = ("pickle", "json")


@dataclass(frozen=True)
class Scenario:
    """One job: ``fault`` is put into the program of ``rank``; ``ring`` bounds what a recorder keeps."""

    program: str
    fault: str = ""
    world: int = 4
    ring: int = 2000

    @property
    def rank(self) -> int:
        """The rank at fault: a member of the last group, but neither its root nor its last."""
        return self.world // 2 + (self.world > 4)

    @property
    def name(self) -> str:
        return f"{self.fault or 'healthy'}-{self.program.replace('/', '_')}"

    def request(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "name": self.name,
            "program": self.program,
            "world": self.world,
            "ring": self.ring,
        }
        return told | ({"fault": self.fault, "rank": self.rank} if self.fault else {})


class Lab:
    """Runs scenarios once; then gives what became of the ranks and what the command says of their dumps."""

    def __init__(self, folder: Path, scenarios: Iterable[Scenario]) -> None:
        self.folder = folder
        requests = "".join(json.dumps(scenario.request()) + "\n" for scenario in scenarios)
        done = subprocess.run(
            [sys.executable, "-m", "tests.torch.server", str(folder)],
            input=requests,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the torch server failed:\n{done.stderr[-4000:]}")
        said = [json.loads(line) for line in done.stdout.splitlines()]
        self.ranks: dict[str, list[str]] = {row["name"]: row["ranks"] for row in said}

    def place(self, scenario: Scenario, flavour: str) -> Path:
        return self.folder / scenario.name / flavour

    def verdict(self, scenario: Scenario, flavour: str) -> Verdict:
        """``clusterwatch analyze --json`` on the dumps, with its exit code."""
        return analyzed(self.place(scenario, flavour))
