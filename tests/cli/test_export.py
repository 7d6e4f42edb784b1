"""``clusterwatch export``: what it writes, and what it says when something is not there."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from clusterwatch.cli import database, export
from clusterwatch.cli import main as cli
from clusterwatch.cli.benches.query_data import Made
from clusterwatch.fleet.models import Cluster
from clusterwatch.jobs.models import Job
from tests.api.conftest import users
from tests.api.test_series import POWER, iso, job, made

__all__ = ["job", "made", "users"]


@pytest.fixture(autouse=True)
def own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "use_database", lambda: None)


def exported(capsysbinary: pytest.CaptureFixture[bytes], *words: str) -> tuple[int, str, str]:
    code = cli.main(["export", *words])
    out, err = capsysbinary.readouterr()
    return code, out.decode(), err.decode()


def test_one_gpu_goes_to_standard_output(made: Made, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    words = ("series", "n00001", "--gpu", "5", "--metric", POWER, "--resolution-s", "1", "--to", iso(made, 0))
    code, out, _ = exported(capsysbinary, *words)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and len(rows) == 600
    found = [float(row["mean"]) for row in rows]
    assert found == [round(value, 1) for value in made.truth.power[-10:, 13].reshape(-1).tolist()]


def test_a_jobs_gpus_go_to_a_file(made: Made, job: Job, tmp_path: Path) -> None:
    path = tmp_path / "power.json"
    times = ["--from", iso(made, 2), "--to", iso(made, 0)]
    words = ["export", "minutes", POWER, "--job", "heat", "--as", "json", "--output", str(path), *times]
    assert cli.main(words) == 0
    table = json.loads(path.read_text())
    assert len(table["rows"]) == 2 * 16 and {row[1] for row in table["rows"]} == set(range(48, 64))
    assert [one.name for one in tmp_path.iterdir()] == ["power.json"]


def test_percentiles_of_the_fleet(made: Made, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    code, out, _ = exported(capsysbinary, "percentiles", POWER, "--last", "1h", "--to", iso(made, 0))
    assert code == 0 and len(out.splitlines()) == 361


def test_what_is_not_there_is_said_in_one_line(
    made: Made, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for words, code, text in (
        (("series", "n9"), 66, "no node 'n9'"),
        (("minutes", POWER, "--job", "none"), 66, "no job 'none'"),
        (("minutes", POWER, "--cluster", "moon"), 66, "no cluster moon"),
        (("minutes", POWER, "--last", "9d"), 1, "24 h"),
        (("minutes", POWER, "--last", "soon"), 1, "24h"),
        (("minutes", POWER, "--from", "yesterday"), 1, "ISO 8601"),
        (("minutes", POWER, "--output", str(tmp_path / "no" / "file")), 1, "cannot be written"),
    ):
        found, out, err = exported(capsysbinary, *words)
        assert (found, out) == (code, "") and text in err and len(err.splitlines()) == 1, words


def test_two_real_clusters_must_be_told_apart(made: Made, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    Cluster.objects.create(name="a")
    Cluster.objects.create(name="b")
    code, _, err = exported(capsysbinary, "minutes", POWER)
    assert code == 66 and "--cluster: a, b, bench" in err


def test_every_format_of_rest_is_offered() -> None:
    from clusterwatch.api import export_formats

    assert set(export.KINDS) == set(export_formats.TYPES)
