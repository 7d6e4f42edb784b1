"""Jobs: the list, one job (verdict, ranks, groups, open calls, step times), one rank."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from clusterwatch.fleet.overview import ClusterNow, cluster_now
from clusterwatch.incidents import queries as incident_queries
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs import progress, step_notes
from clusterwatch.jobs.models import Job, Rank
from clusterwatch.jobs.queries import current_ranks, for_user, groups_of
from clusterwatch.jobs.shapes import job_groups
from clusterwatch.store import rank_history, step_history
from clusterwatch.web import charts, job_page, job_phases, rank_page, step_times
from clusterwatch.web.context import get_frame, look_at
from clusterwatch.web.job_rows import job_rows

PAGE_SIZE = 50
STATE_FILTERS = ("running", "ended", "failed", "unknown", "all")


@require_GET
def listing(request: HttpRequest) -> HttpResponse:
    """Running jobs by default; ``state`` and ``q`` narrow."""
    frame = get_frame(request)
    chosen = request.GET.get("state", "running")
    chosen = chosen if chosen in STATE_FILTERS else "running"
    jobs = for_user(request.user).filter(cluster=frame.cluster).order_by("-started_at", "-id")
    jobs = jobs if chosen == "all" else jobs.filter(state=chosen)
    page = Paginator(jobs, PAGE_SIZE).get_page(request.GET.get("page"))
    rows = job_rows(list(page.object_list), frame.now, incident_queries.for_user(request.user))
    context = {
        "here": "jobs",
        "rows": rows,
        "page": page,
        "chosen": chosen,
        "filters": STATE_FILTERS,
        "empty_title": "No job runs here" if chosen == "running" else "No job of this kind",
    }
    return render(request, "web/jobs.html", context)


def _job(request: HttpRequest, job_id: int) -> Job:
    job = get_object_or_404(for_user(request.user), pk=job_id)
    look_at(request, job.cluster_id)
    return job


def _now_of(request: HttpRequest, job: Job) -> ClusterNow:
    frame = get_frame(request)
    same = frame.cluster is not None and frame.cluster.pk == job.cluster_id
    return frame.now if same and frame.now is not None else cluster_now(job.cluster)


def _incidents(request: HttpRequest, job: Job) -> list[Incident]:
    """Live ones first, then the newest closed ones."""
    visible = incident_queries.for_user(request.user).filter(job=job)
    live = list(incident_queries.live_first(visible)[:5])
    return live + list(visible.filter(state="resolved").order_by("-since")[: 8 - len(live)])


@require_GET
def detail(request: HttpRequest, job_id: int) -> HttpResponse:
    """The job: what is wrong first, then ranks, groups and steps."""
    job = _job(request, job_id)
    looks = progress.Looks(job.pk)
    facts = progress.rank_facts(job, job_page.RANKS_MAX)
    incidents = _incidents(request, job)
    named = job_page.named_ranks(job_page.live_incident(incidents))
    ranks = job_page.RankStates(facts, looks.states(facts), named)
    groups = job_groups(
        job,
        looks,
        facts,
        groups_max=job_page.GROUPS_MAX,
        per_shape=job_page.SHAPE_GROUPS_MAX,
        standing_max=job_page.CALLS_MAX,
    )
    (row,) = job_rows([job], _now_of(request, job), incident_queries.for_user(request.user))
    page = job_page.build(job, row, ranks, _table(job, looks, ranks), groups, incidents)
    notes = step_notes.notes_of(job.pk) if job.ended_at is None else []
    time = job_phases.build(job, incident_queries.for_user(request.user), datetime.now(UTC))
    context = {"here": "jobs", "page": page, "chart": _chart(job, page), "notes": notes, "time": time}
    return render(request, "web/job.html", context)


def _table(job: Job, looks: progress.Looks, ranks: job_page.RankStates) -> list[progress.RankView]:
    """The ranks of the page's table, in its order: the only ones read whole."""
    wanted = [ranks.facts[at].pk for at in ranks.worst(job_page.TABLE_RANKS)]
    found = Rank.objects.in_bulk(wanted)
    return progress.rank_views(job, [found[pk] for pk in wanted if pk in found], looks)


def _chart(job: Job, page: job_page.JobPage) -> dict[str, object]:
    """Figure and table twin of step times; empty ones when no step was stored."""
    times = step_times.read(job, page.rank_total)
    bands = times.bands
    if not bands:
        return {"bands": []}
    standing = page.row.last_progress_at if page.incidents and page.live_incident else None
    figure = charts.step_figure(bands, times.slow, int(standing.timestamp() * 1e9) if standing else None)
    table = [(datetime.fromtimestamp(b.start_ns / 1e9, UTC), b) for b in reversed(bands)]
    return {"bands": table[:60], "figure": figure, "count": len(bands), "times": times}


@require_GET
def steps_csv(request: HttpRequest, job_id: int) -> HttpResponse:
    """The numbers of the step chart."""
    job = _job(request, job_id)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["time_utc", "p1_s", "p50_s", "p99_s", "rank_steps", "newest_step"])
    for band in step_times.of_all_ranks(job, current_ranks(job).count()):
        at = datetime.fromtimestamp(band.start_ns / 1e9, UTC).isoformat(timespec="milliseconds")
        writer.writerow([at, band.p1_s, band.p50_s, band.p99_s, band.steps, band.newest_step])
    response = HttpResponse(out.getvalue(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="job-{job.pk}-steps.csv"'
    return response


@require_GET
def rank(request: HttpRequest, job_id: int, rank: int, world: str = "") -> HttpResponse:
    """One rank: where it is, its groups, its last calls, its stacks.

    Without ``world`` the newest process of that number is meant: an incident's culprit names no world.
    """
    job = _job(request, job_id)
    same_number = current_ranks(job).filter(rank=rank)
    if world:
        same_number = same_number.filter(world=world)
    found = same_number.order_by("-started_at", "-pk").first()
    if found is None:
        raise Http404("no such rank in this job")
    world = found.world
    looks = progress.Looks(job.pk)
    (view,) = progress.rank_views(job, [found], looks)
    mine = list(groups_of(job).filter(world=world, ranks__contains=[rank])[: job_page.RANK_GROUPS_MAX])
    groups = progress.group_views(job, mine, progress.rank_facts(job, job_page.RANKS_MAX), looks)
    traces = rank_history.newest_traces(job.pk, job.attempt, world, rank)
    stacks = rank_history.newest_stacks(job.pk, job.attempt, world, rank)
    captures = list(job.captures.order_by("-id")[:5])
    since_ns = int(job.started_at.timestamp() * 1e9)
    steps = step_history.newest_of_node(job.pk, job.attempt, found.node_id, since_ns)
    page = rank_page.build(job, view, groups, steps, traces, stacks, captures)
    incidents = _incidents(request, job)
    return render(request, "web/rank.html", {"here": "jobs", "page": page, "incidents": incidents})
