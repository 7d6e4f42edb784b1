"""Notices by HTTP POST, signed, to an address of the operator's.

In: a notice. Out: JSON of ``notice.payload``. The header ``X-Clusterwatch-Signature`` is
``t=<unix s>,v1=<hex>``, the HMAC-SHA256 of ``<t>.<body>`` with the receiver's key; ``Idempotency-Key`` is the
same for all tries of a notice. Redirects are not followed; addresses of this machine, of links and of cloud
metadata are refused unless ``CLUSTERWATCH_WEBHOOKS_ANYWHERE`` is set. 4xx is for good, but for 408, 425, 429.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import socket
import time
from email.utils import parsedate_to_datetime
from typing import Final

import httpx
from django.conf import settings

from clusterwatch.alerts.notice import Notice
from clusterwatch.alerts.receivers import SENT, BadAddress, Outcome, Target

TIMEOUT_S: Final = 5.0
ANSWER_MAX_BYTES: Final = 4_096
AGAIN_MAX_S: Final = 3_600.0
_LATER: Final = frozenset({408, 425, 429})
_METADATA: Final = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200")))
"""Services of clouds that give away credentials and are not link-local."""


class Webhook:
    """See ``receivers.Kind``."""

    def check(self, address: str) -> str:
        try:
            url = httpx.URL(address.strip())
        except (httpx.InvalidURL, TypeError, ValueError) as fault:
            raise BadAddress(f"no URL: {fault}") from fault
        if url.scheme not in ("http", "https") or not url.host:
            raise BadAddress("a webhook is an http:// or https:// URL")
        if url.userinfo:
            raise BadAddress("no user or password in the URL: notices are signed")
        return str(url)

    def send(self, target: Target, notice: Notice, key: str) -> Outcome:
        body = json.dumps(notice.payload, separators=(",", ":"), ensure_ascii=False).encode()
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "clusterwatch",
            "Idempotency-Key": key,
            "X-Clusterwatch-Event": notice.event,
            "X-Clusterwatch-Signature": signature(target.signing_key, body, int(time.time())),
        }
        try:
            refused = _refused(httpx.URL(target.address).host)
            if refused:
                return Outcome(False, True, refused)
            return asyncio.run(_post(target.address, body, headers))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as fault:
            return Outcome(False, False, f"{type(fault).__name__}: {fault}"[:255])


async def _post(url: str, body: bytes, headers: dict[str, str]) -> Outcome:
    """One request within ``TIMEOUT_S`` in all, however slowly they drip. Raises ``TimeoutError``."""
    async with (
        asyncio.timeout(TIMEOUT_S),
        httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False) as client,
        client.stream("POST", url, content=body, headers=headers) as answer,
    ):
        return await _outcome(answer)


def signature(key: str, body: bytes, at_s: int) -> str:
    """The header that proves who sent a body, and when."""
    signed = hmac.new(key.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={signed}"


async def _outcome(answer: httpx.Response) -> Outcome:
    """By the status alone; of the body only its beginning is read, as it came, for people."""
    code = answer.status_code
    if 200 <= code < 300:
        return Outcome(True, False, SENT)
    if 300 <= code < 400:
        return Outcome(False, True, f"{code}: redirects are not followed")
    start = b""
    async for chunk in answer.aiter_raw(ANSWER_MAX_BYTES):
        start = chunk
        break
    text = start.decode("utf-8", "replace")
    said = f"{code} {' '.join(text.split())}"[:255]
    if code >= 500 or code in _LATER:
        return Outcome(False, False, said, _again_s(answer.headers.get("Retry-After", "")))
    return Outcome(False, True, said)


def _again_s(header: str) -> float | None:
    """Seconds of ``Retry-After``, a number or a date; None where there is none."""
    if header.isascii() and header.isdecimal():
        return min(float(header[:9]), AGAIN_MAX_S)
    try:
        wait_s = parsedate_to_datetime(header).timestamp() - time.time()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(0.0, wait_s), AGAIN_MAX_S)


def _refused(host: str) -> str:
    """Why this host is sent nothing; empty: it may be. Raises ``OSError`` where its name is not known."""
    if settings.WEBHOOKS_ANYWHERE:
        return ""
    for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
        told = ipaddress.ip_address(str(place[0]).partition("%")[0])
        address = getattr(told, "ipv4_mapped", None) or told
        is_near = address.is_loopback or address.is_link_local or address.is_unspecified
        if is_near or address.is_multicast or address in _METADATA:
            return f"{address} is an address of this machine or of a link: not allowed"
    return ""
