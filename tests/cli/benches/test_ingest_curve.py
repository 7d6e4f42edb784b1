"""Cost per GPU and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterwatch.cli.benches import ingest_curve


def figures(nodes: int = 1_000, gateway: float = 0.4) -> dict[str, Any]:
    shares = {"gateway": gateway, "pulse": 0.08, "postgresql": 0.04, "valkey": 0.008}
    return {"nodes": nodes, "gateway_memory_mb": 300} | {f"{k}_core_ratio": v for k, v in shares.items()}


def test_cost_is_told_per_gpu_and_second() -> None:
    told = ingest_curve.cost(figures())
    assert (told["gpus"], told["gateway_us_per_gpu_s"], told["pulse_us_per_gpu_s"]) == (8_000, 50.0, 10.0)


def test_a_fleet_takes_as_many_gateways_as_its_load_needs_and_one_more() -> None:
    told = ingest_curve.project(figures(), 80_000)
    assert told["gateway_cores"] == 4.0
    assert told["gateways"] == 4.0 / ingest_curve.GATEWAY_LOAD_MAX + 1
    assert told["gb_a_day"]["raw_block"] == pytest.approx(80_000 * 20 * 86_400 * 0.89 / 1e9, abs=1)


def test_a_cheap_gateway_still_has_a_limit_of_nodes() -> None:
    told = ingest_curve.project(figures(gateway=0.001), 8 * 40_000)
    assert told["gateways"] == 40_000 / ingest_curve.CONNECTIONS_MAX + 1
