"""The gateway takes as many connections as the kernel lets it, and says when that is too few."""

from __future__ import annotations

import resource

import pytest

from clusterwatch.ingest import open_files


class Limits:
    """The limit of a process as a test plays it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda _: self.now)
        monkeypatch.setattr(resource, "setrlimit", lambda _, limits: setattr(self, "now", limits))


def test_a_low_soft_limit_is_raised_as_far_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, 1024, 1_048_576)
    assert open_files.connections_possible(16_384) == 16_384
    assert limits.now == (16_384 + open_files.OTHER_FILES, 1_048_576)


def test_a_higher_limit_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, 65_536, 65_536)
    assert open_files.connections_possible(100) == 100
    assert limits.now == (65_536, 65_536)


def test_no_hard_limit_at_all_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, 1024, resource.RLIM_INFINITY)
    assert open_files.connections_possible(16_384) == 16_384
    assert limits.now[1] == resource.RLIM_INFINITY


def test_a_low_hard_limit_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Limits(monkeypatch, 1024, 4096)
    assert open_files.connections_possible(16_384) == 4096 - open_files.OTHER_FILES
    assert "LimitNOFILE" in caplog.text and "4096" in caplog.text
