"""The screens in Chromium, against the real site: fit, policy, live changes, no scripts, keys."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis
from django.db import connection

from clusterwatch.incidents import acts
from tests.stack import Stack
from tests.web.seed import PASSWORD, Seeded, heartbeat, people, seed
from tests.web.seed_nodes import happen, know, wide_node
from tests.web.seed_parts import seed_blind, seed_parts
from tests.web.shots import FLAGS

pytestmark = [pytest.mark.browser, pytest.mark.stack, pytest.mark.limit_s(240)]
PHONE = {"width": 360, "height": 640}


@pytest.fixture(scope="module")
def site(django_db_setup: None, stack: Stack) -> Iterator[str]:
    """The site that serves whatever the database holds; one for all tests of this file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    database = urlsplit(stack.database_url)._replace(path=f"/{connection.settings_dict['NAME']}")
    environment = os.environ | {
        "CLUSTERWATCH_DATABASE_URL": urlunsplit(database),
        "CLUSTERWATCH_URL": address,
    }
    command = [sys.executable, "-m", "uvicorn", "clusterwatch.project.asgi:application"]
    process = subprocess.Popen([*command, "--port", str(port), "--log-level", "warning"], env=environment)
    try:
        _until(lambda: _answers(f"{address}/healthz"), 60)
        yield address
    finally:
        process.terminate()
        process.wait(15)


