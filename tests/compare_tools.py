"""The table verdict x tool of docs/verdict-table.md: ``python -m tests.compare_tools [FILE]``.

One folder per verdict is written in NCCL's flavour by ``tests.cases``; each tool reads the same folder in a
process of its own. Rule of judgement: "right" = the ranks that a tool prints as missing or as culprits are
the faulty ones and no other; "wrong name" = it prints an innocent rank; "no name" = it reports a fault but no
rank; "no error" = it reports none. On the healthy jobs "no error" is right. Only the words that the tools'
own sources print are read: torchfrtrace's "Missing ranks: {...}" and "Culprit rank N", the column "Missing
Ranks" of nvidia-resiliency-ext.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.cases.jobs import Batch, Call, Halt, Job, Sync, recv, send

LIMIT_S: Final = 120.0
WORLD: Final = 4
FAULTY: Final = 2
NAME: Final = "_dump_{}"
ATTRIBUTION: Final = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"


def _job(*last: Call | Halt, healthy: bool = False, **options: object) -> Job:
    """Three equal calls on every rank, then the faulty rank's own moves where the others make one more."""
    job = Job(WORLD, **options)  # type: ignore[arg-type]
    job.every(*([Call(job.default)] * 3), Sync())
    job.every(Call(job.default), Sync(), ranks=[r for r in range(WORLD) if healthy or r != FAULTY])
    if not healthy:
        job.every(*(last or ()), ranks=[FAULTY])
    return job.run()


def _with(rank_at_fault: int = FAULTY, **call: object) -> Callable[[], Job]:
    def made() -> Job:
        job = Job(WORLD)
        job.every(*([Call(job.default)] * 3), Sync())
        for rank in range(WORLD):
            job.every(Call(job.default, **(call if rank == rank_at_fault else {})), ranks=[rank])  # type: ignore[arg-type]
        return job.run()

    return made


def _pipeline() -> Job:
    """A healthy exchange of neighbours: edge stages have two halves, inner ones four."""
    job = Job(WORLD)
    for rank in range(WORLD):
        peers = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < WORLD]
        halves = [make(job.default, peer) for peer in peers for make in (send, recv)]
        job.every(*([Batch(job.default, tuple(halves)), Sync()] * 3), ranks=[rank])
    return job.run()


CASES: Final[dict[str, tuple[str, Callable[[], Job], tuple[int, ...], set[int]]]] = {
    "no_fault": ("a healthy job", lambda: _job(healthy=True), (), set()),
    "no_fault (pipeline)": ("a healthy pipeline, batched exchange", _pipeline, (), set()),
    "missing_rank": ("rank 2 never issues the 4th call", lambda: _job(Halt()), (), {FAULTY}),
    "suspect_no_dump": ("rank 2 died without a dump", lambda: _job(Halt()), (FAULTY,), {FAULTY}),
    "op_mismatch": ("rank 2 issues a broadcast", _with(op="broadcast"), (), {FAULTY}),
    "size_mismatch": ("rank 2 passes 512 instead of 1024", _with(inputs=((512,),)), (), {FAULTY}),
    "size_mismatch (rank 0)": ("rank 0 passes 512 instead of 1024", _with(0, inputs=((512,),)), (), {0}),
    "dtype_mismatch": ("rank 2 passes BFloat16", _with(dtype="BFloat16"), (), {FAULTY}),
}
"""Verdict -> what was injected, the job, the ranks whose dump is lacking, the ranks at fault."""


def ours(folder: Path) -> tuple[set[int], bool, str]:
    """Ranks named or suspected, whether a fault is reported, the tool's words."""
    code = "import sys; from clusterwatch.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = _run([sys.executable, "-c", code, "analyze", str(folder), "--json"])
    found = json.loads(done.stdout)
    return (
        set(found["culprit_ranks"] + found["suspect_ranks"]),
        found["verdict"] != "no_fault",
        found["verdict"],
    )


