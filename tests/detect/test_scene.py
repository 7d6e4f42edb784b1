from __future__ import annotations

import numpy as np

from clusterwatch.analysis.model import ProcessState
from clusterwatch.analysis.progress import PROCESS_CODES
from clusterwatch.detect.scene import BLIND_AFTER_NS, Scene, is_blind, read_scene
from clusterwatch.jobs.models import Rank
from tests.detect.fake_job import SECOND, FakeJob, at


def scene_of(job: FakeJob) -> Scene:
    found = read_scene(job.job, job.now_ns)
    assert found is not None
    return found


def processes(scene: Scene) -> list[ProcessState]:
    return [PROCESS_CODES[code] for code in scene.look.process.tolist()]


def test_hot_columns_are_put_into_the_order_of_the_ranks(fake_job: FakeJob) -> None:
    fake_job.ranks[6].step = 77
    fake_job.write()
    look = scene_of(fake_job).look
    assert look.rank.tolist() == list(range(8))
    assert look.step[6] == 77
    mine = look.group_id == fake_job.tp[3].pk
    assert sorted(look.rank[look.row[mine]].tolist()) == [6, 7]


def test_a_rank_nobody_reports_is_unknown_and_not_zero(fake_job: FakeJob) -> None:
    Rank.objects.create(
        job=fake_job.job, attempt=0, rank=8, world_size=9, node=fake_job.nodes[0], host="host-0",
        ref=900, epoch="e", pid=1, started_at=at(fake_job.now_ns),
    )  # fmt: skip
    scene = scene_of(fake_job)
    assert (scene.look.seen_ns[8], scene.look.step[8]) == (0, -1)
    fact = scene.facts[0][8]
    assert (fact.step, fact.phase, fact.hook_silent_s) == (None, None, None)


def test_an_exit_is_seen_at_once_although_rows_are_cached(fake_job: FakeJob) -> None:
    assert processes(scene_of(fake_job))[3] is ProcessState.RUNNING
    fake_job.end(3, exit_signal=9)
    fact = scene_of(fake_job).facts[0][3]
    assert (fact.process, fact.exit_signal, fact.clean_exit) == (ProcessState.EXITED, 9, False)


def test_an_exit_without_a_status_is_neither_clean_nor_unclean(fake_job: FakeJob) -> None:
    fake_job.end(3)
    assert scene_of(fake_job).facts[0][3].clean_exit is None


def test_silence_is_the_hosts_and_a_close_is_the_agents(fake_job: FakeJob) -> None:
    fake_job.freeze_host(0)
    fake_job.lose_agent(1)
    fake_job.now_ns += 5 * SECOND
    fake_job.write()
    found = processes(scene_of(fake_job))
    assert found[0] is ProcessState.NODE_SILENT
    assert found[2] is ProcessState.AGENT_GONE
    assert found[4] is ProcessState.RUNNING


def test_a_gateway_that_fell_silent_makes_no_host_silent(fake_job: FakeJob) -> None:
    fake_job.now_ns += 4 * SECOND
    assert set(processes(scene_of(fake_job))) == {ProcessState.RUNNING}


def test_we_are_blind_when_no_gateway_writes(fake_job: FakeJob) -> None:
    assert not is_blind(fake_job.now_ns + BLIND_AFTER_NS - SECOND)
    assert is_blind(fake_job.now_ns + BLIND_AFTER_NS + SECOND)


def test_a_job_without_ranks_has_no_scene(fake_job: FakeJob) -> None:
    Rank.objects.all().delete()
    assert read_scene(fake_job.job, fake_job.now_ns) is None


def test_groups_are_told_by_their_true_members(fake_job: FakeJob) -> None:
    groups = scene_of(fake_job).known_groups(0)
    assert groups[fake_job.world.pk].ranks == tuple(range(8))
    assert np.all(np.isin(scene_of(fake_job).look.group_id, list(groups)))
