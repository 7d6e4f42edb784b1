"""Links of a running job: slow ports, leaves, NVLinks by name, or transfers alone; nobody if it is calm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clusterwatch.analysis.model import Finding
from clusterwatch.analysis.slow import link_findings, live_links
from clusterwatch.analysis.slow.edges import Edges
from clusterwatch.analysis.slow.live_links import KeptLinks
from tests.analysis.slow.edge_jobs import SECOND, Job, joined, told_steps


def look(job: Job, kept: KeptLinks, edges: Edges, now_s: float | None = None) -> KeptLinks:
    """One look, with what it leaves packed and unpacked."""
    now_ns = int((now_s if now_s is not None else float(edges.step.max())) * SECOND)
    kept.take(edges, job.paths, np.ones(job.ranks, np.bool_), now_ns)
    kept.close()
    kept.step_s = 4.0
    return live_links.unpack(live_links.pack(kept))


def watched(job: Job, *parts: Edges) -> KeptLinks:
    kept = KeptLinks.of(job.ranks)
    for part in parts:
        kept = look(job, kept, part)
    return kept


def told(job: Job, kept: KeptLinks) -> list[Finding]:
    return link_findings.findings(kept, job.paths, job.layout, {})


def words(found: list[Finding]) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.verdict, one.culprit_ranks) for one in found]


def test_a_healthy_job_stands_for_nothing_whoever_comes_last() -> None:
    job = Job()
    kept = watched(job, job.edges(told_steps(0, 30), waits_s=0.05))
    assert kept.rows == 30 and not kept.stands_out


def test_a_port_at_a_quarter_is_named_where_its_group_and_its_sends_are_slow() -> None:
    job = Job()
    kept = watched(
        job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 7), slow_rank={21: 4.0})
    )
    (found,) = told(job, kept)
    assert (found.verdict, found.culprit_ranks, found.link) == ("slow_nic", (21,), "mlx5_1")
    assert found.onset_step == 96 and "since step 96" in found.summary and "host-5" in found.summary
    assert found.bad_steps == 7 == found.seen_steps
    assert found.lost_s == pytest.approx(4 * 2**28 / 40e9 * 3, rel=0.1)
    assert any("GPUs' own clocks" in line for line in found.why)


def test_at_the_ends_of_a_pipeline_the_neighbour_is_cleared_by_its_own_group() -> None:
    job = Job()
    kept = watched(job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_rank={2: 4.0}))
    assert words(told(job, kept)) == [("slow_nic", (2,))]


def test_pairs_of_two_are_paths_of_both_their_ends() -> None:
    job = Job(pp=2)
    kept = watched(job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_rank={21: 4.0}))
    assert words(told(job, kept)) == [("slow_nic", (21,))]


def test_a_leaf_is_named_where_all_ports_behind_it_are_slow() -> None:
    job = Job()
    behind = dict.fromkeys(range(16, 24), 2.5)
    kept = watched(job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_rank=behind))
    (found,) = told(job, kept)
    assert (found.verdict, found.switch) == ("slow_switch", "leaf-2")
    assert found.culprit_ranks == tuple(range(16, 24))


def test_all_ports_of_a_host_are_the_host_where_its_leaf_serves_no_other() -> None:
    job = Job(nodes_per_leaf=1)
    behind = dict.fromkeys(range(20, 24), 2.5)
    kept = watched(job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_rank=behind))
    (found,) = told(job, kept)
    assert (found.verdict, found.switch, found.culprit_ranks) == ("slow_nic", None, (20, 21, 22, 23))


def test_an_nvlink_island_is_named_by_its_one_group() -> None:
    job = Job()
    slow = {job.group("tp", 9): 2.0}
    kept = watched(job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_group=slow))
    assert words(told(job, kept)) == [("slow_nvlink", (8, 9, 10, 11))]


def test_one_slow_group_names_the_group_and_no_gpu() -> None:
    job = Job()
    slow = {job.group("dp", 21): 3.0}
    kept = watched(job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_group=slow))
    (found,) = told(job, kept)
    assert (found.verdict, found.culprit_ranks, found.link) == ("slow_cause_unknown", (), None)
    assert found.group is not None and found.group.name == job.paths.names[job.group("dp", 21)]
    assert set(found.suspect_ranks) == {17, 21, 25, 29}


def test_who_is_left_over_is_not_named_for_it() -> None:
    """The sends of the other members are well; those of rank 21 are not told, which makes it no culprit."""
    job = Job()
    edges = joined(
        job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_group={job.group("dp", 21): 3.0})
    )
    kept = watched(job, edges.rows(~((edges.rank == 21) & (edges.op > 0))))
    assert words(told(job, kept)) == [("slow_cause_unknown", ())]


def test_a_port_without_pipeline_is_not_told_from_its_group() -> None:
    job = Job(pp=1, dp=4)
    kept = watched(job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_rank={5: 4.0}))
    assert words(told(job, kept)) == [("slow_cause_unknown", ())]


def test_bursts_of_congestion_open_nothing() -> None:
    job = Job()
    parts = []
    for first in range(0, 60, 20):
        parts += [
            job.edges(told_steps(first, 5), slow_rank={21: 4.0}),
            job.edges(told_steps(first + 5, 15)),
        ]
    kept = KeptLinks.of(job.ranks)
    for part in parts:
        kept = look(job, kept, part)
        assert not told(job, kept)


def test_a_group_with_a_silent_member_is_unknown_and_not_slow() -> None:
    job = Job()
    silent = (25,)
    kept = watched(
        job, job.edges(told_steps(0, 12), silent=silent),
        job.edges(told_steps(12, 12), slow_rank={21: 4.0}, silent=silent),
    )  # fmt: skip
    group = 100 + job.group("dp", 21)
    assert group not in kept.key and 100 + job.group("dp", 22) in kept.key
    assert told(job, kept) == []


def test_a_late_rank_makes_nobodys_transfers_slow() -> None:
    """Rank 21 comes last to every call, so only its own times are free of waiting."""
    job = Job()
    edges = job.edges(told_steps(0, 30))
    late = np.isin(edges.group, [job.group("dp", 21), job.group("tp", 21)]) & (edges.rank != 21)
    waits = np.where(late & (edges.step >= 96), 0.5, 0.0)
    kept = watched(job, replace(edges, p10_s=edges.p10_s + waits, min_s=edges.min_s + waits))
    assert not kept.stands_out


def test_rotating_last_arrivers_are_no_slow_link() -> None:
    """The tenth part of each member's calls holds waiting, the shortest call of all does not."""
    job = Job()
    edges = job.edges(told_steps(0, 30))
    rotating = (edges.group == job.group("dp", 21)) & (edges.step >= 96)
    kept = watched(job, replace(edges, p10_s=edges.p10_s * np.where(rotating, 3.0, 1.0)))
    assert not kept.stands_out


