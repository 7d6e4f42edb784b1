"""Hellos wait here for company: a database thread answers up to a hundred in one transaction.

In: hellos from connections. Out: what ``admission.admit`` decided for each. One batch is at work at a time,
so a fleet that comes back all at once costs the database a steady trickle of large transactions instead of
thousands of small ones.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from clusterwatch.ingest import admission
from clusterwatch.ingest.admission import Admission, Answer
from clusterwatch.ingest.commit import is_away
from collectors.wire.records import Hello

logger = logging.getLogger(__name__)

BATCH_MAX: Final = 100
LINGER_S: Final = 0.01
"""How long the first hello waits for others."""

_Waiting = tuple[Hello, asyncio.Future[Admission]]


class AdmissionDesk:
    """Answers hellos of one gateway; used from its event loop."""

    def __init__(self, call: Callable[[Callable[[], list[Answer]]], Awaitable[list[Answer]]]) -> None:
        """``call`` runs a function in a database thread."""
        self._call = call
        self._waiting: list[_Waiting] = []
        self._work = asyncio.Event()

    async def admit(self, hello: Hello) -> Admission:
        """Waits for the answer. Raises ``Refused``, or what the database raised."""
        answer: asyncio.Future[Admission] = asyncio.get_running_loop().create_future()
        self._waiting.append((hello, answer))
        self._work.set()
        return await answer

    async def run(self) -> None:
        """Answers until cancelled."""
        while True:
            await self._work.wait()
            await asyncio.sleep(LINGER_S)
            batch = self._take()
            if batch:
                await self._answer(batch)

    def _take(self) -> list[_Waiting]:
        """The longest waiting hellos, each node once; a peer that left meanwhile needs no answer."""
        batch: dict[tuple[str, str], _Waiting] = {}
        later: list[_Waiting] = []
        for one in self._waiting:
            hello, answer = one
            key = (hello.cluster, hello.node)
            if answer.done():
                continue
            if key in batch or len(batch) >= BATCH_MAX:
                later.append(one)
            else:
                batch[key] = one
        self._waiting = later
        if not later:
            self._work.clear()
        return list(batch.values())

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        hellos = [hello for hello, _ in batch]
        try:
            answers: Sequence[Answer | Exception] = await self._call(
                functools.partial(admission.admit, hellos)
            )
        except Exception as error:  # noqa: BLE001  sorted by is_away: one odd hello costs its company nothing
            if is_away(error) or len(batch) == 1:
                answers = [error] * len(batch)
            else:
                logger.warning("admissions_refused_together count=%d reason=%r", len(batch), error)
                for one in batch:
                    await self._answer([one])
                return
        for (_, waiting), answer in zip(batch, answers, strict=True):
            if waiting.done():
                continue
            if isinstance(answer, Exception):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)
