"""What the kubelet says of devices and the containers that it gave them to.

In: messages of its service PodResourcesLister, version v1. Out: ``PodDevices`` and device names. Source:
api.proto of k8s.io/kubelet/pkg/apis/podresources/v1. Fields that are not needed are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from collectors.sources.protobuf_fields import parts, text
from collectors.sources.tree import printable

PODS_MAX: Final = 1_024
CONTAINERS_MAX: Final = 256
DEVICES_MAX: Final = 4_096
NAME_MAX_CHARS: Final = 253
"""A name of Kubernetes is a DNS name."""
ID_MAX_CHARS: Final = 256
CLAIMED: Final = "dynamic"
"""Stands for the resource's name of a device that a claim gave (dynamic resource allocation)."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices of one container of one kind: ``nvidia.com/gpu`` and their names."""

    container: str
    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodDevices:
    """A pod and what its containers have; one without any device is not told."""

    name: str
    namespace: str
    devices: tuple[Devices, ...]


def pods(message: bytes) -> list[PodDevices]:
    """Pods with devices, of ListPodResourcesResponse. Raises ``ValueError`` for what is no such message."""
    found = []
    for place, pod in enumerate(parts(message, 1)):
        if place >= PODS_MAX:
            break
        name, namespace = _name(pod, 1), _name(pod, 2)
        devices = tuple(
            devices
            for number, container in enumerate(parts(pod, 3))
            if number < CONTAINERS_MAX
            for devices in _of_container(container)
        )
        if name and devices:
            found.append(PodDevices(name, namespace, devices))
    return found


def allocatable(message: bytes) -> list[Devices]:
    """What there is to give, of AllocatableResourcesResponse. Raises ``ValueError``."""
    return list(_plugged("", message, 1))


def _of_container(container: bytes) -> Iterator[Devices]:
    name = _name(container, 1)
    yield from _plugged(name, container, 2)
    claimed = [
        f"{_id(claim, 2)}/{_id(claim, 3)}/{_id(claim, 4)}"
        for resource in parts(container, 5)
        for claim in parts(resource, 4)
    ]
    if claimed:
        yield Devices(name, CLAIMED, tuple(claimed[:DEVICES_MAX]))


def _plugged(container: str, message: bytes, number: int) -> Iterator[Devices]:
    """Devices of device plugins; a resource comes once for each place in the topology."""
    by_resource: dict[str, list[str]] = {}
    for devices in parts(message, number):
        resource = printable(text(devices, 1, NAME_MAX_CHARS))
        ids = by_resource.setdefault(resource, [])
        for raw in parts(devices, 2):
            if len(ids) < DEVICES_MAX:
                ids.append(printable(raw[: ID_MAX_CHARS * 4].decode("utf-8", "replace")[:ID_MAX_CHARS]))
    for resource, ids in by_resource.items():
        if resource and ids:
            yield Devices(container, resource, tuple(dict.fromkeys(ids)))


def _name(message: bytes, number: int) -> str:
    return printable(text(message, number, NAME_MAX_CHARS))


def _id(message: bytes, number: int) -> str:
    return printable(text(message, number, 64))
