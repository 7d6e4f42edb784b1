"""A real gRPC server on a Unix socket that answers as a kubelet, with messages made by protobuf itself."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
_TEXT, _NUMBER, _MESSAGE = 9, 3, 11
MESSAGES: dict[str, list[tuple[str, int, int, bool, str]]] = {
    "CDIDevice": [("name", 1, _TEXT, False, "")],
    "ClaimResource": [
        ("cdi_devices", 1, _MESSAGE, True, "CDIDevice"),
        ("driver_name", 2, _TEXT, False, ""),
        ("pool_name", 3, _TEXT, False, ""),
        ("device_name", 4, _TEXT, False, ""),
    ],
    "DynamicResource": [
        ("claim_name", 2, _TEXT, False, ""),
        ("claim_namespace", 3, _TEXT, False, ""),
        ("claim_resources", 4, _MESSAGE, True, "ClaimResource"),
    ],
    "NUMANode": [("ID", 1, _NUMBER, False, "")],
    "TopologyInfo": [("nodes", 1, _MESSAGE, True, "NUMANode")],
    "ContainerDevices": [
        ("resource_name", 1, _TEXT, False, ""),
        ("device_ids", 2, _TEXT, True, ""),
        ("topology", 3, _MESSAGE, False, "TopologyInfo"),
    ],
    "ContainerResources": [
        ("name", 1, _TEXT, False, ""),
        ("devices", 2, _MESSAGE, True, "ContainerDevices"),
        ("cpu_ids", 3, _NUMBER, True, ""),
        ("dynamic_resources", 5, _MESSAGE, True, "DynamicResource"),
    ],
    "PodResources": [
        ("name", 1, _TEXT, False, ""),
        ("namespace", 2, _TEXT, False, ""),
        ("containers", 3, _MESSAGE, True, "ContainerResources"),
    ],
    "ListPodResourcesResponse": [("pod_resources", 1, _MESSAGE, True, "PodResources")],
    "AllocatableResourcesResponse": [
        ("devices", 1, _MESSAGE, True, "ContainerDevices"),
        ("cpu_ids", 2, _NUMBER, True, ""),
    ],
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="kubelet.proto", package="v1", syntax="proto3")
    for message, fields in MESSAGES.items():
        made = file.message_type.add(name=message)
        for name, number, form, repeated, of in fields:
            one = made.field.add(name=name, number=number, type=form, label=3 if repeated else 1)
            if of:
                one.type_name = f".v1.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in MESSAGES
    }


PB: dict[str, Any] = _classes()


def pod(name: str, *devices: tuple[str, list[str]], namespace: str = "train", container: str = "main") -> Any:
    """A pod with one container that has these devices; each alone with its place, as a kubelet tells them."""
    rows = [
        PB["ContainerDevices"](
            resource_name=resource,
            device_ids=[one],
            topology=PB["TopologyInfo"](nodes=[PB["NUMANode"](ID=number)]),
        )
        for resource, ids in devices
        for number, one in enumerate(ids)
    ]
    held = PB["ContainerResources"](name=container, devices=rows, cpu_ids=[0, 1, 2**40])
    return PB["PodResources"](name=name, namespace=namespace, containers=[held])


def listed(*pods: Any) -> bytes:
    return bytes(PB["ListPodResourcesResponse"](pod_resources=pods).SerializeToString())


def to_give(resource: str, ids: list[str]) -> bytes:
    rows = [PB["ContainerDevices"](resource_name=resource, device_ids=[one]) for one in ids]
    return bytes(PB["AllocatableResourcesResponse"](devices=rows, cpu_ids=[0, 1]).SerializeToString())


@dataclass
class Kubelet:
    """``answers``: method -> message, or the status it refuses with."""

    root: Path
    answers: dict[str, bytes | grpc.StatusCode] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hang_s: float = 0.0

    def _answer(self, method: str, context: Any) -> bytes:
        self.asked.append(method)
        time.sleep(self.hang_s)
        said = self.answers.get(method, grpc.StatusCode.UNIMPLEMENTED)
        if not isinstance(said, bytes):
            context.abort(said, "the kubelet says no")
        assert isinstance(said, bytes)
        return said


@contextlib.contextmanager
def kubelet() -> Iterator[Kubelet]:
    """Serves until the end of the block. The folder's name is short: so must a socket's path be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        running = Kubelet(Path(folder))
        socket = running.root / SOCKET
        socket.parent.mkdir(parents=True)
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                lambda request, context, method=method: running._answer(method, context)
            )
            for method in ("List", "GetAllocatableResources")
        }
        server = grpc.server(futures.ThreadPoolExecutor(2))
        service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield running
        finally:
            server.stop(None).wait(5)
