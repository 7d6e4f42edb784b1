"""The live driver through its worker process: a driver that answers, has errors, hangs, dies or is not there.

``pynvml`` is a fake that the worker imports in place of the real one; what it does is in its environment.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.sources import gpu_nvml
from collectors.sources.base import SourceEvent
from collectors.sources.gpu_holders import BOARD, Held
from collectors.sources.gpu_nvml import GpuNvmlSource
from collectors.sources.nvml_client import ARGV, NvmlClient
from collectors.sources.nvml_worker import serve
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import Found, write

A, B = (f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in "ab")
GA, GB = f"gpu/{A}", f"gpu/{B}"

FAKE = """
import os, time
from types import SimpleNamespace as Bag

DOES = os.environ.get("FAKE_DRIVER", "")
UUIDS = ["GPU-00000000-0000-0000-0000-00000000000" + n for n in "ab"]
READ = {}
print("a library that prints")

class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value

def nvmlInit():
    if DOES == "init_hangs":
        time.sleep(60)
    if DOES == "no_driver":
        raise NVMLError(9)
    if DOES == "dies":
        os._exit(3)

def nvmlDeviceGetCount():
    return 2

def nvmlDeviceGetHandleByIndex(index):
    if DOES == "first_is_lost" and index == 0:
        raise NVMLError(15)
    return index

def nvmlDeviceGetUUID(handle):
    return UUIDS[handle].encode()

def nvmlDeviceGetPciInfo(handle):
    return Bag(busId=("00000000:0A:00.0", "00000000:0B:00.0")[handle])

def nvmlDeviceGetTemperature(handle, sensor):
    if DOES == "first_hangs" and handle == 0:
        time.sleep(60)
    if DOES == "all_is_lost" and handle == 0:
        raise NVMLError(15)
    return 50 + handle + (READ.get(handle, 0) if DOES == "warms" else 0)

def nvmlDeviceGetPowerUsage(handle):
    READ[handle] = READ.get(handle, 0) + 1
    if handle == 0 and os.path.exists(os.path.join(os.path.dirname(__file__), "hangs")):
        time.sleep(60)
    if DOES == "all_is_lost" and handle == 0:
        raise NVMLError(15)
    return 535_000

def nvmlDeviceGetUtilizationRates(handle):
    if DOES == "all_is_lost" and handle == 0:
        raise NVMLError(15)
    raise NVMLError(3)

def nvmlDeviceGetFieldValues(handle, fields):
    return [Bag(nvmlReturn=0 if fields == [82] and DOES != "all_is_lost" else 3, value=Bag(uiVal=63))]

def nvmlDeviceGetRemappedRows(handle):
    if DOES == "all_is_lost" and handle == 0:
        raise NVMLError(15)
    return 4, 1, True, False

def nvmlDeviceGetComputeRunningProcesses(handle):
    return [Bag(pid=n + 1, usedGpuMemory=None if n else 7_000_000) for n in range(handle + 1)]
