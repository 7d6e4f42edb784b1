"""The node page: what a node knows in words, with reasons and ages, and what happened on it."""

from __future__ import annotations

import re

import msgspec
import pytest
from django.test import Client

from clusterwatch.accounts.models import Team
from clusterwatch.fleet.models import Node
from clusterwatch.web import node_values
from collectors.wire import readings
from tests.web.conftest import SignIn
from tests.web.seed import Seeded
from tests.web.seed_nodes import Value, happen, know, table_of
from tests.web.test_pages import HOSTILE, text_of


def plain(html: str) -> str:
    """What stands on the page, without its marks."""
    main = html[html.index("<main") : html.index("</main>")]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", main)).replace("\u202f", " ")


def page_of(seeded: Seeded, sign_in: SignIn, name: str = "node-a", who: str = "vera") -> str:
    return plain(text_of(sign_in(who).get(f"/nodes/{name}?cluster={seeded.real.pk}")))


def test_every_kind_of_part_has_a_section_with_units(seeded: Seeded, sign_in: SignIn) -> None:
    know(
        seeded.nodes[0],
        table_of(
            ("gpu/GPU-11111111-a", "power_w", 312.5, "ok"),
            ("gpu/GPU-22222222-b", "power_w", 298.0, "ok"),
            ("gpu/GPU-11111111-a", "throttle_reasons_mask", 0x44, "ok"),
            ("nvlink/GPU-11111111-a/3", "crc_errors_total", 7, "ok"),
            ("port/mlx5_0/1", "rate_gbps", 400, "ok"),
            ("nic/eth2", "raw_ber_ratio", 3.2e-12, "ok"),
            ("pci/0000:12:00.0", "pcie_width_count", 16, "ok"),
            ("disk/nvme0n1", "read_await_s", 0.00125, "ok"),
            ("mount//mnt/shared", "read_bytes_per_s", 3 * 2**30, "ok"),
            ("host", "host_memory_used_ratio", 0.4321, "ok"),
            ("odd/1", "speed_count", 5_400, "ok"),
            ("Odd x/1", "odd_count", 1, "ok"),
        ),
    )
    told = page_of(seeded, sign_in)
    order = ["GPUs", "Network links", "NVLink", "PCIe", "Disks", "Mounts", "Host", "Odd", "Other"]
    places = [told.index(f" {title} ") for title in order[:-1]] + [told.rindex("Other")]
    assert places == sorted(places)
    for part in (
        "312.5 W", "298 W", "0x44 sw power cap, hw thermal", "400 Gbit/s", "3.2e-12", "1.2 ms", "3.0 GiB/s",
        "43.2 %", "5 400", "GPU-11111111", "GPU-11111111 link 3", "/mnt/shared", "0000:12:00.0",
    ):  # fmt: skip
        assert part in told, part
    looked, sent = re.search(r"sysfs looked (\d+) s ago", told), re.search(r"values sent (\d+) s ago", told)
    assert looked and sent, told
    assert int(sent[1]) >= 3 and int(looked[1]) - int(sent[1]) in (1, 2, 3)  # it looked 2 s before it sent


def test_serials_and_models_are_words_and_flags_are_yes_or_no(seeded: Seeded, sign_in: SignIn) -> None:
    table = table_of(
        ("dimm/A1", "part_count", 1, "ok"),
        ("dimm/A1", "ce_total", 4, "ok"),
        ("mount//data", "mounted_count", 1, "ok"),
        ("mount//data", "app_bytes_read_per_s", 3 * 2**20, "ok"),
        ("lustre/ost-1", "import_up_count", 0, "ok"),
    )
    facts = [{}, {"serial": "S123", "model": HOSTILE, "part": "p0"}]
    know(seeded.nodes[0], msgspec.structs.replace(table, labels=facts, label=[1, 0, 0, 0, 0]))
    html = text_of(sign_in("vera").get("/nodes/node-a"))
    told = plain(html)
    assert "Part Serial Model A1 p0 S123" in told and "part count" not in told and "part (" not in told
    assert "<img src=x" not in html and "&lt;img src=x" in html
    assert "mounted yes" in told and "import up no" in told
    assert "app read, per s 3.0 MiB/s" in told
    assert told.index("Memory") < told.index("Mounts") < told.index("Storage servers")


