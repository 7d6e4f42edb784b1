"""The lag matrix as HTML: who is behind whom, per role of group.

Up to ``TABLE_RANKS_MAX`` ranks it is a table with the numbers in it; beyond that one folded picture per role,
of cells of one rank or of tiles of several. The odd ranks stand beside every picture in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.lag import ABSENT, NO_DUMP, UNKNOWN, LagMatrix
from clusterwatch.analysis.sentence import count, noun, number, ranks_text
from clusterwatch.cli.report.dom import Markup, drawing, el, join

TABLE_RANKS_MAX: Final = 40
CELLS_MAX: Final = 4096
"""Cells of one picture; of larger jobs a cell is a tile of 8, 64, ... neighbouring ranks."""
ROLES_MAX: Final = 12
_ODD_SHOWN: Final = 6

_STEPS: Final = ((1, 1), (2, 7), (8, 31), (32, None))
"""Calls behind, from and to: the steps of the scale beyond the front."""

FRONT, WAITS, FIRST_STEP = 1, 2, 3
_SILENT: Final = FIRST_STEP + len(_STEPS)
_BLIND: Final = _SILENT + 1
"""Codes of a cell's look, worse is greater; 0 is no member. ``NO_DUMP`` beats a lag: nobody knows it."""

_CODE_ORDER: Final = (FRONT, WAITS, *range(FIRST_STEP, _SILENT), _BLIND, _SILENT)


def card(lag: LagMatrix, culprits: Iterable[int], suspects: Iterable[int]) -> Markup | None:
    """The matrix with its legend; None where no group made a call."""
    if not lag.roles:
        return None
    codes = _codes(lag)
    marks = dict.fromkeys(suspects, "suspect") | dict.fromkeys(culprits, "culprit")
    small = len(codes) <= TABLE_RANKS_MAX
    picture = _table(lag, codes, marks) if small else _pictures(lag, codes, marks)
    left = len(lag.roles) - ROLES_MAX
    notes = [
        f"{count(left, 'more role')} not drawn, none further behind than these." if left > 0 else "",
        f"{count(lag.idle_roles, 'role')} of groups made no collective call." if lag.idle_roles else "",
    ]
    return join(_legend(codes), picture, el("p", " ".join(note for note in notes if note), cls="note"))


def _codes(lag: LagMatrix) -> NDArray[np.int8]:
    """What each cell looks like, shape (ranks, roles)."""
    behind = lag.behind
    codes = np.zeros(behind.shape, np.int8)
    codes[(behind == 0) & ~lag.waits] = FRONT
    codes[(behind == 0) & lag.waits] = WAITS
    for step, (low, high) in enumerate(_STEPS):
        inside = behind >= low if high is None else (behind >= low) & (behind <= high)
        codes[inside] = FIRST_STEP + step
    codes[behind == UNKNOWN] = _BLIND
    codes[behind == NO_DUMP] = _SILENT
    codes[behind == ABSENT] = 0
    return codes


def _word(code: int) -> str:
    if code == FRONT:
        return "at the front"
    if code == WAITS:
        return "waits in a call"
    if code == _BLIND:
        return "the ring does not tell"
    if code == _SILENT:
        return "no usable dump"
    low, high = _STEPS[code - FIRST_STEP]
    return (
        f"{low} behind"
        if high == low
        else f"{low} or more behind"
        if high is None
        else f"{low} to {high} behind"
    )


def _legend(codes: NDArray[np.int8]) -> Markup:
    """Every look that occurs, with the number of ranks whose worst role looks so."""
    order = np.zeros(_BLIND + 1, np.int64)
    order[list(_CODE_ORDER)] = np.arange(1, len(_CODE_ORDER) + 1)
    worst = order[codes].max(axis=1, initial=0)
    items = []
    for place, code in enumerate(_CODE_ORDER, 1):
        ranks = int((worst == place).sum())
        if ranks:
            items.append(el("li", el("i", cls=f"sw k{code}"), el("b", number(ranks)), f" {_word(code)}"))
    return el("ul", *items, cls="legend")


def _table(lag: LagMatrix, codes: NDArray[np.int8], marks: dict[int, str]) -> Markup:
    """Roles down, ranks across, the lag in the cell."""
    heads = [
        el("th", el("span", str(rank)), scope="col", cls=marks.get(rank), title=_title(rank, marks))
        for rank in range(len(codes))
    ]
    rows = []
    for column, role in enumerate(lag.roles[:ROLES_MAX]):
        looks = enumerate(codes[:, column].tolist())
        numbers = lag.behind[:, column].tolist()
        cells = [_cell(rank, code, numbers[rank], role, marks.get(rank, "")) for rank, code in looks]
        rows.append(el("tr", el("th", role, scope="row"), *cells))
    head = el("thead", el("tr", el("th", "rank", scope="col"), *heads))
    return el("div", el("table", head, el("tbody", *rows), cls="lag"), cls="scroll", tabindex=0)


def _cell(rank: int, code: int, behind: int, role: str, mark: str) -> Markup:
    title = f"rank {rank}, {role}: {_word(code) if code else 'in no such group'}"
    return el("td", _number(behind), cls=f"k{code} {mark if code else ''}".strip(), title=title)