@pytest.fixture
def seeded_site(transactional_db: None, valkey: redis.Redis, site: str) -> tuple[str, Seeded]:
    """The site and what it has to show, made anew for each test."""
    people()
    return site, seed(simulated_nodes=16)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def chromium(chromium_path: str) -> Iterator[Any]:
    """One Chromium for all tests of this file."""
    from playwright.sync_api import sync_playwright

    with pytest.MonkeyPatch.context() as patch, sync_playwright() as play:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # the browser's driver runs a loop in this thread
        made = play.chromium.launch(executable_path=chromium_path, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """The same without any page, cookie or storage of the test before."""
    yield chromium
    for context in list(chromium.contexts):
        context.close()


def sign_in(context: Any, address: str, path: str = "/") -> Any:
    page = context.new_page()
    page.goto(f"{address}/login/?next={path}")
    page.fill("[name=username]", "olga")
    page.fill("[name=password]", PASSWORD)
    page.click("button")
    page.wait_for_url(f"{address}{path}")
    return page


def test_every_page_fits_a_phone_and_breaks_no_policy(browser: Any, seeded_site: tuple[str, Seeded]) -> None:
    address, seeded = seeded_site
    know(seeded.nodes[0], wide_node())
    happen(seeded.nodes[0], "link_flap", 60)
    part, lost = seed_parts(seeded.nodes[0], seeded.incident)
    blind = seed_blind(seeded.simulated.pk)
    paths = [
        f"/?cluster={seeded.simulated.pk}",
        f"/?cluster={seeded.real.pk}",
        "/jobs",
        f"/jobs/{seeded.job.pk}",
        f"/jobs/{seeded.job.pk}/ranks/5",
        "/incidents",
        f"/incidents/{seeded.incident.pk}",
        f"/incidents/{lost}",
        f"/incidents/{blind}",
        "/alerts",
        "/goodput",
        "/parts",
        f"/parts/{part}",
        "/collectors",
        f"/nodes/node-a?cluster={seeded.real.pk}",
        f"/nodes/node-b?cluster={seeded.real.pk}",
        "/docs/verdicts/",
        "/docs/verdicts/missing_rank/",
    ]
    for theme in ("light", "dark"):
        context = browser.new_context(viewport=PHONE, color_scheme=theme)
        said: list[str] = []
        page = sign_in(context, address)
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        for path in paths:
            heartbeat(seeded)
            page.goto(address + path)
            page.wait_for_timeout(600)
            over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert over <= 0, f"{path} is {over} px too wide"
        assert said == []
        context.close()


def test_the_chart_is_drawn_under_the_policy(browser: Any, seeded_site: tuple[str, Seeded]) -> None:
    address, seeded = seeded_site
    page = sign_in(browser.new_context(), address, f"/jobs/{seeded.job.pk}")
    page.wait_for_selector("#steps-plot svg .scatterlayer path", state="attached")
    assert page.locator("#steps-plot").get_by_text("rank 2").count() == 1
    page.locator("[data-twin=steps]").click()
    assert page.locator("#steps-twin").is_visible() and not page.locator("#steps-plot").is_visible()


def test_the_incident_works_without_scripts_above_the_fold_of_a_phone(
    browser: Any, seeded_site: tuple[str, Seeded]
) -> None:
    address, seeded = seeded_site
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    page = sign_in(context, address, f"/incidents/{seeded.incident.pk}")
    bar = page.locator("#acts").bounding_box()
    for selector in ("#sentence", "#confidence", "#reported", "#burn", ".act h2", ".act .cmd >> nth=0"):
        box = page.locator(selector).bounding_box()
        assert box["y"] + box["height"] <= bar["y"] + 1, selector
    page.get_by_role("button", name="Acknowledge").click()
    assert "Acknowledged by olga" in page.locator("#acts").inner_text()
    page.fill("[name=text]", "on it")
    page.get_by_role("button", name="Add").click()
    assert "on it" in page.locator("#notes").inner_text()


def test_an_open_incident_page_changes_in_place(browser: Any, seeded_site: tuple[str, Seeded]) -> None:
    address, seeded = seeded_site
    heartbeat(seeded)
    page = sign_in(browser.new_context(), address, f"/incidents/{seeded.incident.pk}")
    page.evaluate("window.never_reloaded = true")
    page.wait_for_timeout(1500)
    assert acts.acknowledge(seeded.incident.pk, "admin")
    page.get_by_text("Acknowledged by admin").first.wait_for(timeout=8000)
    assert page.locator("#state").inner_text() == "Critical, acknowledged"
    page.fill("[name=text]", "by htmx")
    page.get_by_role("button", name="Add").click()
    page.locator("#notes").get_by_text("by htmx").wait_for()
    assert page.evaluate("window.never_reloaded") is True


def test_a_page_turns_stale_when_frames_stop_and_lives_again(
    browser: Any, seeded_site: tuple[str, Seeded]
) -> None:
    address, seeded = seeded_site
    heartbeat(seeded)
    page = sign_in(browser.new_context(), address, "/")
    unknown = page.locator("[data-state=unknown] b")
    word = page.locator("#live-word")

    def beats_until(wanted: str) -> None:
        for _ in range(20):
            heartbeat(seeded)
            page.wait_for_timeout(500)
            if word.inner_text() == wanted:
                return
        raise AssertionError(f"the page never became {wanted}")

    beats_until("Live")
    page.wait_for_timeout(7000)
    assert word.inner_text() == "Stale"
    assert unknown.inner_text() == "4"
    beats_until("Live")
    page.wait_for_timeout(300)
    assert unknown.inner_text() == "0"


def test_keys_open_help_search_and_the_table_of_the_map(
    browser: Any, seeded_site: tuple[str, Seeded]
) -> None:
    address, seeded = seeded_site
    heartbeat(seeded)
    page = sign_in(browser.new_context(), address, "/")
    said = page.locator("#said")
    said.filter(has_text="slots: ").wait_for(state="attached")  # the cells have come
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    assert page.locator("#twin table").is_visible()
    page.keyboard.press("t")
    page.locator("#holder canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    said.filter(has_text="node-b: ").wait_for(state="attached")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"


def test_the_theme_changes_at_once_and_stays(browser: Any, seeded_site: tuple[str, Seeded]) -> None:
    address, _ = seeded_site
    page = sign_in(browser.new_context(color_scheme="light"), address, "/jobs")
    button = page.locator("#preferences [name=theme]")
    button.click()
    button.click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(233, 236, 241)"
