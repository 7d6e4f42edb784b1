from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.alerts.servers import Hook, Mailbox, mail_server, webhook


@pytest.fixture
def hook(settings: Any) -> Iterator[Hook]:
    """A webhook on this machine, which is allowed here."""
    settings.WEBHOOKS_ANYWHERE = True
    with webhook() as running:
        yield running


@pytest.fixture
def mailbox(settings: Any) -> Iterator[Mailbox]:
    """A mail server that the settings name."""
    from clusterwatch.project.environment import Smtp

    box = Mailbox()
    with mail_server(box) as port:
        settings.SMTP = Smtp("127.0.0.1", port, "", "", False, False, "clusterwatch@example.org")
        yield box
