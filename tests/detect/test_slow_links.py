"""Slow links of a running job become incidents with the link's name, by what ranks told of their calls."""

from __future__ import annotations

import pytest

from clusterwatch.analysis.slow import live_links
from clusterwatch.analysis.slow.paging import CURRENT
from clusterwatch.detect import link_look, link_names, replay, slow
from clusterwatch.fleet.models import Node
from clusterwatch.incidents.models import Evidence, Incident
from clusterwatch.incidents.queries import lost_gpus
from clusterwatch.jobs.models import Group, Rank
from clusterwatch.store import hot
from clusterwatch.store.models import Device, DeviceNeighbour
from tests.detect.fake_job import SECOND, forget_rosters
from tests.detect.test_causes import tell
from tests.detect.trainer import Trainer
from tests.detect.transfers import Teller


@pytest.fixture
def teller(trainer: Trainer) -> Teller:
    """Twelve healthy steps whose transfers were told."""
    link_names._names_of.clear()
    teller = Teller(trainer)
    teller.go(12)
    assert not Incident.objects.exists()
    return teller


def only() -> Incident:
    return Incident.objects.get()


def test_a_port_at_a_quarter_is_one_paged_incident_with_its_cost_and_its_transfers(teller: Teller) -> None:
    teller.go(6, ports={5: 4.0})
    teller.go(6, ports={5: 4.0})
    incident = only()
    told = incident.diagnosis
    assert (incident.verdict, incident.state, told["culprit_ranks"]) == ("slow_nic", "open", [5])
    assert told["onset_step"] == 43 and told["culprits"][0]["host"] == "host-2"
    assert told["lost_s"] == pytest.approx(0.6, rel=0.1)
    assert "network port of rank 5 on host-2 is slow" in incident.summary and told["link"] is None
    assert lost_gpus(incident) == pytest.approx(8 * 0.3, rel=0.1)
    assert Evidence.objects.filter(incident=incident, kind="transfers").exists()
    for _ in range(2):
        teller.go(6)
    assert only().state == "resolved"


def test_the_port_has_the_name_its_agent_told_and_the_switch_port_behind_it(teller: Teller) -> None:
    node, now_ns = teller.job.nodes[2], teller.job.now_ns
    device = Device.objects.create(
        cluster_id=teller.job.cluster.pk, kind="switch", name="leaf-7", node_id=node.pk, poller="switch",
        state="ok", node_name="", t_ns=now_ns, epoch="e", sequence=1, data=b"",
        received_ns=now_ns, period_s=60.0,
    )  # fmt: skip
    DeviceNeighbour.objects.create(
        device=device, cluster_id=teller.job.cluster.pk, port="switchport/leaf-7/Ethernet4/1", peer="host-2",
        peer_host="host-2", peer_port="mlx5_1",
    )  # fmt: skip
    began_ns = int(Rank.objects.get(rank=5).started_at.timestamp() * 1e9)
    after_s = (began_ns - now_ns) / SECOND
    tell(teller.job, 2, "rank_map", after_s, entity=f"job/{teller.job.job.key}/rank/5", nic="mlx5_1")
    teller.go(8, ports={5: 4.0})
    told = only().diagnosis
    assert (told["link"], told["switch"]) == ("mlx5_1", "leaf-7")
    assert "at the far end of its cable: port Ethernet4/1 of switch leaf-7" in told["why"]
    assert "port mlx5_1 of rank 5 on host-2" in told["summary"]


