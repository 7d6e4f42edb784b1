"""What a browser may say on the live line: parsed, bounded, counted. The talk is in README.md."""

from __future__ import annotations

import time
from collections import deque
from typing import Annotated, Final

import msgspec
from msgspec import Meta

TOPICS_MAX: Final = 16
"""Topics a connection follows at once."""
REQUEST_MAX_BYTES: Final = 8_192
REQUESTS_MAX: Final = 40
"""Requests in ``REQUESTS_WINDOW_S``; a page that loses its line asks once per topic and gap."""
REQUESTS_WINDOW_S: Final = 10.0

TopicName = Annotated[str, Meta(pattern=r"^(cluster|job|incident|incidents):[1-9][0-9]{0,17}\Z")]


class Ask(msgspec.Struct, frozen=True):
    """Follow a topic, from the place held."""

    topic: TopicName
    epoch: Annotated[str, Meta(max_length=32)] = ""
    number: Annotated[int, Meta(ge=0)] = 0


class Request(msgspec.Struct, frozen=True):
    """One message of a browser."""

    subscribe: Annotated[list[Ask], Meta(max_length=TOPICS_MAX)] = []
    unsubscribe: Annotated[list[TopicName], Meta(max_length=TOPICS_MAX)] = []


class RequestFault(ValueError):
    """A message that cannot be used; the text is for the page's console."""


_decoder = msgspec.json.Decoder(Request)


def parse_request(text: str | bytes | None) -> Request:
    """Raises ``RequestFault``."""
    if text is None or len(text) > REQUEST_MAX_BYTES:
        raise RequestFault(f"a message has 1 to {REQUEST_MAX_BYTES} characters")
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RequestFault(str(error)) from error


class RequestRate:
    """Counts requests in a sliding window."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def is_exceeded(self) -> bool:
        """Counts one request; True when it is one too many."""
        now_s = time.monotonic()
        self._times.append(now_s)
        while self._times[0] < now_s - REQUESTS_WINDOW_S:
            self._times.popleft()
        return len(self._times) > REQUESTS_MAX