def torchfrtrace(folder: Path) -> tuple[set[int], bool, str]:
    """The same of PyTorch's analyzer. Raises ``ValueError`` with the last line when it crashes."""
    code = "from torch.distributed.flight_recorder import fr_trace; fr_trace.main()"
    done = _run([sys.executable, "-c", code, str(folder), "--prefix", "_dump_"])
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    words = done.stdout + done.stderr
    listed = re.findall(r"[Mm]issing ranks:? \{([\d, ]+)\}", words)
    culprits = re.findall(r"[Cc]ulprit rank:? (\d+)", words)
    ranks = {int(rank) for row in (*listed, *culprits) for rank in row.split(",")}
    fault = re.search(r"has errors|Not all ranks joining|cannot decide", words)
    return ranks, fault is not None, words


def nvrx(folder: Path, python: str) -> tuple[set[int], bool, str]:
    """The same of nvidia-resiliency-ext's attribution, without its language model."""
    done = _run([python, "-m", ATTRIBUTION, "--fr-path", str(folder), "--emit-stdout"])
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    ranks: set[int] = set()
    for line in done.stdout.partition("Missing Ranks")[2].splitlines():
        if line.count("|") >= 5:
            ranks |= {int(rank) for rank in re.findall(r"\d+", line.rpartition("|")[2])}
    return ranks, bool(ranks), done.stdout


def judged(answer: tuple[set[int], bool, str], faulty: set[int]) -> str:
    """One word by the rule of this module's docstring."""
    ranks, fault, _ = answer
    if not faulty:
        return "right" if not fault and not ranks else "false alarm"
    if ranks:
        return "right" if ranks == faulty else f"wrong name: {sorted(ranks)}"
    return "no name" if fault else "no error"


def rows(names: list[str], nvrx_python: str | None) -> list[list[str]]:
    """One row per verdict."""
    table = []
    for name in names:
        injected, make, lacking, faulty = CASES[name]
        with tempfile.TemporaryDirectory(prefix="verdict-table-") as made:
            folder = Path(made)
            for rank, data in make().pickles(lacking).items():
                (folder / NAME.format(rank)).write_bytes(data)
            cells = [_cell(ours, folder, faulty), _cell(torchfrtrace, folder, faulty)]
            if nvrx_python:
                cells.append(_cell(lambda place: nvrx(place, nvrx_python), folder, faulty))
            else:
                cells.append("not run")
        table.append([f"`{name}`", injected, *cells])
    return table


def _cell(tool: Callable[[Path], tuple[set[int], bool, str]], folder: Path, faulty: set[int]) -> str:
    try:
        return judged(tool(folder), faulty)
    except subprocess.TimeoutExpired:
        return f"over {LIMIT_S:g} s"
    except ValueError as error:
        return f"crash: {str(error)[:60]}"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def main() -> None:
    """Writes the table as Markdown to a file or to standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--nvrx", metavar="PYTHON", help="interpreter that has nvidia-resiliency-ext")
    options = parser.parse_args()
    torch = version("torch") if importlib.util.find_spec("torch") else "none"
    head = [
        "verdict",
        "what was injected",
        "clusterwatch",
        f"torchfrtrace (torch {torch})",
        "nvidia-resiliency-ext",
    ]
    table = [head, ["---"] * len(head), *rows(list(CASES), options.nvrx)]
    text = f"# Verdict by tool\n\nMeasured {date.today()}, again with `python -m tests.compare_tools`.\n\n"
    text += f"{(__doc__ or '').partition(chr(10))[2].strip()}\n\n"
    text += "\n".join("| " + " | ".join(row) + " |" for row in table) + "\n"
    if not options.nvrx:
        text += (
            "\nnot run: release 0.4.1, the newest that pip installs on the machine of this table, has no\n"
            "trace attribution; with a newer one: `--nvrx PYTHON`.\n"
        )
    if options.file:
        options.file.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
