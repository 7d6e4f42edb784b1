"""What a web process does before it listens, so that the first page is as fast as the next.

Django imports the views and compiles a template when somebody first asks for them (1.0 s of CPU), plotly
imports itself when the first figure is made (0.5 s); on a machine that is busy it is a multiple. Nothing here
asks the database or Valkey: a web process starts without them and says so on its pages.
"""

from __future__ import annotations

from pathlib import Path

from django.template import Engine
from django.template.loader import get_template
from django.urls import resolve, reverse

from clusterwatch.web.charts import step_figure


def warm_up() -> None:
    """Imports all views, compiles all pages and makes one figure."""
    resolve(reverse("cluster"))
    for name in page_names():
        get_template(name)
    step_figure((), (), None)


def page_names() -> list[str]:
    """The names of all page templates, parts of pages among them."""
    roots = [Path(folder) for folder in Engine.get_default().dirs]
    return sorted(str(path.relative_to(root)) for root in roots for path in root.rglob("*.html"))
