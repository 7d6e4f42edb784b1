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


def kept_secret(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """What the supervisor keeps in ``<state>/secrets/<name in lower case>``; None when it is not there."""
    try:
        text = (state_dir(environ) / "secrets" / name.lower()).read_text(encoding="utf-8")
    except OSError:
        return None
    return text.strip() or None


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
    url = secret("DATABASE_URL", environ) or kept_secret("DATABASE_URL", environ)
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
    url = secret("VALKEY_URL", environ) or kept_secret("VALKEY_URL", environ)
    url = url or f"unix://{state_dir(environ)}/run/valkey.sock?db=0"
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


RETENTION_DAYS = {
    "raw_block": 1,
    "node_minute": 30,
    "fleet_minute": 30,
    "fleet_percentile": 30,
    "map_frame": 7,
    "steps": 2,
    "edges": 1,
    "job_steps": 180,
    "trace": 30,
    "stacks": 30,
    "event": 730,
    "phase": 180,
}
"""How long each class of series is kept when nothing else is set."""


def retention_days(environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """``RETENTION_DAYS_<CLASS>`` (as in ``CLUSTERWATCH_RETENTION_DAYS_RAW_BLOCK``), whole days, 1 to 3650."""
    found = dict(RETENTION_DAYS)
    for name in found:
        variable = f"{PREFIX}RETENTION_DAYS_{name.upper()}"
        if value := environ.get(variable):
            if not value.isdecimal() or not 1 <= int(value) <= 3650:
                raise EnvironmentFault(f"{variable} must be whole days from 1 to 3650, not {value!r}")
            found[name] = int(value)
    return found


def block_shapes_max(environ: Mapping[str, str] = os.environ) -> int:
    """BLOCK_SHAPES_MAX: different sets of metrics a cluster may send, 1 to 1,000,000."""
    variable = PREFIX + "BLOCK_SHAPES_MAX"
    value = environ.get(variable, "10000")
    if not value.isdecimal() or not 1 <= int(value) <= 1_000_000:
        raise EnvironmentFault(f"{variable} must be a whole number from 1 to 1000000, not {value!r}")
    return int(value)


def bind(name: str, default: str, environ: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """``BIND`` or ``GATEWAY_BIND`` as (host, port)."""
    value = environ.get(PREFIX + name, default)
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise EnvironmentFault(f"{PREFIX}{name} must be HOST:PORT, not {value!r}")
    return host.strip("[]"), int(port)


def gateway_tls(environ: Mapping[str, str] = os.environ) -> tuple[Path, Path] | None:
    """(certificate chain, key) files of ``GATEWAY_CERT`` and ``GATEWAY_KEY``; None: plain websocket."""
    cert, key = environ.get(PREFIX + "GATEWAY_CERT"), environ.get(PREFIX + "GATEWAY_KEY")
    if not cert and not key:
        return None
    if not cert or not key:
        raise EnvironmentFault(f"{PREFIX}GATEWAY_CERT and {PREFIX}GATEWAY_KEY go together: set both or none")
    for name, path in (("GATEWAY_CERT", cert), ("GATEWAY_KEY", key)):
        if not Path(path).is_file():
            raise EnvironmentFault(f"{PREFIX}{name} names {path}, which is no file")
    return Path(cert), Path(key)


@dataclass(frozen=True, slots=True)
class Smtp:
    """A mail server; ``tls`` from the first byte, ``starttls`` after a greeting in the clear."""

    host: str
    port: int
    user: str
    password: str
    tls: bool
    starttls: bool
    sender: str


def smtp(environ: Mapping[str, str] = os.environ) -> Smtp | None:
    """CLUSTERWATCH_SMTP_URL: ``smtp://user:password@host:port?starttls=1`` or ``smtps://...``; None: no mail.

    Raises:
        EnvironmentFault: it is no such URL, or CLUSTERWATCH_MAIL_FROM is missing.
    """
    url = secret("SMTP_URL", environ)
    if not url:
        return None
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise EnvironmentFault(f"{PREFIX}SMTP_URL has a port that is no number") from None
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
        raise EnvironmentFault(f"{PREFIX}SMTP_URL must be smtp://host or smtps://host")
    sender = environ.get(PREFIX + "MAIL_FROM", "")
    if "@" not in sender:
        raise EnvironmentFault(f"{PREFIX}MAIL_FROM must say from which address mails come")
    starttls = parse_qs(parts.query).get("starttls", ["0"])[0] not in ("0", "no", "false")
    tls = parts.scheme == "smtps"
    return Smtp(
        parts.hostname, port or (465 if tls else 587 if starttls else 25), unquote(parts.username or ""),
        unquote(parts.password or ""), tls, starttls and not tls, sender,
    )  # fmt: skip


def webhooks_anywhere(environ: Mapping[str, str] = os.environ) -> bool:
    """CLUSTERWATCH_WEBHOOKS_ANYWHERE=1: webhooks may also go to this machine and to link-local addresses."""
    return environ.get(PREFIX + "WEBHOOKS_ANYWHERE", "0") not in ("", "0", "no", "false")
