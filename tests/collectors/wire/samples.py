"""One message of each kind, fixed for ever: what ``tests/data/wire/v1.json`` holds as bytes.

After a change of the wire that keeps old bytes readable, ``python -m tests.collectors.wire.samples`` adds
what is new to the file; it never changes an entry that is there.
"""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import msgspec

from collectors.wire import blocks, hot_values, readings, records
from collectors.wire.records import RankId

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "wire" / "v1.json"
T_NS = 1_796_000_000_123_456_789
MINUTE_NS = 1_796_000_040_000_000_000 - 1_796_000_040_000_000_000 % 60_000_000_000
RANK = RankId(job="4711", rank=3, attempt=1, world="main", role="trainer")

METRICS = [
    records.BlockMetric(name="host_cpu_ratio", unit="ratio", resolution=0.0001, series=1, samples=60),
    records.BlockMetric(name="power_w", unit="w", resolution=0.5, series=2, samples=60),
]
COLUMNS = [
    array("q", [5_000 + place % 7 for place in range(60)]),
    array("q", [blocks.MISSING if place % 13 == 0 else 1_300 - place for place in range(120)]),
]
ROLLUP = blocks.pack_rollups(
    [
        blocks.rollup(COLUMNS[0], 0.0001),
        blocks.rollup(COLUMNS[1][:60], 0.5),
        blocks.rollup(COLUMNS[1][60:], 0.5),
    ]
)

TABLE = readings.Table(
    sources=[
        readings.SourceWord("ethernet", "ok", 1.0, 0.25),
        readings.SourceWord("gpu_nvml", "hangs since 5 s or more", 10.0, 71.5),
        readings.SourceWord("mounts", "starting", 1.0),
    ],
    entities=["gpu/GPU-0", "nic/eth2", "host"],
    metrics=["power_w", "rx_bytes_phy_total", "link_up_count"],
    qualities=["ok", "lost", "first_sample"],
    entity=[0, 0, 1, 1],
    metric=[0, 0, 1, 2],
    source=[1, 1, 0, 0],
    quality=[0, 1, 2, 0],
    value=[312.5, None, 2**63 + 5, 0],
    labels=[{}, {"gpu_instance": "3"}],
    label=[0, 1, 0, 0],
    left_out=2,
)


def block(data: bytes) -> records.Block:
    return records.Block(minute_ns=MINUTE_NS, codec=blocks.CODEC, metrics=METRICS, data=data, rollup=ROLLUP)


def q(*values: int) -> bytes:
    return array("q", values).tobytes()


