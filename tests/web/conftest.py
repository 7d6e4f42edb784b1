"""People and a seeded database for tests of the screens."""

from __future__ import annotations

from collections.abc import Callable

import django
import pytest
import redis

django.setup()

from django.test import Client  # noqa: E402  (models load only after Django is set up)

from clusterwatch.accounts.models import User  # noqa: E402
from tests.web.seed import Seeded, people, seed  # noqa: E402

SignIn = Callable[[str], Client]


@pytest.fixture
def users(db: None) -> dict[str, User]:
    return people()


@pytest.fixture
def seeded(users: dict[str, User], valkey: redis.Redis) -> Seeded:
    """The real job that hangs and a simulated cluster of 4 nodes."""
    return seed(simulated_nodes=4)


@pytest.fixture
def sign_in(users: dict[str, User]) -> SignIn:
    """A signed-in client of a person by name."""

    def client(name: str) -> Client:
        made = Client()
        made.force_login(users[name])
        return made

    return client
