"""Stands for ``fboss2``: prints ``<folder>/<last word of the command>.json``, hangs or fails by its host.

Usage: ``fboss2.py FOLDER --fmt json --host HOST show port``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

folder, host, document = Path(sys.argv[1]), sys.argv[5], sys.argv[-1]
if host == "hung":
    time.sleep(60)
if host == "broken":
    sys.exit(3)
path = folder / f"{document}.json"
sys.stdout.write(path.read_text(encoding="utf-8").replace("HOST", host) if path.exists() else "{}")
