"""What NCCL's RAS answered is read in both of its forms, and never believed beyond its bounds."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.formats.ras_status import RANKS_MAX, Communicator, RasStatus, parse

HEAD = """NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
SOUND = (
    HEAD + "    0         8         4         1         4        32   RUNNING      OK\n\nErrors\n======\n\n"
)
LACKING = (
    HEAD
    + """    0         1         4       7-8        32        32   RUNNING  INCOMPLETE
    1         7         4         1         4        28   RUNNING  OK

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 11 on node 172.16.64.210 managing GPU 1

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213
  Rank 1 -- [process information not found]

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  29 ranks have launched up to operation 6650
  Rank 7 has launched up to operation 6649 -- GPU 7 managed by process 12 on node 172.16.64.210
  Communicator ranks have different Broadcast operation counts
  28 ranks have launched up to operation 3
  2 ranks have not launched any operations
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
"""
)


def rank(number: int, **more: Any) -> dict[str, Any]:
    counts = {"AllReduce": more.pop("calls", 9), "Broadcast": 1}
    state = {"init_state": 0, "async_error": 0, "abort_flag": False, **more}
    return {"rank": number, "host": "10.0.0.1", "pid": 70 + number, "cuda_dev": number, "nvml_dev": number,
            "status": state, "collective_counts": counts}  # fmt: skip


def document(ranks: list[dict[str, Any]], missing: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    one = {"hash": "0xae94423cfbb2ef4a", "size": len(ranks) + len(missing), "ranks_count": len(ranks),
           "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": missing}  # fmt: skip
    return {"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [one],
            "ras": {"collection_time_sec": 0.1, "timeouts_count": 0}, **more}  # fmt: skip


def gone(number: int, dead: bool = False) -> dict[str, Any]:
    return {"rank": number, "host": "10.0.0.2", "pid": 70 + number, "cuda_dev": 1, "nvml_dev": 1,
            "status": {"unresponsive": True, "considered_dead": dead}}  # fmt: skip


def test_a_sound_job_has_nothing_to_tell_but_its_size() -> None:
    status = parse(SOUND)
    assert status == RasStatus("2.27.3", 8)
    assert status.sentence == "no fault seen (of 8 communicators)"


def test_text_names_missing_ranks_those_behind_and_dead_processes() -> None:
    status = parse(LACKING)
    assert status.problems == ["INCOMPLETE", "DEAD", "MISMATCH", "TIMEOUT"]
    assert status.communicators == [
        Communicator("cf264af53edbe986", 2, [1, 21], behind_count=3, behind=[2, 3, 7])
    ]
    assert status.communicator_count == 8
    assert status.processes == [
        "Process 3487984 on node 172.16.64.213 managing GPU 5",
        "Process 11 on node 172.16.64.210 managing GPU 1",
    ]
    assert status.sentence.startswith("2 ranks missing, 3 ranks behind, 2 processes without an answer")


def test_older_words_for_a_missing_rank_are_read_too() -> None:
    text = (
        HEAD
        + "\n#0-0 (ab) INCOMPLETE\n  Missing communicator data from 4 ranks\n  The missing ranks: 1, 5-7\n"
    )
    assert parse(text).communicators == [Communicator("ab", 4, [1, 5, 6, 7])]


def test_more_ranks_behind_than_are_named_are_counted() -> None:
    body = "  20 ranks have launched up to operation 6\n  12 ranks have launched up to operation 5\n"
    text = (
        HEAD + "\n#0-0 (ab) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n" + body
    )
    assert parse(text).communicators == [Communicator("ab", behind_count=12)]


def test_json_tells_the_same() -> None:
    ranks = [rank(0), rank(1, calls=8), rank(2, async_error=2)]
    status = parse(json.dumps(document(ranks, [gone(3), gone(4, dead=True)]), indent=1))
    assert status.communicators == [Communicator("ae94423cfbb2ef4a", 2, [3, 4], 1, [1], 1, [2])]
    assert status.problems == ["INCOMPLETE", "DEAD", "ERROR", "MISMATCH"]
    assert status.processes == [f"process {pid} on node 10.0.0.2 managing GPU 1" for pid in (73, 74)]


def test_a_comma_that_nccl_forgot_between_missing_ranks_is_put_back() -> None:
    whole = json.dumps(document([rank(0)], [gone(3), gone(4)]), indent=1)
    broken = whole.replace('},\n    {\n     "rank": 4', '}\n    {\n     "rank": 4')
    assert broken != whole
    assert parse(broken) == parse(whole)


def test_an_answer_that_is_cut_or_something_else_is_said_to_be_so() -> None:
    cut = json.dumps(document([rank(0)], []))[:200]
    assert parse(cut).damaged.startswith("no JSON of RAS")
    assert parse("HTTP/1.1 400 Bad Request\r\n\r\n").damaged == "no words of RAS in it"
    assert parse("[" * 100_000).damaged
    assert parse("{" + '"a":{' * 100_000).damaged
    assert parse(LACKING[: LACKING.index("Warnings")]).communicators[0].missing == [1, 21]


def test_a_list_of_ranks_that_has_no_end_is_bounded() -> None:
    missing = [gone(number) for number in range(500)]
    (found,) = parse(json.dumps(document([], missing))).communicators
    assert (found.missing_count, len(found.missing)) == (500, RANKS_MAX)
    text = HEAD + "#0-0 (ab) INCOMPLETE\n  The missing ranks: 1-999999999\n"
    assert len(parse(text).communicators[0].missing) <= RANKS_MAX


LINES = st.sampled_from(LACKING.splitlines())


@settings(max_examples=30, deadline=None)
@given(st.one_of(st.text(max_size=300), st.lists(LINES, max_size=40).map("\n".join)))
def test_whatever_comes_what_is_told_of_it_fits_its_own_bounds(text: str) -> None:
    for answer in (text, "{" + text):
        status = parse(answer)
        assert msgspec.json.decode(msgspec.json.encode(status), type=RasStatus) == status
