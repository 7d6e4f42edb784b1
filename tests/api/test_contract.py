"""REST v1 against its own description: whatever a caller sends, the answer is one that is described."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import positive_data_acceptance

from clusterwatch.accounts.models import User
from clusterwatch.accounts.services import create_token
from tests.web.seed import Seeded, heartbeat

EXAMPLES = 12


@pytest.fixture
def one_connection() -> Iterator[None]:
    """Requests stay on the test's own connection, as Django's test client keeps them too."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.limit_s(300)
def test_every_answer_is_one_that_is_described(
    one_connection: None, seeded: Seeded, users: dict[str, User]
) -> None:
    _, secret = create_token("user", "write", user=users["olga"])
    schema = schemathesis.openapi.from_wsgi("/api/v1/schema", get_wsgi_application())
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) >= 12
    for operation in operations:
        heartbeat(seeded)  # the health endpoint answers 503 once frames are old
        _check(operation, secret)


def _check(operation: APIOperation[Any, Any, Any, Any], secret: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def answers_as_described(case: Any) -> None:
        # A cursor is only what `next` gave, which a schema cannot say: refusing another one is right.
        headers = {"Authorization": f"Bearer {secret}"}
        case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])

    answers_as_described()
