"""Known bugs that an incident may come from, by what its nodes tell of their versions now.

In: an incident. Out: ``Known``. Read when somebody looks at the incident: facts of the nodes it names and of
some more of its job, and lines of the job's logs from around its beginning. Never changes the incident.
Cost: at most ``NODES_MAX`` packed rows (0.5 ms each), one query for them, one for events, one for names.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from django.db.models import Case, IntegerField, Q, Value, When

from clusterwatch.analysis.known_bugs import Known, case_of, matches, setup_of
from clusterwatch.fleet.models import Node
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.models import Rank
from clusterwatch.store import event_history, node_facts

NODES_MAX: Final = 24
HOSTS_MAX: Final = 8
BEFORE_NS: Final = 120 * 10**9
AFTER_NS: Final = 900 * 10**9
"""Watchdogs speak ten minutes after the last progress."""
EVENTS_MAX: Final = 2_000
LOG_KINDS: Final = frozenset({
    "log_nccl_warn", "log_raised", "log_traceback", "log_net_error", "log_peer_closed", "log_peer_timeout",
    "log_cuda_error", "log_abort", "log_fatal_signal", "log_terminate", "log_watchdog_stuck",
})  # fmt: skip


def of_incident(incident: Incident, now_ns: int) -> Known:
    """Rows of the catalogue that fit the incident or may fit it."""
    told = node_facts.of_nodes(_nodes(incident), now_ns)
    job = incident.job.key if incident.job is not None else ""
    setup = setup_of((one.facts for one in told), job)
    return matches(case_of(incident.diagnosis or {}, _lines(incident, job)), setup)


def _nodes(incident: Incident) -> list[int]:
    """Nodes it names, then others of its job."""
    culprits = (incident.diagnosis or {}).get("culprits") or ()
    hosts = [str(one["host"]) for one in culprits if one.get("host")][:HOSTS_MAX]
    named = Q(cluster_id=incident.cluster_id, name__in=hosts) | Q(pk=incident.node_id)
    of_job = Rank.objects.none()
    if incident.job is not None:
        of_job = Rank.objects.filter(job=incident.job, attempt=incident.job.attempt)
    found = Node.objects.filter(named | Q(pk__in=of_job.values("node_id")))
    is_named = Case(When(named, then=Value(0)), default=Value(1), output_field=IntegerField())
    return list(found.order_by(is_named, "pk").values_list("pk", flat=True)[:NODES_MAX])


def _lines(incident: Incident, job: str) -> Iterator[str]:
    """What logs of the job said around its beginning. Which lines matter is for the catalogue to say."""
    if not job:
        return
    since_ns = int((incident.since - _EPOCH).total_seconds() * 1e9)
    around = event_history.in_order(
        incident.cluster_id, since_ns - BEFORE_NS, since_ns + AFTER_NS, LOG_KINDS, EVENTS_MAX
    )
    for event in around:
        entity = event.fields.get("entity", "")
        if event.job_id == incident.job_id or entity == f"job/{job}" or entity.startswith(f"job/{job}/"):
            yield event.text


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