def test_what_is_not_known_says_why_and_is_never_zero(seeded: Seeded, sign_in: SignIn) -> None:
    know(
        seeded.nodes[0],
        table_of(
            ("nic/eth2", "speed_gbps", None, "link_down"),
            ("nic/eth2", "link_up_count", 0, "ok"),
            ("mount//data", "read_rtt_s", None, "no_ops"),
            ("gpu/GPU-1", "power_w", None, "some_new_reason"),
            ("gpu/GPU-1", "energy_count", 4_294_967_295, "saturated"),
            ("job/7/rank/0", "torch_reserved_bytes", 70 * 2**30, "ok"),
            ("job/7/rank/0", "torch_allocator_retries_total", 4, "ok"),
            ("job/7/rank/1", "torch_reserved_bytes", None, "no_cuda_told"),
        ),
    )
    html = text_of(sign_in("vera").get("/nodes/node-a"))
    told = plain(html)
    for words in ("the link is down", "no operation finished", "some new reason"):
        assert words in told
    assert "torch reserved 7/rank/0 70.0 GiB 7/rank/1 no CUDA in use, or its torch does not tell" in told
    assert "7/rank/0 torch allocator retries total 4" in told
    assert "4 294 967 295 the counter stands at its top" in told
    assert "0 Gbit/s" not in told and "0 W" not in told and ">0 s<" not in html
    assert "1 part, 2 values, 1 not known" in told


def test_counters_are_folded_and_those_that_are_zero_everywhere_are_named_once(
    seeded: Seeded, sign_in: SignIn
) -> None:
    rows: list[Value] = []
    for port in ("mlx5_0/1", "mlx5_1/1"):
        entity = f"port/{port}"
        rows += [(entity, "tx_bytes_per_s", 5 * 2**30, "ok"), (entity, "symbol_error_total", 0, "ok")]
        rows += [(entity, "symbol_error_per_s", 0.0, "ok"), (entity, "link_downed_total", 3, "ok")]
        rows += [(entity, "rcv_errors_total", None if port == "mlx5_1/1" else 0, "einval")]
    rows = [(e, m, v, "ok" if v is not None else q) for e, m, v, q in rows]
    know(seeded.nodes[0], table_of(*rows))
    html = text_of(sign_in("vera").get("/nodes/node-a"))
    before, after = (
        html.split("<details", 2)[-2:] if html.count("<details") == 1 else html.rsplit("<details", 1)
    )
    assert "5.0" in plain("<main" + before.rpartition("<main")[2] + "</main>")
    folded = plain("<main>" + after)
    assert "link downed total" in folded and "the device refuses it (EINVAL)" in folded
    zeros = folded.partition("0 on every part that has them:")[2]
    assert "symbol error total" in zeros and "symbol error, per s" in zeros
    assert "rcv errors" not in zeros, "what is unknown on one port is not 0 everywhere"


def test_old_values_are_said_to_be_old_everywhere(seeded: Seeded, sign_in: SignIn) -> None:
    know(seeded.nodes[0], table_of(("host", "host_power_w", 700.0, "ok")), age_s=1_000)
    told = page_of(seeded, sign_in)
    assert "Everything below is old" in told and re.search(r"1[67] min \d+ s", told)
    assert "700 W old" in told


def test_one_source_that_hangs_makes_only_its_own_values_old(seeded: Seeded, sign_in: SignIn) -> None:
    table = table_of(("host", "host_power_w", 700.0, "ok"), ("gpu/GPU-1", "power_w", 300.0, "ok"))
    hung = readings.SourceWord("gpu_nvml", "hangs since 5 s or more", 10.0, 500.0)
    know(seeded.nodes[0], msgspec.structs.replace(table, sources=[*table.sources, hung], source=[0, 1]))
    told = page_of(seeded, sign_in)
    assert "Everything below is old" not in told
    assert "300 W old" in told and "700 W old" not in told
    assert "hangs since 5 s or more" in told


def test_a_node_that_sent_nothing_shows_no_values_and_says_so(seeded: Seeded, sign_in: SignIn) -> None:
    told = page_of(seeded, sign_in, "node-b")
    assert "This node sent no values" in told and "values never sent" in told
    assert "Nothing happened" in told and "Reports" in told


