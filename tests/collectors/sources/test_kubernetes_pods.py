"""Pods and their GPUs: asked of a real gRPC server, read from protobuf's bytes, and from any others."""

from __future__ import annotations

import contextlib
import errno
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources import grpc_unary, pod_resources
from collectors.sources.kubernetes_pods import KubernetesPodsSource, uuid_of
from collectors.sources.protobuf_fields import fields, varint
from collectors.sources.tree import Tree
from tests.collectors.sources.kubelet_peer import PB, SOCKET, Kubelet, kubelet, listed, pod, to_give
from tests.collectors.sources.trees import look, write

GPUS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(8)]
MIG = "MIG-11111111-2222-3333-4444-555555555555"
UID = "7a1c0f0e-6f6d-4b43-8f1e-0d9a35ab1c2d"


@pytest.fixture
def node() -> Iterator[Kubelet]:
    with kubelet() as running:
        yield running


def recorded(root: Path, message: bytes, give: bytes = b"") -> Path:
    files: dict[str, str | bytes] = {"commands/pod_resources_List.bin": message}
    if give:
        files["commands/pod_resources_GetAllocatableResources.bin"] = give
    return write(root, files)


def test_a_kubelet_is_asked_which_pod_has_which_gpu(node: Kubelet) -> None:
    node.answers = {
        "List": listed(pod("tune-8b-0", ("nvidia.com/gpu", GPUS[:2]), ("rdma/hca", ["mlx5_0"])), pod("dns")),
        "GetAllocatableResources": to_give("nvidia.com/gpu", GPUS),
    }
    (node.root / f"var/log/pods/train_tune-8b-0_{UID}").mkdir(parents=True)
    reading = KubernetesPodsSource().read(Tree(node.root), 0.0)
    told = {(one.entity, one.metric): one for one in reading.samples}
    assert told[f"gpu/{GPUS[1]}", "pod_count"].labels == {
        "pod": "tune-8b-0", "namespace": "train", "container": "main", "resource": "nvidia.com/gpu",
    }  # fmt: skip
    counts = {metric: one.value for (entity, metric), one in told.items() if entity == "host"}
    assert counts == {"gpus_in_pods_count": 2, "pods_with_devices_count": 1, "gpus_allocatable_count": 8}
    (event,) = reading.events
    assert (event.entity, event.kind, event.standing) == ("pod/train/tune-8b-0", "pod", True)
    assert event.message == "train/tune-8b-0 has 2 GPUs"
    assert event.attributes == {
        "pod": "tune-8b-0", "namespace": "train", "pod_uid": UID, "containers": ["main"],
        "resources": ["nvidia.com/gpu", "rdma/hca"], "gpu_uuids": GPUS[:2], "device_ids": ["mlx5_0"],
    }  # fmt: skip


def test_an_answer_of_many_frames_is_read_whole(node: Kubelet) -> None:
    many = [pod(f"p{number}", ("nvidia.com/gpu", [f"{'x' * 200}{number}"])) for number in range(900)]
    node.answers = {"List": listed(*many)}
    assert len(node.answers["List"]) > 200_000
    found, events = look(KubernetesPodsSource(), node.root)
    assert found["host", "pods_with_devices_count"] == (900, "ok")
    assert found["host", "gpus_allocatable_count"] == (None, "eio")
    assert len(events) == 900


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "eio"),
        (b"\xff" * 40, "unreadable"),
        (b"x" * (5 * 1024 * 1024), "efbig"),
    ],
)
def test_a_kubelet_that_refuses_or_lies_is_a_reason(
    node: Kubelet, says: bytes | grpc.StatusCode, why: str
) -> None:
    node.answers = {"List": says}
    found, events = look(KubernetesPodsSource(), node.root)
    assert found == {
        ("host", "pods_with_devices_count"): (None, why), ("host", "gpus_in_pods_count"): (None, why),
    }  # fmt: skip
    assert events == []


