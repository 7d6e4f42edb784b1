"""Versions compare as numbers, whoever wrote them down."""

from __future__ import annotations

import pytest

from clusterwatch.analysis.known_bugs_versions import Range, Version, parse


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.21.5-1", (2, 21, 5)),
        ("2.21.5-1+cuda12.4", (2, 21, 5)),
        ("NCCL version 2.18.1+cuda12.1", (2, 18, 1)),
        ("v2.29.3-1", (2, 29, 3)),
        ("libnccl.so.2.21.5", (2, 21, 5)),
        ("550.54.15", (550, 54, 15)),
        ("535.104.05", (535, 104, 5)),
        ("28.39.1002", (28, 39, 1002)),
        ("2.6.0+cu124", (2, 6)),
    ],
)
def test_a_release_is_its_numbers_and_nothing_else(text: str, numbers: tuple[int, ...]) -> None:
    assert parse(text) == Version(numbers)


@pytest.mark.parametrize(
    "text", ["", "2", "libnccl.so.2 4096 bytes mapped", "unknown", "10.0.0.1.2.3.4.5", "9" * 5_000, "..", "v"]
)
def test_a_text_without_a_version_tells_none(text: str) -> None:
    assert parse(text) is None


def test_numbers_are_numbers_and_builds_before_a_release_are_older() -> None:
    texts = [
        "2.4.0.dev20240301", "2.4.0a0+git3beb9d8", "2.4.0rc1", "2.4.0rc2", "2.4.0", "2.4.1", "2.10.0",
    ]  # fmt: skip
    found = [parse(text) for text in texts]
    assert found == sorted(found, key=lambda one: one or Version(()))
    assert len(set(found)) == len(texts) and parse("2.4") == parse("2.4.0")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("2.18.6", False),
        ("2.19.1", True),
        ("2.19.4-1", True),
        ("2.20.3-1", False),
        ("2.20.3rc1", None),
        ("2.19.1.dev5", None),
        ("2.20.2.dev5", True),
    ],
)
def test_a_range_ends_where_it_is_fixed_and_a_build_of_its_ends_may_be_either(
    text: str, holds: bool | None
) -> None:
    version = parse(text)
    assert version is not None and Range("2.19.1", "2.20.3").holds(version) is holds


def test_a_branch_begins_with_its_number_alone() -> None:
    branch = Range("525", "525.105.17")
    told = ["520.61.05", "525.60.13", "525.105.17", "535.54.03"]
    assert [branch.holds(version) for text in told if (version := parse(text))] == [False, True, False, False]
