"""Filters and tags: what is known is written, what is not is a dash with a reason; all of it escaped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.web import formats, words


def test_culprits_are_marked_in_the_sentence_and_longer_names_are_not_torn() -> None:
    culprits = [{"rank": 5, "host": "node-c"}]
    html = formats.named("Rank 5 on node-c waits; rank 51 on node-c2 and x-node-c do not.", culprits)
    assert html == "<em>Rank 5</em> on <em>node-c</em> waits; rank 51 on node-c2 and x-node-c do not."


@given(st.text(max_size=80), st.text(min_size=1, max_size=20))
def test_no_sentence_and_no_host_makes_markup_but_the_mark(sentence: str, host: str) -> None:
    html = formats.named(sentence, [{"rank": 1, "host": host}])
    assert "<" not in html.replace("<em>", "").replace("</em>", "")


def test_a_dash_tells_its_reason_to_eyes_and_ears() -> None:
    html = formats.dash('no "hook"')
    assert html.count("no &quot;hook&quot;") == 2 and "\u2013" in html
    assert formats.known(None, "why") == formats.dash("why")
    assert formats.known(0, "why") == 0


def test_a_time_is_utc_whatever_zone_it_came_in() -> None:
    moment = datetime(2024, 5, 1, 12, 0, tzinfo=UTC) + timedelta(milliseconds=5)
    html = formats.at(moment)
    assert 'datetime="2024-05-01T12:00:00.005+00:00"' in html and ">2024-05-01 12:00:00<" in html
    assert formats.at(None, "never") == formats.dash("never")


@pytest.mark.parametrize(("reported", "width"), [(8, "34.0"), (7, "29.8"), (0, "0.0")])
def test_a_silent_node_is_always_seen_on_the_bar(reported: int, width: str) -> None:
    assert f'class="part" width="{width}"' in formats.coverage_bar(reported, 8)
    assert 'class="part" width="30.0"' in formats.coverage_bar(24575, 24576)


def test_every_severity_has_a_state_and_an_answer_and_an_unheard_one_is_unknown() -> None:
    assert words.OF_SEVERITY.keys() == words.ANSWER_OF_SEVERITY.keys()
    assert words.verdict_badge("hang", "missing_rank", "new").state == "unknown"
    assert words.verdict_badge("hang", "missing_rank", "critical") == words.Badge(
        "failed", "Hang: missing rank"
    )
    assert words.verdict_badge("none", "not_enough_data", "unknown").word == "Not enough data"


def test_a_resolved_incident_is_quiet_and_a_live_one_has_its_severity() -> None:
    assert words.incident_badge("resolved", "critical").state == "ok"
    assert words.incident_badge("probation", "critical") == words.Badge("idle", "Probation")
    assert words.incident_badge("suspected", "critical") == words.Badge("failed", "Suspected")
