"""Errors of DIMMs: counted per DIMM with its place, uncorrectable ones told while they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.sources.edac import DIMMS_MAX, ROOT, EdacSource
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import look, write

DIMM = "dimm/mc0/dimm3"


def dimm(
    root: Path, corrected: str, uncorrected: str, label: str = "CPU_SrcID#0_MC#0_Chan#1_DIMM#0\n"
) -> Path:
    folder = f"{ROOT}/mc0/dimm3"
    counts = {f"{folder}/dimm_ce_count": corrected, f"{folder}/dimm_ue_count": uncorrected}
    return write(root, {**counts, f"{folder}/dimm_label": label, f"{ROOT}/mc0/power/control": "auto\n"})


def test_corrected_errors_are_counted_and_no_fault(tmp_path: Path) -> None:
    source = EdacSource()
    look(source, dimm(tmp_path, "5\n", "0\n"), 0.0)
    found, events = look(source, dimm(tmp_path, "65\n", "0\n"), 60.0)
    assert found[DIMM, "memory_corrected_total"] == (65, "ok") and events == []
    assert found[DIMM, "memory_corrected_delta_count"] == (60, "ok")
    assert found[DIMM, "memory_corrected_per_s"] == (1.0, "ok")


def test_uncorrectable_errors_stand_with_their_place(tmp_path: Path) -> None:
    reading = EdacSource().read(Tree(dimm(tmp_path, "0\n", "2\n")), 0.0)
    (event,) = reading.events
    assert (event.entity, event.kind, event.severity, event.standing) == (DIMM, "ecc", "critical", True)
    assert event.attributes["place"] == "CPU_SrcID#0_MC#0_Chan#1_DIMM#0"
    assert {s.labels["place"] for s in reading.samples} == {"CPU_SrcID#0_MC#0_Chan#1_DIMM#0"}


@pytest.mark.parametrize(
    ("text", "quality"), [("", "empty"), ("x", "unreadable"), ("9" * 30, "out_of_range")]
)
def test_a_count_that_is_none_is_unknown_and_costs_no_other(tmp_path: Path, text: str, quality: str) -> None:
    found, events = look(EdacSource(), dimm(tmp_path, text, "0\n"))
    assert found[DIMM, "memory_corrected_total"] == (None, quality) and events == []
    assert found[DIMM, "memory_uncorrected_total"] == (0, "ok")


def test_counters_that_are_set_back_have_no_change(tmp_path: Path) -> None:
    source = EdacSource()
    look(source, dimm(tmp_path, "5\n", "0\n"), 0.0)
    assert look(source, dimm(tmp_path, "1\n", "0\n"), 60.0)[0][DIMM, "memory_corrected_per_s"] == (
        None,
        "reset",
    )


def test_a_machine_without_edac_says_nothing_and_one_with_many_dimms_is_bounded(tmp_path: Path) -> None:
    assert look(EdacSource(), tmp_path) == ({}, [])
    write(tmp_path, {f"{ROOT}/mc0/dimm{n}/dimm_ce_count": "0" for n in range(DIMMS_MAX + 50)})
    assert len({entity for entity, _ in look(EdacSource(), tmp_path)[0]}) == DIMMS_MAX


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80), st.binary(max_size=80))
def test_garbage_gives_no_error(tmp_path: Path, count: bytes, label: bytes) -> None:
    folder = f"{ROOT}/mc0/dimm3"
    write(tmp_path, {f"{folder}/dimm_ce_count": count, f"{folder}/dimm_label": label})
    samples = EdacSource().read(Tree(tmp_path), 0.0).samples
    assert all(s.labels.get("place", "").isprintable() for s in samples)
