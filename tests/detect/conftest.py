from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import redis

if TYPE_CHECKING:
    from tests.detect.fake_job import FakeJob
    from tests.detect.trainer import Trainer


@pytest.fixture
def fake_job(transactional_db: None, valkey: redis.Redis) -> Iterator[FakeJob]:
    """Eight ranks on four hosts, training for 15 s already."""
    # This file is read before Django is set up, which models need.
    from tests.detect.fake_job import FakeJob, forget_rosters

    forget_rosters()
    job = FakeJob()
    job.train(15)
    yield job
    forget_rosters()


@pytest.fixture
def trainer(fake_job: FakeJob) -> Trainer:
    """Thirty healthy steps of the fake job, judged as they came."""
    from tests.detect.trainer import Trainer

    trainer = Trainer(fake_job)
    for _ in range(6):
        trainer.train(5)
        trainer.look()
    return trainer
