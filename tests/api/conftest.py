"""People, their tokens and a seeded database for tests of REST v1."""

from __future__ import annotations

from collections.abc import Callable

import django
import pytest
import redis

django.setup()

from django.test import Client  # noqa: E402  (models load only after Django is set up)

from clusterwatch.accounts.models import User  # noqa: E402
from clusterwatch.accounts.services import create_token  # noqa: E402
from tests.web.seed import Seeded, people, seed  # noqa: E402

Caller = Callable[..., Client]


@pytest.fixture
def users(db: None) -> dict[str, User]:
    return people()


@pytest.fixture
def seeded(users: dict[str, User], valkey: redis.Redis) -> Seeded:
    """The real job that hangs and a simulated cluster of 4 nodes."""
    return seed(simulated_nodes=4, history=False)


@pytest.fixture
def as_token(users: dict[str, User]) -> Caller:
    """A client that sends a token of ``name`` with ``scope``."""

    def client(name: str = "olga", scope: str = "read", cluster: str = "") -> Client:
        _, secret = create_token("user", scope, user=users[name], cluster=cluster)
        return Client(headers={"Authorization": f"Bearer {secret}"})

    return client
