"""Whether a file is one of those that ``analyze`` reads: its answers are never written over one."""

from __future__ import annotations

from pathlib import Path

from clusterwatch.readers import folder
from clusterwatch.readers.archives import survey
from clusterwatch.readers.blobs import unpacked_name
from clusterwatch.readers.job_logs import is_log_name
from clusterwatch.readers.names import PARTS


def is_input(path: Path, file: Path) -> bool:
    """Whether ``file`` is ``path`` itself, or a dump, log or archive below it by its name.

    Cost: lists everything at ``path``.

    Raises:
        OSError: as ``archives.files``.
    """
    below, inner = path.resolve(), file.resolve()
    if below == inner:
        return True
    if not path.is_dir() or below not in inner.parents:
        return False
    name = inner.relative_to(below).as_posix()
    names = {name, unpacked_name(name)}
    found = survey(path)
    if names & folder.dump_names(found) or any(map(is_log_name, names)):
        return True
    archived = [*(blob for blob in found.blobs if PARTS.search(blob)), *(s.name for s, _ in found.streams)]
    return any(member == name or member.startswith(f"{name}:") for member in archived)
