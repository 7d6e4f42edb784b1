"""A real agent whose sources read a recorded node instead of this machine.

``python -m collectors.bench_agent ROOT``, for ``clusterwatch bench agent``: what all sources together
cost on a node of 8 GPUs and 8 RDMA ports. What is read rarely on a machine is read rarely here; the GPU
driver's own time is not in it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from collectors import config
from collectors.agent import Agent
from collectors.bench_sources import Replayed


async def live(root: Path) -> None:
    """Runs until SIGTERM."""
    agent = Agent(config.load(os.environ), tree=Replayed(root))
    await agent.run(lambda: print("agent ready", flush=True))


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1])))
