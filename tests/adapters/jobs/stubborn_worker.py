"""A worker whose first job never ends.

    python -m tests.adapters.jobs.stubborn_worker ENGINE REDIS_URL LEASE_S

Every start of a job is told in the list `started`. A second start, in whichever process, ends at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime

from adapters.jobs.running import JobRunner, Tuning
from adapters.jobs.streaq_worker import StreaqWorker
from adapters.jobs.worker import Worker
from flow_engine.ports.jobs import Job
from flow_engine.ports.observing import Unobserved
from memory.connection import connect
from memory.schedule import RedisJobSchedule

STARTED = "started"


class _Clock:
    def now(self) -> datetime:
        return datetime.now(UTC)


async def work(engine: str, redis_url: str, lease_s: float) -> None:
    memory = connect(redis_url)

    async def mine(_: Job) -> None:
        if await memory.client.rpush(STARTED, os.getpid()) == 1:
            await asyncio.sleep(600)

    runner = JobRunner(
        RedisJobSchedule(memory.client), {"mine": mine}, _Clock(), Unobserved(), Tuning(lease_s=lease_s)
    )
    worker = Worker(runner) if engine == "builtin" else StreaqWorker(runner, redis_url)
    async with worker.running() as working:
        await working


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], float(sys.argv[3])))