def messages() -> dict[str, Any]:
    """Name -> message. The block's compressed bytes are given, since zstd may write others next year."""
    return {
        "hello": records.Hello(
            version="1.0", cluster="default", node="gtn-0101", machine_id="m" * 32, boot_id="b" * 36,
            epoch="e" * 32, agent_version="0.1.0", t_ns=T_NS, next=records.LaneNext(urgent=7, bulk=9),
            enrolment_token="token", cpu_count=192, memory_bytes=2 * 2**40, rack="r1", leaf="l1",
            gpus=[records.GpuIdentity(index=0, uuid="GPU-0", pci="0000:12:00.0")],
        ),
        "welcome": records.Welcome(
            version="1.0", t_ns=T_NS, acked=records.LaneNext(urgent=6, bulk=0), credential="c"
        ),
        "refuse": records.Refuse(code="bad_version", reason="upgrade", retry_after_s=60.0),
        "ack": records.Ack(lane="urgent", sequence=7),
        "reject": records.Reject(lane="bulk", sequence=9, reason="future"),
        "slow": records.Slow(lane="bulk", pause_s=2.5),
        "capture": records.CaptureOrder(capture_id=5, job="4711", want=["window", "stacks"], ranks=[3]),
        "capture_ras": records.CaptureOrder(capture_id=6, job="4711", want=["stacks"], ras_rank=0),
        "bye": records.Bye(reason="stop"),
        "hot": records.HotFrame(
            t_ns=T_NS, metrics=hot_values.pack({"host_cpu_ratio": [0.5], "power_w": [650.0, None]}),
            progress=records.HotProgress(
                ref=array("I", [77]).tobytes(), step=q(12), phase=b"\x02", phase_since_ns=q(T_NS),
                moved_ns=q(T_NS), heard_ns=q(T_NS), group_count=array("H", [1]).tobytes(),
                group_index=array("H", [0]).tobytes(), enqueued=q(40), completed=q(39), sequence=q(-1),
            ),
            agent=records.AgentCost(cpu_ratio=0.002, rss_bytes=2**25, sources={"host": "ok"}),
        ),
        "put": records.Put(lane="urgent", items=[records.PutItem(7, b"\x81\xa1k\xa3bye")]),
        "inventory": records.Inventory(t_ns=T_NS, hostname="gtn-0101", kernel="6.1", cpu_count=192),
        "rank_inventory": records.RankInventory(
            t_ns=T_NS, ref=77, id=RANK, pid=4242, host="gtn-0101", world_size=8, local_rank=3,
            groups=[records.GroupInfo(index=0, name="0", desc="default_pg", backend="nccl", ranks=[0, 3])],
            blind=["p2p on gloo"],
        ),
        "rank_exit": records.RankExit(
            t_ns=T_NS, ref=77, id=RANK, pid=4242, signal=9, clean=False,
            exception=records.ExceptionInfo(type="ValueError", message="m", traceback="t", t_ns=T_NS),
        ),
        "phase": records.PhaseChange(t_ns=T_NS, id=RANK, phase="train", before="startup", before_s=31.5),
        "steps": records.Steps(T_NS, RANK, [11, 12], [T_NS, T_NS], [0.5, 0.6], [None, 0.1], [None, None],
                               [0.0, None], [0.4, 0.4]),
        "steps_waits": records.Steps(T_NS, RANK, [11, 12], [T_NS, T_NS], [0.5, 0.6], [None, 0.1],
                                     [None, None], [0.0, None], [0.4, 0.4], [0.125, None], [None, 0.25]),
        "edges": records.Edges(
            t_ns=T_NS, id=RANK, ops=["all_reduce", "send"], step=[32, 32], group=[0, 2], op=[0, 1],
            size_bytes=[4_194_304, 8_192], count=[48, 8], sum_s=[0.375, 0.0625], min_s=[0.005, 0.001],
            p10_s=[0.00625, 0.002], p50_s=[0.0075, 0.0078125],
        ),
        "trace": records.Trace(
            t_ns=T_NS, id=RANK, pid=4242, capture_id=5, want="ring", recorder="nccl", columns=b"\x28\xb5"
        ),
        "stacks": records.Stacks(
            t_ns=T_NS, id=RANK, pid=4242, capture_id=5, source="py-spy", process_state="T", wchan="w",
            threads=[records.ThreadStack(name="MainThread", frames=["main (t.py:1)"], main=True)],
        ),
        "capture_done": records.CaptureDone(t_ns=T_NS, capture_id=5, answered=[3], silent={"4": "stopped"}),
        "event": records.Event(
            t_ns=T_NS, source="agent", kind="process_state", severity="warning", text="t",
            fields={"state": "T"}, id=RANK,
        ),
        "dropped": records.Dropped(
            t_ns=T_NS, lane="bulk", counts={"block": 3}, reason="spool_full", first_sequence=2,
            last_sequence=4,
        ),
        "block": block(b"frozen"),
        "readings": records.Readings(t_ns=T_NS, codec=readings.CODEC, data=b"frozen"),
        "device_readings": records.DeviceReadings(
            t_ns=T_NS,
            kind="bmc",
            device="bmc-7",
            poller="redfish",
            state="ok",
            codec=readings.CODEC,
            data=b"frozen",
            node="gt-0007",
        ),
    }  # fmt: skip


def main() -> None:
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    for name, message in messages().items():
        golden.setdefault(name, msgspec.msgpack.encode(message).hex())
    golden.setdefault("block_data", blocks.encode(METRICS, COLUMNS).hex())
    golden.setdefault("readings_data", readings.pack(TABLE).hex())
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
