"""Settings of a poller that asks over HTTP: values of its TOML table, checked; secrets from files only.

In: a table of pollers.toml. Out: values, or a ``ConfigError`` that names the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from collectors.pollers.device import ConfigError

SECRET_MAX_BYTES: Final = 65_536
NAME_MAX_CHARS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}")


class Table:
    """One table, with the table around it as its defaults."""

    def __init__(
        self, where: str, values: Mapping[str, Any], folder: Path, outer: Table | None = None
    ) -> None:
        """``where``: its name in messages, such as ``redfish.targets[0]``."""
        self.where = where
        self.folder = folder
        self._values = values
        self._outer = outer

    def only(self, *keys: str) -> None:
        """Raises ``ConfigError`` for a key that is none of these: it is misspelt."""
        for key in self._values:
            if key not in keys:
                raise ConfigError(f"{self.where}: unknown key {key!r}; known are {', '.join(sorted(keys))}")

    def has(self, key: str) -> bool:
        return key in self._values or (self._outer is not None and self._outer.has(key))

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str) or not value.isprintable() or len(value) > 1_024:
            raise ConfigError(f"{self.where}.{key} must be a text")
        return value

    def name(self, key: str, default: str | None = None) -> str:
        """A name as it may be part of an entity: letters, digits, ``.``, ``_``, ``:`` and ``-``."""
        value = self.text(key, default)
        if value and not _NAME.fullmatch(value):
            raise ConfigError(f"{self.where}.{key} must be a name of letters, digits, '.', '_', ':' and '-'")
        return value

    def choice(self, key: str, default: str, allowed: Sequence[str]) -> str:
        value = self.text(key, default)
        if value not in allowed:
            raise ConfigError(f"{self.where}.{key} must be one of {', '.join(allowed)}")
        return value

    def flag(self, key: str) -> bool:
        value = self._get(key, False)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where}.{key} must be true or false")
        return value

    def texts(self, key: str, default: Sequence[str]) -> list[str]:
        """A list of texts, such as a command, the program first."""
        value = self._get(key, list(default))
        if not isinstance(value, list) or len(value) > 64:
            raise ConfigError(f"{self.where}.{key} must be a list of texts")
        if not all(isinstance(one, str) and one and one.isprintable() for one in value):
            raise ConfigError(f"{self.where}.{key} must be a list of texts")
        return list(value)

    def seconds(self, key: str, default: float, low: float, high: float) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ConfigError(f"{self.where}.{key} must be a number from {low:g} to {high:g}")
        return float(value)

    def address(self, key: str, default: str | None = None) -> str:
        """An http or https address without a path, user or query."""
        value = self.text(key, default).rstrip("/")
        try:
            parts = urlsplit(value)
            is_fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_fit = False
        if not is_fit or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigError(f"{self.where}.{key} must be an address such as https" + "://10.0.0.1")
        return value

    def fingerprint(self, key: str) -> str:
        """SHA-256 of a certificate as 64 hex digits; empty where there is none."""
        value = self.text(key, "").replace(":", "").lower()
        if value and not _FINGERPRINT.fullmatch(value):
            raise ConfigError(f"{self.where}.{key} must be the SHA-256 of a certificate: 64 hex digits")
        return value

    def path(self, key: str) -> Path | None:
        """A file, relative to the folder of the settings; None where it is not named."""
        value = self.text(key, "")
        if not value:
            return None
        found = self.folder / value
        if not found.is_file():
            raise ConfigError(f"{self.where}.{key}: {value} is no file")
        return found

    def secret(self, key: str) -> str:
        """The first line of a secret's file, which only its owner may read; empty where none is named."""
        found = self.path(key)
        if found is None:
            return ""
        try:
            if found.stat().st_mode & 0o077:
                raise ConfigError(f"{self.where}.{key}: {found.name} can be read by others: chmod 600")
            with found.open("rb") as file:
                text = file.read(SECRET_MAX_BYTES).decode("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.where}.{key}: {found.name} cannot be read: {error}") from None
        if not text or not text.isprintable():
            raise ConfigError(f"{self.where}.{key}: {found.name} holds no secret")
        return text

    def tables(self, key: str, most: int) -> list[Table]:
        """The tables of a list, with this one as their defaults."""
        value = self._values.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(row, Mapping) for row in value):
            raise ConfigError(f"{self.where}.{key} must be a list of tables, at least one")
        if len(value) > most:
            raise ConfigError(f"{self.where}.{key}: more than {most}")
        return [Table(f"{self.where}.{key}[{at}]", row, self.folder, self) for at, row in enumerate(value)]

    def _get(self, key: str, default: Any) -> Any:
        if key in self._values:
            return self._values[key]
        if self._outer is not None and self._outer.has(key):
            return self._outer._get(key, default)
        if default is None:
            raise ConfigError(f"{self.where}.{key} is missing")
        return default
