"""A signed-in visitor without scripts: fetches pages as a person's browser would."""

from __future__ import annotations

import http.cookiejar
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

from tests.e2e.product import Product

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Page:
    """What came for a path; status 0: nothing came."""

    status: int
    text: str
    seconds: float


class Visitor:
    """One session at a running product."""

    def __init__(self, product: Product) -> None:
        self._url = product.url
        jar = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        self._password = product.environ["CLUSTERWATCH_ADMIN_PASSWORD"]

    def sign_in(self) -> None:
        form = self.get("/login/").text
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
        assert token is not None, "the login page has no form"
        fields = {"username": "admin", "password": self._password, "csrfmiddlewaretoken": token[1]}
        answer = self._fetch("/login/", urllib.parse.urlencode(fields).encode())
        assert answer.status == 200, f"signing in was answered with {answer.status}"
        assert 'action="/logout/"' in answer.text, "not signed in"

    def get(self, path: str) -> Page:
        return self._fetch(path)

    def _fetch(self, path: str, data: bytes | None = None) -> Page:
        begun_s = time.monotonic()
        request = urllib.request.Request(self._url + path, data, {"Referer": self._url})
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        except OSError as error:
            status, body = 0, str(error).encode()
        return Page(status, body.decode(errors="replace"), time.monotonic() - begun_s)
