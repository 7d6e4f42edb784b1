"""A delta turns the state before into the state after, and is small when little changed."""

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterwatch.store.deltas import apply_delta, make_delta

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "ok"])
rows = st.dictionaries(st.sampled_from("abcd"), st.dictionaries(st.sampled_from("xy"), scalars), max_size=4)
values = (
    scalars
    | rows
    | st.binary(min_size=0, max_size=12)
    | st.lists(scalars, max_size=12)
    | st.lists(st.lists(scalars, max_size=2), max_size=3)
)
states = st.dictionaries(st.sampled_from(["slots", "jobs", "counts", "rank"]), values, max_size=4)


def as_json(state: dict) -> bytes:
    return orjson.dumps(state, default=lambda b: {"b64": b.hex()}, option=orjson.OPT_SORT_KEYS)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(states, states)
def test_applying_the_delta_gives_the_new_state_to_the_last_type(before, after):
    assert as_json(apply_delta(before, make_delta(before, after))) == as_json(after)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(states)
def test_no_change_is_an_empty_delta(state):
    assert make_delta(state, dict(state)) == {}


def test_applying_leaves_the_old_state_alone():
    before = {"slots": b"\1\1", "jobs": {"1": {"step": 1}}}
    apply_delta(before, {"cells": {"slots": [0, 4]}, "rows": {"jobs": {"gone": ["1"]}}})
    assert before == {"slots": b"\1\1", "jobs": {"1": {"step": 1}}}


def test_one_changed_slot_of_24576_costs_a_pair():
    before = bytes(24_576)
    after = before[:7] + b"\4" + before[8:]
    assert make_delta({"slots": before}, {"slots": after}) == {"cells": {"slots": [7, 4]}}


def test_one_changed_row_does_not_send_the_others():
    before = {"jobs": {"1": {"step": 5}, "2": {"step": 9}}}
    after = {"jobs": {"1": {"step": 6}, "2": {"step": 9}}}
    assert make_delta(before, after) == {"rows": {"jobs": {"put": {"1": {"step": 6}}}}}


@pytest.mark.parametrize(("old", "new"), [(True, 1), (0, False), (1, 1.0)])
def test_values_python_holds_equal_but_json_does_not_are_sent(old, new):
    assert make_delta({"counts": old}, {"counts": new}) == {"set": {"counts": new}}
    assert make_delta({"counts": [old, 2, 2, 2]}, {"counts": [new, 2, 2, 2]}) == {
        "cells": {"counts": [0, new]}
    }
