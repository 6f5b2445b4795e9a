"""The processes of a proof: two of the API and two workers, on a Redis that the proof may maltreat."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flow_engine.ports.jobs import Job
from memory.connection import RedisMemory, connect
from memory.keys import JOBS_KEY
from tests.ports import free_port
from tests.redis_fixture import DURABLE, RedisServer, end, spawn
from tests.resilience.fleet import ROOT, HttpEngine, Worker, settings_for
from tests.resilience.flow import publish

EVERYSEC = ("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction")
JOB_LEASE_S = 1.0
DRAINED_WITHIN_S = 300.0
BACK_WITHIN_S = 300.0
SKEWS_S = (0.0, 0.0)


class JobsWorker:
    """A `worker` process; `skew_s` is how far its clock is ahead."""

    def __init__(self, folder: Path, settings: Mapping[str, str], number: int, skew_s: float = 0.0) -> None:
        self.log = folder / f"jobs-{number}.log"
        self.skew_s = skew_s
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("FLOW_ENGINE_")}
        self._environment |= {f"FLOW_ENGINE_{name}": value for name, value in settings.items()}
        self.start()

    def start(self) -> None:
        module = ("tests.proof.shifted_clock", str(self.skew_s)) if self.skew_s else ("service.cli",)
        command = (sys.executable, "-m", *module, "worker")
        self.process = spawn(command, self.log, cwd=ROOT, env=self._environment)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    def stop(self) -> None:
        end(self.process)


@dataclass
class Fleet:
    """What a proof has in hand. `engine` sends requests to the API's processes."""

    apis: Sequence[Worker]
    workers: Sequence[JobsWorker]
    engine: HttpEngine
    recoveries_s: list[float] = field(default_factory=list[float])

    async def recovered(self) -> None:
        """Wait until every process of the API is ready, and note how long that took."""
        began = time.monotonic()
        while not all([await asyncio.to_thread(lambda api=api: api.ready) for api in self.apis]):
            if (
                any(api.process.poll() is not None for api in self.apis)
                or time.monotonic() - began > BACK_WITHIN_S
            ):
                raise RuntimeError("\n".join(api.log.read_text()[-2_000:] for api in self.apis))
            await asyncio.sleep(0.05)
        self.recoveries_s.append(time.monotonic() - began)


@asynccontextmanager
async def fleet_on(
    url: str, redis: RedisServer, *, skews_s: tuple[float, float] = SKEWS_S, **settings: str
) -> AsyncGenerator[Fleet]:
    """Two processes of the API and two workers on `url`; all ended when it is left."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await publish(folder)
        chosen = settings_for(
            redis,
            folder,
            **{"JOB_LEASE_S": str(JOB_LEASE_S), "RULES_EXTRACTION": "false", "REDIS_URL": url, **settings},
        )
        apis: list[Worker] = []
        workers: list[JobsWorker] = []
        try:
            apis = [Worker(folder, chosen) for _ in range(2)]
            workers = [JobsWorker(folder, chosen, number, skew) for number, skew in enumerate(skews_s)]
            engine = HttpEngine(apis)
            fleet = Fleet(apis, workers, engine)
            await fleet.recovered()
            fleet.recoveries_s.clear()
            yield fleet
            await engine.aclose()
        finally:
            for process in (*apis, *workers):
                process.stop()


@asynccontextmanager
async def redis_server(options: Sequence[str] = DURABLE) -> AsyncGenerator[RedisServer]:
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), free_port(), options)
        try:
            yield server
        finally:
            server.stop()


@asynccontextmanager
async def opened(url: str, *, cluster: bool = False) -> AsyncGenerator[RedisMemory]:
    memory = connect(url, cluster=cluster)
    try:
        yield memory
    finally:
        await memory.close()


async def drained(memory: RedisMemory) -> None:
    """Wait until no job is left but those that wait for a time limit."""
    deadline = time.monotonic() + DRAINED_WITHIN_S
    while True:
        waiting = [
            Job.named(name.decode()) for name, _ in await memory.driver.zrange(JOBS_KEY, at_most=9_999)
        ]
        left = [job for job in waiting if job.kind not in ("expire", "routing")]
        if not left:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"jobs that nobody does: {left[:5]}")
        await asyncio.sleep(0.2)
