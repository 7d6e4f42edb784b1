"""The table verdict x tool of docs/verdict-table.md: ``python -m tests.compare_tools [FILE]``.

Each tool reads the same folders, in a process of its own, and is judged by one rule. "right": the ranks it
names as missing or as culprits are the faulty ones and no other. "suspects": it names nobody, says that it
cannot tell, and the faulty ones are among its suspects. "wrong name": it names an innocent rank. "no name":
it reports a fault but no rank. "no error": it reports none. On a healthy job "no error" is right and anything
else a "false alarm"; where no trace can tell the faulty rank, "no name" is right. Only words that the tools'
own sources print are read: torchfrtrace's "Missing ranks: {...}" and "Culprit rank N", the column "Missing
Ranks" of nvidia-resiliency-ext, ``culprit_ranks`` and ``suspect_ranks`` of clusterwatch. torchfrtrace reads
files in the order of the folder, so each folder is written for it in rising and in falling order; where the
two answers differ, both are shown.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from tests.compare_cases import CASES, Case

LIMIT_S: Final = 120.0
NAME: Final = "_dump_{}"
ATTRIBUTION: Final = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"
RIGHT: Final = "right"


@dataclass(frozen=True)
class Answer:
    """What a tool says of a folder."""

    named: frozenset[int] = frozenset()
    suspects: frozenset[int] = frozenset()
    fault: bool = False


Tool = Callable[[Path], Answer]


def ours(folder: Path) -> Answer:
    """``clusterwatch analyze``."""
    code = "import sys; from clusterwatch.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = _run([sys.executable, "-c", code, "analyze", str(folder), "--json"])
    found = json.loads(done.stdout)
    fault = found["verdict"] not in ("no_fault", "not_enough_data")
    return Answer(frozenset(found["culprit_ranks"]), frozenset(found["suspect_ranks"]), fault)


def torchfrtrace(folder: Path) -> Answer:
    """PyTorch's analyzer. Raises ``ValueError`` with its last line when it crashes."""
    code = "from torch.distributed.flight_recorder import fr_trace; fr_trace.main()"
    done = _run([sys.executable, "-c", code, str(folder), "--prefix", "_dump_"])
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    words = done.stdout + done.stderr
    listed = re.findall(r"[Mm]issing ranks:? \{([\d, ]+)\}", words)
    culprits = re.findall(r"[Cc]ulprit rank:? (\d+)", words)
    ranks = frozenset(int(rank) for row in (*listed, *culprits) for rank in row.split(","))
    fault = re.search(r"has errors|Not all ranks joining|cannot decide", words)
    return Answer(ranks, fault=fault is not None)


def nvrx(folder: Path, python: str) -> Answer:
    """nvidia-resiliency-ext's attribution, without its language model. Raises ``ValueError`` as above."""
    done = _run([python, "-m", ATTRIBUTION, "--fr-path", str(folder), "--emit-stdout"])
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    ranks: set[int] = set()
    for line in done.stdout.partition("Missing Ranks")[2].splitlines():
        if line.count("|") >= 5:
            ranks |= {int(rank) for rank in re.findall(r"\d+", line.rpartition("|")[2])}
    return Answer(frozenset(ranks), fault=bool(ranks))


def judged(answer: Answer, faulty: frozenset[int] | None) -> str:
    """One word by the rule of this module's docstring."""
    if faulty is not None and not faulty:
        return "false alarm" if answer.fault or answer.named else RIGHT
    if answer.named:
        return RIGHT if answer.named == faulty else f"wrong name: {sorted(answer.named)}"
    if answer.suspects and faulty is not None:
        return "suspects" if faulty <= answer.suspects else f"wrong suspects: {sorted(answer.suspects)}"
    if not answer.fault:
        return "no error"
    return RIGHT if faulty is None else "no name"


def rows(names: list[str], nvrx_python: str | None) -> list[list[str]]:
    """One row per case of ``names``."""
    table = []
    for name in names:
        case = CASES[name]
        cells = [_cell(ours, case), _both_orders(torchfrtrace, case)]
        cells.append(_cell(lambda place: nvrx(place, nvrx_python), case) if nvrx_python else "not run")
        table.append([f"`{name}`", case.injected, *cells])
    return table


def _both_orders(tool: Tool, case: Case) -> str:
    words = dict.fromkeys(_cell(tool, case, falling) for falling in (False, True))
    return " / ".join(words)


def _cell(tool: Tool, case: Case, falling: bool = False) -> str:
    with tempfile.TemporaryDirectory(prefix="verdict-table-") as made:
        for rank, data in sorted(case.dumps().items(), reverse=falling):
            Path(made, NAME.format(rank)).write_bytes(data)
        try:
            return judged(tool(Path(made)), case.faulty)
        except subprocess.TimeoutExpired:
            return f"over {LIMIT_S:g} s"
        except ValueError as error:
            return f"crash: {str(error)[:60]}"


def attribution_in(python: str) -> str | None:
    """Why nvidia-resiliency-ext cannot be asked in that interpreter; None when it can."""
    code = (
        "import importlib.metadata as m, importlib.util as u\n"
        "try: v = m.version('nvidia-resiliency-ext')\n"
        "except m.PackageNotFoundError: print('is not installed'); raise SystemExit\n"
        "try: f = u.find_spec('" + ATTRIBUTION + "')\n"
        "except ModuleNotFoundError: f = None\n"
        "print('' if f else f'of release {v} has no module " + ATTRIBUTION + "')\n"
    )
    done = _run([python, "-c", code])
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip() or None


def nvrx_version(python: str) -> str:
    """What the metadata of nvidia-resiliency-ext in that interpreter says."""
    code = "import importlib.metadata as m; print(m.version('nvidia-resiliency-ext'))"
    return _run([python, "-c", code]).stdout.strip()


def torch_version() -> str:
    """Of the torch whose torchfrtrace is asked."""
    done = _run([sys.executable, "-c", "import torch; print(torch.__version__)"])
    return done.stdout.strip() or "none"


def document(nvrx_python: str) -> str:
    """The whole page, measured now."""
    lacking = attribution_in(nvrx_python)
    head = ["verdict", "what was injected", "clusterwatch", f"torchfrtrace (torch {torch_version()})"]
    release = "" if lacking else f" ({nvrx_version(nvrx_python)})"
    head.append(f"nvidia-resiliency-ext{release}")
    found = rows(list(CASES), None if lacking else nvrx_python)
    count = {column: sum(row[column] == RIGHT for row in found) for column in (2, 3, 4)}
    total = ["", f"right, of {len(found)}", *(str(count[column]) for column in (2, 3))]
    total.append("not run" if lacking else str(count[4]))
    text = (
        f"# Verdict by tool\n\nMeasured {date.today()} with "
        "`python -m tests.compare_tools docs/verdict-table.md` "
        "(`pip install tabulate` first: torchfrtrace prints with it).\n\n"
    )
    text += f"{(__doc__ or '').partition(chr(10))[2].strip()}\n\n"
    text += "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *found, total))
    text += "\n"
    if lacking:
        text += f"\nnot run: nvidia-resiliency-ext {lacking} here; `--nvrx PYTHON` takes another one.\n"
    return text


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def main() -> None:
    """Writes the table as Markdown to a file or to standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--nvrx", metavar="PYTHON", default=sys.executable, help="has nvidia-resiliency-ext")
    options = parser.parse_args()
    text = document(options.nvrx)
    if options.file:
        options.file.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