def _title(rank: int, marks: dict[int, str]) -> str:
    return f"rank {rank}, {marks[rank]}" if rank in marks else f"rank {rank}"


def _number(behind: int) -> str:
    if behind in (NO_DUMP, UNKNOWN):
        return "?"
    return str(behind) if behind > 0 else ""


def _pictures(lag: LagMatrix, codes: NDArray[np.int8], marks: dict[int, str]) -> Markup:
    """One folded picture per role: ranks run along the rows, so a rank has one place in all of them."""
    tile = 1
    while len(codes) > CELLS_MAX * tile:
        tile *= 8
    cells = -(-len(codes) // tile)
    columns = 32 if cells <= 512 else 64
    figures = []
    for column, role in enumerate(lag.roles[:ROLES_MAX]):
        looks = _tiles(codes[:, column], tile)
        caption = el("figcaption", el("b", role), el("ul", *_odd(lag, column), cls="odd"))
        figures.append(el("figure", _svg(looks, columns, marks, tile, role), caption))
    each = "one rank" if tile == 1 else f"{tile} neighbouring ranks, the worst of them shown"
    how = f"A cell is {each}; {number(columns * tile)} ranks a line, rank 0 at the upper left."
    return join(el("p", how, cls="note"), el("div", *figures, cls="pictures"))


def _tiles(codes: NDArray[np.int8], tile: int) -> NDArray[np.int8]:
    """The worst look of every ``tile`` ranks."""
    if tile == 1:
        return codes
    padded = np.zeros(-(-len(codes) // tile) * tile, np.int8)
    padded[: len(codes)] = codes
    rank_of = np.zeros(_BLIND + 1, np.int8)
    rank_of[list(_CODE_ORDER)] = np.arange(1, len(_CODE_ORDER) + 1)
    code_of = np.array([0, *_CODE_ORDER], np.int8)
    worst: NDArray[np.int8] = code_of[rank_of[padded].reshape(-1, tile).max(axis=1)]
    return worst


_CELL: Final = 8
"""Units of the drawing; the page scales it."""


def _svg(looks: NDArray[np.int8], columns: int, marks: dict[int, str], tile: int, role: str) -> Markup:
    rows = -(-len(looks) // columns)
    width, height = columns * _CELL, rows * _CELL
    paths = [
        drawing(_runs(np.flatnonzero(looks == code), columns), f"k{code}")
        for code in _CODE_ORDER
        if (looks == code).any()
    ]
    lines = "".join(f"M{x} 0v{height}" for x in range(0, width + 1, _CELL))
    lines += "".join(f"M0 {y}h{width}" for y in range(0, height + 1, _CELL))
    rings = [
        drawing(_runs(_ringed(marks, word, tile), columns), f"ring {word}")
        for word in ("suspect", "culprit")
        if word in marks.values()
    ]
    label = f"{role}: lag of {count(len(looks) * tile, 'rank')}, in words below"
    box = f"-2 -2 {width + 4} {height + 4}"
    return el("svg", *paths, drawing(lines, "grid"), *rings, viewBox=box, role="img", aria_label=label)


def _ringed(marks: dict[int, str], word: str, tile: int) -> NDArray[np.int64]:
    """Cells that hold a rank of that mark; neighbours share one ring."""
    return np.unique(np.array([rank // tile for rank, mark in marks.items() if mark == word], np.int64))


def _runs(cells: NDArray[np.int64], columns: int) -> str:
    """One rectangle per run of neighbours in a row."""
    if not len(cells):
        return ""
    breaks = np.flatnonzero((np.diff(cells) != 1) | (cells[1:] % columns == 0)) + 1
    starts = np.concatenate([[0], breaks])
    ends = np.append(breaks, len(cells))
    parts = []
    for first, length in zip(cells[starts].tolist(), (ends - starts).tolist(), strict=True):
        wide = length * _CELL
        parts.append(f"M{first % columns * _CELL} {first // columns * _CELL}h{wide}v{_CELL}h-{wide}z")
    return "".join(parts)


def _odd(lag: LagMatrix, column: int) -> list[Markup]:
    """In words: which ranks lack how much, the furthest behind first."""
    behind = lag.behind[:, column]
    lags = sorted({int(value) for value in np.unique(behind) if value > 0}, reverse=True)
    lines = [
        el("li", f"{number(value)} behind: {noun(np.flatnonzero(behind == value).tolist(), 4)}")
        for value in lags[:_ODD_SHOWN]
    ]
    rest = np.flatnonzero(np.isin(behind, lags[_ODD_SHOWN:])).tolist()
    lines += [el("li", f"less behind: {count(len(rest), 'more rank')}")] if rest else []
    lines += _unknown(behind, UNKNOWN, "not told") + _unknown(behind, NO_DUMP, "no usable dump")
    waits = int((lag.waits[:, column] & (behind == 0)).sum())
    lines += [el("li", f"waits in a call: {count(waits, 'rank')}")] if waits else []
    return lines or [el("li", "all at the front, no call open")]


def _unknown(behind: NDArray[np.int64], code: int, word: str) -> list[Markup]:
    ranks: Sequence[int] = np.flatnonzero(behind == code).tolist()
    return (
        [el("li", f"{word}: {'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks, 4)}")]
        if ranks
        else []
    )
