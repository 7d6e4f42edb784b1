"""The list of sources that people read names those that there are, with their periods."""

from __future__ import annotations

import re

import pytest

from collectors import once
from tests.collectors.fakes import REPO

ROWS = dict(
    re.findall(r"^\| `(\w+)` \| (\d+) s", (REPO / "docs/sources.md").read_text(encoding="utf-8"), re.M)
)


def test_every_source_and_poller_has_its_row() -> None:
    assert set(ROWS) == set(once.names())


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_period_is_the_real_one(name: str) -> None:
    assert once.make(name).period_s == float(ROWS[name])
