"""Downloads: the same numbers as the resources, over windows of any length, with bounded parts."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterator

import pytest
from django.test import Client

from clusterwatch.api import export_formats, export_tables
from clusterwatch.api.exports import Download
from clusterwatch.cli.benches.query_data import Made
from clusterwatch.jobs.models import Job
from clusterwatch.store.answers import SECOND_NS, QueryRefused, Window
from tests.api.conftest import Caller
from tests.api.test_series import POWER, get, job, made, window

__all__ = ["job", "made"]


def download(client: Client, path: str) -> tuple[dict[str, str], bytes]:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.content
    assert answer.streaming
    return dict(answer.headers), answer.getvalue()


def test_one_gpu_as_csv_is_what_the_resource_says(made: Made, as_token: Caller) -> None:
    path = f"/nodes/{made.node_ids[0]}/series"
    query = f"gpu=3&metric={POWER}&metric=gpu_temperature_c&resolution_s=1&{window(made, 10)}"
    headers, body = download(as_token(), f"{path}/export?{query}")
    assert headers["Content-Type"] == "text/csv; charset=utf-8"
    assert headers["Content-Disposition"] == 'attachment; filename="n00000-gpu3.csv"'
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    shown = {one["metric"]: one["mean"] for one in get(as_token(), f"{path}?{query}")["series"]}
    power = [float(row["mean"]) for row in rows if row["metric"] == POWER]
    assert power == shown[POWER] and len(rows) == 1200
    assert rows[0]["time"].endswith("Z") and rows[0]["unit"] == "w"


def test_all_gpus_by_the_minute_as_json(made: Made, job: Job, as_token: Caller) -> None:
    path = f"/clusters/{made.cluster_id}/minutes/export?as=json&metric={POWER}&{window(made, 3)}"
    headers, body = download(as_token(), path)
    table = json.loads(body)
    assert table["columns"] == ["time", "slot", "node", "gpu", "metric", "low", "mean", "high", "last"]
    assert len(table["rows"]) == 3 * 64
    row = dict(zip(table["columns"], table["rows"][64 + 13], strict=True))
    assert (row["slot"], row["node"], row["gpu"]) == (13, "n00001", 5)
    assert row["mean"] == pytest.approx(made.truth.power[-2, 13].mean(), rel=1e-6)
    assert row["high"] == pytest.approx(made.truth.power[-2, 13].max(), rel=1e-6)
    _, of_job = download(as_token(), f"{path}&job={job.pk}")
    assert {row[1] for row in json.loads(of_job)["rows"]} == set(range(48, 64))


def test_percentiles_of_days_leave_out_what_is_not_there(made: Made, as_token: Caller) -> None:
    path = f"/clusters/{made.cluster_id}/percentiles/export?metric={POWER}&{window(made, 60 * 48)}"
    _, body = download(as_token(), path)
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    assert len(rows) == 360 and {row["scope"] for row in rows} == {"fleet"}
    assert float(rows[-1]["p99"]) == pytest.approx(made.truth.percentiles[max(made.truth.percentiles)][1])


def test_parquet_without_its_library_is_an_answer_and_not_a_broken_file(
    made: Made, as_token: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_formats, "has_parquet", lambda: False)
    path = f"/clusters/{made.cluster_id}/percentiles/export?as=parquet&metric={POWER}"
    body = get(as_token(), path, 501)
    assert body["code"] == "format_missing" and "clusterwatch[parquet]" in body["detail"]


def test_exports_refuse_what_the_resources_refuse(made: Made, job: Job, as_token: Caller) -> None:
    client, cluster = as_token(), f"/clusters/{made.cluster_id}"
    week = "from=2026-01-01T00:00:00Z&to=2026-01-09T00:00:00Z"
    for path, words in (
        (f"{cluster}/minutes/export?metric={POWER}&{week}", "24 h"),
        (f"{cluster}/minutes/export?metric={POWER}&as=xls", "one of csv"),
        (f"{cluster}/percentiles/export?{week}", "GET /metrics"),
        (f"{cluster}/percentiles/export?metric=x&resolution_s=7", "one of 10"),
        (f"/nodes/{made.node_ids[0]}/series/export?from=2025-01-01T00:00:00Z", "too long"),
    ):
        assert words in str(get(client, path, 400)), path
    stranger = as_token(cluster="elsewhere")
    get(stranger, f"{cluster}/minutes/export?metric={POWER}", 404)
    get(stranger, f"/nodes/{made.node_ids[0]}/series/export", 404)


def test_a_long_window_is_asked_for_in_pieces_without_overlap() -> None:
    whole = Window(100 * SECOND_NS, 7_300 * SECOND_NS)
    found = list(export_tables.pieces(whole, 3_600))
    assert [(one.start_ns // SECOND_NS, one.end_ns // SECOND_NS) for one in found] == [
        (100, 3_600),
        (3_600, 7_200),
        (7_200, 7_300),
    ]


def test_an_export_of_one_gpu_is_bounded() -> None:
    with pytest.raises(QueryRefused, match="may cover"):
        export_tables.series(1, "n", 0, Window(0, 100 * 86_400 * SECOND_NS), None, 3600)


def test_under_asgi_parts_are_made_one_by_one() -> None:
    made_parts = []

    def parts() -> Iterator[bytes]:
        for number in range(3):
            made_parts.append(number)
            yield bytes([number])

    async def read() -> list[tuple[bytes, int]]:
        return [(one, len(made_parts)) async for one in Download(parts())]

    assert asyncio.run(read()) == [(b"\0", 1), (b"\1", 2), (b"\2", 3)]