def test_a_kubelet_that_hangs_costs_its_deadline(node: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.sources.kubernetes_pods.ANSWER_S", 0.1)
    node.hang_s = 0.2
    found, _ = look(KubernetesPodsSource(), node.root)
    assert found["host", "gpus_in_pods_count"] == (None, "etimedout")


def test_a_socket_that_nobody_serves_is_a_reason() -> None:
    # The path of a socket may have 107 bytes: the folder of a test can be longer than that.
    with tempfile.TemporaryDirectory(prefix="cw-") as folder:
        path = Path(folder) / SOCKET
        path.parent.mkdir(parents=True)
        path.touch()
        found, _ = look(KubernetesPodsSource(), Path(folder))
    assert found["host", "gpus_in_pods_count"] == (None, "econnrefused")


def test_a_node_without_kubernetes_has_nothing(tmp_path: Path) -> None:
    assert look(KubernetesPodsSource(), tmp_path) == ({}, [])


def test_a_pod_that_ends_is_gone_at_the_next_look_and_a_restarted_kubelet_is_asked_again(
    node: Kubelet,
) -> None:
    source = KubernetesPodsSource()
    node.answers = {"List": listed(pod("a", ("nvidia.com/gpu", GPUS[:1])))}
    assert len(look(source, node.root)[1]) == 1
    node.answers = {"List": grpc.StatusCode.UNAVAILABLE}
    assert look(source, node.root, 60.0)[1] == []
    node.answers = {"List": listed()}
    found, events = look(source, node.root, 120.0)
    assert found["host", "pods_with_devices_count"] == (0, "ok") and events == []


@pytest.mark.parametrize(
    ("name", "uuid"),
    [
        (GPUS[0], GPUS[0]),
        (f"{GPUS[0]}::7", GPUS[0]),
        (MIG, None),
        ("nvidia0/gi7", None),
        ("0", None),
        ("", None),
    ],
)
def test_only_a_whole_gpus_uuid_is_taken_for_it(name: str, uuid: str | None) -> None:
    assert uuid_of(name) == uuid


def test_shared_and_split_gpus_name_each_pod(tmp_path: Path) -> None:
    message = listed(
        pod("a", ("nvidia.com/gpu.shared", [f"{GPUS[0]}::0", f"{GPUS[0]}::1"])),
        pod("b", ("nvidia.com/gpu.shared", [f"{GPUS[0]}::2"])),
        pod("c", ("nvidia.com/mig-1g.10gb", [MIG])),
        pod("d", ("rdma/hca", ["mlx5_0", "mlx5_1"])),
    )
    reading = KubernetesPodsSource().read(Tree(recorded(tmp_path, message)), 0.0)
    on_gpu = [one.labels["pod"] for one in reading.samples if one.entity == f"gpu/{GPUS[0]}"]
    assert on_gpu == ["a", "b"]
    told = {event.attributes["pod"]: event for event in reading.events}
    assert told["c"].attributes["device_ids"] == [MIG]
    assert told["d"].message == "train/d has 2 devices"
    assert {one.metric: one.value for one in reading.samples if one.entity == "host"}[
        "gpus_in_pods_count"
    ] == 4


def test_a_device_that_a_claim_gave_is_told_by_its_driver(tmp_path: Path) -> None:
    claim = PB["ClaimResource"](driver_name="gpu.nvidia.com", pool_name="gtn-0101", device_name="gpu-3")
    held = PB["ContainerResources"](
        name="main", dynamic_resources=[PB["DynamicResource"](claim_name="c", claim_resources=[claim])]
    )
    message = listed(PB["PodResources"](name="p", namespace="train", containers=[held]))
    (event,) = look(KubernetesPodsSource(), recorded(tmp_path, message))[1]
    assert event.attributes["device_ids"] == ["gpu.nvidia.com/gtn-0101/gpu-3"]


def test_two_pods_of_one_name_have_no_uid(tmp_path: Path) -> None:
    recorded(tmp_path, listed(pod("p", ("nvidia.com/gpu", GPUS[:1]))))
    for uid in (UID, UID[::-1]):
        (tmp_path / f"var/log/pods/train_p_{uid}").mkdir(parents=True)
    (event,) = look(KubernetesPodsSource(), tmp_path)[1]
    assert event.attributes["pod_uid"] is None


def test_hostile_names_are_cut_and_shown_safely(tmp_path: Path) -> None:
    message = listed(pod("p\x1b[31m" + "x" * 5_000, ("nvidia.com/gpu", ["\x00" * 2_000])))
    (event,) = look(KubernetesPodsSource(), recorded(tmp_path, message))[1]
    assert len(event.entity) <= 255 and event.entity.isprintable()
    assert event.attributes["device_ids"] == ["?" * pod_resources.ID_MAX_CHARS]


NAMES = st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "Pd")), min_size=1, max_size=30)
HELD = st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=4, unique=True), min_size=1, max_size=3)


