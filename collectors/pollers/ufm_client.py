"""The conversation with a UFM and its telemetry: bounded, and never with anybody else.

In: where UFM is and how it knows us. Out: rows of JSON, lines of CSV. Redirects are not followed; a
certificate is trusted as ``redfish_client`` does. Source: UFM Enterprise REST API Guide, "Authentication":
names and passwords below /ufmRest, tokens below /ufmRestV3.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx

from collectors.pollers.command import CommandError
from collectors.pollers.redfish_client import CONNECT_S, BmcError, Login, told_errors, trust

JSON_MAX_BYTES: Final = 64 * 1024 * 1024
CSV_MAX_BYTES: Final = 1024 * 1024 * 1024
LINE_MAX_BYTES: Final = 65_536
ANSWER_S: Final = 60.0
CONNECTIONS: Final = 4
"""to one UFM, which serves others first"""


class UfmClient:
    """One look's requests. ``token`` is used where it is not empty, else the login's name and password."""

    def __init__(self, login: Login, token: str = "") -> None:
        self._login = login
        self._base = "/ufmRestV3" if token else "/ufmRest"
        self._headers = {"Authorization": f"Basic {token}"} if token else {}
        self._client: httpx.AsyncClient | None = None

    async def open(self) -> None:
        """Raises ``CommandError``."""
        login = self._login
        try:
            verify = await trust(login)
        except BmcError as error:
            raise CommandError(f"UFM: {error}") from None
        except OSError:
            raise CommandError("UFM: tls_failed") from None
        self._client = httpx.AsyncClient(
            base_url=login.address,
            verify=verify,
            follow_redirects=False,
            trust_env=False,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
            headers={"Accept-Encoding": "identity", **self._headers},
            auth=httpx.BasicAuth(login.user, login.password) if login.user else None,
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def rows(self, path: str, **query: str) -> list[dict[str, Any]]:
        """A list of UFM, of its objects only. Raises ``CommandError``."""
        body = bytearray()
        async for chunk in self._chunks(f"{self._base}{path}", query, JSON_MAX_BYTES):
            body += chunk
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise CommandError(f"UFM: {path}: no JSON") from None
        if not isinstance(found, list):
            raise CommandError(f"UFM: {path}: no list")
        return [row for row in found if isinstance(row, dict)]

    async def lines(self, path: str) -> AsyncIterator[str]:
        """Lines of a text, each without its end. Raises ``CommandError``."""
        rest = b""
        async for chunk in self._chunks(path, {}, CSV_MAX_BYTES):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace").rstrip("\r")
            if len(rest) > LINE_MAX_BYTES:
                raise CommandError(f"UFM: {path}: a line without an end")
        if rest:
            yield rest.decode("utf-8", "replace").rstrip("\r")

    async def _chunks(self, path: str, query: dict[str, str], max_bytes: int) -> AsyncIterator[bytes]:
        assert self._client is not None
        left = max_bytes
        try:
            with told_errors():
                async with self._client.stream("GET", path, params=query) as response:
                    if response.status_code != 200:
                        code = response.status_code
                        raise BmcError("auth_failed" if code in (401, 403) else f"http_{code}")
                    async for chunk in response.aiter_raw():
                        left -= len(chunk)
                        if left < 0:
                            raise BmcError("too_large")
                        yield chunk
        except BmcError as error:
            raise CommandError(f"UFM: {path}: {error}") from None
