"""The Chrome trace, checked by what the format's description asks of an event, not by how it is written."""

from __future__ import annotations

import gzip
import io
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.analysis.model import RankFacts
from clusterwatch.cli.main import main
from clusterwatch.cli.report import perfetto
from clusterwatch.cli.report.perfetto_calls import Call, laid_out
from collectors.formats.columns import TraceColumns
from tests.analysis.looks import traces
from tests.cli.report.made import hostile_job, judged, stuck_job, windows, write
from tests.data.recorder import Job

Event = dict[str, Any]
_REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}


def rings(job: Job, without: tuple[int, ...] = ()) -> list[TraceColumns]:
    return list(traces(job, without))


def written(job: Job, without: tuple[int, ...] = (), packed: bool = False, **options: Any) -> Any:
    found = windows(job, without)
    diagnosis, view = judged(found)
    plan = perfetto.plan("dumps", found, diagnosis, view, **options)
    file = io.BytesIO()
    perfetto.write(file, [ring for ring in rings(job, without) if ring.rank in plan.ranks], plan, packed)
    data = gzip.decompress(file.getvalue()) if packed else file.getvalue()
    trace = json.loads(data, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    check(trace["traceEvents"])
    return trace


def check(events: list[Event]) -> None:
    """Required fields by phase, finite times, rising per thread, spans apart or nested, arrows in pairs."""
    spans: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    arrows: dict[int, dict[str, Event]] = defaultdict(dict)
    for event in events:
        assert event["ph"] in _REQUIRED and event.keys() >= _REQUIRED[event["ph"]]
        assert isinstance(event["pid"], int) and event["pid"] > 0 and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert math.isfinite(event["ts"]) and event["ts"] >= 0 and event["dur"] >= 0
            spans[(event["pid"], event["tid"])].append((event["ts"], round(event["ts"] + event["dur"], 3)))
        elif event["ph"] in "sf":
            assert event["ph"] not in arrows[event["id"]]
            arrows[event["id"]][event["ph"]] = event
    for thread in spans.values():
        assert [begin for begin, _ in thread] == sorted(begin for begin, _ in thread)
        assert apart_or_nested(thread)
    for pair in arrows.values():
        assert pair.keys() == {"s", "f"} and pair["s"]["ts"] <= pair["f"]["ts"]
        for end in pair.values():
            thread = spans[(end["pid"], end["tid"])]
            assert any(begin <= end["ts"] <= until for begin, until in thread), "an arrow ends in no slice"


def apart_or_nested(spans: list[tuple[float, float]]) -> bool:
    around: list[float] = []
    for begin, end in spans:
        while around and around[-1] <= begin:
            around.pop()
        if around and end > around[-1]:
            return False
        around.append(end)
    return True


def slices(trace: Any, rank: int) -> list[Event]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == rank + 1]


def names(trace: Any, kind: str) -> list[str]:
    return [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == kind]


def test_a_process_per_rank_and_a_thread_per_group() -> None:
    trace = written(stuck_job(), facts={5: RankFacts(5, host="host-c", gpu=1)})
    assert names(trace, "process_name")[4:6] == ["rank 4", "rank 5 (host-c, GPU 1)"]
    assert "tp 3, ranks 4, 5" in names(trace, "thread_name")


def test_an_open_call_runs_beyond_the_newest_time_and_says_so() -> None:
    trace = written(stuck_job())
    last = max(slices(trace, 4), key=lambda event: event["ts"])
    assert last["name"] == "all_reduce 5 (open)" and last["args"]["open"] is True
    newest = max(event["ts"] for event in trace["traceEvents"] if event["ph"] == "X")
    assert last["ts"] + last["dur"] > newest
    assert not any(event["args"]["open"] for event in slices(trace, 0))


def test_an_arrow_leads_from_the_culprit_to_who_waits() -> None:
    arrows = [event for event in written(stuck_job())["traceEvents"] if event["ph"] in "sf"]
    assert [(event["ph"], event["pid"] - 1) for event in arrows] == [("s", 5), ("f", 4)]


