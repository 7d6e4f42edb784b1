"""The conversation with one BMC: bounded, and never with anybody else.

In: a target. Out: its resources. Every answer is bounded in size, every look in requests, bytes and time. A
redirect or a link that leads away from the BMC is refused. A self-signed certificate is accepted by its own
fingerprint only, or by ``insecure``. Source: DSP0266 sections 8 (protocol) and 13 (security, sessions).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from collectors.pollers.redfish_values import Resource, link
from collectors.pollers.redfish_walk import ROOT

BODY_MAX_BYTES: Final = 4 * 1024 * 1024
LOOK_MAX_BYTES: Final = 32 * 1024 * 1024
REQUESTS_MAX: Final = 400
CONNECT_S: Final = 5.0
LOGOUT_S: Final = 2.0
SESSIONS: Final = "/redfish/v1/SessionService/Sessions"
logging.getLogger("httpx").setLevel(logging.WARNING)
"""it would write a line for each request"""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class BmcError(Exception):
    """A resource cannot be had; the text is a state such as ``timeout`` or ``http_500``."""


class AuthError(BmcError):
    """The BMC does not know us: there is no use in asking for anything else."""


@dataclass(frozen=True, slots=True)
class Login:
    """How a BMC is asked. ``fingerprint``: SHA-256 of its certificate, lower-case hex digits.

    Attributes:
        auth: ``basic``, ``session`` or ``none``.
        insecure: the certificate is not looked at, or there is no TLS at all.
    """

    address: str
    auth: str = "none"
    user: str = ""
    password: str = ""
    ca_file: Path | None = None
    fingerprint: str = ""
    insecure: bool = False


class BmcClient:
    """One look's requests to one BMC."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._client: httpx.AsyncClient | None = None
        self._session: str | None = None
        self._bytes_left = LOOK_MAX_BYTES
        self.requests = 0
        self.failed = 0
        """resources that could not be had"""

    async def open(self) -> None:
        """Connects and logs in. Raises ``BmcError``."""
        login = self._login
        try:
            verify = await trust(login)
        except (OSError, ssl.SSLError):
            raise BmcError("tls_failed") from None  # the file of authorities is none any more
        self._client = httpx.AsyncClient(
            base_url=login.address,
            verify=verify,
            follow_redirects=False,
            trust_env=False,
            timeout=httpx.Timeout(10.0, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=2, max_keepalive_connections=1),
            headers={"Accept": "application/json", "Accept-Encoding": "identity", "OData-Version": "4.0"},
            auth=httpx.BasicAuth(login.user, login.password) if login.auth == "basic" else None,
        )
        if login.auth == "session":
            await self._log_in(self._client)

    async def close(self) -> None:
        """Ends the session, which a BMC has only a few of; never raises, never takes long."""
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(httpx.HTTPError, OSError, TimeoutError):
            async with asyncio.timeout(LOGOUT_S):
                if self._session is not None:
                    await client.delete(self._session)
        with contextlib.suppress(httpx.HTTPError, OSError, TimeoutError):
            async with asyncio.timeout(LOGOUT_S):
                await client.aclose()

    async def get(self, path: str) -> Resource:
        """The resource at a path of this BMC. Raises ``BmcError``."""
        for _ in range(2):
            status, headers, body = await self._answer(path)
            if status not in _REDIRECTS:
                break
            path = self._own(headers.get("Location", ""))
        if status in _REDIRECTS:
            raise BmcError("redirect_refused")
        if status == 401:
            raise AuthError("auth_failed")
        if status != 200:
            raise BmcError(f"http_{status}")
        return _decoded(body)

    async def get_or_none(self, path: str) -> Resource | None:
        """The same, where what fails is counted. Raises ``AuthError``."""
        try:
            return await self.get(path)
        except AuthError:
            raise  # a service root is readable without a password, so only now it shows
        except BmcError:
            self.failed += 1
            return None

    async def _answer(self, path: str) -> tuple[int, httpx.Headers, bytes]:
        if self._client is None or self.requests >= REQUESTS_MAX or self._bytes_left <= 0:
            raise BmcError("budget_spent")
        self.requests += 1
        limit = min(BODY_MAX_BYTES, self._bytes_left)
        body = bytearray()
        with told_errors():
            async with self._client.stream("GET", path) as response:
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise BmcError("not_redfish")
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > limit:
                        raise BmcError("too_large")
        self._bytes_left -= len(body)
        return response.status_code, response.headers, bytes(body)

    async def _log_in(self, client: httpx.AsyncClient) -> None:
        login = self._login
        self.requests += 1
        with told_errors():
            async with client.stream(
                "POST", SESSIONS, json={"UserName": login.user, "Password": login.password}
            ) as response:
                status, headers = response.status_code, response.headers
        token = headers.get("X-Auth-Token", "")
        if status not in (200, 201) or not token:
            raise BmcError("auth_failed" if status in (200, 201, 400, 401, 403) else f"http_{status}")
        client.headers["X-Auth-Token"] = token
        with contextlib.suppress(BmcError):
            self._session = self._own(headers.get("Location", ""))

    def _own(self, location: str) -> str:
        """The path of a location on this BMC. Raises ``BmcError`` for one elsewhere."""
        try:
            there, here = urlsplit(location), urlsplit(self._login.address)
            is_elsewhere = bool(there.netloc or there.scheme) and (
                (there.scheme, there.hostname, _port(there.scheme, there.port))
                != (here.scheme, here.hostname, _port(here.scheme, here.port))
            )
        except ValueError:
            raise BmcError("redirect_refused") from None
        path = link(there.path + (f"?{there.query}" if there.query else ""))
        if is_elsewhere or path is None:
            raise BmcError("redirect_refused")
        return path


