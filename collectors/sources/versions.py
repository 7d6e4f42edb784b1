"""Versions and settings of a node, its parts and its jobs, so that one that differs from its peers is seen.

In: see the parts. Out: samples ``fact_count`` of value 1 with the labels ``fact`` and ``value``. They are
compared over the nodes of a cluster elsewhere; here nothing is judged.
"""

from __future__ import annotations

from typing import Final

from collectors.minute import MetricSpec
from collectors.sources import versions_drivers, versions_kernel, versions_pci
from collectors.sources.base import Reading, Sample
from collectors.sources.rank_list import RankList
from collectors.sources.tree import Tree
from collectors.sources.versions_drivers import Drivers
from collectors.sources.versions_facts import Facts
from collectors.sources.versions_job import Jobs

RARELY_S: Final = 3_600.0
"""How often tools, firmware and the bus are asked; at once when another GPU driver is there."""


class VersionsSource:
    """One node. Keeps what is read rarely."""

    name = "versions"
    period_s = 300.0
    deadline_s = 20.0
    metrics: tuple[MetricSpec, ...] = ()

    def __init__(self) -> None:
        self._ranks = RankList()
        self._jobs = Jobs()
        self._drivers = Drivers()
        self._rare: list[Sample] = []
        self._rare_s: float | None = None
        self._driver = ""

    def read(self, tree: Tree, at_s: float) -> Reading:
        facts = Facts()
        versions_kernel.tell(facts, tree)
        driver = versions_drivers.tell(facts, tree)
        self._jobs.tell(facts, tree, self._ranks.members(tree, at_s))
        if driver != self._driver or tree.is_due(self._rare_s, at_s, RARELY_S):
            self._driver, self._rare_s = driver, at_s
            rare = Facts()
            self._drivers.tell(rare, tree, driver)
            versions_kernel.tell_bmc(rare, tree)
            versions_pci.tell(rare, tree)
            self._rare = rare.samples
        return Reading([*facts.samples, *self._rare])
