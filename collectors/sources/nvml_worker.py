"""The process that asks the GPU driver through NVML: a call that hangs hangs here and not in the agent.

In: one JSON object a line on stdin, ``{"ask": "gpus"}``, ``{"ask": "values", "uuid": ...}``, ``{"ask":
"quick", "uuids": [...]}`` or ``{"ask": "processes"}``. Out: one JSON object a line on stdout. It ends when
stdin does or at SIGTERM, and knows no deadline: whoever started it does. Values go by nvidia-smi's column
names and in its units. Source: nvml.h, through pynvml.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TextIO

GPUS_MAX: Final = 128
LINE_MAX_CHARS: Final = 4_096
NOT_AVAILABLE: Final = "not_available"
NOT_SUPPORTED: Final = "not_supported"
_REASON_OF_CODE: Final = {
    3: NOT_SUPPORTED,
    4: "eperm",
    9: NOT_AVAILABLE,
    10: "no_answer",
    12: NOT_AVAILABLE,
    13: NOT_SUPPORTED,
    15: "lost",
    16: "reset_required",
    999: "unknown_error",
}
"""NVML_ERROR_* -> reason."""
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1
_MEMORY_TEMPERATURE_FIELD, _RECOVERY_ACTION_FIELD = 82, 230
_VIOLATION_POLICIES: Final = {
    "POWER": 0,
    "THERMAL": 1,
    "SYNC_BOOST": 2,
    "BOARD_LIMIT": 3,
    "LOW_UTIL": 4,
    "RELIABILITY": 5,
}
"""Cause, as DCGM names it -> NVML_PERF_POLICY_*."""

Call = Callable[[Any, Any], float | dict[str, float]]
"""(pynvml, handle) -> one value, or several by column"""


class Driver:
    """NVML, begun once; what a GPU does not support is not asked again."""

    def __init__(self, nvml: Any) -> None:
        """Raises what ``nvmlInit`` raises."""
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._unsupported: dict[str, set[str]] = {}
        nvml.nvmlInit()

    def close(self) -> None:
        """Lets go of the driver: a GPU is not reset while anybody has it open."""
        with contextlib.suppress(
            Exception
        ):  # as in ``answer``; it is let go of at the end of the process, too
            self._nvml.nvmlShutdown()

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """What the driver says; ``error`` where it has only one."""
        try:
            match question.get("ask"):
                case "gpus":
                    return {"gpus": list(self._gpus())}
                case "values":
                    return {"values": self._values(str(question.get("uuid")))}
                case "quick":
                    wanted = question.get("uuids", [])[:GPUS_MAX]
                    return {"quick": {uuid: self._values(uuid, QUICK) for uuid in wanted}}
                case "processes":
                    running = dict(self._processes())
                    return {
                        "by_uuid": {uuid: [pid for pid, _ in held] for uuid, held in running.items()},
                        "used_bytes": {uuid: [used for _, used in held] for uuid, held in running.items()},
                    }
        except Exception as error:  # noqa: BLE001  pynvml's errors have no base of their own where it is a fake or old
            return {"error": reason(error)}
        return {"error": "unreadable"}

    def _gpus(self) -> Iterator[dict[str, Any]]:
        """Each GPU that answers; the place of one that does not stays empty, and nobody moves up."""
        self._handles = {}
        for index in range(min(self._nvml.nvmlDeviceGetCount(), GPUS_MAX)):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
                bdf = _text(self._nvml.nvmlDeviceGetPciInfo(handle).busId)
            except Exception as error:  # noqa: BLE001  as in ``answer``: one GPU must not cost the others
                yield {"index": index, "error": reason(error)}
                continue
            self._handles.setdefault(uuid, handle)
            yield {"index": index, "uuid": uuid, "bdf": bdf}

    def _values(self, uuid: str, columns: Iterable[str] | None = None) -> dict[str, float | str]:
        """Column -> number, or the reason why there is none."""
        if uuid not in self._handles:
            list(self._gpus())
        handle = self._handles[uuid]
        unsupported = self._unsupported.setdefault(uuid, set())
        found: dict[str, float | str] = {}
        for column in CALLS if columns is None else columns:
            call = CALLS[column]
            if column in unsupported:
                found[column] = NOT_SUPPORTED
                continue
            try:
                value = call(self._nvml, handle)
            except Exception as error:  # noqa: BLE001  as in ``answer``: one value must not cost the others
                found[column] = reason(error)
                if found[column] == NOT_SUPPORTED:
                    unsupported.add(column)
                continue
            found |= value if isinstance(value, dict) else {column: value}
        return found

    def _processes(self) -> Iterator[tuple[str, list[tuple[int, int | None]]]]:
        """Of each GPU its processes and the memory they hold, where the driver tells that."""
        if not self._handles:
            list(self._gpus())
        for uuid, handle in self._handles.items():
            with contextlib.suppress(Exception):  # as in ``answer``; a GPU that does not tell is left out
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                yield uuid, [(int(process.pid), _used(process)) for process in running]


def reason(error: Exception) -> str:
    """Why there is no value, in one word."""
    if isinstance(error, AttributeError | ImportError | KeyError):
        return NOT_AVAILABLE  # a pynvml or a GPU that is not there
    return _REASON_OF_CODE.get(getattr(error, "value", None) or 0, "unreadable")


def _used(process: Any) -> int | None:
    used = getattr(process, "usedGpuMemory", None)
    return used if isinstance(used, int) else None


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def _utilization(nvml: Any, handle: Any) -> dict[str, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization.gpu": rates.gpu, "utilization.memory": rates.memory}


def _memory(nvml: Any, handle: Any) -> dict[str, float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory.used": memory.used / 2**20, "memory.free": memory.free / 2**20}


def _rows(nvml: Any, handle: Any) -> dict[str, float]:
    names = ("correctable", "uncorrectable", "pending", "failure")
    rows = nvml.nvmlDeviceGetRemappedRows(handle)
    return {f"remapped_rows.{name}": int(value) for name, value in zip(names, rows, strict=True)}


def _reasons(nvml: Any, handle: Any) -> int:
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    ask = ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return int(ask(handle))


def _field(number: int) -> Call:
    def call(nvml: Any, handle: Any) -> float:
        (field,) = nvml.nvmlDeviceGetFieldValues(handle, [number])
        if field.nvmlReturn:
            raise nvml.NVMLError(field.nvmlReturn)
        return int(field.value.uiVal)

    return call


def _errors(kind: int, scope: int) -> Call:
    return lambda nvml, handle: int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, scope))


def _violation(policy: int) -> Call:
    return lambda nvml, handle: int(nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime)


CALLS: Final[dict[str, Call]] = {
    "temperature.gpu": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, 0),
    "temperature.memory": _field(_MEMORY_TEMPERATURE_FIELD),
    "temperature.gpu.tlimit": lambda nvml, handle: nvml.nvmlDeviceGetMarginTemperature(handle),
    "power.draw": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1_000,
    "enforced.power.limit": lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1_000,
    "energy": lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle),
    "clocks.sm": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK),
    "clocks.mem": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, _MEMORY_CLOCK),
    "utilization.gpu": _utilization,
    "memory.used": _memory,
    "clocks_event_reasons.active": _reasons,
    "pcie.link.gen.current": lambda nvml, handle: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
    "pcie.link.width.current": lambda nvml, handle: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
    "pcie.replays": lambda nvml, handle: nvml.nvmlDeviceGetPcieReplayCounter(handle),
    "ecc.errors.corrected.volatile.total": _errors(_CORRECTED, _VOLATILE),
    "ecc.errors.uncorrected.volatile.total": _errors(_UNCORRECTED, _VOLATILE),
    "ecc.errors.corrected.aggregate.total": _errors(_CORRECTED, _AGGREGATE),
    "ecc.errors.uncorrected.aggregate.total": _errors(_UNCORRECTED, _AGGREGATE),
    "remapped_rows.uncorrectable": _rows,
    "recovery_action": _field(_RECOVERY_ACTION_FIELD),
    **{f"violation.{cause.lower()}": _violation(policy) for cause, policy in _VIOLATION_POLICIES.items()},
}
"""Column -> how it is asked. Power and its limit are told in milliwatts."""
QUICK: Final = ("temperature.gpu", "power.draw", "clocks.sm", "clocks_event_reasons.active")
"""What is asked each second of the GPUs that are listed."""


def serve(questions: TextIO, answers: TextIO) -> None:
    """Answers until there are no more questions."""
    driver: Driver | None = None
    try:
        while line := questions.readline(LINE_MAX_CHARS):
            try:
                driver = driver or _begun()
                answer = driver.answer(json.loads(line))
            except Exception as error:  # noqa: BLE001  as in ``Driver.answer``: no library, no driver
                answer = {"error": reason(error)}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        if driver is not None:
            driver.close()


def _begun() -> Driver:
    import pynvml  # noqa: PLC0415  a machine without it still has an agent

    return Driver(pynvml)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # through ``serve``, which lets go of the driver
    # Whatever a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
