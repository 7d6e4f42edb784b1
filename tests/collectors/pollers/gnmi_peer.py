"""A real gNMI server on loopback, made of pygnmi's own messages: answers Get as a switch would."""

from __future__ import annotations

import json
import time
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from pygnmi.spec.v080 import gnmi_pb2, gnmi_pb2_grpc

Answer = tuple[str, Any]
"""(path with keys, JSON value)"""


@dataclass
class GnmiPeer(gnmi_pb2_grpc.gNMIServicer):  # type: ignore[misc] # generated without types
    """``answers``: what is asked for (``/COUNTERS/Ethernet*``, with the database before it) -> updates."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    tls: Any = None
    hang_s: float = 0.0
    calls: list[list[str]] = field(default_factory=list)
    port: int = 0

    def start(self) -> GnmiPeer:
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        gnmi_pb2_grpc.add_gNMIServicer_to_server(self, self._server)
        add = self._server.add_insecure_port if self.tls is None else self._server.add_secure_port
        self.port = add("127.0.0.1:0", *([] if self.tls is None else [self.tls]))
        self._server.start()
        return self

    def stop(self) -> None:
        self._server.stop(None).wait(5)

    def Get(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's own name
        asked = [request.prefix.target + _text(path) for path in request.path]
        self.calls.append(asked)
        sent = dict(context.invocation_metadata())
        if self.login is not None and (sent.get("username"), sent.get("password")) != self.login:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you")
        time.sleep(self.hang_s)
        if unknown := [path for path in asked if path not in self.answers]:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no such path {unknown[0]}")
        assert request.encoding == gnmi_pb2.Encoding.Value("JSON_IETF")
        return gnmi_pb2.GetResponse(
            notification=[
                gnmi_pb2.Notification(
                    timestamp=1_800_000_000 * 10**9, update=[_update(*one) for one in self.answers[path]]
                )
                for path in asked
            ]
        )


def _text(path: Any) -> str:
    return "".join(
        "/" + element.name + "".join(f"[{key}={value}]" for key, value in element.key.items())
        for element in path.elem
    )


def _update(path: str, value: Any) -> Any:
    """``path``: elements of a name and perhaps ``[key=value]``, whose value has no slash here."""
    elements = []
    for part in path.strip("/").split("|"):
        name, _, rest = part.partition("[")
        key, _, said = rest.rstrip("]").partition("=")
        elements.append(gnmi_pb2.PathElem(name=name, key={key: said} if rest else {}))
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return gnmi_pb2.Update(path=gnmi_pb2.Path(elem=elements), val=gnmi_pb2.TypedValue(json_ietf_val=raw))
