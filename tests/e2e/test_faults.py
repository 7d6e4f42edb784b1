"""Each fault of the example on the real stack: the right rank, in time, and the same sentence everywhere."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from examples.run import Example, Plan
from tests.e2e.conftest import Figures
from tests.e2e.product import Product, wait_for
from tests.e2e.watch import Outcome, follow, job_id_of

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.limit_s(240)]

RANK = 5
HOST = "host-c"
NAMED_WITHIN_S = 60.0
"""A bound that catches "never", not a figure: these machines are shared. The figures are printed."""


@dataclass(frozen=True)
class Expected:
    verdicts: tuple[str, ...]
    culprits: tuple[int, ...] | None = (RANK,)
    """exact culprits; None: the honest set may do"""
    suspects_within: tuple[int, ...] = ()
    causes: tuple[str | None, ...] = field(default=())
    node: str | None = None

    def accepts(self, diagnosis: dict[str, object]) -> bool:
        culprits = tuple(diagnosis["culprit_ranks"])  # type: ignore[arg-type]
        suspects = tuple(diagnosis["suspect_ranks"])  # type: ignore[arg-type]
        if diagnosis["verdict"] not in self.verdicts:
            return False
        if self.causes and diagnosis["cause"] not in self.causes:
            return False
        if self.node is not None and diagnosis["node"] != self.node:
            return False
        if self.culprits is not None and culprits == self.culprits:
            return True
        honest = (
            bool(self.suspects_within) and RANK in suspects and set(suspects) <= set(self.suspects_within)
        )
        return honest and not culprits


EXPECTED = {
    "dataloader": Expected(("missing_rank",), causes=("data_loading",)),
    "spin": Expected(("missing_rank",), causes=("user_code",)),
    "sigstop": Expected(("missing_rank",), causes=("stopped",)),
    "sigkill": Expected(("dead_rank", "rank_failed")),
    "op_mismatch": Expected(("op_mismatch",), suspects_within=(4, 5)),
    "wrong_size": Expected(("size_mismatch", "rank_failed"), suspects_within=(4, 5)),
    "extra_call": Expected(("order_mismatch", "op_mismatch", "size_mismatch"), suspects_within=(4, 5)),
    "raise": Expected(("rank_failed",)),
    "host_freeze": Expected(("dead_node",), culprits=(4, 5), node=HOST),
    "host_netns": Expected(("dead_node",), culprits=(4, 5), node=HOST),
}


MARKS = {
    "host_netns": [pytest.mark.root],
    # tests/torch has the rings of both and their verdicts; here they cost four minutes
    "wrong_size": [pytest.mark.long],
    "extra_call": [pytest.mark.long],
}
KINDS = [pytest.param(kind, marks=MARKS.get(kind, [])) for kind in EXPECTED]
FAULT_STEP = 35
"""By then the job has a history of its own gaps."""


@pytest.mark.parametrize("kind", KINDS)
def test_names_the_right_rank(kind: str, product: Product, tmp_path: Path, figures: Figures) -> None:
    expected = EXPECTED[kind]
    plan = Plan(state_dir=product.folder, fault=kind, fault_rank=RANK, fault_step=FAULT_STEP, folder=tmp_path)
    with Example(plan) as example:
        job_id = job_id_of(product, example)
        example.wait_for_step(15)
        assert product.incidents(job_id) == []
        outcome = follow(product, example, job_id, expected.accepts, NAMED_WITHIN_S)
        figures.append(outcome.line(kind))
        assert outcome.open_s is not None
        assert outcome.diagnosis["coverage"]["expected"] == 8
        assert 0 < outcome.diagnosis["confidence"] <= 1
        says_the_same_everywhere(product, plan.job, outcome)
    stays_readable(product, outcome)


def says_the_same_everywhere(product: Product, key: str, outcome: Outcome) -> None:
    """REST and the command line tell one sentence."""

    def same() -> bool | None:
        # between two reads the sentence may have been told anew
        incident = product.get(f"/incidents/{outcome.incident['id']}")
        done = product.cli("why", key, "--json")
        assert done.returncode == 2, done.stderr
        here, there = json.loads(done.stdout)["summary"], incident["diagnosis"]["summary"]
        return _without_age(here) == _without_age(there) or None

    wait_for(same, 30, "why and REST say the same sentence")


def _without_age(sentence: str) -> str:
    """How long a job stands is told anew each second."""
    return re.sub(r"\b\d+ (s|min|h)\b", "a while", sentence)


def stays_readable(product: Product, outcome: Outcome) -> None:
    """After the job is gone the incident and its evidence are still there."""
    incident = product.get(f"/incidents/{outcome.incident['id']}")
    assert incident["diagnosis"]["culprit_ranks"] == outcome.diagnosis["culprit_ranks"] or (
        incident["diagnosis"]["class"] == "crash"
    )
    assert incident["evidence"], "evidence was frozen"


def test_a_dead_agent_is_not_a_dead_host(product: Product, tmp_path: Path, figures: Figures) -> None:
    """kill -9 of one host's agent: the job goes on, the loss is said, no rank is blamed."""
    plan = Plan(state_dir=product.folder, fault="agent_kill", fault_rank=RANK, fault_step=30, folder=tmp_path)
    with Example(plan) as example:
        job_id = job_id_of(product, example)
        example.wait_for_fault()
        step = example.step(0)

        def silent() -> dict[str, object] | None:
            found = product.get("/incidents?state=suspected&state=open")["results"]
            return next((i for i in found if i["diagnosis"]["verdict"] == "agents_silent"), None)

        incident = wait_for(silent, 30, "an incident says that the agent is gone")
        assert incident["diagnosis"]["culprit_ranks"] == []  # type: ignore[index]
        assert HOST in str(incident["diagnosis"]["summary"])  # type: ignore[index]
        example.wait_for_step(step + 10)
        assert [i for i in product.incidents(job_id) if i["diagnosis"]["class"] in ("hang", "crash")] == []
        figures.append("agent_kill     agents_silent, no rank blamed")
