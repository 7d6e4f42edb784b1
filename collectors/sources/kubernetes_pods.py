"""Which pod has which GPU: what the kubelet gave to containers, and how many GPUs it has to give.

In: the kubelet's socket for pod resources, names of folders in var/log/pods for the pods' uids. Out:
``pod_count`` of ``gpu/<uuid>`` with pod, namespace and container, counts of ``host``; a standing event
``pod`` for each pod with devices. A device that is shared bears a number behind its name (``GPU-...::2``),
one of MIG its own UUID; names by the number of a device file are told and not taken for a GPU. Labels of
pods are the API server's, which no node's agent asks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources import grpc_unary, pod_resources
from collectors.sources.base import HOST, OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.gpu_identity import UUID
from collectors.sources.pod_resources import Devices, PodDevices
from collectors.sources.tree import Tree, reason

SOCKETS: Final = tuple(
    f"{root}/pod-resources/kubelet.sock"
    for root in ("var/lib/kubelet", "var/lib/k0s/kubelet", "var/snap/microk8s/common/var/lib/kubelet")
)
LOGS: Final = "var/log/pods"
LOGS_MAX: Final = 4_096
ANSWER_S: Final = 2.0
ALLOCATABLE_EVERY_S: Final = 600.0
UNREADABLE: Final = "unreadable"
IDS_MAX: Final = 64
"""device names in one event"""
_SERVICE: Final = "/v1.PodResourcesLister/"
_LIST, _ALLOCATABLE = "List", "GetAllocatableResources"
_GPU_WORDS: Final = ("gpu", "mig-")


class KubernetesPodsSource:
    """All pods of the node that have devices."""

    name = "kubernetes_pods"
    period_s = 60.0
    deadline_s = 10.0
    metrics = (
        MetricSpec("gpus_in_pods_count", "count", 1.0),
        MetricSpec("pods_with_devices_count", "count", 1.0),
    )

    def __init__(self) -> None:
        self._allocatable: Sample | None = None
        self._allocatable_s: float | None = None

    def read(self, tree: Tree, at_s: float) -> Reading:
        socket = next((one for one in SOCKETS if tree.exists(one)), None)
        if socket is None and not (not tree.is_live and tree.exists(_recorded(_LIST))):
            self._allocatable = self._allocatable_s = None
            return Reading()
        try:
            found = pod_resources.pods(_answer(tree, socket, _LIST))
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else UNREADABLE
            names = ("pods_with_devices_count", "gpus_in_pods_count")
            return Reading([Sample(HOST, name, None, why) for name in names])
        if tree.is_due(self._allocatable_s, at_s, ALLOCATABLE_EVERY_S) or self._allocatable is None:
            self._allocatable, self._allocatable_s = _to_give(tree, socket), at_s
        uids = _uids(tree) if found else {}
        samples = [*_samples(found), self._allocatable]
        return Reading(samples, [_event(pod, uids.get((pod.namespace, pod.name))) for pod in found])


def _answer(tree: Tree, socket: str | None, method: str) -> bytes:
    """Raises ``OSError``."""
    if not tree.is_live and tree.exists(_recorded(method)):
        return tree.read_bytes(_recorded(method))
    if socket is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), SOCKETS[0])
    return grpc_unary.ask(tree.path(socket), f"{_SERVICE}{method}", b"", ANSWER_S)


def _recorded(method: str) -> str:
    return f"commands/pod_resources_{method}.bin"


def _to_give(tree: Tree, socket: str | None) -> Sample:
    """A kubelet before 1.28 may have this switched off."""
    try:
        devices = pod_resources.allocatable(_answer(tree, socket, _ALLOCATABLE))
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else UNREADABLE
        return Sample(HOST, "gpus_allocatable_count", None, why)
    count = len({name for one in devices if is_gpu(one) for name in one.ids})
    return Sample(HOST, "gpus_allocatable_count", count)


def is_gpu(devices: Devices) -> bool:
    """Whether a resource is one of GPUs: ``nvidia.com/gpu``, ``nvidia.com/mig-1g.10gb``, ``amd.com/gpu``."""
    return devices.resource.rpartition("/")[2].startswith(_GPU_WORDS)


def uuid_of(name: str) -> str | None:
    """The whole GPU that a device's name means; None for a part of one and for other names."""
    plain = name.partition("::")[0]
    return plain if UUID.fullmatch(plain) else None


def _samples(found: list[PodDevices]) -> Iterator[Sample]:
    told: set[str] = set()
    for pod in found:
        for devices in pod.devices:
            if not is_gpu(devices):
                continue
            told.update(devices.ids)
            for uuid in dict.fromkeys(uuid for name in devices.ids if (uuid := uuid_of(name))):
                labels = {
                    "pod": pod.name,
                    "namespace": pod.namespace,
                    "container": devices.container,
                    "resource": devices.resource,
                }
                yield Sample(f"gpu/{uuid}", "pod_count", 1, OK, labels)
    yield Sample(HOST, "gpus_in_pods_count", len(told))
    yield Sample(HOST, "pods_with_devices_count", len(found))


def _event(pod: PodDevices, uid: str | None) -> SourceEvent:
    gpus = [name for devices in pod.devices if is_gpu(devices) for name in devices.ids]
    others = [name for devices in pod.devices if not is_gpu(devices) for name in devices.ids]
    uuids = list(dict.fromkeys(uuid for name in gpus if (uuid := uuid_of(name))))
    attributes: dict[str, Attribute] = {
        "pod": pod.name,
        "namespace": pod.namespace,
        "pod_uid": uid,
        "containers": sorted({devices.container for devices in pod.devices})[:IDS_MAX],
        "resources": sorted({devices.resource for devices in pod.devices})[:IDS_MAX],
        "gpu_uuids": uuids[:IDS_MAX],
        "device_ids": [name for name in (*gpus, *others) if name not in uuids][:IDS_MAX],
    }
    count = len(gpus)
    has = f"{count} GPU{'s'[: count != 1]}" if count else f"{len(others)} device{'s'[: len(others) != 1]}"
    return SourceEvent(
        f"pod/{pod.namespace}/{pod.name}"[:255], "pod", f"{pod.namespace}/{pod.name} has {has}"[:300], "info",
        attributes=attributes, standing=True,
    )  # fmt: skip


def _uids(tree: Tree) -> dict[tuple[str, str], str]:
    """(namespace, pod) -> uid, by the kubelet's folders of logs; one that is there twice is not known."""
    found: dict[tuple[str, str], str] = {}
    twice = set()
    for folder in tree.list(LOGS)[:LOGS_MAX]:
        namespace, _, rest = folder.partition("_")
        name, _, uid = rest.rpartition("_")
        if name and uid and len(uid) <= 64 and uid.isprintable():
            key = namespace, name
            if found.setdefault(key, uid) != uid:
                twice.add(key)
    return {key: uid for key, uid in found.items() if key not in twice}
