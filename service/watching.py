"""What a process measures of itself and of the work that waits, while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from flow_engine.errors import RetryLater
from flow_engine.ports.clock import Clock
from memory.backlog import RedisBacklog
from service.observing import Backlog, PrometheusObserver

LAG_EVERY_S = 0.5
BACKLOG_EVERY_S = 5.0
ASK_AGAIN_S = 0.1


class Watch:
    """Feeds the gauges that nothing counts into by itself."""

    def __init__(
        self,
        observer: PrometheusObserver,
        backlog: RedisBacklog,
        clock: Clock,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._observer = observer
        self._backlog = backlog
        self._clock = clock
        self._pause = pause
        self._stopwatch = stopwatch

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        tasks = [asyncio.create_task(self._lag_for_ever()), asyncio.create_task(self._backlog_for_ever())]
        try:
            yield
        finally:
            await _ended(*tasks)

    async def measure_lag(self) -> None:
        began = self._stopwatch()
        await self._pause(LAG_EVERY_S)
        self._observer.event_loop_lagged(max(0.0, self._stopwatch() - began - LAG_EVERY_S))

    async def measure_backlog(self) -> None:
        """While the store is away the last figures stay."""
        try:
            waiting, oldest_s, dead_letters = await self._backlog.read(self._clock.now())
        except RetryLater:
            self._observer.count("store_errors", store="memory")
        else:
            self._observer.backlog_is(Backlog(waiting, oldest_s, dead_letters))

    async def _lag_for_ever(self) -> None:
        while True:
            await self.measure_lag()

    async def _backlog_for_ever(self) -> None:
        while True:
            await self.measure_backlog()
            await self._pause(BACKLOG_EVERY_S)


async def _ended(*tasks: asyncio.Task[None]) -> None:
    """Cancel until each is over: `wait_for`, in the store's driver, may swallow the first time."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=ASK_AGAIN_S)
