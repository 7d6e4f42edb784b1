"""Mutants of every message, and the script that makes them through the night."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.fuzz_wire import Run
from tests.faults.mutation import mutant
from tests.faults.wire_targets import Broken, Target, sound_messages, take_from_node, targets

TARGETS = {target.name: target for target in targets()}


@pytest.mark.parametrize("name", sorted(TARGETS))
@given(seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_a_mutant_is_refused_as_expected_and_harms_nobody(name: str, seed: int) -> None:
    target = TARGETS[name]
    target.accepts(mutant(random.Random(seed), target.samples))


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_mutants_are_made_of_is_sound(name: str) -> None:
    assert all(TARGETS[name].accepts(sample) for sample in TARGETS[name].samples)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_some_mutants_come_through_and_most_do_not(name: str) -> None:
    target = TARGETS[name]
    taken = [target.accepts(mutant(random.Random(seed), target.samples)) for seed in range(300)]
    assert 0 < sum(taken) < len(taken) / 2


def test_the_script_reports_an_exception_nobody_expects() -> None:
    def careless(data: bytes) -> bool:
        return data[40] > 0

    run = Run(seed=1)
    target = Target("careless", [sound_messages()["bye"]], careless)
    for number in range(20):
        run.one(target, number)
    assert len(run.faults) > 0
    assert "IndexError" in run.faults[0]
    assert run.table().splitlines()[1].split()[-1] == str(len(run.faults))


def test_a_change_to_another_node_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.wire_targets.SLOTS", (0, 0))
    with pytest.raises(Broken):
        take_from_node(sound_messages()["hot"])
