"""The bar: only on a terminal, ten times a second at most, gone afterwards."""

from __future__ import annotations

import io

import pytest

from clusterwatch.cli.progress import Bar, line
from clusterwatch.readers.folder import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def at(done: int) -> Progress:
    return Progress(done, 1_000, done * 1_000_000, 1_000_000_000)


def test_says_share_files_speed_and_time_left() -> None:
    text = line(at(250), 2.0)
    assert text == "reading [######..................]  25%  250 of 1,000 files, 125 MB/s, 6 s left"
    assert line(Progress(0, 3, 0, 0), 0.0).endswith("0 of 3 files, 0 MB/s")
    assert "1 min 30 s left" in line(at(100), 10.0) and "2 h 46 min left" in line(at(1), 10.0)


def test_draws_at_most_ten_times_a_second_and_clears_its_line() -> None:
    terminal, clock = Terminal(), Clock()
    with Bar(terminal, clock) as bar:
        for done in range(1_000):
            clock.now += 0.001
            bar.show(at(done))
    drawn = terminal.getvalue().split("\r")[1:]
    assert 9 <= len(drawn) <= 11
    assert drawn[-1] == "\033[K" and all(text.startswith("reading") for text in drawn[:-1])


def test_draws_nothing_for_work_shorter_than_a_tenth_of_a_second() -> None:
    terminal, clock = Terminal(), Clock()
    with Bar(terminal, clock) as bar:
        clock.now += 0.05
        bar.show(at(1_000))
    assert terminal.getvalue() == ""


def test_draws_nothing_where_there_is_no_terminal() -> None:
    out, clock = io.StringIO(), Clock()
    with Bar(out, clock) as bar:
        clock.now += 5
        bar.show(at(10))
    assert not bar.visible and out.getvalue() == ""


def test_clears_its_line_when_the_work_fails() -> None:
    terminal, clock = Terminal(), Clock()
    with pytest.raises(KeyboardInterrupt), Bar(terminal, clock) as bar:
        clock.now += 5
        bar.show(at(10))
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith("\r\033[K")


def test_a_terminal_that_goes_away_stops_the_bar_only() -> None:
    class Gone(Terminal):
        def flush(self) -> None:
            raise OSError(5, "Input/output error")

    clock = Clock()
    with Bar(Gone(), clock) as bar:
        clock.now += 5
        bar.show(at(10))
        assert not bar.visible
