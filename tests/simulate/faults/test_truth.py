"""The file of the truth: one object, the words of a verdict, times in UTC."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from clusterwatch.simulate import start
from clusterwatch.simulate.faults.catalogue import FAULTS
from clusterwatch.simulate.faults.truth import as_json
from clusterwatch.simulate.kept import Settings
from tests.simulate.faults.lived import BEGIN, Lived

KEYS = {
    "fault", "kind", "class", "acceptable_kinds", "job", "world", "attempt", "culprit_ranks", "acceptable",
    "node", "gpu", "gpu_uuid", "link", "switch", "rack", "step", "severity", "start", "end", "blame_hardware",
}  # fmt: skip
CLASSES = {"hang", "crash", "hardware", "host", "storage", "software", "workload", "health", "blind", "none"}


def test_every_fault_has_the_same_keys_and_a_class_of_the_design():
    for fault in FAULTS:
        row = Lived(f"{fault}@30").truth.as_dict()
        assert set(row) == KEYS and row["class"] in CLASSES
        assert row["end"] is None and datetime.fromisoformat(row["start"]).utcoffset().total_seconds() == 0


def test_the_file_is_written_by_the_command_before_the_cluster_lives(tmp_path: Path):
    settings = Settings(
        "lab", 128, 5, tmp_path, "ws://127.0.0.1:1", token="t", faults=("slow_gpu@9+3", "agent_dead"),
        truth=tmp_path / "truth.json",
    )  # fmt: skip
    start.cluster(settings)
    found = json.loads((tmp_path / "truth.json").read_bytes())
    assert (found["format"], found["cluster"], found["gpus"], found["seed"]) == (1, "lab", 128, 5)
    assert [row["fault"] for row in found["faults"]] == ["slow_gpu", "agent_dead"]
    begun, first = (datetime.fromisoformat(t) for t in (found["begun"], found["faults"][0]["start"]))
    assert 8.9 < (first - begun).total_seconds() < 9.1


def test_one_seed_gives_the_same_bytes_and_another_seed_others():
    texts = []
    for seed in (1, 1, 2):
        lived = Lived(*(f"{fault}@{30 + n}+60" for n, fault in enumerate(FAULTS)), seed=seed)
        texts.append(as_json(replace(lived.settings, seed=0), BEGIN, lived.truths))
    assert texts[0] == texts[1] != texts[2]


def test_nobody_is_accused_where_no_part_is_broken():
    for fault in (
        "gc_pauses",
        "stage_imbalance",
        "sequence_imbalance",
        "agent_lagging",
        "clock_stepped",
        "symmetric_stall",
    ):
        row = Lived(fault).truth.as_dict()
        assert row["acceptable"] == [[]] and not row["blame_hardware"]
