"""The page's client in a real browser: it holds what the publisher published, and says when it does not."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterwatch.store.deltas import make_delta

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser

LIVE_JS = Path(__file__).parents[2] / "static" / "js" / "live.js"
ORIGIN = "http://live.test"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
FAKE_SOCKET = """
window.sockets = [];
window.WebSocket = class {
  static OPEN = 1;
  constructor(url) { this.url = url; this.readyState = 0; this.sent = []; window.sockets.push(this); }
  send(text) { this.sent.push(JSON.parse(text)); }
  open() { this.readyState = 1; this.onopen(); }
  say(message) { this.onmessage({ data: JSON.stringify(message) }); }
  drop(code) { this.readyState = 3; this.onclose({ code }); }
};
"""


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium_path, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page with live.js loaded as ``live``, a fake socket and a clock under the test's hand."""
    page = browser.new_page()
    page.clock.install(time=1_796_000_000_000)
    page.route(
        f"{ORIGIN}/",
        lambda route: route.fulfill(body="<p data-live-stale='job:1' hidden>", content_type="text/html"),
    )
    page.route(
        f"{ORIGIN}/live.js",
        lambda route: route.fulfill(body=LIVE_JS.read_text(), content_type="text/javascript"),
    )
    page.add_init_script(FAKE_SOCKET)
    page.goto(f"{ORIGIN}/")
    page.evaluate("async () => { Object.assign(window, await import('/live.js')); }")
    yield page
    page.close()


def as_json(value: Any) -> Any:
    """A state as the browser shows it to the test: bytes as lists of numbers."""
    return {k: list(v) if isinstance(v, bytes) else v for k, v in value.items()}


def packed(content: dict[str, Any]) -> dict[str, Any]:
    return {
        k: {"b64": base64.b64encode(v).decode()} if isinstance(v, bytes) else v for k, v in content.items()
    }


def states(seed: int, count: int = 30) -> list[dict[str, Any]]:
    """States that change a little or a lot from one to the next."""
    chance = random.Random(seed)
    slots, jobs, found = bytearray(24), {}, []
    for number in range(count):
        for _ in range(chance.choice([0, 1, 2, 20])):
            slots[chance.randrange(24)] = chance.randrange(6)
        if chance.random() < 0.5:
            jobs[str(chance.randrange(3))] = {"step": number, "phase": chance.choice([None, "train"])}
        if chance.random() < 0.2:
            jobs.pop(str(chance.randrange(3)), None)
        state = {
            "slots": bytes(slots),
            "jobs": dict(jobs),
            "behind": [chance.choice([0, 0, 0, 1, None]) for _ in range(9)],
        }
        found.append(state | ({"note": number} if chance.random() < 0.7 else {}))
    return found


def frames(of: list[dict[str, Any]], epoch: str = "a") -> list[dict[str, Any]]:
    """The frames a publisher makes of states: one full, then deltas."""
    made = []
    for number, state in enumerate(of, start=1):
        frame = {
            "topic": "job:1",
            "epoch": epoch,
            "number": number,
            "at_ms": 1_796_000_000_000 + number * 1000,
        }
        if number == 1:
            made.append(frame | {"full": packed(state)})
            continue
        delta = make_delta(of[number - 2], state)
        if "set" in delta:
            delta["set"] = packed(delta["set"])
        made.append(frame | {"delta": delta})
    return made


TAKE = """(frames) => {
  const topic = new Topic("job:1");
  const outcomes = frames.map((frame) => topic.take(frame));
  const plain = (v) => (v instanceof Uint8Array ? [...v] : v);
  const state = topic.state && Object.fromEntries(Object.entries(topic.state).map(([k, v]) => [k, plain(v)]));
  return { outcomes, state, question: topic.question };
}"""


@pytest.mark.parametrize("seed", range(8))
def test_the_browser_holds_the_publishers_state_after_every_kind_of_change(page: Any, seed: int):
    of = states(seed)
    result = page.evaluate(TAKE, frames(of))
    assert set(result["outcomes"]) == {"new"}
    assert result["state"] == as_json(of[-1])


