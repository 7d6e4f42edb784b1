"""Incidents of one cause become one; those that only look alike stay."""

from __future__ import annotations

from clusterwatch.analysis.correlate_merge import Merge, Story, merges
from clusterwatch.analysis.correlate_model import Part, PartKind, Place
from clusterwatch.analysis.signals import Signal
from tests.analysis.layers import ONSET, S, brake, link_down, places, signal, throttle

RACK = Part(PartKind.RACK, "rack-1")


def hosts_of_cluster() -> dict[str, Place]:
    return {place.host: place for place in places().values()}


def slow(incident_id: int, *hosts: int, after_s: float = 20.0, verdict: str = "slow_gpu") -> Story:
    return Story(incident_id, verdict, ONSET + int(after_s * S), frozenset(f"host-{host}" for host in hosts))


def merged(stories: list[Story], *told: Signal) -> list[Merge]:
    return merges(stories, told, hosts_of_cluster())


def braked(*hosts: int) -> list[Signal]:
    return [brake(host, gpu) for host in hosts for gpu in range(8)]


def test_the_brake_of_a_rack_makes_one_incident_of_slow_gpus_of_three_jobs() -> None:
    (one,) = merged([slow(7, 2), slow(8, 3, after_s=9.0), slow(9, 2, 3)], *braked(2, 3))
    assert (one.into, one.merged, one.part) == (8, (7, 9), RACK)
    assert one.reason == "rack rack-1: power brake on 2 hosts"


def test_the_incident_of_the_rack_itself_takes_the_others() -> None:
    own = Story(30, "power_fault", ONSET + 60 * S, frozenset(), RACK)
    (one,) = merged([slow(7, 2), slow(8, 3), own], *braked(2, 3))
    assert (one.into, one.merged) == (30, (7, 8))


def test_one_leaf_with_many_jobs_is_one_incident() -> None:
    down = [link_down(host, f"mlx5_{gpu}") for host in range(4) for gpu in range(8)]
    stalls = [slow(n, n, after_s=5.0, verdict="all_joined_not_finished") for n in range(4)]
    (one,) = merged(stalls, *down)
    assert (one.into, one.merged, one.part) == (0, (1, 2, 3), Part(PartKind.LEAF, "leaf-0"))


def test_a_switch_that_tells_of_itself_needs_no_count() -> None:
    lost = signal("switch_lost", part="switch/leaf-0", at_s=0.0, node_id=None)
    lost = Signal(**{name: getattr(lost, name) for name in Signal.__slots__} | {"host": "switch/leaf-0"})
    stalls = [slow(n, n, after_s=5.0, verdict="all_joined_not_finished") for n in (0, 3, 5)]
    (one,) = merged(stalls, lost)
    assert (one.into, one.merged) == (0, (3,))


def test_one_host_of_a_rack_on_its_brake_is_no_rack() -> None:
    assert merged([slow(7, 2), slow(8, 2)], *braked(2)) == []


def test_two_hot_gpus_of_one_rack_stay_two_incidents() -> None:
    hot = [throttle(host, 0, 0x40, "hw_thermal_slowdown") for host in (2, 3)]
    assert merged([slow(7, 2), slow(8, 3)], *hot) == []


def test_an_incident_that_is_half_elsewhere_stays() -> None:
    (one,) = merged([slow(7, 2), slow(8, 3), slow(9, 2, 6)], *braked(2, 3))
    assert one.merged == (8,)


def test_an_incident_from_before_or_long_after_stays() -> None:
    told = braked(2, 3)
    assert merged([slow(7, 2), slow(8, 3, after_s=-60.0), slow(9, 3, after_s=400.0)], *told) == []


def test_another_kind_of_trouble_on_the_same_hosts_stays() -> None:
    assert merged([slow(7, 2), slow(8, 3, verdict="missing_rank")], *braked(2, 3)) == []


def test_hosts_whose_rack_is_not_known_merge_nothing() -> None:
    assert merges([slow(7, 2), slow(8, 3)], braked(2, 3), {}) == []
