"""A real agent whose sources read a recorded tree: ``python -m tests.collectors.agent_on_tree ROOT``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from collectors import config
from collectors.__main__ import log_to_stderr
from collectors.agent import Agent
from collectors.sources.tree import Tree


async def live(root: Path) -> None:
    agent = Agent(config.load(os.environ), tree=Tree(root))
    await agent.run(lambda: print("agent ready", flush=True))


if __name__ == "__main__":
    log_to_stderr()
    asyncio.run(live(Path(sys.argv[1])))
