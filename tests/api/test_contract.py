"""REST v1 against its own description: whatever a caller sends, the answer is one that is described."""

from __future__ import annotations

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck, given, settings

from clusterwatch.accounts.models import User
from clusterwatch.accounts.services import create_token
from tests.web.seed import Seeded

EXAMPLES = 12


@pytest.mark.limit_s(300)
def test_every_answer_is_one_that_is_described(seeded: Seeded, users: dict[str, User]) -> None:
    _, secret = create_token("user", "write", user=users["olga"])
    schema = schemathesis.openapi.from_wsgi("/api/v1/schema", get_wsgi_application())
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 12
    for operation in operations:
        _check(operation, secret)


def _check(operation: schemathesis.APIOperation, secret: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def answers_as_described(case: schemathesis.Case) -> None:
        case.call_and_validate(headers={"Authorization": f"Bearer {secret}"})

    answers_as_described()
