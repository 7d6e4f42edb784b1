"""A web process is warm before it listens: the first page imports, compiles and builds nothing of its own."""

from __future__ import annotations

import subprocess
import sys

from django.template.loader import get_template

from clusterwatch.project.warm_up import page_names

# Servers need not run: an address nobody listens at is given, and importing must not notice.
FIRST_PAGE = """
import os, sys
os.environ["CLUSTERWATCH_DATABASE_URL"] = "postgresql://nobody:x@127.0.0.1:9/nothing"
os.environ["CLUSTERWATCH_VALKEY_URL"] = "redis://127.0.0.1:9/0"
import clusterwatch.project.asgi
from django.template.loader import get_template
from django.template.loaders import cached
from django.urls import resolve, reverse
from clusterwatch.store.rank_history import StepBand
from clusterwatch.web.charts import step_figure

known, reads = set(sys.modules), []
cached.Loader.get_contents = lambda self, origin: reads.append(origin) or origin.loader.get_contents(origin)
for address in (reverse("job", args=[1]), reverse("incidents"), "/api/v1/jobs"):
    resolve(address)
get_template("web/job.html"), get_template("registration/login.html")
step_figure([StepBand(n * 10**10, 1.0, 1.1, 1.2, 4, n) for n in range(4)], [], None)
print(sorted(set(sys.modules) - known), reads)
"""


def test_the_first_page_imports_no_module_and_reads_no_template() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST_PAGE], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[] []", done.stderr


def test_every_page_template_compiles() -> None:
    names = page_names()
    assert {"base.html", "web/job.html", "registration/login.html"} <= set(names)
    for name in names:
        get_template(name)
