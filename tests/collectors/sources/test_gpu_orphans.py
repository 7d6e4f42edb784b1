"""GPU memory without an owner: who is judged to hold it, and who is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.sources import gpu_orphans
from collectors.sources.base import SourceEvent
from collectors.sources.gpu_holders import Board, Held, Holders
from collectors.sources.gpu_orphans import Orphans
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import write

GPU = "GPU-00000000-0000-0000-0000-000000000001"
GIB = 2**30


def listed(root: Path, *pids: int, used: int | None = 3 * GIB) -> Path:
    said = {"by_uuid": {GPU: list(pids)}, "used_bytes": {GPU: [used] * len(pids)}}
    return write(root, {"commands/gpu_processes.json": json.dumps(said)})


def process(root: Path, pid: int, state: str = "S", start: int = 50, flags: int = 0, killed: int = 0) -> None:
    words = [state, "1", "1", "1", "0", "-1", str(flags), *["0"] * 12, str(start), "0"]
    write(root, {
        f"proc/{pid}/stat": f"{pid} (a b) c) {' '.join(words)}\n",
        f"proc/{pid}/status": f"Name:\tpython\nSigPnd:\t{0:016x}\nShdPnd:\t{killed:016x}\n",
    })  # fmt: skip


def gone(root: Path, pid: int) -> None:
    for name in ("stat", "status"):
        (root / f"proc/{pid}/{name}").unlink()
    (root / f"proc/{pid}").rmdir()


def looks(root: Path, orphans: Orphans, *times: float) -> list[list[SourceEvent]]:
    return [orphans.events(Tree(root), at_s) for at_s in times]


def test_memory_of_a_process_that_is_gone_is_told_at_the_second_look(tmp_path: Path) -> None:
    orphans = Orphans()
    process(listed(tmp_path, 70), 70)
    assert looks(tmp_path, orphans, 0.0) == [[]]
    gone(tmp_path, 70)
    first, second = looks(tmp_path, orphans, 60.0, 120.0)
    assert first == []
    (event,) = second
    assert (event.entity, event.kind, event.standing) == (f"gpu/{GPU}", "gpu_memory_orphaned", True)
    assert event.attributes == {"pid": 70, "pids": [70], "state": "gone", "used_bytes": 3 * GIB}
    listed(tmp_path)
    assert looks(tmp_path, orphans, 180.0) == [[]]


@pytest.mark.parametrize(
    ("state", "flags", "killed", "told"),
    [
        ("D", 0, 0x100, "blocked"),  # SIGKILL waits
        ("D", 0x4, 0, "blocked"),  # exits already
        ("Z", 0, 0, "ended"),
        ("D", 0, 0x2, None),  # another signal: it waits for its file system
        ("D", 0x400000, 0, None),
        ("S", 0, 0x100, None),
        ("R", 0x4, 0, None),
    ],
)
def test_a_process_that_cannot_end(
    tmp_path: Path, state: str, flags: int, killed: int, told: str | None
) -> None:
    process(listed(tmp_path, 70), 70, state, flags=flags, killed=killed)
    _, events = looks(tmp_path, Orphans(), 0.0, 60.0)
    assert [event.attributes["state"] for event in events] == ([told] if told else [])


def test_a_process_that_was_never_seen_may_be_of_another_namespace(tmp_path: Path) -> None:
    write(listed(tmp_path, 70), {"proc/loadavg": "0 0 0 1/2 3\n"})
    assert looks(tmp_path, Orphans(), 0.0, 60.0, 120.0) == [[], [], []]


def test_a_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    orphans = Orphans()
    process(listed(tmp_path, 70), 70, "Z", start=50)
    assert looks(tmp_path, orphans, 0.0) == [[]]
    process(tmp_path, 70, "Z", start=90)
    first, second = looks(tmp_path, orphans, 60.0, 120.0)
    assert (first, len(second)) == ([], 1)
    process(tmp_path, 70, "S", start=120)
    assert looks(tmp_path, orphans, 180.0, 240.0) == [[], []]


def test_one_event_per_gpu_whose_attributes_stay(tmp_path: Path) -> None:
    orphans = Orphans()
    for pid in (70, 71):
        process(listed(tmp_path, 70, 71), pid, "Z")
    _, (before,) = looks(tmp_path, orphans, 0.0, 60.0)
    listed(tmp_path, 70, 71, used=GIB)
    ((after,),) = looks(tmp_path, orphans, 120.0)
    assert before.attributes["pids"] == [70, 71] and before.attributes["used_bytes"] == 6 * GIB
    assert before.attributes == after.attributes and before.message == after.message


def test_memory_of_unknown_size_stays_unknown(tmp_path: Path) -> None:
    process(listed(tmp_path, 70, used=None), 70, "Z")
    _, (event,) = looks(tmp_path, Orphans(), 0.0, 60.0)
    assert event.attributes["used_bytes"] is None and "0.0 GiB" not in event.message


def test_live_only_a_list_made_after_the_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, at_s = 1_000.0, 990.0
    missing = 2**22 - 1
    monkeypatch.setattr("collectors.sources.gpu_orphans.time.monotonic", lambda: now_s)
    monkeypatch.setattr(gpu_orphans, "_sees_all", lambda _: True)
    monkeypatch.setattr(gpu_orphans, "holders", lambda *_: Holders(at_s, (Held(GPU, missing, GIB),)))
    orphans, tree = Orphans(), Tree()
    assert orphans.events(tree, 0.0) == []
    now_s = 1_060.0
    assert orphans.events(tree, 60.0) == []  # the same list as before
    at_s = 1_020.0
    assert len(orphans.events(tree, 60.0)) == 1


def test_the_list_of_the_worker_is_kept_until_it_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 5.0
    monkeypatch.setattr("collectors.sources.gpu_holders.time.monotonic", lambda: now_s)
    board = Board()
    assert board.newest() is None
    board.tell({"by_uuid": {GPU: [5, True, -1, 2**40, "6"]}, "used_bytes": {GPU: [2**64 - 1] * 5}})
    board.tell({"error": "no_answer"})
    assert board.newest() == Holders(5.0, (Held(GPU, 5, None),))
    now_s = 126.0
    assert board.newest() is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([GPU, "x"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(json_values, json_values, st.binary(max_size=80))
def test_hostile_lists_and_processes(tmp_path: Path, by_uuid: object, used: object, stat: bytes) -> None:
    said = json.dumps({"by_uuid": by_uuid, "used_bytes": used})
    write(tmp_path, {"commands/gpu_processes.json": said, "proc/1/stat": stat, "proc/1/status": stat})
    looks(tmp_path, Orphans(), 0.0, 60.0)
