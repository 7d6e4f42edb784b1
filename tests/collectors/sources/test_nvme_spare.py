"""Spare blocks of NVMe drives and what the drive itself calls too few."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.sources.disks import DisksSource
from tests.collectors.sources.trees import look, write

LOG = "commands/nvme_smart-log_nvme3.json"


@pytest.mark.parametrize(
    "text",
    [
        '{"avail_spare": 4, "spare_thresh": 10, "unsafe_shutdowns": 7, "percent_used": 130}',
        '{"available_spare": "4%", "available_spare_threshold": "10%", "unsafe_shutdowns": 7, '
        '"percentage_used": "130%"}',
    ],
)
def test_a_drive_below_its_own_threshold_is_told_in_either_spelling(tmp_path: Path, text: str) -> None:
    found, events = look(DisksSource(), write(tmp_path, {LOG: text}))
    assert found["disk/nvme3", "available_spare_ratio"] == (0.04, "ok")
    assert found["disk/nvme3", "unsafe_shutdowns_total"] == (7, "ok")
    assert found["disk/nvme3", "percent_used_ratio"] == (1.3, "ok")
    assert [(event.entity, event.kind, event.standing) for event in events] == [
        ("disk/nvme3", "nvme_spare_low", True)
    ]


@pytest.mark.parametrize(
    "text", ['{"avail_spare": 10, "spare_thresh": 10}', '{"spare_thresh": 10}', '{"avail_spare": 0}', "{"]
)
def test_a_drive_at_its_threshold_or_that_does_not_tell_is_no_fault(tmp_path: Path, text: str) -> None:
    assert look(DisksSource(), write(tmp_path, {LOG: text}))[1] == []