def test_an_episode_that_is_over_is_forgotten() -> None:
    job = Job()
    kept = watched(
        job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_rank={21: 4.0}),
        job.edges(told_steps(20, 8)),
    )  # fmt: skip
    assert not kept.stands_out and kept.onsets == {}


def test_what_was_never_otherwise_and_has_no_part_is_how_the_job_lies() -> None:
    job = Job()
    far = {job.group("dp", rank): 1.6 for rank in (0, 5, 34)}
    kept = watched(job, job.edges(told_steps(0, 30), slow_group=far))
    assert kept.stands_out and told(job, kept) == []


def test_a_port_that_is_slow_from_the_first_step_on_is_named() -> None:
    job = Job()
    kept = watched(job, job.edges(told_steps(0, 10), slow_rank={21: 4.0}))
    (found,) = told(job, kept)
    assert (found.verdict, found.culprit_ranks) == ("slow_nic", (21,))
    assert "it was so in all steps that are known" in found.why


def test_a_group_alone_of_its_kind_is_weighed_against_its_start() -> None:
    job = Job(tp=1, dp=8, pp=1)
    slow = {0: 3.0}
    kept = watched(job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_group=slow))
    assert words(told(job, kept)) == [("slow_cause_unknown", ())]


def test_the_onset_is_remembered_when_it_has_left_the_window() -> None:
    job = Job()
    kept = watched(job, job.edges(told_steps(0, 12)))
    for first in range(12, 60, 6):
        kept = look(job, kept, job.edges(told_steps(first, 6), slow_rank={21: 4.0}))
        found = told(job, kept)
    assert kept.steps[0] > 96 and found[0].onset_step == 96 and len(kept.steps) == live_links.WINDOW_ROWS


def test_a_step_is_taken_when_all_told_it_or_a_later_one_or_the_rest_will_not_come() -> None:
    job = Job()
    kept = watched(job, job.edges(told_steps(0, 4)))
    part = job.edges(told_steps(4, 2), silent=(3,))
    assert look(job, kept, part, now_s=41).rows == 4
    passed = joined(part, job.edges(told_steps(6, 1)))
    assert look(job, kept, passed, now_s=50).rows == 7
    assert look(job, watched(job, job.edges(told_steps(0, 4))), part, now_s=40 + 46).rows == 6


def test_what_was_taken_is_not_taken_again_and_what_is_kept_does_not_grow() -> None:
    job = Job()
    edges = job.edges(told_steps(0, 40))
    kept = watched(job, edges)
    size = len(live_links.pack(kept))
    assert look(job, kept, edges).rows == 40
    assert len(live_links.pack(watched(job, edges, job.edges(told_steps(40, 40))))) - size < 200


def test_sends_timed_by_the_host_tell_nothing_of_a_link() -> None:
    job = Job(by_host=True)
    kept = watched(job, job.edges(told_steps(0, 12)), job.edges(told_steps(12, 8), slow_rank={21: 4.0}))
    (found,) = told(job, kept)
    assert found.verdict == "slow_cause_unknown" and min(kept.key) >= 100
    assert any("hosts' clocks" in line for line in found.why)


def test_times_that_cannot_be_are_left_out() -> None:
    job = Job()
    edges = job.edges(told_steps(0, 20))
    bad = (edges.rank == 7) & (edges.step >= 40)
    for column, value in (("p10_s", np.nan), ("min_s", -1.0), ("p10_s", np.inf), ("group", -1), ("count", 0)):
        values = np.where(bad, value, getattr(edges, column)).astype(getattr(edges, column).dtype)
        assert not watched(job, replace(edges, **{column: values})).stands_out


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\xc1" * 40, live_links.pack(KeptLinks.of(9))[:-9], b"\x95\x01\x01\x01\x01\x01"]
)
def test_what_is_kept_and_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="kept transfers"):
        live_links.unpack(data)