@contextlib.asynccontextmanager
async def opened(login: Login) -> AsyncIterator[tuple[BmcClient, Resource]]:
    """A client that is logged in, and the BMC's root. Raises ``BmcError``."""
    client = BmcClient(login)
    try:
        await client.open()
        yield client, await client.get(ROOT)
    finally:
        await asyncio.shield(client.close())


@contextlib.contextmanager
def told_errors() -> Any:
    """Errors of the transport as states."""
    try:
        yield
    except (httpx.TimeoutException, TimeoutError):
        raise BmcError("timeout") from None
    except ssl.SSLError:
        raise BmcError("tls_failed") from None
    except httpx.ConnectError as error:
        refused = "tls_failed" if _is_of_tls(error) else "unreachable"
        raise BmcError(refused) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError):
        raise BmcError("unreachable") from None


def _is_of_tls(error: BaseException | None) -> bool:
    """Whether a TLS error is behind an error of the transport."""
    for _ in range(8):
        if error is None:
            return False
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _decoded(body: bytes) -> Resource:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise BmcError("not_redfish") from None
    if not isinstance(found, dict):
        raise BmcError("not_redfish")
    return found


_pinned: Final[dict[str, ssl.SSLContext]] = {}
"""fingerprint -> what trusts that certificate alone"""


async def trust(login: Login) -> ssl.SSLContext:
    """What certificate is accepted. Raises ``BmcError`` where the fingerprint is another."""
    if not login.fingerprint:
        return _context(login.ca_file, login.insecure or not login.address.startswith("https:"))
    found = _pinned.get(login.fingerprint)
    if found is None:
        # Whoever has this certificate's key is who we mean: it becomes the only one that is trusted.
        certificate = await _certificate(login)
        if hashlib.sha256(certificate).hexdigest() != login.fingerprint:
            raise BmcError("tls_failed")
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        found.check_hostname = False
        found.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        found.load_verify_locations(cadata=certificate)
        _pinned[login.fingerprint] = found
    return found


@functools.lru_cache(maxsize=64)
def _context(ca_file: Path | None, accepts_all: bool) -> ssl.SSLContext:
    """Made once: reading a machine's list of authorities takes longer than asking a BMC."""
    if accepts_all:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)


async def _certificate(login: Login) -> bytes:
    parts = urlsplit(login.address)
    with told_errors():
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(
                parts.hostname, _port(parts.scheme, parts.port), ssl=_context(None, True)
            )
        try:
            found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        finally:
            writer.transport.abort()
    return found or b""


def _port(scheme: str, port: int | None) -> int:
    return port or (443 if scheme == "https" else 80)
