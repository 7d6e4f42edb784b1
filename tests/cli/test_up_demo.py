"""The size of the simulated cluster that `up` starts when nobody says one."""

from __future__ import annotations

import os

import pytest

from clusterwatch.cli import up


@pytest.mark.parametrize(("cores", "gpus"), [(1, 2_048), (3, 2_048), (4, 24_576), (96, 24_576)])
def test_the_full_cluster_needs_four_cores(monkeypatch: pytest.MonkeyPatch, cores: int, gpus: int):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert up.read_settings({}).demo_gpus == gpus


def test_a_named_size_wins():
    assert up.read_settings({"CLUSTERWATCH_DEMO_GPUS": "64"}).demo_gpus == 64
    assert up.read_settings({"CLUSTERWATCH_DEMO_GPUS": "64"}, 0).demo_gpus == 0
