"""Places of ranks from topology.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterwatch.readers import topology


def written(folder: Path, what: object) -> Path:
    path = folder / "topology.json"
    path.write_text(json.dumps(what))
    return path


def test_gives_host_and_gpu_of_each_rank(tmp_path: Path) -> None:
    places = [
        {"rank": 1, "node": 4, "gpu": 0, "leaf": "x"},
        {"rank": 0, "node": 4, "gpu": 7, "host": "r17-n04"},
    ]
    found = topology.read(written(tmp_path, {"tp": 2, "ranks": places}))
    assert (found[0].host, found[0].gpu) == ("r17-n04", 7)
    assert (found[1].host, found[1].gpu) == ("node 4", 0)


@pytest.mark.parametrize("what", [[], {}, {"ranks": 3}, {"ranks": [{"node": 1}]}, {"ranks": [{"rank": "x"}]}])
def test_says_what_is_wrong(tmp_path: Path, what: object) -> None:
    with pytest.raises(topology.TopologyError):
        topology.read(written(tmp_path, what))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(topology.TopologyError):
        topology.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        (b"null", "holds null"),
        (b'{"ranks": []}', "lists no rank"),
        (b'{"ranks": [{"rank": 3}, {"rank": 3}]}', "rank 3 is listed twice"),
    ],
)
def test_a_file_without_places_is_said_in_words(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "topology.json"
    path.write_bytes(data)
    with pytest.raises(topology.TopologyError, match=reason):
        topology.read(path)


def test_a_byte_order_mark_is_skipped_and_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b'\xef\xbb\xbf{"ranks": [{"rank": 1, "gpu": 2}]}')
    assert topology.read(tmp_path / "t.json")[1].gpu == 2
    with pytest.raises(topology.TopologyError, match="is no file"):
        topology.read(tmp_path)