def test_a_recorded_start_is_where_a_call_begins() -> None:
    job = Job(2, timing=True)
    job.all()
    event = slices(written(job), 0)[0]
    assert event["args"]["drawn_from"] == "start" and event["dur"] == 0.001


def test_a_call_whose_end_nobody_recorded_says_so() -> None:
    job = Job(2, backend="gloo")
    job.all()
    event = slices(written(job), 0)[0]
    assert event["args"]["end"] == "not recorded" and not event["args"]["open"]


def test_a_batch_ends_with_its_closing_entry() -> None:
    job = Job(2)
    job.batch(0, [("send", 1), ("recv", 1)])
    job.batch(1, [("send", 0), ("recv", 0)], state="scheduled")
    trace = written(job)
    assert not any(event["args"]["open"] for event in slices(trace, 0))
    assert all(event["args"]["open"] for event in slices(trace, 1))
    assert any("send and receive" in name for name in names(trace, "thread_name"))


def test_the_file_says_what_the_times_are_worth() -> None:
    about = written(stuck_job())["otherData"]
    assert "offsets between hosts are unknown" in about["clocks"]
    assert about["calls_left_out"] == "0" and about["verdict"].startswith("Rank 5 never joined")


def test_ranks_are_who_is_named_and_their_groups_first() -> None:
    found = windows(stuck_job())
    diagnosis, view = judged(found)
    assert perfetto.plan("x", found, diagnosis, view, asked=(7, 0, 99)).ranks == (0, 7)
    order = list(perfetto._worth_seeing(diagnosis, view, range(8)))
    assert order[:2] == [5, 4]


def test_at_most_64_ranks_unless_they_are_asked_for() -> None:
    job = Job(80)
    job.all()
    assert len(names(written(job), "process_name")) == 64
    assert len(names(written(job, asked=range(80)), "process_name")) == 80


def test_packed_is_the_same_trace() -> None:
    assert written(stuck_job(), packed=True) == written(stuck_job())


def test_hostile_names_are_text() -> None:
    shown = json.dumps(written(hostile_job()), ensure_ascii=False)
    assert "\x1b" not in shown and "\\u001b" not in shown and "\u202e" not in shown and "onerror" in shown


def test_a_rank_without_a_dump_is_no_process() -> None:
    assert names(written(stuck_job(), without=(5,)), "process_name") == [
        f"rank {r}" for r in (0, 1, 2, 3, 4, 6, 7)
    ]


def test_nothing_to_draw_is_still_a_trace() -> None:
    diagnosis, view = judged(())
    file = io.BytesIO()
    perfetto.write(file, [], perfetto.plan("x", (), diagnosis, view))
    assert json.loads(file.getvalue())["traceEvents"] == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=60))
def test_whatever_overlaps_every_thread_can_be_drawn(spans: list[tuple[int, int]]) -> None:
    calls = [
        Call("0", "", "t", False, str(n), n, begin, begin + length, False, {})
        for n, (begin, length) in enumerate(spans)
    ]
    threads, left_out = laid_out(calls)
    assert sum(len(lane) for _, lane in threads) + left_out == len(calls)
    assert len({label for label, _ in threads}) == len(threads)
    for _, lane in threads:
        assert apart_or_nested([(call.begin_ns, call.end_ns) for call in lane])


def test_the_command_writes_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(stuck_job(), tmp_path / "job")
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    assert main(["analyze", str(folder), "--perfetto", str(plain)]) == 2
    assert main(["analyze", str(folder), "--perfetto", str(packed), "--perfetto-ranks", "4-5,7"]) == 2
    assert capsys.readouterr().out.startswith("Rank 5 never joined")
    check(json.loads(plain.read_text())["traceEvents"])
    few = json.loads(gzip.decompress(packed.read_bytes()))
    assert names(few, "process_name") == ["rank 4", "rank 5", "rank 7"]


@pytest.mark.parametrize("ranks", ["x", "5-", "7-3", "1,,2", "-1"])
def test_ranks_that_are_none_are_wrong_usage(ranks: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["analyze", ".", "--perfetto", "x", f"--perfetto-ranks={ranks}"])
    assert stop.value.code == 64
    capsys.readouterr()
