"""AMD's GPUs: their names, what is not told, GPUs that go, and how often amd-smi is asked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from collectors.sources import gpu_amd, tools
from collectors.sources.base import SourceEvent
from collectors.sources.gpu_amd import GpuAmdSource
from collectors.sources.tree import Tree
from tests.collectors.sources.amd_node import NA, UUIDS, A, B, C, Json, files, listed, metric, static, unit
from tests.collectors.sources.trees import Found, look, write

MIB = 1_048_576


def one(
    root: Path,
    values: Any,
    gpus: Any = None,
    limits: Any = None,
    source: GpuAmdSource | None = None,
    at_s: float = 0.0,
) -> tuple[Found, list[SourceEvent]]:
    return look(source or GpuAmdSource(), write(root, files(values, gpus, limits)), at_s)


def test_a_gpu_has_the_names_and_units_of_the_others(tmp_path: Path) -> None:
    found, events = one(tmp_path, [metric()], limits=[static()])
    wanted = {
        "power_w": 640, "power_limit_w": 700, "temperature_c": 72, "memory_temperature_c": 61,
        "temperature_margin_c": 28, "util_ratio": 0.97, "memory_util_ratio": 0.4, "sm_clock_mhz": 1_980,
        "memory_clock_mhz": 1_300, "memory_used_bytes": 1_000 * MIB, "ecc_sbe_volatile_total": 5,
        "ecc_dbe_volatile_total": 0, "ecc_deferred_total": 2, "pcie_width_count": 16, "pcie_gen_count": 5,
        "pcie_replay_total": 3, "pcie_recovery_total": 1, "energy_joules_total": 1_500,
        "throttle_reasons_mask": 0, "throttled_count": 0, "power_violation_ratio": 0.12,
        "thermal_violation_ratio": 0.03,
    }  # fmt: skip
    assert {name: found[A, name][0] for name in wanted} == pytest.approx(wanted)
    assert found["host", gpu_amd.READABLE] == (1, "ok") and events == []


def test_what_is_not_told_is_unknown_and_never_0(tmp_path: Path) -> None:
    blocks: Json = dict.fromkeys(
        ("usage", "power", "clock", "temperature", "pcie", "ecc", "energy", "throttle"), NA
    )
    found, events = one(tmp_path, [metric() | blocks], limits=[static(limit=NA)])
    told = {name: value for (entity, name), (value, _) in found.items() if entity == A and value is not None}
    assert told == {"memory_used_bytes": 1_000 * MIB} and events == []
    assert {found[A, name][1] for name in ("power_w", "power_limit_w", "sm_clock_mhz", "util_ratio")} == {
        "not_available"
    }
    absent, _ = one(tmp_path, [{"gpu": 0}])
    assert {value for (entity, _), (value, _) in absent.items() if entity == A} == {None}


def test_the_wrapped_list_of_rocm_7_with_its_limits_is_read(tmp_path: Path) -> None:
    limit = {"ppt0": {"max_power_limit": unit(1_000, "W"), "socket_power_limit": unit(900, "W")}, "ppt1": NA}
    found, _ = one(
        tmp_path,
        {"gpu_data": [metric()]},
        limits={"gpu_data": [static(limit=limit)]},
    )
    assert found[A, "power_limit_w"] == (900, "ok") and found[A, "power_w"] == (640, "ok")
    assert found[A, "temperature_margin_c"] == (None, "not_available")


def test_an_emergency_is_told_at_once_and_heat_when_it_lasts(tmp_path: Path) -> None:
    source = GpuAmdSource()
    hot = [metric(throttle={"socket_thermal_violation_status": "ACTIVE"})]
    assert one(tmp_path, hot, source=source)[1] == []
    (event,) = one(tmp_path, hot, source=source, at_s=30.0)[1]
    assert (event.kind, event.attributes["reasons"]) == ("throttle", ["sw_thermal_slowdown"])
    (event,) = one(tmp_path, [metric(throttle={"prochot_violation_status": "ACTIVE"})])[1]
    assert event.attributes["reasons"] == ["hw_thermal_slowdown"]


def test_counters_change_between_two_looks_and_may_be_set_back(tmp_path: Path) -> None:
    source = GpuAmdSource()
    first, _ = one(tmp_path, [metric()], source=source)
    assert first[A, "pcie_replay_per_s"] == (None, "first_sample")
    second, _ = one(tmp_path, [metric(pcie={"replay_count": 33})], source=source, at_s=15.0)
    assert second[A, "pcie_replay_delta_count"] == (30, "ok") and second[A, "pcie_replay_per_s"] == (2, "ok")
    third, _ = one(tmp_path, [metric(pcie={"replay_count": 1})], source=source, at_s=30.0)
    assert third[A, "pcie_replay_per_s"] == (None, "reset")
    after, _ = one(tmp_path, [metric(pcie={"replay_count": 2})], at_s=45.0)
    assert after[A, "pcie_replay_per_s"] == (None, "first_sample"), "the agent began again"


def test_uncorrectable_errors_stand(tmp_path: Path) -> None:
    (event,) = one(tmp_path, [metric(ecc={"total_uncorrectable_count": 4})])[1]
    assert (event.entity, event.kind, event.standing) == (A, "ecc", True)


@pytest.mark.parametrize("prefix", ["", "AMDSMI_XGMI_STATUS_"])
def test_errors_on_links_to_other_gpus_stand(tmp_path: Path, prefix: str) -> None:
    found, (event,) = one(tmp_path, [metric(xgmi_err=f"{prefix}MULTIPLE_ERRORS")])
    assert found[A, "xgmi_error_state_count"] == (2, "ok")
    assert (event.kind, event.attributes, event.standing) == (
        "xgmi_error",
        {"state": "multiple_errors"},
        True,
    )
    found, events = one(tmp_path, [metric(xgmi_err=f"{prefix}NO_ERRORS")])
    assert found[A, "xgmi_error_state_count"] == (0, "ok") and events == []
    assert one(tmp_path, [metric(xgmi_err={"read": 2})])[0][A, "xgmi_error_state_count"] == (
        None,
        "unreadable",
    )


def test_a_lost_gpu_is_named_and_the_others_keep_their_values(tmp_path: Path) -> None:
    def watts(index: int, value: int) -> Json:
        return metric(index, power={"socket_power": unit(value, "W")})

    source = GpuAmdSource()
    one(tmp_path, [watts(0, 100), watts(1, 200), watts(2, 300)], listed(0, 1, 2), source=source)
    found, (event,) = one(tmp_path, [watts(0, 100), watts(1, 300)], listed(0, 2), source=source, at_s=15.0)
    assert (event.entity, event.kind) == (B, "gpu_lost")
    assert found[A, "power_w"] == (100, "ok") and found[C, "power_w"] == (300, "ok")
    assert found[B, "power_w"] == (None, "lost")
    back, events = one(tmp_path, [watts(0, 1), watts(1, 2)], listed(1, 2), source=source, at_s=30.0)
    assert back[B, "power_w"] == (1, "ok") and [event.entity for event in events] == [A]


def test_a_gpu_of_the_inventory_is_missed_from_the_first_look(tmp_path: Path) -> None:
    write(tmp_path, {"etc/clusterwatch/agent.toml": f"[gpu]\nuuids = {json.dumps(UUIDS[:2])}\n"})
    _, (event,) = one(tmp_path, [metric()], listed(0))
    assert (event.entity, event.kind, event.severity) == (B, "gpu_lost", "critical")


def test_a_gpu_that_is_divided_is_not_lost(tmp_path: Path) -> None:
    source = GpuAmdSource()
    one(tmp_path, [metric()], listed(0), source=source)
    found, events = one(
        tmp_path, [metric(0), metric(1)], listed(1, 2, functions=True), source=source, at_s=15.0
    )
    assert events == [] and {entity for entity, _ in found} == {B, C, "host"}


def test_a_gpu_that_is_listed_and_not_told_is_unknown(tmp_path: Path) -> None:
    found, events = one(tmp_path, [metric(0)], listed(0, 1))
    assert found[B, "power_w"] == (None, "not_told") and found[A, "power_w"] == (640, "ok") and events == []


def test_values_that_the_list_does_not_have_are_given_to_nobody(tmp_path: Path) -> None:
    found, events = one(tmp_path, [metric(0), metric(1)], listed(1))
    assert found == {("host", gpu_amd.READABLE): (None, "unreadable")} and events == []


def test_one_uuid_at_two_addresses_is_believed_of_neither(tmp_path: Path) -> None:
    gpus = listed(0, 1)
    gpus[1]["uuid"] = UUIDS[0]
    found, (event,) = one(tmp_path, [metric(0), metric(1)], gpus)
    assert event.kind == "duplicate_uuid" and found[A, "power_w"] == (None, "duplicate_uuid")


def test_a_gpu_without_a_uuid_goes_by_its_address(tmp_path: Path) -> None:
    gpus = listed(0, 1)
    gpus[0]["uuid"] = NA
    gpus[1] |= {"uuid": "../../etc/passwd\x1b", "bdf": NA}
    found, _ = one(tmp_path, [metric(0), metric(1)], gpus)
    assert {entity for entity, _ in found} == {"host", "gpu/0000:05:00.0"}


def test_a_machine_without_amd_smi_is_silent(tmp_path: Path) -> None:
    assert look(GpuAmdSource(), tmp_path) == ({}, [])
    write(tmp_path, {"commands/amd-smi_list.json": json.dumps(listed(0))})
    assert look(GpuAmdSource(), tmp_path) == ({}, [])


@pytest.mark.parametrize(
    "garbage", ["", "null", "[[]]", '{"gpu_data": 5}', '{"error": "no GPU"}', "[" * 9_999]
)
def test_an_answer_that_is_none_leaves_nothing_known(tmp_path: Path, garbage: str) -> None:
    source = GpuAmdSource()
    assert one(tmp_path, garbage)[0] == {("host", gpu_amd.READABLE): (None, "unreadable")}
    one(tmp_path, [metric()], source=source)
    found, events = one(tmp_path, garbage, source=source, at_s=15.0)
    assert set(found.values()) == {(None, "unreadable")} and (A, "power_w") in found and events == []


def test_bad_limits_cost_only_limits(tmp_path: Path) -> None:
    found, _ = one(tmp_path, [metric()], limits="{]")
    assert found[A, "power_w"] == (640, "ok") and (A, "power_limit_w") not in found


class Live(Tree):
    """A recorded folder that is asked as the live machine is."""

    is_live = True


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with the driver and an amd-smi that notes how it is asked."""
    write(tmp_path, {f"{gpu_amd.DRIVER}/version": "6.12\n", **files([metric()], limits=[static()])})
    tool = tmp_path / "bin" / "amd-smi"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\nexec cat {tmp_path}/commands/amd-smi_$1.json\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return tmp_path


