"""The GPU of a rank, by the order of trust of what is known.

1. The driver: this process holds that GPU (``nvml_pid``).
2. UUIDs in the environment, at the place of the local rank (``env_uuid``).
3. Indices in the environment, through the indices of when the rank was first seen (``env_index``).

Minor numbers are never used: they are not the driver's indices. Inside a control group of devices the first
GPU is 0 whichever it is, so an index counts only where it has one meaning. Unknown is better than wrong.
Source: CUDA programming guide, "CUDA environment variables"; sbatch(1), SLURM_JOB_GPUS; gres.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from collectors.sources.gpu_identity import UUID
from collectors.sources.gpu_processes import DEVICE
from collectors.sources.process_identity import Identity

UNKNOWN: Final = "unknown"
NVML_PID: Final = "nvml_pid"
ENV_UUID: Final = "env_uuid"
ENV_INDEX: Final = "env_index"
DEVICES_MAX: Final = 128
_OLD_MIG: Final = re.compile(r"MIG-(GPU-[0-9a-fA-F-]{36})/(\d{1,3})/\d{1,3}")
_ALLOTMENTS: Final = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "NVIDIA_VISIBLE_DEVICES")
_RANGE: Final = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?")


@dataclass(frozen=True, slots=True)
class Placement:
    """``uuid`` None: not known. ``gpu_instance``: of MIG, where the name tells it."""

    uuid: str | None = None
    source: str = UNKNOWN
    gpu_instance: int | None = None


def placement(
    rank: Identity, held: Sequence[str], indices: Mapping[int, str], shared: frozenset[str] = frozenset()
) -> Placement:
    """Where a rank computes.

    Args:
        held: GPUs and MIG instances that the driver says this rank's processes hold.
        indices: NVML's index -> UUID when the rank began.
        shared: GPUs that other ranks hold, too.
    """
    by_environment = _of_uuids(rank, indices) or _of_indices(rank, indices)
    if held:
        return _of_held(held, by_environment, shared)
    return by_environment or Placement()


def _of_held(held: Sequence[str], expected: Placement | None, shared: frozenset[str]) -> Placement:
    """Of several, the one that the environment means: ranks often hold some memory of a neighbour's GPU."""
    devices = [_named(device) for device in held]
    wholes = [device for device in devices if not (device.uuid or "").startswith("MIG-")] or devices
    if len({device.uuid for device in wholes}) > 1:
        meant = [device for device in wholes if expected is not None and device.uuid == expected.uuid]
        alone = [device for device in wholes if device.uuid not in shared]
        wholes = meant or (alone if len(alone) == 1 else [Placement()])
    chosen = wholes[0]
    return Placement(chosen.uuid, NVML_PID if chosen.uuid else UNKNOWN, chosen.gpu_instance)


def _of_uuids(rank: Identity, indices: Mapping[int, str]) -> Placement | None:
    """By CUDA_VISIBLE_DEVICES, then by what a container was given, which CUDA counts in the bus's order."""
    visible = _words(rank.values.get("CUDA_VISIBLE_DEVICES"))
    if visible is not None and visible and _is_device(visible[0]):
        words = _leading(visible)
        place = _place(rank, len(words))
        return None if place is None else _resolved(words[place], indices)
    given = _words(rank.values.get("NVIDIA_VISIBLE_DEVICES"))
    if not given or not all(_is_device(word) for word in given):
        return None
    order = {uuid: index for index, uuid in indices.items()}
    devices = [found.uuid for word in given if (found := _resolved(word, indices)) and found.uuid]
    if len(devices) != len(given) or (len(devices) > 1 and not all(device in order for device in devices)):
        return None
    devices.sort(key=lambda device: order.get(device, 0))
    numbers = list(range(len(devices))) if visible is None else _numbers(visible)
    place = _place(rank, len(numbers))
    if place is None or numbers[place] >= len(devices):
        return None
    return _resolved(devices[numbers[place]], indices)


def _of_indices(rank: Identity, indices: Mapping[int, str]) -> Placement | None:
    """By numbers, where they have one meaning only."""
    given = _words(rank.values.get("CUDA_VISIBLE_DEVICES"))
    lists = map(_ranges, map(rank.values.get, _ALLOTMENTS))
    allotted = next((numbers for numbers in lists if numbers), [])
    if given is not None:
        visible = _numbers(given)
        place = _place(rank, len(visible))
        number = None if place is None else _absolute(rank, visible[place], visible, allotted, len(indices))
    elif allotted:
        place = _place(rank, len(allotted))
        number = None if place is None else allotted[place]
    else:
        # Every GPU can be seen: true of the whole node, or of a process in no closed group.
        whole = rank.number("LOCAL_WORLD_SIZE") == len(indices) or not rank.group.is_closed
        number = rank.local_rank if whole else None
    uuid = indices.get(number) if number is not None else None
    return Placement(uuid, ENV_INDEX) if uuid else None


def _absolute(rank: Identity, number: int, visible: list[int], allotted: list[int], gpus: int) -> int | None:
    """NVML's index that a number of CUDA_VISIBLE_DEVICES means; None where it may mean two."""
    if allotted:
        inside = allotted[number] if number < len(allotted) else None
        if sorted(visible) == sorted(allotted) or inside is None:
            return number if number in allotted else None
        if any(one not in allotted for one in visible):
            return inside
        return number if inside == number else None
    counts_from_0 = max(visible) < len(visible)
    if not rank.group.is_closed or not counts_from_0 or len(visible) == gpus:
        return number
    return None


def _place(rank: Identity, visible: int) -> int | None:
    """Which of the visible devices is this rank's: the only one, or that at its local rank."""
    if visible == 1:
        return 0
    local_rank = rank.local_rank if rank.local_rank is not None else rank.number("SLURM_LOCALID")
    return local_rank if local_rank is not None and local_rank < visible else None


def _words(text: str | None) -> list[str] | None:
    """Words between commas; None where the variable is not set or means every GPU."""
    if text is None or text.strip().lower() == "all":
        return None
    return [word.strip() for word in text.split(",")][:DEVICES_MAX]


def _leading(words: list[str]) -> list[str]:
    """CUDA sees no device after a word it does not know."""
    end = next((place for place, word in enumerate(words) if not _is_device(word)), len(words))
    return words[:end]


def _numbers(words: list[str]) -> list[int]:
    found: list[int] = []
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 3):
            break
        found.append(int(word))
    return found


def _ranges(text: str | None) -> list[int]:
    """Indices of Slurm: ``0,2,4-7``."""
    found: list[int] = []
    for word in (text or "").split(",")[:DEVICES_MAX]:
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            return []
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found[:DEVICES_MAX]


def _is_device(word: str) -> bool:
    return word.startswith(("GPU-", "MIG-")) and bool(DEVICE.fullmatch(word))


def _resolved(word: str, indices: Mapping[int, str]) -> Placement | None:
    """A device by its name, which CUDA takes cut short, too, as long as it is one GPU's only."""
    if word.startswith("MIG-") or UUID.fullmatch(word):
        named = _named(word)
        return Placement(named.uuid, ENV_UUID, named.gpu_instance)
    known = {uuid for uuid in indices.values() if uuid.lower().startswith(word.lower())}
    return Placement(known.pop(), ENV_UUID) if len(known) == 1 else None


def _named(device: str) -> Placement:
    """A device as the driver names it; an older name of a MIG instance has its GPU's in it."""
    if match := _OLD_MIG.fullmatch(device):
        return Placement(match[1], NVML_PID, int(match[2]))
    return Placement(device, NVML_PID)
