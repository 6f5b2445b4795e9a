"""A worker whose first job never ends.

    python -m tests.adapters.jobs.stubborn_worker REDIS_URL LEASE_S

Every start of a job is told in the list `started`. A second start, in whichever process, ends at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime

from adapters.jobs import JobRunner, Tuning, Worker
from flow_engine.ports.jobs import Job
from flow_engine.ports.telemetry import Unobserved
from memory.connection import connect
from memory.schedule import RedisJobSchedule

STARTED = "started"


class _Clock:
    def now(self) -> datetime:
        return datetime.now(UTC)


async def work(redis_url: str, lease_s: float) -> None:
    memory = connect(redis_url)

    async def mine(_: Job) -> None:
        if await memory.driver.client.rpush(STARTED, os.getpid()) == 1:
            await asyncio.sleep(600)

    runner = JobRunner(
        RedisJobSchedule(memory.driver), {"mine": mine}, _Clock(), Unobserved(), Tuning(lease_s=lease_s)
    )
    async with Worker(runner).running() as working:
        await working


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], float(sys.argv[2])))
