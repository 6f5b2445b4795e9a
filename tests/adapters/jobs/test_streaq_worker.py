"""The worker that hands its jobs to streaq: as the built-in one, through a stream that all share (F41)."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from adapters.jobs.running import JobRunner, Tuning
from adapters.jobs.streaq_worker import StreaqWorker
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job, JobHandler
from flow_engine.ports.observing import Unobserved
from memory.connection import RedisMemory, connect
from memory.keys import JOBS_KEY
from memory.schedule import RedisJobSchedule
from service.wiring import SystemClock
from tests.redis_fixture import RedisServer, StartRedis

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Bench:
    server: RedisServer
    memory: RedisMemory

    def worker(self, mine: JobHandler, tuning: Tuning | None = None) -> StreaqWorker:
        schedule = RedisJobSchedule(self.memory.client)
        runner = JobRunner(schedule, {"mine": mine}, SystemClock(), Unobserved(), tuning or Tuning())
        return StreaqWorker(runner, self.server.url)

    async def put(self, *conversation_ids: str) -> None:
        due = int(time.time() * 1000)
        names = [Job("mine", ConversationRef("t", each)).name for each in conversation_ids]
        await self.memory.client.zadd(JOBS_KEY, dict.fromkeys(names, due))

    async def empty(self) -> bool:
        return not await self.memory.client.exists(JOBS_KEY)


@pytest.fixture
async def bench(start_redis: StartRedis) -> AsyncIterator[Bench]:
    server = start_redis()
    memory = connect(server.url)
    yield Bench(server, memory)
    await memory.close()


async def until(happened: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await happened():
            await asyncio.sleep(0.01)


async def test_two_workers_do_each_job_once(bench: Bench) -> None:
    done: list[str] = []

    async def mine(job: Job) -> None:
        await asyncio.sleep(0.002)
        done.append(job.conversation.conversation_id)

    expected = sorted(f"c{number}" for number in range(200))
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(bench.worker(mine).running())
        await bench.put(*expected)
        await until(bench.empty)
    assert sorted(done) == expected


async def test_no_more_run_at_once_than_allowed_and_those_that_wait_do_not_lose_their_turn(
    bench: Bench,
) -> None:
    running = most = done = 0

    async def mine(_: Job) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        done += 1

    await bench.put(*(f"c{number}" for number in range(60)))
    async with bench.worker(mine, Tuning(concurrency=4, lease_s=0.3)).running():  # 15 rounds: 0.75 s
        await until(bench.empty)
    assert (most, done) == (4, 60)


async def test_it_leaves_nothing_behind_but_its_stream(bench: Bench) -> None:
    async def mine(_: Job) -> None:
        return

    async def only_the_stream_is_left() -> bool:
        keys = {key.decode() for key in await bench.memory.client.keys("*")}
        return {key for key in keys if ":health:" not in key} == {"streaq:flow-engine:queues:normal"}

    async with bench.worker(mine).running():
        await bench.put("c1", "c2")
        await until(bench.empty)
        await until(only_the_stream_is_left)  # streaq tidies up after the job has been given back
    assert await only_the_stream_is_left()
    assert await bench.memory.client.xlen("streaq:flow-engine:queues:normal") == 0


async def test_stopping_finishes_what_it_holds(bench: Bench) -> None:
    started, done = asyncio.Event(), 0

    async def mine(_: Job) -> None:
        nonlocal done
        started.set()
        await asyncio.sleep(0.2)
        done += 1

    await bench.put("c")
    async with bench.worker(mine).running():
        await started.wait()
    assert done == 1
    assert await bench.empty()


async def test_what_does_not_end_in_time_is_done_by_the_next_worker_at_once(bench: Bench) -> None:
    started, starts = asyncio.Event(), 0

    async def mine(_: Job) -> None:
        nonlocal starts
        starts += 1
        started.set()
        if starts == 1:
            await asyncio.sleep(600)

    await bench.put("c")
    async with bench.worker(mine, Tuning(stop_within_s=0.05)).running():
        await started.wait()
    async with bench.worker(mine).running():
        began = time.monotonic()
        await until(bench.empty)
    assert starts == 2
    assert time.monotonic() - began < Tuning().lease_s / 2


# The library leaves streams of its own open when a connection breaks.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_it_goes_on_when_redis_has_been_away(bench: Bench) -> None:  # F44
    done: list[str] = []

    async def mine(job: Job) -> None:
        done.append(job.conversation.conversation_id)

    async with bench.worker(mine).running() as working:
        await bench.put("before")
        await until(bench.empty)
        bench.server.kill()
        await asyncio.sleep(0.5)
        bench.server.start()
        await asyncio.to_thread(bench.server.wait_until_ready)
        await bench.put("after")
        await until(bench.empty)
        assert not working.done()
    gc.collect()
    assert done == ["before", "after"]
