from __future__ import annotations

import threading

import pytest
from django.db import connection

from clusterwatch.incidents import acts, services
from clusterwatch.incidents.models import Evidence, Incident
from clusterwatch.incidents.queries import EVIDENCE_MAX_BYTES, evidence_json
from clusterwatch.incidents.services import Piece, moment
from tests.incidents.sightings import SECOND, T0, diagnosis, sighting

pytestmark = pytest.mark.django_db


def raised(fingerprint: str = "1/1/0/stopped") -> Incident:
    return services.suspect(sighting(fingerprint), T0 + 3 * SECOND)[0]


def kinds(incident: Incident) -> list[tuple[str, str, str]]:
    return list(incident.changes.values_list("kind", "before", "after"))


def test_a_new_fault_is_suspected_with_its_change_in_the_outbox() -> None:
    incident = raised()
    assert (incident.state, incident.verdict, incident.severity) == ("suspected", "missing_rank", "critical")
    assert incident.since == moment(T0)
    assert kinds(incident) == [("state", "", "suspected")]


def test_the_same_fault_seen_again_joins_the_live_incident() -> None:
    first = raised()
    again, is_new = services.suspect(sighting(), T0 + 9 * SECOND)
    assert (again.pk, is_new) == (first.pk, False)
    assert first.changes.count() == 1


def test_a_resolved_fault_that_comes_back_is_a_new_incident() -> None:
    first = raised()
    services.resolve(first.pk, T0 + 5 * SECOND, "moved again")
    again, is_new = services.suspect(sighting(), T0 + 60 * SECOND)
    assert is_new and again.pk != first.pk


def test_opening_moves_a_suspected_incident_once() -> None:
    incident = raised()
    assert services.open_(incident.pk, T0 + 12 * SECOND, "over the limit")
    assert not services.open_(incident.pk, T0 + 13 * SECOND, "over the limit")
    incident.refresh_from_db()
    assert (incident.state, incident.opened_at) == ("open", moment(T0 + 12 * SECOND))
    assert kinds(incident)[1:] == [("state", "suspected", "open")]


def test_what_a_person_acknowledged_is_not_opened_again() -> None:
    incident = raised()
    acts.acknowledge(incident.pk, "olga")
    assert not services.open_(incident.pk, T0 + 12 * SECOND, "over the limit")
    incident.refresh_from_db()
    assert incident.state == "acknowledged"


def test_a_changed_verdict_is_written_as_a_change() -> None:
    incident = raised()
    worse = sighting(diagnosis=diagnosis("dead_rank"))
    assert services.sharpen(incident.pk, worse, T0 + 5 * SECOND)
    incident.refresh_from_db()
    assert (incident.verdict, incident.checked_at) == ("dead_rank", moment(T0 + 5 * SECOND))
    assert kinds(incident)[-1] == ("verdict", "missing_rank", "dead_rank")


def test_another_confidence_alone_is_no_change() -> None:
    incident = raised()
    assert not services.sharpen(incident.pk, sighting(diagnosis=diagnosis(confidence=0.95)), T0 + 5 * SECOND)
    incident.refresh_from_db()
    assert incident.diagnosis["confidence"] == 0.95
    assert incident.changes.count() == 1


def test_a_resolved_incident_is_not_sharpened() -> None:
    incident = raised()
    services.resolve(incident.pk, T0 + 5 * SECOND, "moved again")
    assert not services.sharpen(incident.pk, sighting(diagnosis=diagnosis("dead_rank")), T0 + 6 * SECOND)
    incident.refresh_from_db()
    assert incident.verdict == "missing_rank"


def test_resolving_says_why_and_happens_once() -> None:
    incident = raised()
    assert services.resolve(incident.pk, T0 + 30 * SECOND, "the job moves again")
    assert not services.resolve(incident.pk, T0 + 31 * SECOND, "the job ended")
    incident.refresh_from_db()
    assert (incident.state, incident.resolution) == ("resolved", "the job moves again")


def test_frozen_evidence_is_read_back_and_its_hash_checked() -> None:
    incident = raised()
    assert (
        services.freeze(
            incident.pk, [Piece("process", "rank 3 is stopped", "agent", {"ranks": [3]}, 0.9)], T0
        )
        == 1
    )
    piece = incident.evidence.get()
    assert evidence_json(piece) == {"ranks": [3]}
    piece.sha256 = "0" * 64
    with pytest.raises(ValueError, match="not what was hashed"):
        evidence_json(piece)


def test_damaged_evidence_is_refused_with_words() -> None:
    incident = raised()
    services.freeze(incident.pk, [Piece("process", "t", "agent", {"ranks": [3]})], T0)
    piece = incident.evidence.get()
    piece.payload = bytes(piece.payload)[:-3]
    with pytest.raises(ValueError, match="cannot be read"):
        evidence_json(piece)


def test_the_same_evidence_is_kept_once() -> None:
    incident = raised()
    piece = Piece("process", "rank 3 is stopped", "agent", {"ranks": [3]})
    services.freeze(incident.pk, [piece], T0)
    assert services.freeze(incident.pk, [piece], T0 + SECOND) == 0
    assert incident.evidence.count() == 1
    assert incident.changes.filter(kind="evidence").count() == 1


def test_evidence_over_the_limit_says_so_instead() -> None:
    incident = raised()
    services.freeze(incident.pk, [Piece("trace", "rings", "recorder", "x" * (EVIDENCE_MAX_BYTES + 1))], T0)
    assert evidence_json(Evidence.objects.get())["limit_bytes"] == EVIDENCE_MAX_BYTES


@pytest.mark.django_db(transaction=True)
def test_of_many_workers_that_see_one_fault_one_raises_it() -> None:
    barrier, found = threading.Barrier(6), []

    def work() -> None:
        try:
            seen = sighting()
            barrier.wait()
            incident, is_new = services.suspect(seen, T0)
            opened = services.open_(incident.pk, T0, "decisive")
            found.append((incident.pk, is_new, opened))
        finally:
            connection.close()

    sighting()
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len({pk for pk, _, _ in found}) == 1
    assert [sum(is_new for _, is_new, _ in found), sum(opened for _, _, opened in found)] == [1, 1]
    assert Incident.objects.get().changes.count() == 2
