"""A standing fault is told once, and its end once, by a look that could see the part."""

from __future__ import annotations

from collectors.sources.base import Reading, Sample, SourceEvent
from collectors.sources.news import STOOD_MAX, News

GPU, PORT = "gpu/GPU-1", "port/mlx5_0/1"


def fault(entity: str = PORT, kind: str = "link_down", **more: object) -> SourceEvent:
    return SourceEvent(entity, kind, f"{entity} {kind}", standing=True, attributes=more)  # type: ignore[arg-type]


def seen(*events: SourceEvent, **values: float | None) -> Reading:
    """A look with a value of each entity; None: it could not be read."""
    samples = [Sample(entity.replace("__", "/"), "some_count", value) for entity, value in values.items()]
    return Reading(samples, events)


def told(news: News, reading: Reading, source: str = "one") -> list[tuple[str, str]]:
    return [(event.kind, str(event.attributes.get("kind", ""))) for event in news.fresh(source, reading)]


def test_a_fault_and_its_end_are_told_once_each() -> None:
    news = News()
    looks = [Reading((), [fault()]), Reading((), [fault()]), Reading(), Reading()]
    assert [told(news, look) for look in looks] == [
        [("link_down", "")], [], [("fault_over", "link_down")], [],
    ]  # fmt: skip


def test_what_comes_back_is_told_again() -> None:
    news = News()
    looks = [Reading((), [fault()]), Reading(), Reading((), [fault()])]
    assert [told(news, look)[0][0] for look in looks] == ["link_down", "fault_over", "link_down"]


def test_what_happens_twice_is_told_twice() -> None:
    news, event = News(), SourceEvent("gpu/a", "xid", "Xid 94")
    assert [told(news, Reading((), [event]), "kernel_log") for _ in range(2)] == [[("xid", "")]] * 2


def test_the_end_names_its_part_and_is_information() -> None:
    news = News()
    news.fresh("one", Reading((), [fault()]))
    (end,) = news.fresh("one", Reading())
    assert (end.entity, end.severity, end.message, end.standing) == (
        PORT, "info", "link down is over", False,
    )  # fmt: skip


def test_a_part_that_could_not_be_read_is_not_healed() -> None:
    news = News()
    ecc = fault(GPU, "ecc")
    assert told(news, Reading([Sample(GPU, "power_w", 90.0)], [ecc])) == [("ecc", "")]
    driver_gone = Reading([Sample("host", "nvml_readable_count", None, "no_answer")])
    unknown = Reading([Sample(GPU, "power_w", None, "paused")])
    assert [told(news, look) for look in (driver_gone, unknown, Reading())] == [[], [], []]
    assert told(news, Reading([Sample(GPU, "power_w", 90.0)])) == [("fault_over", "ecc")]


def test_what_stands_still_after_a_look_that_saw_nothing_is_no_news() -> None:
    news = News()
    ecc, known = fault(GPU, "ecc"), [Sample(GPU, "power_w", 90.0)]
    news.fresh("one", Reading(known, [ecc]))
    news.fresh("one", Reading([Sample(GPU, "power_w", None, "paused")]))
    assert told(news, Reading(known, [ecc])) == []


def test_a_part_without_values_of_its_own_needs_a_look_that_saw_anything() -> None:
    news = News()
    news.fresh("one", seen(fault("pci/0000:18:00.0", "gpu_missing"), host=1.0))
    assert told(news, seen(host=None)) == []
    assert told(news, seen(host=1.0)) == [("fault_over", "gpu_missing")]


def test_of_two_sources_the_last_that_sees_it_tells_the_end() -> None:
    news = News()
    assert told(news, Reading((), [fault()]), "one") == [("link_down", "")]
    assert told(news, Reading((), [fault()]), "two") == []
    assert told(news, Reading(), "one") == []
    assert told(news, Reading(), "two") == [("fault_over", "link_down")]


def test_a_fault_that_changes_is_told_again() -> None:
    news = News()
    looks = [seen(fault(state="INIT")), seen(fault(state="DOWN")), seen(fault(state="DOWN"))]
    assert [told(news, look) for look in looks] == [[("link_down", "")], [("link_down", "")], []]


def test_what_is_remembered_of_parts_that_never_come_back_is_bounded() -> None:
    news = News()
    for number in range(3 * STOOD_MAX):
        news.fresh("one", Reading([Sample(f"gpu/{number}", "power_w", 1.0)], [fault(f"gpu/{number}", "ecc")]))
    assert len(news._stood["one"]) == STOOD_MAX
