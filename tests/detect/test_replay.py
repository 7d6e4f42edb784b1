"""A detector over stored history says what the live one said, and what another version would have said."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from clusterwatch.analysis.slow.paging import CURRENT, PAGE_RULES
from clusterwatch.cli import main as cli
from clusterwatch.detect import replay
from clusterwatch.detect.replay import Replayed, slow_parts
from clusterwatch.incidents.models import Incident
from tests.detect.fake_job import SECOND
from tests.detect.trainer import STEP_S, Trainer


def played(trainer: Trainer, version: int = CURRENT.version) -> Replayed:
    """The whole life of the job; the fake clock of its steps began before its rows were made."""
    end_ns = trainer.job.now_ns
    began_ns = end_ns - trainer.step * STEP_S * SECOND
    (found,) = slow_parts(trainer.job.job, began_ns, end_ns, PAGE_RULES[version])
    return found


@pytest.fixture
def slow_trainer(trainer: Trainer) -> Trainer:
    for _ in range(4):
        trainer.train(5, work={5: 0.2})
        trainer.look()
    for _ in range(5):
        trainer.train(5)
        trainer.look()
    return trainer


def test_it_tells_what_the_live_detector_told(slow_trainer: Trainer) -> None:
    live = Incident.objects.get()
    (story,) = played(slow_trainer).stories
    assert (story.then, story.verdict) == (live.pk, "slow_gpu") and "host-2" in story.summary
    for told_ns, then in (
        (story.suspected_ns, live.suspected_at),
        (story.opened_ns, live.opened_at),
        (story.resolved_ns, live.resolved_at),
    ):
        assert told_ns is not None and then is not None
        assert abs(told_ns / 1e9 - then.timestamp()) <= 10, story


def test_nothing_is_written_by_it(slow_trainer: Trainer) -> None:
    before = list(Incident.objects.values())
    played(slow_trainer)
    assert list(Incident.objects.values()) == before


def test_an_older_rule_is_shown_to_page_bursts(trainer: Trainer) -> None:
    for _ in range(6):
        trainer.train(4, work={5: 0.8})
        trainer.train(6)
        trainer.look()
    assert played(trainer).pages == 0 == played(trainer).pages_then
    assert played(trainer, version=1).pages >= 1


def test_an_incident_that_is_not_raised_any_more_is_told(slow_trainer: Trainer) -> None:
    Incident.objects.update(fingerprint=Incident.objects.get().fingerprint.replace("host-2", "host-1"))
    found = played(slow_trainer)
    assert [one.pk for one in found.missed] == [Incident.objects.get().pk]
    assert [story.then for story in found.stories] == [None]


def test_the_past_is_looked_at_with_what_was_known_then(slow_trainer: Trainer) -> None:
    end_ns = slow_trainer.job.now_ns
    began_ns = end_ns - slow_trainer.step * STEP_S * SECOND
    healthy_ns = began_ns + 30 * STEP_S * SECOND
    (found,) = slow_parts(slow_trainer.job.job, began_ns, healthy_ns, CURRENT)
    assert (found.stories, found.then, found.steps) == ((), (), 30)


def test_a_span_of_a_month_is_refused_with_words(trainer: Trainer) -> None:
    with pytest.raises(replay.TooLong, match="24 h"):
        slow_parts(trainer.job.job, 0, 30 * 86_400 * SECOND, CURRENT)


def test_the_command_prints_both_and_their_count(
    slow_trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    job, end_s = slow_trainer.job, slow_trainer.job.now_ns / 1e9
    span = ["--from", moment(end_s - 200), "--to", moment(end_s), "--cluster", job.cluster.name]
    assert cli.main(["replay", *span]) == 0
    out = capsys.readouterr().out
    number = Incident.objects.get().pk
    assert f"then: incident {number}" in out and "host-2" in out
    assert "In all: 1 incident (1 paged) now; 1 incident (1 paged) at the time." in out
    assert cli.main(["replay", *span, "--json", "--detector", "slow@1"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["detector"], told["paged"], told["raised"][0]["incident_then"]) == ("slow@1", 1, number)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--detector", "minder"], "no detector 'minder'"),
        (["--detector", "slow@99"], "there are slow@1, slow@2"),
        (["--from", "2026-12-02T00:00Z", "--to", "2026-12-01T00:00Z"], "the window is empty"),
        (["--from", "yesterday"], "no ISO 8601 time"),
    ],
)
def test_wrong_words_are_told_in_one_line(
    db: None, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", *words]) == 1
    assert said in capsys.readouterr().err


def test_a_job_that_is_not_there_is_no_input(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", "--cluster", trainer.job.cluster.name, "--job", "none"]) == 66
    assert "no job 'none'" in capsys.readouterr().err


def moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()