@given(st.lists(st.tuples(NAMES, NAMES, HELD), max_size=4))
def test_what_protobuf_writes_is_read_as_it_is(told: list[tuple[str, str, dict[str, list[str]]]]) -> None:
    message = listed(*(pod(name, *held.items(), namespace=space) for name, space, held in told))
    found = pod_resources.pods(message)
    assert [(one.name, one.namespace) for one in found] == [(name, space) for name, space, _ in told]
    for one, (_, _, held) in zip(found, told, strict=True):
        assert {each.resource: list(each.ids) for each in one.devices} == held


@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_no_message(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(fields(data))
    with contextlib.suppress(ValueError):
        pod_resources.pods(data)
    with contextlib.suppress(ValueError):
        pod_resources.allocatable(data)


@given(st.integers(0, 2**64 - 1))
def test_a_number_is_read_as_protobuf_writes_it(value: int) -> None:
    raw = bytes(PB["NUMANode"](ID=value - 2**64 if value >= 2**63 else value).SerializeToString())
    assert (next(fields(raw), (1, 0))) == (1, value)
    assert value == 0 or varint(raw, 1) == (value, len(raw))


@given(st.integers(1, 200), st.data())
def test_a_message_that_is_cut_is_no_message_or_a_shorter_one(cut: int, data: st.DataObject) -> None:
    whole = listed(pod("a", ("nvidia.com/gpu", GPUS[:3])))
    with contextlib.suppress(ValueError):
        assert len(pod_resources.pods(whole[: len(whole) - cut])) <= 1


@pytest.mark.parametrize(
    "raw", [b"\xff" * 10 + b"\x01", b"\x80", b"\x0a\x7f", b"\x0b", b"\x00\x01", b"\x0d\x01"]
)
def test_a_field_that_cannot_be_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="number|field"):
        list(fields(raw))


@contextlib.contextmanager
def liar(path: Path, says: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accepts one call and says what the test wants."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)

    def serve() -> None:
        with contextlib.suppress(OSError):
            peer, _ = server.accept()
            with peer:
                peer.recv(65_536)
                says(peer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield str(path)
    finally:
        server.close()
        thread.join(2)


def frame(kind: int, flags: int, content: bytes, stream: int = 1) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


MESSAGE = b"\0\0\0\0\x03abc"


@pytest.mark.parametrize(
    ("says", "number"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", errno.EPROTO),
        (b"", errno.EPROTO),
        (frame(0, 1, b"\1\0\0\0\x03abc"), errno.EPROTO),
        (frame(0, 1, b"\0\0\0\0\x09abc"), errno.EPROTO),
        (frame(0, 9, b"\x09abc"), errno.EPROTO),
        (frame(1, 5, b""), errno.EIO),
        (frame(3, 0, b"\0\0\0\0"), errno.EIO),
        (frame(7, 0, b"\0" * 8, 0), errno.EIO),
        (b"\xff\xff\xff\0\0\0\0\0\1", errno.EPROTO),
        (frame(6, 1, b"\0" * 8, 0) * 9_000, errno.EPROTO),
    ],
)
def test_what_is_no_grpc_is_an_error_and_not_a_hang(tmp_path: Path, says: bytes, number: int) -> None:
    with liar(tmp_path / "s", lambda peer: peer.sendall(says)) as path, pytest.raises(OSError) as caught:
        grpc_unary.ask(path, "/a/B", b"", 2.0)
    assert caught.value.errno in (number, errno.ECONNRESET, errno.EPIPE)


def test_settings_pings_and_padding_are_understood(tmp_path: Path) -> None:
    said = (
        frame(4, 0, b"", 0) + frame(6, 0, b"12345678", 0) + frame(1, 4, b"\x88")
        + frame(0, 8, b"\x02" + MESSAGE[:4] + b"zz") + frame(0, 0, MESSAGE[4:]) + frame(1, 5, b"\x88")
    )  # fmt: skip
    answered: list[bytes] = []

    def says(peer: socket.socket) -> None:
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        while chunk := peer.recv(1_024):
            answered.append(chunk)

    with liar(tmp_path / "s", says) as path:
        assert grpc_unary.ask(path, "/a/B", b"", 2.0) == b"abc"
    assert frame(4, 1, b"", 0) in b"".join(answered)
