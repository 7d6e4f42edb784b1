"""What a rank does at this moment, decided once for live frames and served pages."""

from __future__ import annotations

import numpy as np
import pytest

from clusterwatch.analysis import motion


def calls(*rows: tuple[int, int, int, bool]) -> motion.Calls:
    """(rank row, group, number, in flight) rows."""
    place, group, number, flying = (np.array(column) for column in zip(*rows, strict=True))
    return motion.Calls(place, group, int(group.max()) + 1, number, flying.astype(bool))


def states(
    rank_count: int, rows: motion.Calls, moves: tuple[int, ...] = (), **masks: tuple[int, ...]
) -> list[str]:
    waiting, behind = motion.waiting_and_behind(rank_count, rows)

    def mask(ranks: tuple[int, ...]) -> np.ndarray:
        return np.isin(np.arange(rank_count), ranks)

    found = motion.states(
        exits=np.where(mask(masks.get("failed", ())), motion.EXIT_FAILED, motion.EXIT_NONE),
        silent=mask(masks.get("silent", ())),
        stopped=mask(masks.get("stopped", ())),
        moves=mask(moves),
        waiting=waiting,
        behind=behind,
    )
    return [motion.RANK_STATES[state] for state in found]


def test_a_rank_below_the_number_its_peers_wait_at_is_behind() -> None:
    rows = calls((0, 0, 7, True), (1, 0, 7, True), (2, 0, 6, False))
    assert states(3, rows) == ["waiting", "waiting", "behind"]
    assert motion.waiting_and_behind(3, rows)[1].tolist() == [0, 0, 1]


def test_a_rank_that_waits_elsewhere_is_a_waiter_though_peers_wait_for_it() -> None:
    rows = calls((0, 0, 7, True), (1, 0, 6, False), (1, 1, 3, True), (2, 1, 2, False))
    assert states(3, rows) == ["waiting", "waiting", "behind"]


def test_a_group_in_which_nobody_waits_puts_nobody_behind() -> None:
    rows = calls((0, 0, 7, False), (1, 0, 5, False))
    assert states(2, rows) == ["still", "still"]


def test_what_is_surer_decides_first() -> None:
    rows = calls((0, 0, 7, True), (1, 0, 6, False), (2, 0, 6, False), (3, 0, 6, False), (4, 0, 6, False))
    said = states(5, rows, moves=(1, 2, 3, 4), failed=(2,), silent=(2, 3), stopped=(3, 4))
    assert said == ["waiting", "moving", "failed", "unknown", "stopped"]


@pytest.mark.parametrize(
    ("ended", "signal", "code", "clean", "expected"),
    [
        (False, None, None, None, (motion.EXIT_NONE, "")),
        (True, 9, None, True, (motion.EXIT_FAILED, "ended by signal 9")),
        (True, None, 3, True, (motion.EXIT_FAILED, "exit code 3")),
        (True, None, 0, None, (motion.EXIT_ENDED, "")),
        (True, None, None, True, (motion.EXIT_ENDED, "")),
        (True, None, None, None, (motion.EXIT_FAILED, "ended without a clean exit")),
    ],
)
def test_the_exit_status_beats_what_the_hook_saw(
    ended: bool, signal: int | None, code: int | None, clean: bool | None, expected: tuple[int, str]
) -> None:
    assert motion.how_it_ended(ended, signal=signal, code=code, clean=clean) == expected


def test_the_recorders_own_count_serves_where_no_sequence_is_told() -> None:
    assert motion.newest_number(np.array([4, -1]), np.array([9, 9])).tolist() == [4, 9]
