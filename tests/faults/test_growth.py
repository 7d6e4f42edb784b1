"""What counts as growth of a process in a soak."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.growth import SAMPLES_MIN, judge, memory_by_process, table

MIB = 2**20
TIMES_S = [10.0 * look for look in range(60)]


def test_memory_that_goes_up_and_down_is_flat() -> None:
    chance = random.Random(3)
    samples = [(at_s, 200 * MIB + chance.randrange(20 * MIB)) for at_s in TIMES_S]
    found = judge("web", samples, warm_up_s=60)
    assert found is not None and not found.is_leak


def test_steady_growth_is_a_leak_and_marked() -> None:
    found = judge("web", [(at_s, int(200 * MIB + at_s * 0.04 * MIB)) for at_s in TIMES_S], warm_up_s=60)
    assert found is not None and found.is_leak
    assert found.ratio == pytest.approx(24 / 202, rel=0.05)
    assert table([found]).endswith("GROWS")


def test_what_was_taken_during_the_warm_up_is_no_growth() -> None:
    samples = [(at_s, 100 * MIB if at_s < 100 else 200 * MIB) for at_s in TIMES_S]
    found = judge("web", samples, warm_up_s=100)
    assert found is not None and not found.is_leak


def test_a_single_peak_is_no_growth() -> None:
    samples = [(at_s, 900 * MIB if at_s == TIMES_S[-2] else 200 * MIB) for at_s in TIMES_S]
    found = judge("web", samples, warm_up_s=60)
    assert found is not None and not found.is_leak


def test_a_small_process_may_move_by_a_few_megabytes() -> None:
    found = judge("beat", [(at_s, int(30 * MIB + at_s * 0.005 * MIB)) for at_s in TIMES_S], warm_up_s=60)
    assert found is not None and found.ratio > 0.05 and not found.is_leak


def test_too_few_samples_say_nothing() -> None:
    assert judge("web", [(at_s, MIB) for at_s in TIMES_S[: SAMPLES_MIN - 1]], warm_up_s=0) is None


def test_a_process_is_counted_with_what_it_started(tmp_path: Path) -> None:
    """A shell that waits for a child which holds 64 MiB."""
    child = f"{sys.executable} -c \"kept = bytearray(64 * 2**20); print('held', flush=True); input()\""
    shell = subprocess.Popen(
        ["sh", "-c", f"{child}; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert shell.stdout is not None and shell.stdout.readline() == "held\n"
        processes = {"shell": {"pid": shell.pid}, "gone": {"pid": None}}
        status = {"processes": processes, "supervisor": {"pid": os.getpid()}}
        (tmp_path / "status.json").write_text(json.dumps(status))
        found = memory_by_process(tmp_path)
    finally:
        shell.communicate("\n")
    assert 64 * MIB < found["shell"] < 128 * MIB
    assert set(found) == {"shell", "supervisor"}
