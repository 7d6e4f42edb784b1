"""Rows about jobs of other teams never reach a viewer; all else does."""

import orjson
import pytest

from clusterwatch.live.rights import without_hidden_rows

MINE, THEIRS = 1, 2
incidents = {"5": {"job_id": MINE}, "6": {"job_id": THEIRS}, "7": {"job_id": None}}
jobs = {str(MINE): {"key": "mine"}, str(THEIRS): {"key": "theirs"}}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tables: {"full": {"total": 8, **tables}},
        lambda tables: {"delta": {"set": {"total": 8, **tables}}},
        lambda tables: {"delta": {"set": {"total": 8}, "rows": {k: {"put": v} for k, v in tables.items()}}},
    ],
    ids=["full", "set", "rows"],
)
def test_rows_of_hidden_jobs_are_taken_out_wherever_they_travel(wrap):
    body = orjson.dumps({"topic": "cluster:1", **wrap({"jobs": jobs, "incidents": incidents})})
    seen = without_hidden_rows(body, frozenset({MINE}))
    assert b"theirs" not in seen and b'"6"' not in seen
    kept = {"jobs": {"1": {"key": "mine"}}, "incidents": {"5": {"job_id": MINE}, "7": {"job_id": None}}}
    assert orjson.loads(seen) == {"topic": "cluster:1", **wrap(kept)}


def test_who_may_see_all_gets_the_very_bytes():
    body = b'{"full": {"jobs": {"2": {}}}}'
    assert without_hidden_rows(body, None) is body


def test_a_row_that_ends_is_told_to_everybody():
    body = orjson.dumps({"delta": {"rows": {"jobs": {"gone": ["2"]}}}})
    assert orjson.loads(without_hidden_rows(body, frozenset())) == orjson.loads(body)
