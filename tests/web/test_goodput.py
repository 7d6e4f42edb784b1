"""Where a cluster's GPU-time went: by class, month, user and partition, of jobs the person may see."""

from __future__ import annotations

from clusterwatch.jobs.models import Job
from tests.web.conftest import SignIn
from tests.web.seed import Seeded, query_count_of
from tests.web.seed_time import seed_time
from tests.web.test_job_time import words
from tests.web.test_pages import HOSTILE, text_of


def test_the_page_tells_classes_months_users_and_partitions(seeded: Seeded, sign_in: SignIn) -> None:
    run, _ = seed_time()
    Job.objects.filter(pk=run.job.pk).update(user=HOSTILE, labels={"partition": "batch-h100"})
    client = sign_in("olga")
    html = text_of(client.get(f"/goodput?cluster={run.cluster.pk}&span=day"))
    said = words(html)
    assert "1 job, in whole hours" in said
    for part in ("Goodput", "ETTR", "Stalled", "By month", "By partition", "batch-h100", "By user"):
        assert part in said, part
    assert 'href="/docs/verdicts/dead_rank/"' in html
    assert HOSTILE not in html and "style=" not in html.split('id="time"')[1]
    assert query_count_of(lambda: client.get(f"/goodput?cluster={run.cluster.pk}")) <= 20


def test_a_cluster_nobody_counted_says_so_and_an_odd_span_is_a_month(seeded: Seeded, sign_in: SignIn) -> None:
    said = words(text_of(sign_in("vera").get(f"/goodput?cluster={seeded.real.pk}&span=century")))
    assert "No time was counted here" in said and "31 days" in said


def test_time_of_other_clusters_is_not_in_it(seeded: Seeded, sign_in: SignIn) -> None:
    seed_time()
    said = words(text_of(sign_in("olga").get(f"/goodput?cluster={seeded.real.pk}")))
    assert "No time was counted here" in said
