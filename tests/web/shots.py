"""Developer's tool: seeds a database, serves the pages and takes their pictures, light, dark and 360 px wide.

.venv/bin/python -m tests.web.shots FOLDER [name ...]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterwatch.fleet.models import Node
    from tests.web.seed_nodes import Value

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZES = {"1440": (1440, 900), "360": (360, 740)}


@contextmanager
def servers() -> Iterator[str]:
    """Embedded PostgreSQL and Valkey with a seeded database, and the site; yields its address."""
    from tests.stack import plan_stack

    folder = Path(tempfile.mkdtemp(prefix="cw-shots-"))
    stack = plan_stack(folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {
        "CLUSTERWATCH_STATE_DIR": str(folder),
        "CLUSTERWATCH_SECRET_KEY": "only-for-pictures-" + "0" * 40,
        "CLUSTERWATCH_DATABASE_URL": stack.database_url,
        "CLUSTERWATCH_VALKEY_URL": stack.valkey_url,
        "CLUSTERWATCH_URL": f"http://127.0.0.1:{port}",
        "CLUSTERWATCH_LOG_LEVEL": "WARNING",
        "DJANGO_SETTINGS_MODULE": "clusterwatch.project.settings",
    }
    site = None
    try:
        stack.start_postgres()
        stack.start_valkey()
        _seed()
        command = [
            sys.executable,
            "-m",
            "uvicorn",
            "clusterwatch.project.asgi:application",
            "--port",
            str(port),
        ]
        site = subprocess.Popen([*command, "--log-level", "warning"])
        _wait(f"http://127.0.0.1:{port}/healthz")
        yield f"http://127.0.0.1:{port}"
    finally:
        if site is not None:
            site.terminate()
            site.wait(10)
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _seed() -> None:
    import django
    import django.db

    django.setup()
    from django.core.management import call_command

    from tests.web import seed, seed_nodes, seed_parts, seed_time

    call_command("migrate", verbosity=0)
    seed.people()
    seeded = seed.seed()
    closed = seeded.resolved.pk if seeded.resolved else 0
    seed_nodes.know(seeded.nodes[0], seed_nodes.wide_node())
    seed_nodes.happen(seeded.nodes[0], "link_flap", 60)
    _seed_devices(seeded.nodes)
    compared = _seed_drift()
    run, stall = seed_time.seed_time()
    part, lost = seed_parts.seed_parts(seeded.nodes[0], seeded.incident)
    blind = seed_parts.seed_blind(seeded.simulated.pk)

    def beat() -> None:
        with contextlib.suppress(django.db.OperationalError):
            while True:
                seed.heartbeat(seeded)
                time.sleep(1)

    threading.Thread(target=beat, daemon=True).start()
    PAGES.update(
        {
            "cluster": f"/?cluster={seeded.simulated.pk}",
            "cluster-lab": f"/?cluster={seeded.real.pk}",
            "jobs": f"/jobs?cluster={seeded.real.pk}",
            "job": f"/jobs/{seeded.job.pk}?cluster={seeded.real.pk}",
            "job-sim": f"/jobs/{seeded.sim_jobs[1].pk}?cluster={seeded.simulated.pk}",
            "goodput": f"/goodput?cluster={run.cluster.pk}",
            "job-time": f"/jobs/{run.job.pk}?cluster={run.cluster.pk}",
            "incident-time": f"/incidents/{stall.pk}?cluster={run.cluster.pk}",
            "rank": f"/jobs/{seeded.job.pk}/ranks/5?cluster={seeded.real.pk}",
            "rank-silent": f"/jobs/{seeded.job.pk}/ranks/7?cluster={seeded.real.pk}",
            "incidents": f"/incidents?cluster={seeded.real.pk}",
            "incident": f"/incidents/{seeded.incident.pk}?cluster={seeded.real.pk}",
            "incident-closed": f"/incidents/{closed}?cluster={seeded.real.pk}",
            "collectors": f"/collectors?cluster={seeded.simulated.pk}",
            "node": f"/nodes/node-a?cluster={seeded.real.pk}",
            "node-silent": f"/nodes/node-b?cluster={seeded.real.pk}",
            "devices": f"/devices?cluster={seeded.real.pk}",
            "alerts": f"/alerts?cluster={seeded.real.pk}",
            "parts": f"/parts?cluster={seeded.real.pk}",
            "part": f"/parts/{part}",
            "incident-health": f"/incidents/{lost}",
            "incident-blind": f"/incidents/{blind}",
            "drift": f"/drift?cluster={compared}",
            "drift-none": f"/drift?cluster={seeded.simulated.pk}",
            "node-odd": f"/nodes/gtn-0417?cluster={compared}",
            "switch": f"/devices/switch/leaf-1?cluster={seeded.real.pk}",
            "bmc": f"/devices/bmc/bmc-7?cluster={seeded.real.pk}",
            "verdict": "/docs/verdicts/missing_rank/",
            "verdicts": "/docs/verdicts/",
            "missing": "/incidents/999999",
        }
    )


PAGES: dict[str, str] = {}


def _seed_devices(nodes: Sequence[Node]) -> None:
    """A leaf of 66 ports that sees two nodes, a spine that was not reached, a BMC."""
    from tests.api.test_device_views import tell, with_labels
    from tests.web.seed_nodes import table_of

    rows: list[Value] = []
    for n in range(1, 67):
        port, up = f"switchport/leaf-1/Eth1/{n}", int(n % 7 != 3)
        rows += [(port, "oper_up_count", up, "ok"), (port, "admin_up_count", 1, "ok")]
        rows += [(port, "rate_gbps", 400 if up else None, "ok" if up else "link_down")]
        rows += [(port, f"{way}_utilization_ratio", 0.9 - n / 100, "ok") for way in ("tx", "rx")]
        rows += [(port, "tx_discards_delta_count", 12 * (n == 5), "ok")]
        rows += [
            (port, "rx_errors_delta_count", 3 * (n == 9), "ok"),
            (port, "carrier_changes_total", n % 2, "ok"),
        ]
        rows += [(port, "neighbour_count", 1, "ok")] if n < 3 else []
    rows += [(f"sensor/leaf-1/inlet-{n}", "temperature_c", 24 + n, "ok") for n in range(3)]
    seen = iter(("node-a", "node-b"))
    labels = [
        {"peer": next(seen), "peer_port": "eth2"} if metric == "neighbour_count" else {}
        for _, metric, *_ in rows
    ]
    tell(nodes[1], "switch", "leaf-1", with_labels(table_of(*rows), *labels))
    tell(
        nodes[1], "switch", "spine-1", table_of(("switch/spine-1", "uptime_s", 86_400, "ok")), state="timeout"
    )
    bmc: list[Value] = [(f"psu/bmc-7/{n}", "input_power_w", 2_750 - n, "ok") for n in range(6)]
    bmc += [(f"fan/bmc-7/{n}", "speed_rpm", 9_000 + n, "ok") for n in range(10)]
    tell(nodes[0], "bmc", "bmc-7", table_of(*bmc), node_name="node-a")


def _seed_drift() -> int:
    """512 nodes, two of them odd, a rollout, a job that one node slows, three nodes of another kind."""
    from django.utils import timezone

    from clusterwatch.detect import drift
    from clusterwatch.fleet.models import Cluster
    from clusterwatch.jobs.models import Job
    from tests.web.seed_drift import fleet, rank_facts, tell

    cluster = Cluster.objects.create(name="fleet-512")
    Job.objects.create(cluster=cluster, key="88213", started_at=timezone.now())
    for n, node in enumerate(fleet(cluster, 512)):
        host = {
            "nvidia.driver": "535.183.01" if n == 417 else "550.90.07",
            "microcode": "0x2b" if n % 3 else "0x2c",
        }
        ports = {f"port/mlx5_{p}/1": {"rdma.firmware": "28.39.1002"} for p in range(8)}
        if n in (31, 417):
            ports["port/mlx5_6/1"] = {"rdma.firmware": "28.36.1010"}
        setting = {} if n == 31 else {"NCCL_IB_TC": "106"}
        ranks = [
            rank_facts("88213", 8 * n + r, nccl_net="Socket" if n == 31 else "IB", **setting)
            for r in range(8)
        ]
        tell(node, {"host": host}, ports, *(ranks if n < 128 else []))
    for node in fleet(cluster, 3, gpus=0, prefix="login-"):
        tell(node)
    drift.compare(cluster.pk, time.time_ns())
    return cluster.pk


def _wait(address: str) -> None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(address) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the site did not start")


def take(address: str, folder: Path, wanted: list[str]) -> None:
    """One picture per page, theme and size; says what the console said and what overflows."""
    from playwright.sync_api import sync_playwright

    from tests.web.seed import PASSWORD

    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for theme in ("light", "dark"):
            for size, (width, height) in SIZES.items():
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
                page = context.new_page()
                page.on("console", lambda m: print(f"  console: {m.type}: {m.text[:300]}"))
                page.on("pageerror", lambda e: print(f"  error: {e}"))
                page.goto(f"{address}/login/")
                page.screenshot(path=folder / f"login-{theme}-{size}.png")
                page.fill("[name=username]", "olga")
                page.fill("[name=password]", PASSWORD)
                page.click("button")
                for name, path in PAGES.items():
                    if wanted and name not in wanted:
                        continue
                    print(name, theme, size)
                    page.goto(address + path)
                    page.wait_for_timeout(1500)
                    over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    if over > 0:
                        print(f"  {name} overflows by {over} px")
                    page.screenshot(path=folder / f"{name}-{theme}-{size}.png", full_page=size == "360")
                context.close()
        browser.close()


if __name__ == "__main__":
    with servers() as found:
        take(found, Path(sys.argv[1]), sys.argv[2:])