def test_a_lost_frame_is_a_gap_and_what_comes_again_fills_it(page: Any):
    made = frames(of := states(3))
    result = page.evaluate(TAKE, [*made[:5], *made[6:8], made[2], *made[5:]])
    assert result["outcomes"][5:8] == ["gap", "gap", "old"]
    assert result["state"] == as_json(of[-1])
    assert result["question"] == {"topic": "job:1", "epoch": "a", "number": 30}


def test_a_delta_of_another_epoch_is_a_gap_and_its_full_frame_starts_anew(page: Any):
    old, new = frames(states(1))[:9], frames(of := states(2), "b")
    result = page.evaluate(TAKE, [*old, new[4], new[0], *new[1:]])
    assert result["outcomes"][9:11] == ["gap", "new"]
    assert result["state"] == as_json(of[-1])


SUBSCRIBE = """() => {
  window.heard = [];
  live.subscribe("job:1", {
    frame: (state, change) => heard.push(["frame", state.note ?? null, change.full]),
    stale: (since) => heard.push(["stale", since === null ? null : "since"]),
  });
}"""


def test_after_a_broken_line_it_asks_only_for_what_it_missed(page: Any):
    made = frames(states(5))
    page.evaluate(SUBSCRIBE)
    page.evaluate(
        "(frames) => { sockets[0].open(); sockets[0].say({ frames }); sockets[0].drop(1006); }", made[:4]
    )
    page.clock.run_for(2_000)
    page.evaluate("() => sockets[1].open()")
    assert page.evaluate("() => sockets[1].sent") == [
        {"subscribe": [{"topic": "job:1", "epoch": "a", "number": 4}]}
    ]


def test_silence_is_told_within_six_seconds_and_taken_back(page: Any):
    made = frames(states(5))
    page.evaluate(SUBSCRIBE)
    page.evaluate("(frame) => { sockets[0].open(); sockets[0].say({ frames: [frame] }); }", made[0])
    assert page.locator("[data-live-stale]").is_hidden()
    page.clock.run_for(4_000)
    page.evaluate("() => sockets[0].say({ beat_ms: 1796000004000 })")
    page.clock.run_for(2_000)
    assert page.evaluate("() => heard.at(-1)") == ["stale", "since"], (
        "a beat does not make a steady topic fresh"
    )
    assert page.locator("[data-live-stale]").inner_text().startswith("stale since ")
    page.evaluate("(frame) => sockets[0].say({ frames: [frame] })", made[1])
    assert page.evaluate("() => heard.at(-1)") == ["stale", None]
    assert page.locator("[data-live-stale]").is_hidden()


def test_an_event_topic_stays_fresh_while_the_line_beats(page: Any):
    page.evaluate(
        "() => { window.heard = []; live.subscribe('incidents:1', { stale: (since) => heard.push(since) }); }"
    )
    page.evaluate("() => sockets[0].open()")
    for _ in range(5):
        page.clock.run_for(2_000)
        page.evaluate("() => sockets[0].say({ beat_ms: Date.now() })")
    assert page.evaluate("() => heard") == []
    page.clock.run_for(6_000)
    assert page.evaluate("() => heard.length") == 1


def test_a_session_that_ended_is_not_knocked_at_again(page: Any):
    page.evaluate("() => { document.addEventListener('live:signed-out', () => { window.out = true; }); }")
    page.evaluate(SUBSCRIBE)
    page.evaluate("() => { sockets[0].open(); sockets[0].drop(4401); }")
    page.clock.run_for(60_000)
    assert page.evaluate("() => [sockets.length, window.out]") == [1, True]


def test_the_last_reader_of_a_topic_leaves_it(page: Any):
    page.evaluate("() => { const stop = live.subscribe('job:1', {}); sockets[0].open(); stop(); }")
    assert page.evaluate("() => sockets[0].sent.at(-1)") == {"unsubscribe": ["job:1"]}
