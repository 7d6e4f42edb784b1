"""The page: whole, self-contained, harmless, bounded."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from clusterwatch.analysis import Diagnosis
from clusterwatch.analysis.lag import ABSENT, NO_DUMP, UNKNOWN, LagMatrix
from clusterwatch.analysis.model import Coverage, Finding, InputProblem, MergedStack, Severity
from clusterwatch.analysis.overview import GroupState, OpenCall, Overview
from clusterwatch.cli.main import main
from clusterwatch.cli.report import html, matrix
from clusterwatch.cli.report.dom import el
from tests.cli.report.made import HOSTILE, hostile_job, judged, stuck_job, windows, write

ROOT = Path(__file__).parents[3]
_VOID = {"meta", "br"}


class Page(HTMLParser):
    """Holds the page's elements; fails on an element that does not end where it should."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def stuck() -> str:
    return html.page(*judged(windows(stuck_job())), "dumps")


def test_the_sentence_comes_first_and_all_parts_follow(stuck: str) -> None:
    text = Page(stuck).text
    order = ["never joined", "Do this", "Who is behind whom", "Groups by shape", "Open calls", "How we know"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "rank 4 issued it; rank 5 did not" in text and "confidence 0.50 (low)" in text


def test_nothing_comes_from_elsewhere_and_no_script_can_run(stuck: str) -> None:
    page = Page(stuck)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form", "img"}
    assert not any(key in ("src", "href") or key.startswith("on") for _, attrs in page.tags for key in attrs)
    assert "url(" not in stuck and "@import" not in stuck and "//" not in re.sub(r"/\*.*?\*/", "", stuck)
    policy = next(attrs["content"] for _, attrs in page.tags if "http-equiv" in attrs)
    assert policy is not None and policy.startswith("default-src 'none'") and "script-src" not in policy


def test_hostile_names_stay_text() -> None:
    diagnosis, view = judged(windows(hostile_job()), problems=(InputProblem(HOSTILE, HOSTILE),))
    page = html.page(diagnosis, view, HOSTILE)
    parsed = Page(page)
    assert "alert(1)" in parsed.text
    assert not {tag for tag, _ in parsed.tags} & {"script", "img"}
    assert not any(key.startswith("on") for _, attrs in parsed.tags for key in attrs)
    assert "\x1b" not in page and "\u202e" not in page


def test_a_healthy_job_has_a_page_too() -> None:
    job = stuck_job()
    job.call(5, "3")
    assert "no fault" in Page(html.page(*judged(windows(job)), "dumps")).text.lower()


def test_nothing_read_has_a_page_too() -> None:
    assert "not enough data" in Page(html.page(*judged(()), "empty")).text.lower()


def test_rank_5_is_ringed_and_the_number_stands_in_its_cell(stuck: str) -> None:
    cells = re.findall(r'<td class="(k\d+ culprit)" title="rank 5, tp: 1 behind">(\d+)</td>', stuck)
    assert cells == [("k3 culprit", "1")]


def huge(ranks: int = 24_576, roles: int = 9) -> tuple[Diagnosis, Overview]:
    """Everything as large as it gets: noise in each cell, long names, every list full."""
    random = np.random.default_rng(7)
    behind = random.choice([ABSENT, UNKNOWN, NO_DUMP, 0, 0, 0, 1, 5, 20, 400], size=(ranks, roles))
    waits = random.random((ranks, roles)) < 0.5
    names = tuple(f"role {number} " + "x" * 400 for number in range(roles))
    scattered = tuple(range(0, ranks, 2))
    finding = Finding(
        "missing_rank", "hang", Severity.CRITICAL, "y" * 200, "hang.missing_rank v1", 0.5,
        culprit_ranks=scattered, joined_ranks=scattered, missing_ranks=scattered, why=("z" * 900,) * 100,
    )  # fmt: skip
    diagnosis, view = judged(windows(stuck_job()))
    call = view.open_calls[0]
    many = OpenCall(call.group, GroupState.STUCK, 5, "q" * 400, scattered, scattered, scattered, 1, 1, 1, 1)
    stacks = tuple(MergedStack(("f" * 900,) * 200, scattered, "hook", "waiting") for _ in range(300))
    problems = tuple(InputProblem(f"{n:x}" * 200, "r" * 290 + chr(97 + n % 26)) for n in range(1000))
    return (
        Diagnosis((finding,) * 400, Coverage(ranks, ranks), stacks, problems),
        Overview(ranks, 5, view.shapes * 100, LagMatrix(names, behind, waits, 3), (many,) * 200, 4000),
    )


def test_stays_below_2_mb_at_24_576_ranks_whatever_is_in_it() -> None:
    page = html.page(*huge(), "dumps")
    Page(page)
    assert len(page.encode()) < 2_000_000


def test_large_jobs_are_drawn_in_tiles_and_the_odd_ranks_named() -> None:
    behind = np.zeros((24_576, 1), np.int64)
    behind[10_510] = 3
    lag = LagMatrix(("tp",), behind, np.zeros((24_576, 1), np.bool_), 0)
    card = matrix.card(lag, [10_510], [])
    assert card is not None
    assert "A cell is 8 neighbouring ranks" in card and "3 behind: rank 10510" in card
    tile = 10_510 // 8
    for cls in ("k4", "ring culprit"):
        assert f'class="{cls}" d="M{tile % 64 * 8} {tile // 64 * 8}h8v8h-8z"' in card


@pytest.mark.parametrize("ranks", [1, 40, 41, 63, 512, 4096, 4097])
def test_every_rank_is_in_the_picture_once(ranks: int) -> None:
    lag = LagMatrix(("tp",), np.zeros((ranks, 1), np.int64), np.zeros((ranks, 1), np.bool_), 0)
    card = matrix.card(lag, [], [])
    assert card is not None
    if ranks <= matrix.TABLE_RANKS_MAX:
        assert card.count("<td") == ranks
        return
    widths = [int(width) for width in re.findall(r"M\d+ \d+h(\d+)v8h-\d+z", card)]
    assert sum(widths) // 8 == ranks if ranks <= 4096 else sum(widths) // 8 == -(-ranks // 8)


def test_a_job_without_a_call_has_no_matrix() -> None:
    assert (
        matrix.card(LagMatrix((), np.zeros((2, 0), np.int64), np.zeros((2, 0), np.bool_), 0), [], []) is None
    )


def test_colours_are_those_of_the_product() -> None:
    product = (ROOT / "static/css/tokens.css").read_text()
    page = (ROOT / "clusterwatch/cli/report/page.css").read_text()
    light, dark = product.split("[data-theme=dark]", 1)[0], product.split("[data-theme=dark]", 1)[1]
    for theirs, ours in ((light, page.split("@media")[0]), (dark, page.split("@media")[1])):
        colours = dict(re.findall(r"--([a-z0-9-]+):(#[0-9a-f]{6})\b", theirs))
        stops = re.search(r"--seq:([^;]+);", theirs)
        assert stops is not None
        used = dict(re.findall(r"--([a-z0-9-]+):\s*(#[0-9a-f]{6})\b", ours))
        for name, value in used.items():
            if re.fullmatch(r"k\d", name):
                assert value in stops[1].split(",")
            elif not name.startswith("on"):
                assert value == colours[name], name


def test_elements_escape_what_they_are_given() -> None:
    made = el("b", "<i>&", el("i", "\x1b"), title='"x" onclick=1')
    assert made == '<b title="&quot;x&quot; onclick=1">&lt;i&gt;&amp;<i>\N{REPLACEMENT CHARACTER}</i></b>'


def test_the_command_writes_the_page_and_still_prints_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(stuck_job(), tmp_path / "job-7")
    target = tmp_path / "out.html"
    assert main(["analyze", str(folder), "--html", str(target)]) == 2
    assert capsys.readouterr().out.startswith("Rank 5 never joined")
    assert "missing rank: job-7" in target.read_text()


def test_a_page_that_cannot_be_written_costs_the_exit_code_and_not_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(stuck_job(), tmp_path / "job")
    for target, code in ((tmp_path / "none" / "x.html", 66), (tmp_path, 64)):
        assert main(["analyze", str(folder), "--html", str(target)]) == code
        said = capsys.readouterr()
        assert said.out.startswith("Rank 5 never joined")
        assert "cannot be written" in said.err and str(target) in said.err
