"""A fault that stands is told when it begins and when it changes."""

from __future__ import annotations

from collectors.sources.base import SourceEvent
from collectors.sources.news import News


def fault(width: int) -> SourceEvent:
    return SourceEvent("pci/a", "pcie_degraded", f"x{width}", attributes={"width": width}, standing=True)


def test_a_standing_fault_is_told_once_until_it_changes_or_comes_back() -> None:
    news = News()
    told = [
        len(news.fresh("pcie", events)) for events in ([fault(8)], [fault(8)], [fault(4)], [], [fault(4)])
    ]
    assert told == [1, 0, 1, 0, 1]


def test_what_happens_twice_is_told_twice() -> None:
    news, event = News(), SourceEvent("gpu/a", "xid", "Xid 94")
    assert [len(news.fresh("kernel_log", [event])) for _ in range(2)] == [1, 1]


def test_a_fault_that_two_sources_see_is_told_once_and_again_when_both_had_lost_it() -> None:
    news = News()
    assert news.fresh("pcie", [fault(8)]) and not news.fresh("other", [fault(8)])
    assert not news.fresh("pcie", []) and not news.fresh("other", [])
    assert news.fresh("other", [fault(8)])
