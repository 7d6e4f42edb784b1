"""Redfish from anybody: whatever the JSON, nothing raises, and names and values stay within bounds."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.pollers.device import ConfigError
from collectors.pollers.redfish import from_config
from collectors.pollers.redfish_log import LogRead, Mark, entry, fresh
from collectors.pollers.redfish_parts import Told
from collectors.pollers.redfish_values import link, number, seconds, word
from collectors.pollers.redfish_walk import Walk
from tests.collectors.pollers.redfish_trees import log_entry, node, old_node, shelf

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
TREES = [node(), old_node(), shelf(2)]


@given(JSON)
def test_values_never_raise(value: Any) -> None:
    found = number(value)
    assert found is None or math.isfinite(found)
    assert word(value).isprintable() and len(word(value)) <= 128
    assert link(value) is None or str(link(value)).startswith("/redfish/")
    seconds(value)


@settings(max_examples=60)
@given(st.sampled_from(TREES), st.data())
def test_a_tree_with_anything_in_any_place_is_walked(tree: dict[str, Any], data: st.DataObject) -> None:
    changed = dict(tree)
    for _ in range(3):
        path = data.draw(st.sampled_from(sorted(tree)))
        broken = dict(changed[path]) if isinstance(changed[path], dict) else {}
        if broken:
            broken[data.draw(st.sampled_from(sorted(broken)))] = data.draw(JSON)
        changed[path] = broken
    told = Told("b1")

    async def get(path: str) -> Any:
        found = changed.get(path, changed.get(path.rstrip("/")))
        return found if isinstance(found, dict) else None

    asyncio.run(Walk(get, told, {}, True, 3).run(changed["/redfish/v1"]))
    for sample in told.samples.values():
        assert sample.entity.isprintable() and len(sample.entity) <= 128
        assert sample.value is None or math.isfinite(sample.value)
        assert (sample.value is None) == (sample.quality != "ok")


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=20, unique=True),
    st.lists(st.integers(61, 99), max_size=20, unique=True),
    st.randoms(),
)
def test_new_entries_are_the_new_ones_in_whatever_order_a_bmc_gives_them(
    old: list[int], new: list[int], random: Any
) -> None:
    def read(numbers: list[int]) -> LogRead:
        random.shuffle(numbers)
        found = [entry(log_entry(n)) for n in numbers]
        return LogRead("SEL", len(numbers), [one for one in found if one is not None])

    first, mark = fresh(read(list(old)), Mark())
    second, mark = fresh(read([*old, *new]), mark)
    third, _ = fresh(read([*old, *new]), mark)
    assert first == [] and third == []
    assert [int(one.id) for one in second] == sorted(new)


def test_entries_without_numbers_are_known_by_what_they_say() -> None:
    one, two = entry(log_entry("ab-c")), entry(log_entry("de-f"))
    assert one is not None and two is not None
    _, mark = fresh(LogRead("SEL", 1, [one]), Mark())
    assert fresh(LogRead("SEL", 2, [two, one]), mark)[0] == [two]


def test_a_log_that_was_empty_has_only_new_entries() -> None:
    one = entry(log_entry(1, "Critical"))
    assert one is not None
    _, mark = fresh(LogRead("SEL", 0), Mark())
    assert fresh(LogRead("SEL", 1, [one]), mark)[0] == [one]


TARGET = {"name": "b1", "address": "https" + "://10.0.0.1"}


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({}, "targets"),
        ({"targets": []}, "targets"),
        ({"targets": [{"name": "b1"}]}, "address"),
        ({"targets": [TARGET | {"address": "ftp" + "://x"}]}, "address"),
        ({"targets": [TARGET | {"address": "https" + "://u:p@x"}]}, "address"),
        ({"targets": [TARGET | {"address": "http" + "://10.0.0.1"}]}, "insecure"),
        ({"targets": [TARGET | {"name": "a/b"}]}, "name"),
        ({"targets": [TARGET, TARGET]}, "twice"),
        ({"targets": [TARGET, TARGET | {"name": "b2"}]}, "twice"),
        ({"targets": [TARGET | {"node": "n", "rack": "r"}]}, "rack"),
        ({"targets": [TARGET | {"user": "u"}]}, "password_file"),
        ({"targets": [TARGET | {"user": "u", "password_file": "open"}]}, "chmod 600"),
        ({"targets": [TARGET | {"user": "u", "password_file": "gone"}]}, "password_file"),
        ({"targets": [TARGET | {"fingerprint": "12"}]}, "fingerprint"),
        ({"targets": [TARGET | {"pasword": "x"}]}, "pasword"),
        ({"targets": [TARGET], "concurrency": 0}, "concurrency"),
        ({"targets": [TARGET], "period_s": True}, "period_s"),
    ],
)
def test_a_bad_setting_is_named(table: dict[str, Any], key: str, tmp_path: Path) -> None:
    (tmp_path / "open").write_text("secret")
    (tmp_path / "open").chmod(0o644)
    with pytest.raises(ConfigError, match=key):
        from_config(table, tmp_path)


def test_a_target_takes_what_the_table_says_for_all(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o600)
    table = {"user": "reader", "password_file": "password", "targets": [TARGET]}
    (bmc,) = from_config(table, tmp_path)._bmcs
    assert (bmc.login.auth, bmc.login.user, bmc.login.password) == ("basic", "reader", "secret")
