"""``clusterwatch bench detect``: does the analysis name what is slow or stuck in made training jobs?

In: numbers of ranks, seeds, kinds. Out: a table of kind x size x shape in time, then the figures. Every case
is a collective log with one truth (``simulate.step_job``, a model apart from the detectors), read from disk
and judged as ``clusterwatch analyze`` would. ``--arrays`` leaves the files out, which a large job needs.
``--cases`` judges folders that are there instead. ``--stalls``: stalls on traces and progress.
``--hour``: what an hour of steps costs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clusterwatch.cli.benches import detect_hour, detect_stalls
from clusterwatch.cli.benches.detect_judge import Judgement, Score, judged, score, verdict_of
from clusterwatch.cli.benches.detect_log import log_of, verdict_on
from clusterwatch.cli.benches.options import parser_of
from clusterwatch.ops.errors import OpsError
from clusterwatch.simulate.step_job_layout import SHAPES
from clusterwatch.simulate.step_job_matrix import Cell, cells

Verdict = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Result:
    """One judged case."""

    name: str
    row: tuple[str, str, str]
    """kind, size, shape in time"""
    truth: dict[str, Any]
    answer: dict[str, Any]
    judgement: Judgement
    seconds: float


def run(arguments: list[str], verdict: Verdict = verdict_of) -> dict[str, Any]:
    """Makes and judges the cases, prints the table, gives the figures."""
    options = _options(arguments)
    if options.stalls:
        return detect_stalls.run(options)
    if options.hour:
        return detect_hour.run(max(options.ranks))
    results = []
    cases = (
        _given(options.cases, verdict) if options.cases
        else _in_arrays(options) if options.arrays
        else _made(options, verdict)
    )  # fmt: skip
    for result in cases:
        results.append(result)
        if options.json_cases:
            print(json.dumps(_told(result)), flush=True)
    if not results:
        raise OpsError("there is no such case.")
    print("\n".join(table(results)), flush=True)
    return _figures(options, results)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("detect", __doc__)
    parser.add_argument("--seeds", type=int, default=2, help="of each row (default 2)")
    parser.add_argument("--first-seed", type=int, default=1, help="default 1")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[16], help=f"of {', '.join(map(str, SHAPES))}"
    )
    parser.add_argument("--only", metavar="KIND", help="rows whose name begins so, as `slow_gpu 1.3`")
    parser.add_argument("--arrays", action="store_true", help="judge in memory, without writing the logs")
    parser.add_argument("--json-cases", action="store_true", help="also a JSON line for each case")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the cases answered wrongly there")
    parser.add_argument("--cases", type=Path, metavar="FOLDER", help="judge the cases in this folder instead")
    detect_stalls.add_options(parser)
    detect_hour.add_options(parser)
    options = parser.parse_args(arguments)
    if options.hour and any(ranks < 64 or ranks % 64 for ranks in options.ranks):
        raise OpsError("--hour takes --ranks of a multiple of 64.")
    if not (options.stalls or options.hour) and not set(options.ranks) <= set(SHAPES):
        raise OpsError(f"--ranks takes {', '.join(map(str, SHAPES))}.")
    if options.seeds < 1:
        raise OpsError("--seeds takes a number of at least 1.")
    return options


def _asked(options: argparse.Namespace) -> Iterator[tuple[Cell, int, int]]:
    """(row, ranks, seed) of each case."""
    rows = [cell for cell in cells() if not options.only or cell.name.startswith(options.only)]
    for ranks in options.ranks:
        for cell in rows:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                yield cell, ranks, seed


def _made(options: argparse.Namespace, verdict: Verdict) -> Iterator[Result]:
    """Each case is made, judged and, unless it is to be kept, deleted."""
    with tempfile.TemporaryDirectory(prefix="clusterwatch-bench-") as made:
        for cell, ranks, seed in _asked(options):
            folder = Path(made) / f"{cell.name} {ranks} {seed}".replace(" ", "_").replace(":", "")
            yield _one(cell, ranks, seed, folder, verdict, options.keep)
            shutil.rmtree(folder, ignore_errors=True)


def _in_arrays(options: argparse.Namespace) -> Iterator[Result]:
    """The same without files; what is told of the time is the judging alone."""
    for cell, ranks, seed in _asked(options):
        job = cell.job(ranks, seed)
        truth, log = job.truth, log_of(job)
        began = time.perf_counter()
        answer = verdict_on(log)
        seconds = time.perf_counter() - began
        row = cell.kind, cell.size, cell.when
        yield Result(job.name, row, truth, answer, judged(truth, answer), seconds)


def _one(cell: Cell, ranks: int, seed: int, folder: Path, verdict: Verdict, keep: Path | None) -> Result:
    job = cell.job(ranks, seed)
    job.write(folder)
    (folder / "truth.json").unlink()  # what is judged has nothing to copy from
    result = _judged(job.name, (cell.kind, cell.size, cell.when), job.truth, folder, verdict)
    if keep is not None and (result.judgement.false_alarm or not result.judgement.exact):
        kept = keep / folder.name
        shutil.copytree(folder, kept, dirs_exist_ok=True)
        (kept / "truth.json").write_text(json.dumps(job.truth, indent=1))
        (kept / "answer.json").write_text(json.dumps(result.answer, indent=1))
    return result


def _given(base: Path, verdict: Verdict) -> Iterator[Result]:
    """Cases that are there: folders with a ``truth.json``."""
    for file in sorted(base.rglob("truth.json")):
        truth = json.loads(file.read_text())
        row = (str(truth["kind"]), "", "")
        yield _judged(file.parent.name, row, truth, file.parent, verdict)


def _judged(
    name: str, row: tuple[str, str, str], truth: dict[str, Any], folder: Path, verdict: Verdict
) -> Result:
    """One folder's answer beside its truth, and how long it took."""
    began = time.perf_counter()
    answer = verdict(folder)
    seconds = time.perf_counter() - began
    return Result(name, row, truth, answer, judged(truth, answer), seconds)


