"""The environment as typed values: every ``CLUSTERWATCH_*`` variable is read here and nowhere else.

A secret may also come as ``CLUSTERWATCH_<NAME>_FILE``. A bad value raises ``EnvironmentFault`` whose text
is the one clear line a person needs. Source: DESIGN section 3.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

PREFIX = "CLUSTERWATCH_"


class EnvironmentFault(ValueError):
    """A variable that cannot be used; the text names it and says what would do."""


def checkout_root() -> Path | None:
    """The checkout this package is run from, None when it is installed as a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """CLUSTERWATCH_STATE_DIR, else the checkout's ``.clusterwatch``, else ``/var/lib/clusterwatch``."""
    if value := environ.get(PREFIX + "STATE_DIR"):
        return Path(value).absolute()
    root = checkout_root()
    return root / ".clusterwatch" if root else Path("/var/lib/clusterwatch")


def secret(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """``CLUSTERWATCH_<name>``, or the content of the file ``CLUSTERWATCH_<name>_FILE`` names, stripped."""
    if value := environ.get(PREFIX + name):
        return value
    if path := environ.get(PREFIX + name + "_FILE"):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise EnvironmentFault(
                f"{PREFIX}{name}_FILE names {path}, which cannot be read: {error}"
            ) from error
    return None


@dataclass(frozen=True, slots=True)
class Database:
    """Parts of ``postgresql://user:password@host:port/name?host=/socket/folder``."""

    name: str
    user: str
    password: str
    host: str
    port: str

    @property
    def as_django(self) -> dict[str, object]:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": self.name,
            "USER": self.user,
            "PASSWORD": self.password,
            "HOST": self.host,
            "PORT": self.port,
            "CONN_MAX_AGE": 60,
            "CONN_HEALTH_CHECKS": True,
        }


def database(environ: Mapping[str, str] = os.environ) -> Database:
    """Reads DATABASE_URL; without it the embedded server's well-known socket under the state folder."""
    url = secret("DATABASE_URL", environ)
    if not url:
        return Database("clusterwatch", "clusterwatch", "", str(state_dir(environ) / "run"), "")
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise EnvironmentFault(
            f"{PREFIX}DATABASE_URL must start with postgresql://, not {parts.scheme or 'nothing'}"
        )
    name = parts.path.lstrip("/")
    if not name:
        raise EnvironmentFault(f"{PREFIX}DATABASE_URL names no database")
    query = parse_qs(parts.query)
    try:
        port = str(parts.port or query.get("port", [""])[0])
    except ValueError:
        raise EnvironmentFault(f"{PREFIX}DATABASE_URL has a port that is no number") from None
    return Database(
        name=unquote(name),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        host=query.get("host", [parts.hostname or ""])[0],
        port=port,
    )


def valkey_url(environ: Mapping[str, str] = os.environ) -> str:
    """``unix:///path?db=0``, ``redis://`` or ``rediss://``; default: the embedded server's socket."""
    url = secret("VALKEY_URL", environ) or f"unix://{state_dir(environ)}/run/valkey.sock?db=0"
    if urlsplit(url).scheme not in ("unix", "redis", "rediss"):
        raise EnvironmentFault(f"{PREFIX}VALKEY_URL must start with unix://, redis:// or rediss://")
    return url


def celery_broker_url(environ: Mapping[str, str] = os.environ) -> str:
    """The same server in the form kombu wants for sockets: ``redis+socket:///path?virtual_host=0``."""
    url = valkey_url(environ)
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    number = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.path}?virtual_host={number}"


def secret_key(environ: Mapping[str, str] = os.environ) -> str:
    """SECRET_KEY, its file, or the one the supervisor keeps in the state folder."""
    value = secret("SECRET_KEY", environ)
    if value is None:
        try:
            value = (state_dir(environ) / "secrets" / "secret_key").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise EnvironmentFault(
                f"no secret key: set {PREFIX}SECRET_KEY or run `make up`, which makes one ({error})"
            ) from error
    if len(value) < 32:
        raise EnvironmentFault(f"{PREFIX}SECRET_KEY is shorter than 32 characters")
    return value


def public_url(environ: Mapping[str, str] = os.environ) -> str:
    """The address people open, without a trailing slash."""
    return environ.get(PREFIX + "URL", "http://127.0.0.1:8642").rstrip("/")


def bind(name: str, default: str, environ: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """``BIND`` or ``GATEWAY_BIND`` as (host, port)."""
    value = environ.get(PREFIX + name, default)
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise EnvironmentFault(f"{PREFIX}{name} must be HOST:PORT, not {value!r}")
    return host.strip("[]"), int(port)
