"""Files shared out over the cores: each is read by one process, and what is found comes back at once.

In: files and packed archives, and what to do with a blob. Out: results, in no certain order; a file that
costs a process its life is told as an ``InputProblem``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from clusterwatch.analysis.model import InputProblem
from clusterwatch.readers import workers
from clusterwatch.readers.archives import Blob, Stream, members
from clusterwatch.readers.progress import Progress, Show

Task = Blob | Stream
Found = TypeVar("Found")


def read(
    tasks: Sequence[Task],
    each: Callable[[Blob], Iterator[Found]],
    *,
    show: Show | None = None,
    processes: int | None = None,
    order: Sequence[int] | None = None,
) -> Iterator[Found | InputProblem]:
    """What ``each`` finds in every blob of ``tasks``.

    Args:
        each: results of one blob; it must not raise.
        show: called after each task.
        processes: how many read at a time; as many as the cores and the amount suggest when not given.
        order: numbers of the tasks, those to begin with first.
    """

    def work(number: int) -> Iterator[Found]:
        for blob in members(tasks[number]):
            yield from each(blob)

    total = sum(task.size_bytes for task in tasks)
    if processes is None:
        processes = workers.processes_for(total, len(tasks))
    files_done = bytes_done = 0
    for number, result in workers.run(large_first(tasks) if order is None else order, work, processes):
        if isinstance(result, workers.Died):
            yield InputProblem(tasks[number].name, result.why)
        elif result is not None:
            yield result
        if result is None or isinstance(result, workers.Died):
            files_done, bytes_done = files_done + 1, bytes_done + tasks[number].size_bytes
            if show is not None:
                show(Progress(files_done, len(tasks), bytes_done, total))


def large_first(tasks: Sequence[Task]) -> list[int]:
    """Large ones first, by powers of two, so that no process ends long after the others; then by name."""
    return sorted(range(len(tasks)), key=lambda n: (-tasks[n].size_bytes.bit_length(), tasks[n].name))
