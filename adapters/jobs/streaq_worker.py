"""The engine of production: due jobs go through streaq's queue, a Redis stream that all workers read (F41).

1. Each worker also dispatches: it claims what is due and puts it into the stream as a task whose id is the
   job's name and its lease's token, so that a claim makes one task, however often it is put in.
2. streaq hands a task to one worker, and to another one when the first has been killed: that takes up to two
   thirds of a lease. The lease is the second net: a task that is lost with its stream is claimed again.
3. A task whose lease somebody else has got since is dropped when its turn comes. Only so many tasks wait in
   the stream as one worker runs at once; jobs beyond that wait in the schedule.
4. Attempts, pauses and burials are the schedule's. streaq only delivers, so nothing is retried twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import structlog
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream
from coredis.exceptions import RedisError
from coredis.response.types import StreamPending
from streaq import Worker as Queue
from streaq.constants import REDIS_GROUP
from streaq.types import StreamMessage

from adapters.jobs.running import JobRunner
from adapters.jobs.worker import DueJobs
from flow_engine.ports.jobs import Claim, Job

QUEUE_NAME = "flow-engine"
DEAD_AFTER_MS = 3_600_000
PRIORITY = "normal"
DELIVERIES = 2
"""Of one task. A job that kills whoever runs it comes back through the schedule then, which counts."""

_AWAY = (RedisError, OSError, anyio.ClosedResourceError, anyio.BrokenResourceError)
"""How coredis says that a connection is gone; the last two where it is asked while that happens."""

log: Any = structlog.get_logger("flow_engine.jobs")


class _Queue(Queue[None]):
    """Leaves the process's signals to whoever runs it, and closes what it has opened."""

    async def signal_handler(self, scope: anyio.CancelScope) -> None:
        await anyio.sleep_forever()

    async def run_consumers(
        self,
        receive: MemoryObjectReceiveStream[StreamMessage],
        renew_scope: anyio.CancelScope,
        produce_scope: anyio.CancelScope,
        *,
        task_status: TaskStatus[anyio.CapacityLimiter] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        with receive:
            await super().run_consumers(receive, renew_scope, produce_scope, task_status=task_status)


class StreaqWorker:
    """Dispatches and runs due jobs while `running` is entered. `redis_url` names one server, no cluster."""

    def __init__(
        self,
        runner: JobRunner,
        redis_url: str,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._runner = runner
        self._tuning = runner.tuning
        self._redis_url = redis_url
        self._pause = pause
        self._due = DueJobs(runner, pause)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[None]]:
        """As the built-in worker's. Tasks that wait in the stream stay there, for other workers."""
        self._due.wanted = True
        working = asyncio.create_task(self._work())
        try:
            yield working
        finally:
            self._due.wanted = False
            working.cancel()
            await self._due.let_go()
            await asyncio.wait({working})

    async def _work(self) -> None:
        while self._due.wanted:
            try:
                async with anyio.create_task_group() as group:
                    queue = self._queue()
                    await group.start(queue.run_async)
                    await _forget_dead_readers(queue)
                    await self._dispatch(queue)
                    group.cancel_scope.cancel()
            except* _AWAY as away:
                log.warning("job_queue_away", reason=type(away.exceptions[0]).__name__)
            await self._pause(1.0)

    def _queue(self) -> Queue[None]:
        queue = _Queue(
            redis_url=self._redis_url,
            queue_name=QUEUE_NAME,
            priorities=[PRIORITY],
            concurrency=self._tuning.concurrency,
            prefetch=1,
            idle_timeout=self._tuning.lease_s / 3,
            serializer=partial(json.dumps, default=str),  # results are errors too, and nobody reads them
            deserializer=json.loads,
        )
        queue.task(name="job", silent=True, ttl=0, max_tries=DELIVERIES)(self._run)
        return queue

    async def _run(self, name: str, token: str, attempt: int) -> None:
        """Returns when the job has been given back, also where this worker stops before it is done."""
        running = self._due.started(Claim(Job.named(name), token, attempt), is_fresh=False)
        await asyncio.wait({running})

    async def _dispatch(self, queue: Queue[None]) -> None:
        while self._due.wanted:
            room = self._tuning.concurrency - await self._waiting(queue)
            claims = await self._due.claim(room) if room > 0 else ()
            tasks = [
                queue.enqueue_unsafe("job", claim.job.name, claim.token, claim.attempt) for claim in claims
            ]
            for task, claim in zip(tasks, claims, strict=True):
                task.id = f"{claim.job.name}:{claim.token}"
            if tasks:
                await queue.enqueue_many(tasks)
            # More is due, or the stream is full: jobs take milliseconds, so there is room again soon.
            busy = len(claims) >= room
            await self._pause(self._tuning.poll_s / 10 if busy else self._due.pause_s)

    async def _waiting(self, queue: Queue[None]) -> int:
        """Tasks in the stream that no worker has taken; a task that is done is deleted from it."""
        stream = queue.stream_key + PRIORITY
        async with queue.redis.pipeline(transaction=True) as pipe:
            length, taken = pipe.xlen(stream), pipe.xpending(stream, REDIS_GROUP)
        pending = await taken
        return await length - (pending.pending if isinstance(pending, StreamPending) else 0)


async def _forget_dead_readers(queue: Queue[None]) -> None:
    """Each start of a worker is a new reader of the stream, and streaq keeps their names for ever."""
    stream = queue.stream_key + PRIORITY
    for reader in await queue.redis.xinfo_consumers(stream, REDIS_GROUP):
        name, pending, idle_ms = reader["name"], reader["pending"], reader["idle"]
        if name is not None and not pending and int(idle_ms or 0) > DEAD_AFTER_MS:
            await queue.redis.xgroup_delconsumer(stream, REDIS_GROUP, str(name))
