"""Whether the database already is as this version wants it, so that a warm start skips a Django start.

The stamp lies beside the data it speaks of: who removes the data removes the stamp.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import clusterwatch
from clusterwatch.ops.state import StateFolder

STAMP_FILE = "bootstrapped"
ENROLMENT_SECRETS = ("enrolment_token", "enrolment_token_simulated")


def wanted_stamp() -> str:
    """A digest of the version and of every migration's name and content."""
    digest = hashlib.sha256(clusterwatch.__version__.encode())
    root = Path(clusterwatch.__file__).parent
    for path in sorted(root.glob("*/migrations/*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    digest.update((root / "ops" / "bootstrap.py").read_bytes())
    return digest.hexdigest()


def is_bootstrapped(state: StateFolder, home: Path) -> bool:
    """Whether the embedded database was made ready by this very version and its tokens are still there."""
    try:
        written = (home / STAMP_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return False
    kept = all(state.secret_path(name).exists() for name in ENROLMENT_SECRETS)
    return kept and (home / "data" / "PG_VERSION").exists() and written == wanted_stamp()
