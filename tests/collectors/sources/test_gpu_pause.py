"""The pause of the GPU driver: bounded, of this boot, kept over restarts; nobody opens the driver in it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors import pause_command
from collectors.agent import lock_folder
from collectors.sources import gpu_identity, gpu_pause, gpu_processes, nvlink, tools
from collectors.sources.gpu_nvml import GpuNvmlSource
from collectors.sources.gpu_pause import Paused, PauseWatch
from collectors.sources.nvml_client import ARGV, NvmlClient
from collectors.sources.tree import Tree
from tests.collectors.sources.test_nvml_live import FAKE, GA, Live, look
from tests.collectors.sources.trees import write

LIVE = Tree()


@pytest.fixture(name="watch")
def _watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PauseWatch]:
    """The watch of this process, on a folder of its own."""
    watch = gpu_pause.WATCH
    for name, value in (
        ("_holders", [tools.on_driver]),
        ("_releases", []),
        ("_pause", None),
        ("_said", None),
    ):
        monkeypatch.setattr(watch, name, value)
    monkeypatch.setattr(watch, "_folder", tmp_path)
    yield watch


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("90s", 90), ("1h", 3_600), (" 30 ", 30)])
def test_times_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert gpu_pause.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "2h", "0", "5", "-10m", "10 minutes", "1e3", "٣٠"])
def test_a_time_that_is_too_long_or_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 10m"):
        gpu_pause.duration_s(text)


def test_a_pause_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_pause, "_now_s", lambda: 1_000.0)
    pause = gpu_pause.begin(tmp_path, 60.0)
    assert gpu_pause.standing(tmp_path) == pause and gpu_pause.left_s(pause) == 60
    monkeypatch.setattr(gpu_pause, "_now_s", lambda: 1_060.0)
    assert gpu_pause.standing(tmp_path) is None and gpu_pause.left_s(pause) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "another"},
        {"until_s": 1e12, "since_s": 0.0},
        {"until_s": float("inf")},
        {"since_s": "x"},
        {"boot_id": None},
    ],
    ids=str,
)
def test_a_pause_of_another_boot_or_without_end_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    monkeypatch.setattr(gpu_pause, "_now_s", lambda: 5_000.0)
    gpu_pause.begin(tmp_path, 60.0)
    path = tmp_path / "gpu-pause.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert gpu_pause.standing(tmp_path) is None


@given(st.binary(max_size=200))
def test_a_damaged_file_is_no_pause(content: bytes) -> None:
    assert gpu_pause._pause_of({"since_s": 0, "until_s": content.decode("latin-1"), "boot_id": ""}) is None


def test_garbage_in_the_file_is_no_pause(tmp_path: Path) -> None:
    for content in (b"", b"[" * 4_000, b"\xff\xfe", b"[]", b"{}", b"9" * 9_000):
        (tmp_path / "gpu-pause.json").write_bytes(content)
        assert gpu_pause.standing(tmp_path) is None


def test_an_agent_that_starts_in_a_pause_keeps_to_it(tmp_path: Path) -> None:
    gpu_pause.begin(tmp_path, 60.0)
    watch = PauseWatch()
    watch.keep_in(tmp_path)
    assert watch.is_on


def test_whoever_has_the_driver_is_asked_gently_first_and_then_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    held = [4_711]
    watch = PauseWatch()
    watch.keep_in(tmp_path)
    watch.watch(lambda: held, asked.append)
    watch.tick()
    assert asked == []
    pause = gpu_pause.begin(tmp_path, 60.0)
    watch.tick()
    assert asked == [True] and gpu_pause.held_by(tmp_path, pause) == [4_711]
    monkeypatch.setattr(gpu_pause, "_now_s", lambda: pause.since_s + 11)
    watch.tick()
    held.clear()
    watch.tick()
    assert asked == [True, False] and gpu_pause.held_by(tmp_path, pause) == []
    assert gpu_pause.end(tmp_path)
    watch.tick()
    assert not watch.is_on and list(tmp_path.iterdir()) == []


def test_the_agent_asks_for_a_pause_only_where_none_stands(tmp_path: Path) -> None:
    watch = PauseWatch()
    assert not watch.ask(60.0)  # without a folder there is nobody to be told
    watch.keep_in(tmp_path)
    assert watch.ask(60.0) and not watch.ask(60.0)
    assert watch.pause is not None and watch.pause.by == gpu_pause.RECOVERY_ACTION


def test_tools_of_the_driver_are_not_begun(
    watch: PauseWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia-smi", "other"):
        (tmp_path / name).write_text("#!/bin/sh\necho said\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert tools.output(LIVE, "x", ["nvidia-smi"], 10.0) == b"said\n"
    watch.ask(60.0)
    with pytest.raises(Paused):
        tools.output(LIVE, "x", ["nvidia-smi"], 10.0)
    assert tools.output(LIVE, "x", ["other"], 10.0) == b"said\n"


def test_values_of_the_driver_are_unknown_in_a_pause_and_come_back(watch: PauseWatch, tmp_path: Path) -> None:
    root = write(tmp_path / "root", {"proc/driver/nvidia/version": "x", "fake/pynvml.py": FAKE})
    env = {**os.environ, "PYTHONPATH": f"{root / 'fake'}{os.pathsep}{os.getcwd()}", "FAKE_DRIVER": ""}
    client = NvmlClient(ARGV, env)
    source = GpuNvmlSource(client)
    before, _ = look(source, root)
    (worker,) = client.holders()
    try:
        watch.ask(60.0)
        watch.tick()
        found, events = look(source, root, 15.0)
        assert found == dict.fromkeys(before, (None, "paused"))
        assert [(e.kind, e.severity, e.standing) for e in events] == [("gpu_paused", "info", True)]
        assert client.holders() == [] and not Path(f"/proc/{worker}").exists()
        with pytest.raises(Paused):
            client.ask({"ask": "gpus"}, 1.0)
        gpu_pause.end(tmp_path)
        watch.tick()
        after, _ = look(source, root, 30.0)
        assert after[GA, "temperature_c"] == (50, "ok")
    finally:
        client.close()


def test_a_worker_lets_go_of_the_driver_before_it_ends(tmp_path: Path) -> None:
    fake = FAKE + f"\ndef nvmlShutdown():\n    open({str(tmp_path / 'shut')!r}, 'w').close()\n"
    root = write(tmp_path, {"fake/pynvml.py": fake})
    env = {**os.environ, "PYTHONPATH": f"{root / 'fake'}{os.pathsep}{os.getcwd()}"}
    client = NvmlClient(ARGV, env)
    client.ask({"ask": "gpus"}, 20.0)
    (pid,) = client.holders()
    client.release(True)
    assert client._worker is not None and client._worker.wait(10) == 0 and pid
    client.close()
    assert (tmp_path / "shut").exists()


def test_nvlinks_that_were_known_are_unknown_in_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = "GPU-00000000-0000-0000-0000-00000000000a"
    said = f"GPU 0: H100 (UUID: {uuid})\n\t Link 0: Replay Errors: 0\n".encode()
    source = nvlink.NvlinkSource()
    monkeypatch.setattr(nvlink, "output", lambda *_: said)
    assert [s.quality for s in source.read(LIVE, 0.0).samples if s.metric == "replay_errors_total"] == ["ok"]

    def paused(*_: object) -> bytes:
        raise Paused

    monkeypatch.setattr(nvlink, "output", paused)
    samples = source.read(LIVE, 60.0).samples
    assert samples and {(s.value, s.quality) for s in samples} == {(None, "paused")}


def test_one_table_serves_both_who_want_the_list_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = "GPU-00000000-0000-0000-0000-00000000000a"
    asked: list[str] = []

    def said(_: Tree, __: str, argv: list[str], *___: object) -> bytes:
        asked.append(argv[1].split("=")[0])
        if "compute-apps" in argv[1]:
            return f"{uuid}, 4000\n".encode()
        return f"index, uuid, pci.bus_id\n0, {uuid}, 00000000:0A:00.0\n".encode()

    monkeypatch.setattr(gpu_identity, "output", said)
    monkeypatch.setattr(tools, "output", said)
    monkeypatch.setattr(gpu_identity, "_TABLE", gpu_identity._DriverTable())
    held = gpu_processes.held(Live(Path("/nowhere")))
    assert held.by_pid == {4000: (uuid,)} and held.by_index == {0: uuid}
    assert [place.bdf for place in gpu_identity.gpus(Live(Path("/nowhere")))] == ["0000:0a:00.0"]
    assert asked == ["--query-gpu", "--query-compute-apps"]


def test_the_list_of_gpus_outlives_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    table = gpu_identity._DriverTable()
    monkeypatch.setattr(gpu_identity, "output", lambda *_: b"index\n0\n")
    assert table.text(0.0) == "index\n0\n"

    def paused(*_: object) -> bytes:
        raise Paused

    monkeypatch.setattr(gpu_identity, "output", paused)
    assert table.text(0.0) == "index\n0\n"
    with pytest.raises(Paused):
        gpu_identity._DriverTable().text(0.0)


# --- the commands ----------------------------------------------------------------------------------------


def test_the_command_waits_until_the_agent_has_let_go(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    watch, held, done = PauseWatch(), [1], threading.Event()
    watch.keep_in(tmp_path)
    watch.watch(lambda: held, lambda _: held.clear())

    def ticking() -> None:
        while not done.wait(0.05):
            watch.tick()

    thread = threading.Thread(target=ticking)
    thread.start()
    out = io.StringIO()
    try:
        assert pause_command.pause(tmp_path, 600.0, out)
    finally:
        done.set()
        thread.join()
        os.close(lock)
    assert "let go of the GPU driver for 600 s" in out.getvalue()


@pytest.mark.parametrize(("held", "words"), [([77], "process 77 hangs"), (None, "has not answered")])
def test_the_command_says_when_the_agent_did_not_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: list[int] | None, words: str
) -> None:
    lock = lock_folder(tmp_path)
    out = io.StringIO()
    if held is not None:
        watch = PauseWatch()
        watch.keep_in(tmp_path)
        watch.watch(lambda: held)
        original = gpu_pause.begin

        def begin(folder: Path, seconds: float) -> gpu_pause.Pause:
            pause = original(folder, seconds)
            watch.tick()
            return pause

        monkeypatch.setattr(gpu_pause, "begin", begin)
    try:
        assert not pause_command.pause(tmp_path, 600.0, out, within_s=0.3)
    finally:
        os.close(lock)
    assert words in out.getvalue()


def test_the_commands_by_hand(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "CLUSTERWATCH_STATE_DIR": str(tmp_path),
        "CLUSTERWATCH_GATEWAY_URL": "ws://127.0.0.1:9",
    }

    def agent(*words: str) -> tuple[int, str]:
        argv = [sys.executable, "-m", "collectors", *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    assert agent("pause-gpu", "--for", "2h")[0] == 64
    code, said = agent("pause-gpu", "--for", "5m")
    assert code == 0 and "no agent runs" in said
    pause = gpu_pause.standing(tmp_path / "agent")
    assert pause is not None and 290 < gpu_pause.left_s(pause) <= 300
    assert "the GPU driver is released, asked by operator" in agent("doctor")[1]
    assert agent("resume-gpu") == (0, "the pause is over\n")
    assert agent("resume-gpu") == (0, "there was no pause\n")


def test_who_has_the_driver_open_is_named(tmp_path: Path) -> None:
    (tmp_path / "12/fd").mkdir(parents=True)
    (tmp_path / "12/comm").write_text("dcgm-exporter\n")
    (tmp_path / "12/fd/3").symlink_to("/dev/nvidiactl")
    (tmp_path / "13/fd").mkdir(parents=True)
    (tmp_path / "13/fd/3").symlink_to("/dev/null")
    (tmp_path / "uptime").write_text("")
    assert list(pause_command.holders(tmp_path)) == [(12, "dcgm-exporter")]
