"""Asks another server's REST API for what ``why`` prints. Standard library only."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

from clusterwatch.ops.errors import OpsError

TIMEOUT_S: Final = 10.0
ANSWER_MAX_BYTES: Final = 32 * 1024 * 1024
_LIVE: Final = ("suspected", "open", "acknowledged", "probation")
_SEVERITIES: Final = ("critical", "warning", "unknown", "info")
_PASSED_ON: Final = ("id", "key", "name", "cluster", "state", "attempt", "step", "last_progress_at")


def reports(server: str, token: str, word: str) -> list[dict[str, Any]]:
    """Answers for the jobs that ``word`` may mean, in the form of ``incidents.report.job_report``.

    Raises:
        OpsError: the server does not answer, or not with what was asked for.
    """
    api = _Api(server, token)
    newest: dict[str, dict[str, Any]] = {}
    for job in api.results("jobs", key=word):
        newest.setdefault(job["cluster"], job)
    if not newest and word.isascii() and word.isdigit() and len(word) < 19:
        job_by_id = api.get(f"jobs/{word}", missing=(404,))
        newest = {job_by_id["cluster"]: job_by_id} if "cluster" in job_by_id else {}
    return [_report(api, job) for job in newest.values()]


def _report(api: _Api, job: dict[str, Any]) -> dict[str, Any]:
    """``expected`` is not told by this way."""
    health = api.get("health", missing=(503,))
    return {
        "job": {name: job.get(name) for name in _PASSED_ON}
        | {"reported": job.get("ranks_reported"), "expected": None},
        "incident": _first(api.results("incidents", job=str(job["id"]))),
        "stale": health.get("reasons", []),
    }


def _first(incidents: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The worst live one, else the newest."""
    live = [incident for incident in incidents if incident["state"] in _LIVE]
    live.sort(key=lambda incident: (_SEVERITIES.index(incident["severity"]), incident["since"]))
    return next(iter(live or incidents), None)


@dataclass(frozen=True, slots=True)
class _Api:
    server: str
    token: str

    def results(self, path: str, **query: str) -> list[dict[str, Any]]:
        """The first page of a list."""
        found = self.get(f"{path}?{urllib.parse.urlencode(query)}").get("results")
        if not isinstance(found, list):
            raise OpsError(f"{self.server} does not answer as clusterwatch does.")
        return found

    def get(self, path: str, missing: tuple[int, ...] = ()) -> dict[str, Any]:
        """A JSON object; with a status of ``missing`` too, whatever it holds."""
        url = f"{self.server.rstrip('/')}/api/v1/{path}"
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise OpsError(f"CLUSTERWATCH_URL must start with http:// or https://, not {self.server!r}.")
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked just above
            url, headers={"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
                return self._decoded(answer.read(ANSWER_MAX_BYTES))
        except urllib.error.HTTPError as fault:
            if fault.code in missing:
                return self._decoded(fault.read(ANSWER_MAX_BYTES))
            reasons = {401: "it does not know CLUSTERWATCH_TOKEN", 403: "the token may not read this"}
            reason = reasons.get(fault.code, f"HTTP {fault.code}")
            raise OpsError(f"{self.server} refuses: {reason}.") from fault
        except OSError as fault:
            raise OpsError(f"{self.server} does not answer: {fault}.") from fault

    def _decoded(self, body: bytes) -> dict[str, Any]:
        try:
            decoded = json.loads(body)
        except ValueError as fault:
            raise OpsError(f"{self.server} does not answer as clusterwatch does.") from fault
        if not isinstance(decoded, dict):
            raise OpsError(f"{self.server} does not answer as clusterwatch does.")
        return decoded
