"""Warnings that a process survives, and lines that show that it works."""

from __future__ import annotations

import pytest

from collectors.formats.job_log import parse
from collectors.formats.job_log_tone import goes_on


def kinds(line: str) -> list[str]:
    return [event.kind for event in parse("job.log", [line.encode() + b"\n"]).events]


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: retry after ConnectionResetError: Connection reset by peer (attempt 1 of 5), ok",
        "2026-12-02 09:00:00,123 WARNING trainer: CUDA out of memory, halving the batch",
        "2026-12-02 09:00:00 - data.reader - INFO - Connection closed by peer, trying the next server",
        "[rank3]: [WARNING] found inf in gradients, step skipped",
        "ConnectionError: Connection reset by peer; retrying in 5 s",
        "Connection reset by peer (attempt 4/5)",
    ],
)
def test_a_warning_or_a_retry_is_no_event(line: str) -> None:
    assert kinds(line) == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ERROR: Connection reset by peer", "peer_closed"),
        ("Connection reset by peer (attempt 5 of 5)", "peer_closed"),
        ("Connection reset by peer, retry limit reached: giving up", "peer_closed"),
        ("RuntimeError: failed after 5 retries: Connection reset by peer", "peer_closed"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out_of_memory"),
        (
            "node1:12:13 [0] transport/net_ib.cc:1 NCCL WARN NET/Socket : connection refused, retrying",
            "peer_closed",
        ),
        ("[E1202 09:10:00.1 WARNING.cpp:1] Connection closed by peer [10.0.0.1]:1", "peer_closed"),
    ],
)
def test_errors_stay_events(line: str, kind: str) -> None:
    assert kinds(line) == [kind]


@pytest.mark.parametrize(
    "line", ["step 12 ok", "Epoch: 3", "iteration 4000/9000", "| 3.2 it/s", "run completed"]
)
def test_work_is_told_by_steps_rates_and_the_end_of_training(line: str) -> None:
    assert goes_on(line)


@pytest.mark.parametrize(
    "line", ["failed at step 12", "closing the loader in epoch 3", "batch size", "wandb: epoch 3", "exit 1"]
)
def test_words_of_an_end_are_no_work(line: str) -> None:
    assert not goes_on(line)
