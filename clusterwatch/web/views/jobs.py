"""Jobs: the list, one job (verdict, ranks, groups, open calls, step times), one rank."""

from __future__ import annotations

import csv
import io
import time
from datetime import UTC, datetime

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from clusterwatch.fleet.overview import ClusterNow, cluster_now
from clusterwatch.incidents import queries as incident_queries
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs import progress
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.queries import current_ranks, for_user, groups_of
from clusterwatch.store import rank_history
from clusterwatch.web import charts, job_page, rank_page
from clusterwatch.web.context import get_frame
from clusterwatch.web.job_rows import job_rows

PAGE_SIZE = 50
STATE_FILTERS = ("running", "ended", "failed", "unknown", "all")
CHART_SPAN_NS = 3600 * 10**9


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
    return get_object_or_404(for_user(request.user), pk=job_id)


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
    rows = list(current_ranks(job)[: job_page.RANKS_MAX])
    views = progress.rank_views(job, rows)
    groups = progress.group_views(job, list(groups_of(job)[: job_page.GROUPS_MAX]), rows)
    incidents = _incidents(request, job)
    (row,) = job_rows([job], _now_of(request, job), incident_queries.for_user(request.user))
    page = job_page.build(job, row, views, groups, incidents)
    context = {"here": "jobs", "page": page, "chart": _chart(job, page)}
    return render(request, "web/job.html", context)


def _span(job: Job) -> tuple[int, int]:
    """The last hour of steps the job has."""
    newest = rank_history.newest_step_ns(job.pk, job.attempt)
    end = time.time_ns() if newest is None or job.ended_at is None else newest + 10**9
    start = max(int(job.started_at.timestamp() * 1e9), end - CHART_SPAN_NS)
    return min(start, end - 10**9), end


def _chart(job: Job, page: job_page.JobPage) -> dict[str, object]:
    """Figure and table twin of step times; empty ones when no step was stored."""
    start, end = _span(job)
    bands = rank_history.step_bands(job.pk, job.attempt, start, end)
    if not bands:
        return {"bands": []}
    slow = rank_history.slow_ranks(job.pk, job.attempt, start, end)
    standing = page.row.last_progress_at if page.incidents and page.live_incident else None
    figure = charts.step_figure(bands, slow, int(standing.timestamp() * 1e9) if standing else None)
    table = [(datetime.fromtimestamp(b.start_ns / 1e9, UTC), b) for b in reversed(bands)]
    return {"bands": table[:60], "figure": figure, "count": len(bands)}


@require_GET
def steps_csv(request: HttpRequest, job_id: int) -> HttpResponse:
    """The numbers of the step chart."""
    job = _job(request, job_id)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["time_utc", "p1_s", "p50_s", "p99_s", "rank_steps", "newest_step"])
    for band in rank_history.step_bands(job.pk, job.attempt, *_span(job)):
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
    rows = list(current_ranks(job)[: job_page.RANKS_MAX])
    (view,) = progress.rank_views(job, [found])
    mine = [g for g in groups_of(job)[: job_page.GROUPS_MAX] if rank in g.ranks and g.world == world]
    groups = progress.group_views(job, mine, rows)
    traces = rank_history.newest_traces(job.pk, job.attempt, world, rank)
    stacks = rank_history.newest_stacks(job.pk, job.attempt, world, rank)
    captures = list(job.captures.order_by("-id")[:5])
    page = rank_page.build(job, view, groups, traces, stacks, captures)
    incidents = _incidents(request, job)
    return render(request, "web/rank.html", {"here": "jobs", "page": page, "incidents": incidents})