def test_events_stand_above_values_newest_first(seeded: Seeded, sign_in: SignIn) -> None:
    know(seeded.nodes[0], table_of(("host", "host_power_w", 700.0, "ok")))
    happen(seeded.nodes[0], "link_flap", 60)
    happen(seeded.nodes[0], "xid", 10)
    told = page_of(seeded, sign_in)
    assert told.index("xid seen") < told.index("link_flap seen") < told.index("700 W")


def test_events_and_jobs_of_another_team_are_not_shown_to_a_viewer(seeded: Seeded, sign_in: SignIn) -> None:
    seeded.job.team = Team.objects.create(name="others")
    seeded.job.save()
    happen(seeded.nodes[0], "process_state", 5, job_id=seeded.job.pk)
    assert "process_state seen" in page_of(seeded, sign_in, who="olga")
    told = page_of(seeded, sign_in)
    assert "process_state seen" not in told and "Jobs that ran here" not in told


def test_names_of_a_node_are_text(seeded: Seeded, sign_in: SignIn) -> None:
    seeded.nodes[0].name = HOSTILE
    seeded.nodes[0].save()
    know(
        seeded.nodes[0],
        table_of((f"disk/{HOSTILE}", f"{HOSTILE}_total", 1, HOSTILE), (HOSTILE, "power_w", None, HOSTILE)),
    )
    html = text_of(sign_in("vera").get(f"/nodes/{seeded.nodes[0].pk}"))
    assert "<img src=x" not in html and "&lt;img src=x" in html and "{{7*7}}" in html


def test_pages_that_name_a_node_lead_to_it(seeded: Seeded, sign_in: SignIn) -> None:
    client, cluster = sign_in("vera"), seeded.real.pk
    link = f'href="/nodes/node-c?cluster={cluster}"'
    for path in (
        f"/collectors?cluster={cluster}",
        f"/jobs/{seeded.job.pk}",
        f"/incidents/{seeded.incident.pk}",
    ):
        assert link in text_of(client.get(path)), path
    rank = seeded.ranks[5]
    assert f'href="/nodes/{rank.node_id}"' in text_of(client.get(f"/jobs/{seeded.job.pk}/ranks/5"))


def test_of_two_nodes_of_one_name_that_of_the_cluster_looked_at_is_shown(
    seeded: Seeded, sign_in: SignIn
) -> None:
    Node.objects.create(cluster=seeded.simulated, name="node-a", machine_id="twin")
    client = sign_in("vera")
    for cluster, other in ((seeded.real, seeded.simulated), (seeded.simulated, seeded.real)):
        html = text_of(client.get(f"/nodes/node-a?cluster={cluster.pk}"))
        assert f'Also in <a href="/nodes/node-a?cluster={other.pk}"' in html


def test_a_stranger_is_sent_to_the_door_and_a_wrong_name_is_not_found(
    seeded: Seeded, sign_in: SignIn
) -> None:
    assert Client().get("/nodes/node-a").status_code == 302
    for name in ("node-z", "%00", "a%2Fb", "9" * 40):
        assert sign_in("vera").get(f"/nodes/{name}").status_code == 404


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "w", "0 W"), (0.04, "w", "4.0e-02 W"), (61.0, "c", "61 \N{DEGREE SIGN}C"), (0, "ratio", "0 %"),
        (1.0, "ratio", "100 %"), (0.00012, "ratio", "0.012 %"), (1e-15, "ratio", "1.0e-15"), (0, "s", "0 s"),
        (2.5, "s", "2.5 s"), (3e-7, "s", "300 ns"), (2e-12, "s", "2.0e-03 ns"), (1536, "bytes", "1.5 KiB"),
        (12345678, "total", "12 345 678"), (2**63 + 5, "total", "9 223 372 036 854 775 813"),
        (-3.25, "dbm", "\u22123.2 dBm"), (5_400, "rpm", "5 400 rpm"), (229.5, "v", "229.50 V"),
        (0x101, "mask", "0x101"), (0.25, None, "0.250"), (-3, "c", "\u22123 \N{DEGREE SIGN}C"),
    ],
)  # fmt: skip
def test_numbers_are_short_and_true(value: float, unit: str | None, text: str) -> None:
    assert node_values.shown(value, unit).replace("\u202f", " ") == text


def test_a_stamp_is_a_time_and_no_duration() -> None:
    assert node_values.shown(1_764_720_000.5, "s", "latency_stamp_s") == "2025-12-03 00:00:00 UTC"
    assert node_values.shown(1e300, "s", "latency_stamp_s").startswith("9999")
