"""What a person sees in Chromium while the example hangs: living numbers, then the incident by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.run import Example, Plan
from tests.e2e.product import Product, wait_for
from tests.e2e.watch import job_id_of

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.browser, pytest.mark.limit_s(240)]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def page(product: Product, chromium_path: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # 165 MB: only where a browser test runs

    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=FLAGS)
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.goto(f"{product.url}/login/")
        page.fill("input[name=username]", "admin")
        page.fill("input[name=password]", "correct-horse-battery")
        page.press("input[name=password]", "Enter")
        page.wait_for_selector("#jobs, .jobsnow")
        yield page
        browser.close()


def test_the_incident_appears_by_itself_and_names_the_rank(
    product: Product, page: Any, tmp_path: Path
) -> None:
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    plan = Plan(state_dir=product.folder, fault="dataloader", fault_rank=5, fault_step=60, folder=tmp_path)
    with Example(plan) as example:
        job_id = job_id_of(product, example)
        example.wait_for_step(10)
        page.goto(product.url + "/")
        page.evaluate("window.untouched = true")
        step = f"tr[data-job='{job_id}'] [data-cell=step]"
        page.wait_for_selector(step)
        first = page.inner_text(step)
        page.wait_for_function(
            "([at, was]) => document.querySelector(at).textContent !== was", arg=[step, first], timeout=15_000
        )
        example.wait_for_fault()
        page.wait_for_selector("#attention a[href^='/incidents/']", timeout=30_000)
        assert page.evaluate("window.untouched"), "the page was not loaded again"

        incident_id = wait_for(lambda: _open_incident(product, job_id), 60, "the incident opens")
        page.click(f"#attention a[href='/incidents/{incident_id}']")
        page.wait_for_selector("#sentence")
        sentence = page.inner_text("#sentence")
        assert "rank 5" in sentence and "host-c" in sentence and "all_reduce" in sentence
        body = page.inner_text("main")
        assert "read_from_dead_mount" in body, "the culprit's stack is shown"
        assert "8 of 8 ranks reported" in body
        assert page.inner_text("#confidence").startswith("confidence 0.")

        page.goto(f"{product.url}/jobs/{job_id}")
        job = page.inner_text("main")
        assert "tp groups of 2" in job and "1 stuck" in job
        page.goto(f"{product.url}/jobs/{job_id}/ranks/5")
        assert "all_reduce" in page.inner_text("main"), "the rank's last calls are shown"

        page.goto(f"{product.url}/incidents/{incident_id}")
        page.evaluate("window.untouched = true")
    wait_for(
        lambda: product.get(f"/incidents/{incident_id}")["state"] == "resolved" or None, 60, "it resolves"
    )
    page.wait_for_function(
        "() => document.querySelector('#state').textContent.includes('resolved')", timeout=15_000
    )
    assert page.evaluate("window.untouched"), "the page was not loaded again"
    page.reload()
    assert "read_from_dead_mount" in page.inner_text("main"), "evidence outlives the job"
    assert errors == []


def _open_incident(product: Product, job_id: int) -> int | None:
    found = [i["id"] for i in product.incidents(job_id) if i["state"] == "open"]
    return int(found[0]) if found else None
