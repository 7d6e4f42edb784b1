"""Start-up by part and rank: who held the others up, and what nobody told."""

from __future__ import annotations

import numpy as np

from clusterwatch.analysis.startup import FIRST_STEP, LAUNCH, Part, Summary, sentence, summarise

S = 10**9
T0 = 1_700_000_000 * S


def started(count: int, late: dict[int, float] | None = None) -> np.ndarray:
    found = np.full(count, T0, np.int64)
    for rank, seconds in (late or {}).items():
        found[rank] += int(seconds * S)
    return found


def part(summary: Summary, name: str) -> Part:
    return next(one for one in summary.parts if one.name == name)


HOSTS = [f"node-{rank // 8:04}" for rank in range(512)]


def test_ranks_that_start_late_are_named_with_their_host_and_by_how_much() -> None:
    late = {352: 95.0, 353: 94.0, 355: 93.0}
    found = summarise(started(512, late), np.full(512, T0 + 252 * S), {})
    assert found.worst is not None and found.worst.late == (352, 353, 355)
    assert sentence(found, HOSTS) == (
        "first step after 4 min 12 s; 3 ranks of node-0044 were up to 1 min 35 s later at process start"
    )


def test_a_part_that_was_told_has_percentiles_and_one_that_was_not_has_no_number() -> None:
    told = np.full(512, 20.0)
    told[9] = 60.0
    found = summarise(started(512), np.full(512, T0 + 99 * S), {"compile": told})
    assert (part(found, "compile").p50_s, part(found, "compile").longest_s) == (20.0, 60.0)
    assert part(found, "compile").slowest[0] == (9, 60.0)
    assert part(found, "import") == Part("import", 0)
    assert "1 rank of node-0001 was up to 40 s later at compile" in sentence(found, HOSTS)


def test_a_slow_start_of_all_blames_nobody() -> None:
    spread = np.linspace(0, 300, 512)
    found = summarise(T0 + (spread * S).astype(np.int64), np.full(512, T0 + 400 * S), {})
    assert found.worst is None and sentence(found, HOSTS) == "first step after 6 min 40 s"


def test_a_few_seconds_blame_nobody() -> None:
    assert summarise(started(512, {3: 4.0}), np.zeros(512, np.int64), {}).worst is None


def test_ranks_that_have_not_stepped_are_counted_and_not_taken_for_zero() -> None:
    first = np.full(512, T0 + 60 * S)
    first[:12] = 0
    found = summarise(started(512), first, {})
    assert part(found, FIRST_STEP).told_count == 500 and part(found, LAUNCH).told_count == 512
    assert sentence(found, HOSTS) == "first step after 1 min 0 s on 500 of 512 ranks"
    nobody = summarise(started(8), np.zeros(8, np.int64), {})
    assert nobody.first_step_s is None and sentence(nobody, HOSTS) == "no rank of 8 has told a step yet"


def test_late_ranks_of_several_hosts_are_counted_by_the_one_with_most() -> None:
    found = summarise(started(512, {16: 90.0, 17: 91.0, 40: 92.0}), np.full(512, T0 + 200 * S), {})
    assert "3 ranks (2 of them on node-0002, 1 more host)" in sentence(found, HOSTS)