def test_leaves_of_rails_are_those_of_the_switches_that_see_the_ports(teller: Teller) -> None:
    now_ns = teller.job.now_ns
    rails = [
        Device.objects.create(
            cluster_id=teller.job.cluster.pk, kind="switch", name=f"rail-{number}", node_id=1, poller="ib",
            state="ok", node_name="", t_ns=now_ns, epoch="e", sequence=1, data=b"", received_ns=now_ns,
            period_s=60.0,
        )
        for number in range(2)
    ]  # fmt: skip
    for rank, process in teller.job.ranks.items():
        DeviceNeighbour.objects.create(
            device=rails[rank % 2], cluster_id=teller.job.cluster.pk, port=f"switchport/rail/{rank}",
            peer=f"{process.row.host}.example", peer_host=process.row.host, peer_port=f"mlx5_{rank % 2}",
        )  # fmt: skip
        entity = f"job/{teller.job.job.key}/rank/{rank}"
        tell(teller.job, rank // 2, "rank_map", -60.0, entity=entity, nic=f"mlx5_{rank % 2}")
    ranks = slow._casts(teller.job.job)[0].ranks
    found = link_names.names(teller.job.cluster.pk, teller.job.job.pk, "", ranks, ("",) * 8, now_ns)
    assert found.leaf == ("rail-0", "rail-1") * 4 and found.nic == ("mlx5_0", "mlx5_1") * 4


def test_leaf_and_nvlink_domain_of_a_rank_are_those_of_its_node(teller: Teller) -> None:
    for index, node in enumerate(teller.job.nodes):
        Node.objects.filter(pk=node.pk).update(leaf=f"leaf-{index // 2}", nvlink_domain=f"rack-{index // 2}")
    slow._casts_of.clear()
    how = slow._casts(teller.job.job)[0].wiring
    assert how.leaf == ("leaf-0",) * 4 + ("leaf-1",) * 4
    crosses = dict(zip(how.paths.names, how.paths.crosses.tolist(), strict=True))
    names = ("default_pg 0", "tp tp0", "dp dp3", "pp pp0")
    assert [crosses[name] for name in names] == [True, False, False, True]


def test_nvlink_is_named_with_the_gpus_of_its_host(teller: Teller) -> None:
    teller.go(8, island=1)
    assert (only().verdict, only().diagnosis["culprit_ranks"], only().node_id) == (
        "slow_nvlink", [2, 3], teller.job.nodes[1].pk,
    )  # fmt: skip
    assert only().state == "suspected", "2 ms of a step of 2 s page nobody"


def test_transfers_of_one_group_alone_name_it_and_nobody(teller: Teller) -> None:
    Group.objects.filter(desc="pp").update(backend="gloo")
    forget_rosters()
    slow._casts_of.clear()
    teller.go(8, ports={5: 4.0})
    told = only().diagnosis
    assert (only().verdict, told["culprit_ranks"]) == ("slow_cause_unknown", [])
    assert told["group"]["name"] == "dp dp3" and told["suspect_ranks"] == [5, 7]
    assert "no part is told apart" in only().summary


def test_members_that_tell_nothing_make_a_group_unknown(trainer: Trainer) -> None:
    teller = Teller(trainer)
    teller.go(12, silent=(7,))
    for _ in range(5):
        teller.go(6, ports={5: 4.0}, silent=(7,))
    assert [one.verdict for one in Incident.objects.all()] == ["slow_cause_unknown"]
    assert only().diagnosis["suspect_ranks"] == [1, 5]


def test_processes_without_a_gpu_page_nobody(teller: Teller) -> None:
    Rank.objects.update(gpu_index=None)
    Group.objects.filter(desc="pp").update(backend="gloo")
    forget_rosters()
    teller.go(12, ports={5: 4.0})
    assert (only().verdict, only().state) == ("slow_cause_unknown", "suspected")


def test_lost_memory_names_the_port_again(teller: Teller) -> None:
    teller.go(8, ports={5: 4.0})
    hot.save_steps(teller.job.job.pk, b"\xc1damaged")
    teller.go(8, ports={5: 4.0})
    assert (only().verdict, only().state) == ("slow_nic", "open")


def test_rows_of_groups_and_ranks_that_are_not_there_say_nothing(teller: Teller) -> None:
    Rank.objects.filter(rank=5).update(groups=[None] * 3)
    forget_rosters()
    teller.go(8, ports={5: 4.0})
    assert not Incident.objects.exists()


def test_the_same_is_found_in_stored_history(teller: Teller) -> None:
    began_ns = teller.job.now_ns
    for _ in range(3):
        teller.go(5, ports={5: 4.0})
    (played,) = replay.slow_parts(
        teller.job.job, began_ns - 60 * SECOND, teller.job.now_ns + 20 * SECOND, CURRENT
    )
    assert [(story.verdict, story.opened_ns is not None) for story in played.stories] == [("slow_nic", True)]
    assert played.missed == ()


def test_what_is_kept_of_a_world_of_another_size_is_forgotten() -> None:
    other = live_links.pack(live_links.KeptLinks.of(9))
    assert [len(link_look.kept_of(data, 8).told) for data in (other, b"\xc1", b"")] == [8, 8, 8]
