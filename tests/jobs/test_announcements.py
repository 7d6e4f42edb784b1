"""What processes say of themselves and of their end becomes jobs, ranks and groups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.jobs.announcements import Announcement, apply_announcements, at, members_hash
from clusterwatch.jobs.exits import NodeWord, apply_exits, apply_process_states, ensure_jobs
from clusterwatch.jobs.models import Capture, Group, Job, Rank
from clusterwatch.jobs.services import CAPTURE_GRACE_S, expire_captures, request_capture
from collectors.wire import records

SECOND_NS = 10**9
T0 = 1_796_000_000 * SECOND_NS

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    cluster = Cluster.objects.create(name="tiny")
    return Node.objects.create(cluster=cluster, name="n1", machine_id="m1")


def announce(
    node: Node, rank: int, *, pid: int | None = None, attempt: int = 0, start_s: int = 0, **more: Any
) -> None:
    record = records.RankInventory(
        t_ns=T0 + start_s * SECOND_NS,
        ref=more.pop("ref", 100 + rank),
        id=records.RankId("train", rank, attempt),
        pid=pid if pid is not None else 1000 + rank,
        host="n1",
        world_size=2,
        started_ns=T0 + start_s * SECOND_NS,
        **more,
    )
    apply_announcements([Announcement(node.cluster_id, node.pk, "epoch", record)])


def leave(
    node: Node, rank: int, *, pid: int | None = None, attempt: int = 0, end_s: int = 10, **more: Any
) -> None:
    record = records.RankExit(
        t_ns=T0 + end_s * SECOND_NS,
        ref=100 + rank,
        id=records.RankId("train", rank, attempt),
        pid=pid if pid is not None else 1000 + rank,
        **more,
    )
    apply_exits([NodeWord(node.cluster_id, node.pk, record)])


def test_two_ranks_make_one_running_job(node: Node) -> None:
    announce(node, 0, job_name="llama", user="ada")
    announce(node, 1, start_s=1)
    job = Job.objects.get()
    assert (job.key, job.name, job.user, job.state) == ("train", "llama", "ada", Job.State.RUNNING)
    assert job.started_at == at(T0)
    assert job.ranks.count() == 2


def test_the_newest_labels_stand_and_their_number_is_bounded(node: Node) -> None:
    announce(node, 0, labels={"partition": "batch", "team": "vision"})
    announce(node, 0, start_s=1, labels={"partition": "debug"})
    assert Job.objects.get().labels == {"partition": "debug", "team": "vision"}
    for start_s in range(2, 6):
        announce(node, 0, start_s=start_s, labels={f"{start_s}-{n}": "x" for n in range(60)})
    labels = Job.objects.get().labels
    assert len(labels) == 64 and {f"5-{n}" for n in range(60)} <= set(labels)


def test_groups_are_told_apart_by_name_description_and_members(node: Node) -> None:
    group = records.GroupInfo(0, "0", "pg", "nccl", [0, 1])
    announce(node, 0, groups=[group, records.GroupInfo(2, "1", "dp", "nccl", [0])])
    announce(node, 1, groups=[group, records.GroupInfo(1, "1", "dp", "nccl", [1])])
    assert Group.objects.count() == 3
    by_key = {(g.desc, tuple(g.ranks)): g.pk for g in Group.objects.all()}
    ranks = {r.rank: r.groups for r in Rank.objects.all()}
    assert ranks[0] == [by_key["pg", (0, 1)], None, by_key["dp", (0,)]]
    assert ranks[1] == [by_key["pg", (0, 1)], by_key["dp", (1,)]]
    assert members_hash([0, 1]) != members_hash([1, 0])


def test_a_group_is_the_same_whether_its_members_are_listed_or_a_span(node: Node) -> None:
    announce(node, 0, groups=[records.GroupInfo(0, "0", "pg", "nccl", [0, 1, 2, 3])])
    announce(node, 1, groups=[records.group_info(0, "0", "pg", "nccl", range(4))])
    (group,) = Group.objects.all()
    assert group.ranks == [0, 1, 2, 3] and {tuple(r.groups) for r in Rank.objects.all()} == {(group.pk,)}


def test_the_same_process_may_speak_again_and_keeps_its_fate(node: Node) -> None:
    announce(node, 0)
    leave(node, 0, exit_code=1)
    announce(node, 0, ref=555, groups=[records.GroupInfo(0, "0", ranks=[0])])
    rank = Rank.objects.get()
    assert (rank.ref, rank.exit_code, len(rank.groups)) == (555, 1, 1)


def test_a_new_process_takes_the_place_and_a_late_word_of_the_old_changes_nothing(node: Node) -> None:
    announce(node, 0, pid=50, start_s=0)
    announce(node, 0, pid=60, start_s=5)
    announce(node, 0, pid=50, start_s=0)
    leave(node, 0, pid=50, exit_code=1)
    rank = Rank.objects.get()
    assert (rank.pid, rank.exited_at) == (60, None)


@pytest.mark.parametrize(
    ("exits", "state"),
    [
        ([{"exit_code": 0}, {"clean": True}], Job.State.ENDED),
        ([{"exit_code": 0}, {"signal": 9}], Job.State.FAILED),
        ([{"exit_code": 1}, {"clean": True}], Job.State.FAILED),
        ([{"clean": True}, {}], Job.State.UNKNOWN),
        ([{"exit_code": 0}, {"clean": False}], Job.State.FAILED),
    ],
)
def test_a_job_ends_with_its_last_rank(node: Node, exits: list[dict[str, Any]], state: str) -> None:
    announce(node, 0)
    announce(node, 1)
    leave(node, 0, end_s=10, **exits[0])
    assert Job.objects.get().ended_at is None
    leave(node, 1, end_s=20, **exits[1])
    job = Job.objects.get()
    assert (job.state, job.ended_at) == (state, at(T0 + 20 * SECOND_NS))


def test_a_second_word_on_an_exit_fills_what_was_not_known(node: Node) -> None:
    announce(node, 0)
    failure = records.ExceptionInfo("ValueError", "bad", "trace", T0)
    leave(node, 0, exception=failure)
    leave(node, 0, end_s=11, exit_code=1)
    rank = Rank.objects.get()
    assert rank.exit_code == 1 and rank.exited_at == at(T0 + 10 * SECOND_NS)
    assert rank.exception is not None and rank.exception["type"] == "ValueError"


def test_an_ended_key_that_comes_again_is_a_new_job(node: Node) -> None:
    announce(node, 0)
    leave(node, 0, exit_code=0, end_s=10)
    announce(node, 0, pid=70, start_s=60)
    assert [job.state for job in Job.objects.order_by("id")] == [Job.State.ENDED, Job.State.RUNNING]


def test_the_next_attempt_is_the_same_job_alive_again(node: Node) -> None:
    announce(node, 0)
    leave(node, 0, exit_code=1, end_s=10)
    announce(node, 0, pid=70, attempt=1, start_s=60)
    job = Job.objects.get()
    assert (job.state, job.attempt, job.ended_at) == (Job.State.RUNNING, 1, None)
    assert Rank.objects.count() == 2


def test_a_late_rank_of_an_ended_run_belongs_to_that_run(node: Node) -> None:
    announce(node, 0)
    leave(node, 0, exit_code=1, end_s=10)
    announce(node, 1, start_s=2)
    assert Job.objects.count() == 1


def test_a_node_cannot_declare_another_nodes_rank_dead(node: Node) -> None:
    other = Node.objects.create(cluster=node.cluster, name="n2", machine_id="m2")
    announce(node, 0)
    leave(other, 0, signal=9)
    assert Rank.objects.get().exited_at is None


def state_event(word: str, t_s: int) -> records.Event:
    return records.Event(
        t_ns=T0 + t_s * SECOND_NS,
        source="agent",
        kind="process_state",
        severity="warning",
        text="",
        fields={"word": word, "pid": "1000", "state": "T"},
        id=records.RankId("train", 0),
    )


def test_a_process_state_is_taken_over_unless_a_newer_one_is_known(node: Node) -> None:
    announce(node, 0)
    for word, t_s in (("stopped", 5), ("running", 3)):
        apply_process_states([NodeWord(node.cluster_id, node.pk, state_event(word, t_s))])
    assert Rank.objects.get().process_state == "stopped"


def test_a_record_of_an_unannounced_job_makes_a_job_of_unknown_state(node: Node) -> None:
    key = (node.cluster_id, "ghost", T0)
    found = ensure_jobs([key])
    assert Job.objects.get(pk=found[key]).state == Job.State.UNKNOWN
    assert ensure_jobs([key]) == found


# --- captures -------------------------------------------------------------------------------------


def test_a_capture_asks_the_nodes_of_living_ranks_once(node: Node) -> None:
    announce(node, 0)
    job = Job.objects.get()
    first = request_capture(job.pk, want=["stacks"], by="detect", reason="stall")
    again = request_capture(job.pk, want=["stacks"], by="detect", reason="stall")
    other = request_capture(job.pk, want=["ring"], ranks=[0], by="detect", reason="stall")
    assert first.pk == again.pk != other.pk
    assert first.expected_nodes == [node.pk]


def test_a_capture_nobody_can_answer_is_done_at_once(node: Node) -> None:
    announce(node, 0)
    leave(node, 0, signal=9)
    capture = request_capture(Job.objects.get().pk, want=["stacks"], by="test", reason="r")
    assert (capture.state, capture.expected_nodes) == (Capture.State.DONE, [])


def test_a_capture_expires_after_its_deadline_and_grace(node: Node) -> None:
    announce(node, 0)
    capture = request_capture(Job.objects.get().pk, want=["ring"], by="test", reason="r", deadline_s=3)
    assert expire_captures() == 0
    late = timezone.now() - timedelta(seconds=4 + CAPTURE_GRACE_S)
    Capture.objects.filter(pk=capture.pk).update(requested_at=late)
    assert expire_captures() == 1
    assert Capture.objects.get().state == Capture.State.EXPIRED
