"""From settings to a cluster that is ready to live: its story, its faults, the file that tells them."""

from __future__ import annotations

from clusterwatch.simulate import kept, scenario
from clusterwatch.simulate.cluster import Cluster
from clusterwatch.simulate.faults import catalogue, truth
from clusterwatch.simulate.kept import Settings
from collectors.clock import Clock, SystemClock


def story(settings: Settings, run: kept.Run, begun_ns: int) -> tuple[scenario.Scenario, list[truth.Truth]]:
    """What happens in a cluster that begins at ``begun_ns``, and what is wrong in it.

    Raises:
        FaultError: a fault that does not exist, or has no place here.
    """
    told = scenario.build(
        settings.gpu_count, settings.seed, settings.shape, run.attempt, run.started_ns, begun_ns,
        settings.jobs_max,
    )  # fmt: skip
    return told, catalogue.inject(told, settings.faults)


def cluster(settings: Settings, clock: Clock | None = None) -> Cluster:
    """The cluster; its truth is written.

    Raises:
        FaultError: a fault that does not exist, or has no place here.
        OSError: the state folder, or the file of the truth, cannot be written.
    """
    ours = clock or SystemClock()
    begun_ns = ours.now_ns()
    run = kept.run_of(settings, begun_ns)
    told, found = story(settings, run, begun_ns)
    newest = max((p.attempt for world in told.worlds for p in world.timeline.pieces), default=run.attempt)
    if newest > run.attempt:
        kept.end_run(settings, newest)
    if settings.truth is not None:
        settings.truth.write_bytes(truth.as_json(settings, begun_ns, found))
    return Cluster(settings, told, ours)