def asked(machine: Path) -> list[str]:
    text = (machine / "asked").read_text() if (machine / "asked").exists() else ""
    (machine / "asked").write_text("")
    return text.splitlines()


def test_the_list_and_limits_are_asked_once_an_hour(machine: Path) -> None:
    source, tree = GpuAmdSource(), Live(machine)
    for at_s, wanted in (
        (0, ["list", "metric"]),
        (15, ["metric", "static"]),
        (30, ["metric"]),
        (3_600, ["list", "metric"]),
        (3_615, ["metric", "static"]),
    ):
        source.read(tree, at_s)
        assert asked(machine) == [f"{name} --json" for name in wanted]


def test_indices_that_do_not_fit_are_asked_for_at_once(machine: Path) -> None:
    source, tree = GpuAmdSource(), Live(machine)
    write(machine, files([metric(0), metric(1)], listed(0, 1)))
    source.read(tree, 0.0)
    write(machine, files([metric(0)], listed(1)))
    asked(machine)
    reading = source.read(tree, 15.0)
    assert asked(machine) == ["metric --json", "list --json"]
    assert [event.entity for event in reading.events] == [A]


def test_a_gpu_that_is_never_told_is_not_asked_for_at_each_look(machine: Path) -> None:
    source, tree = GpuAmdSource(), Live(machine)
    write(machine, files([metric(1)], listed(0, 1)))
    for at_s in (0.0, 15.0, 30.0):
        source.read(tree, at_s)
    assert asked(machine).count("list --json") == 1


def test_a_machine_without_the_driver_is_not_asked(machine: Path) -> None:
    (machine / gpu_amd.DRIVER).rename(machine / "away")
    assert GpuAmdSource().read(Live(machine), 0.0).samples == ()
    assert asked(machine) == []


def test_no_answer_twice_is_a_finding(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, tree = GpuAmdSource(), Live(machine)
    source.read(tree, 0.0)

    def late(*_: object) -> bytes:
        raise TimeoutError

    monkeypatch.setattr(gpu_amd, "output", late)
    first, second = source.read(tree, 15.0), source.read(tree, 30.0)
    assert {(one.value, one.quality) for one in first.samples} == {(None, "no_answer")}
    assert list(first.events) == [] and [event.kind for event in second.events] == ["gpu_read_hung"]
    monkeypatch.setattr(gpu_amd, "output", tools.output)
    assert list(source.read(tree, 45.0).events) == []
