"""The exporter's text: names old and new, blanks, instances, and values that cannot be true."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.base import SourceEvent
from collectors.sources.expected import ExpectedSource
from collectors.sources.gpu_dcgm import GpuDcgmSource, parse
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import Found, given_lines, look, write

A, B = "GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b"
G = f"gpu/{A}"
PROM = "commands/dcgm_metrics.prom"


def line(field: str, value: object, uuid: str = A, bdf: str = "00000000:0A:00.0", more: str = "") -> str:
    return f'DCGM_FI_{field}{{gpu="0",UUID="{uuid}",pci_bus_id="{bdf}",Hostname="n"{more}}} {value}\n'


def one(
    root: Path, *lines: str, source: GpuDcgmSource | None = None, at_s: float = 0.0
) -> tuple[Found, list[SourceEvent]]:
    return look(source or GpuDcgmSource(), write(root, {PROM: "# TYPE x gauge\n" + "".join(lines)}), at_s)


def test_the_given_node() -> None:
    missed = given_lines(GpuDcgmSource(), "gpu/")
    assert [text for text in missed if '"sample"' in text] == []


@pytest.mark.parametrize(
    ("field", "raw", "metric", "wanted"),
    [
        ("DEV_GPU_TEMP", 55, "temperature_c", (55, "ok")),
        ("DEV_GPU_TEMP_CELSIUS", 55, "temperature_c", (55, "ok")),
        ("DEV_GPU_TEMP", 0, "temperature_c", (None, "out_of_range")),
        ("DEV_GPU_TEMP_LIMIT", 0, "temperature_margin_c", (None, "out_of_range")),
        ("DEV_POWER_USAGE", 0, "power_w", (None, "out_of_range")),
        ("DEV_BOARD_POWER_RAW_WATTS", 90, "power_instant_w", (90, "ok")),
        ("DEV_GPU_UTIL_RATIO", 97, "util_ratio", (0.97, "ok")),
        ("PROF_GR_ENGINE_UTIL_RATIO", 0.5, "gr_engine_active_ratio", (0.5, "ok")),
        ("PROF_TENSOR_UTIL_RATIO", 0.25, "tensor_active_ratio", (0.25, "ok")),
        ("DEV_ROW_REMAP_FAILED", 0, "row_remap_failure_count", (0, "ok")),
        ("DEV_PAGE_RETIRED_DBE_TOTAL", 3, "retired_pages_dbe_count", (3, "ok")),
        ("DEV_TOTAL_ENERGY_CONSUMPTION", 5_000_000, "energy_joules_total", (5_000, "ok")),
        ("DEV_MEMORY_TEMP", "9223372036854775807.000000", "memory_temperature_c", (None, "blank_sentinel")),
        ("DEV_BOARD_POWER_WATTS", "535.000000", "power_w", (535.0, "ok")),
        ("DEV_POWER_USAGE", 535000, "power_w", (None, "out_of_range")),
        ("DEV_MEMORY_TEMP", 9223372036854775794, "memory_temperature_c", (None, "blank_sentinel")),
        ("DEV_MEMORY_TEMP", "9223372036854775792", "memory_temperature_c", (None, "blank_sentinel")),
        ("DEV_POWER_USAGE", "140737488355328.000000", "power_w", (None, "blank_sentinel")),
        ("DEV_SM_CLOCK", 2147483632, "sm_clock_mhz", (None, "blank_sentinel")),
        ("DEV_SM_CLOCK", "NaN", "sm_clock_mhz", (None, "blank_sentinel")),
        ("DEV_SM_CLOCK", "<<<NOT_SUPPORTED>>>", "sm_clock_mhz", (None, "blank_sentinel")),
        ("DEV_GPU_UTIL", 4294967295, "util_ratio", (None, "out_of_range")),
        ("DEV_GPU_UTIL", 1000, "util_ratio", (None, "out_of_range")),
        ("DEV_GPU_UTIL", 97, "util_ratio", (0.97, "ok")),
        ("DEV_NVLINK_BANDWIDTH_TOTAL", 98985, "nvlink_throughput_bytes_per_s", (103793295360, "ok")),
        ("DEV_NVLINK_THROUGHPUT_TOTAL", 98985, "nvlink_throughput_bytes_per_s", (103793295360, "ok")),
        ("DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", 2, "row_remap_uncorrectable_total", (2, "ok")),
        ("DEV_ECC_DBE_VOL_TOTAL", 9223372036854775793, "ecc_dbe_volatile_total", (None, "blank_sentinel")),
    ],
)
def test_values(
    tmp_path: Path, field: str, raw: object, metric: str, wanted: tuple[float | None, str]
) -> None:
    value, quality = one(tmp_path, line(field, raw))[0][G, metric]
    assert quality == wanted[1] and (value == wanted[0] or value == pytest.approx(wanted[0]))


def test_old_and_new_name_at_once_are_one_value_and_the_known_one_wins(tmp_path: Path) -> None:
    source = GpuDcgmSource()
    write(tmp_path, {PROM: line("DEV_GPU_TEMP", 9223372036854775792) + line("DEV_GPU_TEMP_CELSIUS", 41)})
    samples = [s for s in source.read(Tree(tmp_path), 0.0).samples if s.metric == "temperature_c"]
    assert [(sample.value, sample.quality) for sample in samples] == [(41, "ok")]


def test_a_gauge_that_the_exporter_calls_a_counter_has_no_rate(tmp_path: Path) -> None:
    """A public case: NVLink throughput, typed as a counter, that goes down."""
    source = GpuDcgmSource()
    one(tmp_path, line("DEV_NVLINK_BANDWIDTH_TOTAL", 100), source=source)
    found, _ = one(tmp_path, line("DEV_NVLINK_BANDWIDTH_TOTAL", 50), source=source, at_s=10.0)
    assert {metric for entity, metric in found if entity == G} == {"nvlink_throughput_bytes_per_s"}


def test_counters_have_changes(tmp_path: Path) -> None:
    source = GpuDcgmSource()
    one(tmp_path, line("DEV_ECC_SBE_VOL_TOTAL", 5), source=source)
    found, _ = one(tmp_path, line("DEV_ECC_SBE_VOL_TOTAL", 25), source=source, at_s=10.0)
    assert found[G, "ecc_sbe_volatile_delta_count"] == (20, "ok")
    found, _ = one(tmp_path, line("DEV_ECC_SBE_VOL_TOTAL", 0), source=source, at_s=20.0)
    assert found[G, "ecc_sbe_volatile_delta_count"] == (None, "reset")


def test_rows_of_instances_repeat_what_is_the_gpus(tmp_path: Path) -> None:
    """A public case: each MIG row repeats the power of its GPU."""
    write(
        tmp_path,
        {
            PROM: "".join(
                line("DEV_POWER_USAGE", 300, more=f',GPU_I_PROFILE="3g.40gb",GPU_I_ID="{n}"')
                + line("PROF_GR_ENGINE_ACTIVE", n / 10, more=f',GPU_I_PROFILE="3g.40gb",GPU_I_ID="{n}"')
                for n in (1, 2)
            )
        },
    )
    samples = GpuDcgmSource().read(Tree(tmp_path), 0.0).samples
    assert [(s.value, s.labels) for s in samples if s.metric == "power_w"] == [(300, {})]
    told = {s.labels["gpu_instance"]: s.value for s in samples if s.metric == "gr_engine_active_ratio"}
    assert told == {"1": 0.1, "2": 0.2}


def test_the_last_xid_is_no_event(tmp_path: Path) -> None:
    assert one(tmp_path, line("DEV_XID_ERRORS", 94), line("DEV_GPU_TEMP", 40))[1] == []


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0x0, []),
        (0x4, []),
        (0x100, []),
        (0x1, []),
        (0x40, ["hw_thermal_slowdown"]),
        (0x88, ["hw_power_brake_slowdown"]),
    ],
)
def test_hardware_slowdowns_are_told_at_once(tmp_path: Path, mask: int, names: list[str]) -> None:
    _, events = one(tmp_path, line("DEV_CLOCK_THROTTLE_REASONS", mask))
    assert [event.attributes["reasons"] for event in events] == ([names] if names else [])
    assert all(event.kind == "throttle" and event.entity == G and event.standing for event in events)


def test_a_slowdown_of_software_is_told_when_it_lasts(tmp_path: Path) -> None:
    source = GpuDcgmSource()
    told = [
        len(one(tmp_path, line("DEV_CLOCKS_EVENT_REASONS", 0x20), source=source, at_s=at)[1])
        for at in (0.0, 10.0, 60.0)
    ]
    assert told == [0, 0, 1]


def test_rows_that_wait_for_a_reset_and_rows_that_failed(tmp_path: Path) -> None:
    (event,) = one(tmp_path, line("DEV_ROW_REMAP_PENDING", 1), line("DEV_ROW_REMAP_FAILURE", 0))[1]
    assert (event.kind, event.severity) == ("ecc", "warning")
    (event,) = one(tmp_path, line("DEV_ROW_REMAP_PENDING", 1), line("DEV_ROW_REMAP_FAILURE", 1))[1]
    assert (event.kind, event.severity) == ("ecc", "critical")


def test_errors_that_cannot_be_corrected_are_told_with_their_number(tmp_path: Path) -> None:
    (event,) = one(tmp_path, line("DEV_ECC_DBE_VOL_TOTAL", 2))[1]
    assert (event.kind, event.severity, event.attributes["errors"]) == ("ecc", "warning", 2)
    assert one(tmp_path, line("DEV_ECC_DBE_VOL_TOTAL", 0), line("DEV_ECC_SBE_VOL_TOTAL", 9))[1] == []


def test_a_profiler_that_died_is_not_an_idle_gpu(tmp_path: Path) -> None:
    """A public case: after an Xid 31 the profiling fields stay 0 until a restart."""
    busy = line("DEV_GPU_UTIL", 100) + line("DEV_POWER_USAGE", 650)
    sampled = line("PROF_GR_ENGINE_ACTIVE", 0) + line("PROF_PIPE_TENSOR_ACTIVE", 0)
    found, _ = one(tmp_path, busy, sampled)
    assert found[G, "gr_engine_active_ratio"] == found[G, "tensor_active_ratio"] == (None, "dead_sampler")
    found, _ = one(tmp_path, line("DEV_GPU_UTIL", 0), line("DEV_POWER_USAGE", 90), sampled)
    assert found[G, "gr_engine_active_ratio"] == (0, "ok")


def test_one_uuid_at_two_addresses_is_believed_of_neither(tmp_path: Path) -> None:
    found, events = one(tmp_path, line("DEV_GPU_TEMP", 40), line("DEV_GPU_TEMP", 50, bdf="00000000:0B:00.0"))
    assert found[G, "temperature_c"] == (None, "duplicate_uuid")
    assert [event.kind for event in events] == ["duplicate_uuid"]


def test_a_uuid_that_the_driver_has_twice_is_not_believed_of_the_exporter(
    tmp_path: Path,
) -> None:
    rows = f"0, {A}, 00000000:0A:00.0\n1, {A}, 00000000:0B:00.0\n"
    write(tmp_path, {"commands/nvidia-smi_query-gpu.csv": "index, uuid, pci.bus_id\n" + rows})
    found, _ = one(tmp_path, line("DEV_GPU_TEMP", 40), line("DEV_MEM_CLOCK", 2619, uuid=B))
    assert found[G, "temperature_c"] == found[G, "memory_clock_mhz"] == (None, "duplicate_uuid")
    assert found[f"gpu/{B}", "memory_clock_mhz"] == (2619, "ok")


def test_the_time_that_clocks_were_held_down_is_a_share_of_the_time(tmp_path: Path) -> None:
    source = GpuDcgmSource()
    ratios = []
    for at_s, ns in ((0.0, 0), (10.0, 2_500_000_000), (20.0, 2_500_000_000), (30.0, 10**12), (40.0, 5)):
        found, _ = one(tmp_path, line("DEV_THERMAL_VIOLATION", ns), source=source, at_s=at_s)
        ratios.append(found[G, "thermal_violation_ratio"])
    assert ratios == [
        (None, "first_sample"),
        (0.25, "ok"),
        (0.0, "ok"),
        (None, "out_of_range"),
        (None, "reset"),
    ]


@pytest.mark.parametrize(
    ("field", "raw", "told"),
    [
        ("DEV_GPU_RECOVERY_ACTION", 0, []),
        ("DEV_GPU_RECOVERY_ACTION", 2, [("recovery_action", {"recovery_action": "NODE_REBOOT"})]),
        ("DEV_GET_GPU_RECOVERY_ACTION", 9, [("recovery_action", {"recovery_action": "ACTION_9"})]),
        ("DEV_GET_GPU_RECOVERY_ACTION", 2147483633, []),
        ("DEV_FABRIC_MANAGER_STATUS", 3, []),
        ("DEV_FABRIC_MANAGER_STATUS", 0, []),
        ("DEV_FABRIC_MANAGER_STATUS", 4, [("fabric_fault", {"state": "failed"})]),
        ("DEV_FABRIC_HEALTH_SUMMARY", 1, []),
        ("DEV_FABRIC_HEALTH_SUMMARY", 2, [("fabric_fault", {"state": "unhealthy"})]),
    ],
)
def test_the_drivers_own_verdict_is_told(
    tmp_path: Path, field: str, raw: int, told: list[tuple[str, dict[str, str]]]
) -> None:
    _, events = one(tmp_path, line(field, raw))
    assert [(event.kind, event.attributes) for event in events] == told


def test_a_gpu_of_the_inventory_that_nobody_lists_is_lost_and_the_others_keep_their_names(
    tmp_path: Path,
) -> None:
    write(tmp_path, {"etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{A}", "{B}"]\n'})
    found, _ = one(tmp_path, line("DEV_GPU_TEMP", 50, uuid=B), line("DEV_ECC_DBE_VOL_TOTAL", 0, uuid=B))
    assert found[G, "temperature_c"] == found[G, "power_w"] == (None, "lost")
    assert found[G, "ecc_dbe_volatile_total"] == (None, "lost")
    assert found[f"gpu/{B}", "temperature_c"] == (50, "ok")
    (event,) = look(ExpectedSource(), tmp_path)[1]
    assert (event.kind, event.entity, event.severity) == ("gpu_lost", G, "critical")


def test_what_the_exporter_still_says_of_a_gpu_that_the_driver_lost_is_no_value(tmp_path: Path) -> None:
    smi = f"index, uuid\n0, {B}\nUnable to determine the device handle for GPU0000:0A:00.0: Unknown Error\n"
    write(
        tmp_path,
        {
            "etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{A}", "{B}"]\n',
            "commands/nvidia-smi_query-gpu.csv": smi,
        },
    )
    found, _ = one(tmp_path, line("DEV_GPU_TEMP", 50), line("DEV_GPU_TEMP", 51, uuid=B))
    assert found[G, "temperature_c"] == (None, "lost") and found[f"gpu/{B}", "temperature_c"] == (51, "ok")


@pytest.mark.parametrize(
    "text", ["", "HTTP 500 Internal Server Error\n", "<html>", "collected metric DCGM was collected before"]
)
def test_an_error_page_is_no_lost_gpu(tmp_path: Path, text: str) -> None:
    """A public case: four switches share a label and the exporter answers with an error."""
    write(tmp_path, {PROM: text, "etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{A}"]\n'})
    found, events = look(GpuDcgmSource(), tmp_path)
    assert found == {("host", "dcgm_readable_count"): (None, "unreadable" if text else "empty")}
    assert events == []
    assert look(ExpectedSource(), tmp_path)[1] == []


@pytest.mark.parametrize("more", [',model="a } b"', ',model="a \\"} 7"', ',hpc_job="1"'])
@pytest.mark.parametrize("value", ["41", "41 1700000000000", "41 \r"])
def test_labels_and_times_do_not_hide_a_value(tmp_path: Path, more: str, value: str) -> None:
    assert one(tmp_path, line("DEV_GPU_TEMP", value, more=more))[0][G, "temperature_c"] == (41, "ok")


@pytest.mark.parametrize(
    "text",
    ["DCGM_FI_DEV_GPU_TEMP 4\n", line("DEV_GPU_TEMP", ""), line("DEV_GPU_TEMP", "4 5 6"), line("DEV", 1)],
)
def test_a_damaged_line_is_no_value(text: str) -> None:
    assert list(parse(text)) == []


@given(st.text(max_size=300))
def test_any_text_parses(text: str) -> None:
    list(parse(text))
    list(parse(line("DEV_GPU_TEMP", 1, more=text)))


class Exporter(BaseHTTPRequestHandler):
    """Answers what ``answers`` has for a path."""

    answers: ClassVar[dict[str, tuple[int, str]]] = {}

    def do_GET(self) -> None:
        code, text = self.answers[self.path]
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("path", "quality"), [("/metrics", "ok"), ("/broken", "unreadable"), ("/closed", "unreadable")]
)
def test_the_exporter_of_the_live_machine_is_asked(path: str, quality: str) -> None:
    Exporter.answers = {"/metrics": (200, line("DEV_GPU_TEMP", 44)), "/broken": (500, "boom")}
    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1] if path != "/closed" else 9
        reading = GpuDcgmSource(f"http://127.0.0.1:{port}{path}").read(Tree(), 0.0)
        server.shutdown()
    found = {(s.entity, s.metric): (s.value, s.quality) for s in reading.samples}
    assert found["host", "dcgm_readable_count"] == (1 if quality == "ok" else None, quality)
    assert (found.get((G, "temperature_c")) == (44, "ok")) == (quality == "ok")
