"""A browser's end of the live line, spoken to the ASGI application without a server in between."""

from __future__ import annotations

import json
from typing import Any

from asgiref.testing import ApplicationCommunicator


class Browser(ApplicationCommunicator):
    """One websocket to an ASGI application."""

    def __init__(self, application: Any, headers: list[tuple[bytes, bytes]], **scope: Any) -> None:
        path = "/ws/live/"
        super().__init__(
            application,
            {
                "type": "websocket",
                "path": path,
                "raw_path": path.encode(),
                "query_string": b"",
                "headers": headers,
                "subprotocols": [],
                **scope,
            },
        )

    async def connect(self) -> bool:
        """Whether the application accepts."""
        await self.send_input({"type": "websocket.connect"})
        return (await self.receive_output(10))["type"] == "websocket.accept"

    async def say(self, message: dict[str, Any] | str) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        await self.send_input({"type": "websocket.receive", "text": text})

    async def hear(self, key: str, within_s: float = 10.0) -> Any:
        """The value of ``key`` in the next message that has it."""
        while True:
            output = await self.receive_output(within_s)
            assert output["type"] == "websocket.send", output
            message = json.loads(output["text"])
            if key in message:
                return message[key]

    async def closed(self) -> int:
        """The code the application closes with, whatever it says before."""
        while (output := await self.receive_output(10))["type"] != "websocket.close":
            pass
        return int(output["code"])

    async def leave(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(10)