def _told(result: Result) -> dict[str, Any]:
    answer = {key: result.answer.get(key) for key in ("verdict", "class", "culprit_ranks", "onset_step")}
    truth = {key: result.truth.get(key) for key in ("kind", "class", "culprit_ranks", "start_step")}
    return {
        "case": result.name, "exact": result.judgement.exact, "seconds": round(result.seconds, 3),
        "truth": truth, "answer": answer | {"summary": result.answer.get("summary")},
    }  # fmt: skip


# --- what is printed ----------------------------------------------------------------------------------


def table(results: list[Result]) -> Iterator[str]:
    """The lines of the table: a row for each kind, size and shape in time."""
    yield (
        f"{'kind':<24}{'size':<33}{'shape':<20}{'cases':>6}{'exact':>7}{'class':>7}"
        f"{'false':>7}{'missed':>8}{'wrong':>7}{'onset':>7}{'s':>7}"
    )
    rows: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        rows.setdefault(result.row, []).append(result)
    for row, some in rows.items():
        found = score([one.judgement for one in some])
        yield f"{row[0]:<24}{row[1]:<33}{row[2]:<20}" + _cells(found, _mean_s(some))
    yield f"{'all':<77}" + _cells(score([one.judgement for one in results]), _mean_s(results))


def _cells(found: Score, mean_s: float) -> str:
    onset = "-" if found.onset_error_steps is None else f"{found.onset_error_steps:.0f}"
    return (
        f"{found.cases:>6}"
        f"{_percent(found.exact, found.cases):>7}{_percent(found.class_right, found.cases):>7}"
        f"{found.false_alarms:>7}{found.missed:>8}{found.wrong_names:>7}{onset:>7}{mean_s:>7.2f}"
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def _mean_s(results: list[Result]) -> float:
    return sum(one.seconds for one in results) / len(results)


def _figures(options: argparse.Namespace, results: list[Result]) -> dict[str, Any]:
    found = asdict(score([one.judgement for one in results]))
    source: dict[str, Any] = {"folder": str(options.cases)} if options.cases else {
        "ranks": options.ranks, "seeds": options.seeds, "first_seed": options.first_seed,
    }  # fmt: skip
    rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in found.items()}
    return {
        "bench": "detect", **source, **rounded,
        "mean_s": round(_mean_s(results), 3), "max_s": round(max(one.seconds for one in results), 3),
    }  # fmt: skip