"""


class Live(Tree):
    """A recorded folder in the place of the machine itself."""

    is_live = True


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    write(tmp_path, {"proc/driver/nvidia/version": "x", "fake/pynvml.py": FAKE})
    return write(tmp_path, {"etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{A}", "{B}"]\n'})


@pytest.fixture(name="clients")
def _clients() -> Iterator[list[NvmlClient]]:
    made: list[NvmlClient] = []
    yield made
    for client in made:
        client.close()


def client_of(root: Path, does: str, clients: list[NvmlClient]) -> NvmlClient:
    env = {**os.environ, "PYTHONPATH": f"{root / 'fake'}{os.pathsep}{os.getcwd()}", "FAKE_DRIVER": does}
    clients.append(NvmlClient(ARGV, env))
    return clients[-1]


def look(source: GpuNvmlSource, root: Path, at_s: float = 0.0) -> tuple[Found, list[SourceEvent]]:
    reading = source.read(Live(root), at_s)
    return {(s.entity, s.metric): (s.value, s.quality) for s in reading.samples}, list(reading.events)


def test_a_driver_that_answers(root: Path, clients: list[NvmlClient]) -> None:
    source = GpuNvmlSource(client_of(root, "", clients))
    found, events = look(source, root)
    assert found["host", "nvml_readable_count"] == (1, "ok")
    assert found[GA, "temperature_c"] == (50, "ok") and found[GB, "temperature_c"] == (51, "ok")
    assert found[GA, "power_w"] == (535, "ok") and found[GA, "memory_temperature_c"] == (63, "ok")
    assert found[GA, "util_ratio"] == (None, "not_supported")
    assert found[GA, "sm_clock_mhz"] == (None, "not_available")  # a pynvml without the call
    assert found[GA, "row_remap_uncorrectable_total"] == (1, "ok")
    assert found[GB, "processes_count"] == (2, "ok")
    told = BOARD.newest()
    assert told is not None and told.held == (Held(A, 1, 7_000_000), Held(B, 1, 7_000_000), Held(B, 2))
    assert [(event.kind, event.severity) for event in events] == [("ecc", "warning")] * 2
    again, _ = look(source, root, 15.0)
    assert again[GA, "row_remap_uncorrectable_delta_count"] == (0, "ok")
    assert again[GA, "util_ratio"] == (None, "not_supported")


def test_clock_power_and_temperature_are_asked_each_second_and_the_rest_stays(
    root: Path, clients: list[NvmlClient]
) -> None:
    source = GpuNvmlSource(client_of(root, "warms", clients))
    look(source, root)
    for at_s in (1.0, 2.0):
        found, _ = look(source, root, at_s)
        assert found[GA, "temperature_c"] == (50 + at_s, "ok")
        assert found[GA, "row_remap_uncorrectable_total"] == (1, "ok")
        assert found[GA, "row_remap_uncorrectable_delta_count"] == (None, "first_sample")
        assert found["host", "nvml_readable_count"] == (1, "ok")
    found, _ = look(source, root, 15.0)
    assert found[GA, "row_remap_uncorrectable_delta_count"] == (0, "ok")


def test_a_gpu_that_begins_to_hang_between_two_whole_looks_is_found_at_once(
    root: Path, clients: list[NvmlClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_nvml, "QUICK_S", 0.4)
    monkeypatch.setattr(gpu_nvml, "GPU_S", 1.5)
    source = GpuNvmlSource(client_of(root, "", clients))
    look(source, root)
    assert hung(look(source, root, 1.0)[1]) == []
    write(root, {"fake/hangs": ""})
    for at_s in (2.0, 3.0):  # the second time only the other is asked
        found, events = look(source, root, at_s)
        assert found[GA, "temperature_c"] == (None, "no_answer") and found[GB, "temperature_c"] == (51, "ok")
        assert hung(events) == [GA]


def hung(events: list[SourceEvent]) -> list[str]:
    return [event.entity for event in events if event.kind == "gpu_read_hung"]


@pytest.mark.parametrize("does", ["first_is_lost", "all_is_lost"])
def test_a_gpu_that_is_lost_keeps_its_name_and_the_other_its_values(
    root: Path, clients: list[NvmlClient], does: str
) -> None:
    found, events = look(GpuNvmlSource(client_of(root, does, clients)), root)
    assert found[GA, "temperature_c"] == (None, "lost") and found[GB, "temperature_c"] == (51, "ok")
    assert [event.entity for event in events if event.kind == "gpu_lost"] == [GA]


def test_a_gpu_that_hangs_is_the_finding_and_costs_its_own_values(
    root: Path, clients: list[NvmlClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_nvml, "GPU_S", 1.5)
    source = GpuNvmlSource(client_of(root, "first_hangs", clients))
    for at_s in (0.0, 15.0):
        found, events = look(source, root, at_s)
        assert found[GA, "temperature_c"] == (None, "no_answer")
        assert found[GB, "temperature_c"] == (51, "ok")
        (hung,) = [event for event in events if event.kind == "gpu_read_hung"]
        assert (hung.entity, hung.severity, hung.attributes) == (GA, "critical", {"bdf": "0000:0a:00.0"})
        assert [event for event in events if event.kind == "gpu_lost"] == []


def test_a_driver_that_hangs_is_a_finding_of_the_host(
    root: Path, clients: list[NvmlClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_nvml, "LIST_S", 0.3)
    found, (event,) = look(GpuNvmlSource(client_of(root, "init_hangs", clients)), root)
    assert found == {("host", "nvml_readable_count"): (None, "no_answer")}
    assert (event.kind, event.entity) == ("gpu_read_hung", "host")


@pytest.mark.parametrize(("does", "quality"), [("no_driver", "not_available"), ("dies", "unreadable")])
def test_a_driver_that_does_not_answer_says_why(
    root: Path, clients: list[NvmlClient], does: str, quality: str
) -> None:
    source = GpuNvmlSource(client_of(root, does, clients))
    for at_s in (0.0, 15.0):
        assert look(source, root, at_s) == ({("host", "nvml_readable_count"): (None, quality)}, [])


def test_no_worker_is_started_where_there_is_no_driver(tmp_path: Path) -> None:
    assert look(GpuNvmlSource(NvmlClient(["/no/such/program"])), tmp_path) == ({}, [])


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    answers = io.StringIO()
    serve(io.StringIO('{"ask": "gpus"}\nno json\n'), answers)
    assert json.loads(answers.getvalue().splitlines()[0]) == {"error": "not_available"}


@pytest.mark.parametrize("said", ["no json", "[]", "9" * 5_000, "{" * 3_000])
def test_a_worker_that_says_something_else_is_replaced(said: str) -> None:
    program = "import sys; sys.stdin.readline(); print(sys.argv[1], flush=True); sys.stdin.readline()"
    client = NvmlClient([sys.executable, "-c", program, said])
    for _ in range(2):
        with pytest.raises(OSError, match="no answer that can be read"):
            client.ask({"ask": "gpus"}, 10.0)
