"""A worker in this process: claims what is due and runs it, so many at a time (F41, F42)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import structlog

from adapters.jobs.running import JobRunner
from flow_engine.errors import RetryLater

log: Any = structlog.get_logger("flow_engine.jobs")


class Worker:
    """Takes due jobs while `running` is entered. Any number of these may share a schedule.

    `_wanted` becomes False when the worker stops. Cancelling its task is not enough: Python's `wait_for`
    swallows a cancellation that comes when what it waits for has just ended.
    """

    def __init__(
        self, runner: JobRunner, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._runner = runner
        self._tuning = runner.tuning
        self._pause = pause
        self._pause_s = runner.tuning.poll_s
        self._wanted = True
        self._held: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[None]]:
        """Yields the task that takes jobs: it ends before this does only by a bug or a wrong set-up.

        On leaving, no job is taken any more, and those in hand are waited for `stop_within_s` seconds.
        """
        self._wanted = True
        taking = asyncio.create_task(self._take())
        try:
            yield taking
        finally:
            self._wanted = False
            taking.cancel()
            await asyncio.wait({taking})
            # Wait for what is in hand, but not for ever: the rest is given back.
            if self._held:
                await asyncio.wait(self._held, timeout=self._tuning.stop_within_s)
            late = set(self._held)
            for task in late:
                task.cancel()
            if late:
                log.warning("jobs_given_back", number=len(late))
                await asyncio.wait(late)

    async def _take(self) -> None:
        while self._wanted:
            free = self._tuning.concurrency - len(self._held)
            if free == 0:
                ended, _ = await asyncio.wait(self._held, return_when=asyncio.FIRST_COMPLETED)
                self._held -= ended  # their callbacks have not run yet, and would not before the next wait
                continue
            try:
                now, lease_s = self._runner.clock.now(), self._tuning.lease_s
                claims = await self._runner.schedule.claim(now, at_most=free, lease_s=lease_s)
            except RetryLater as away:
                log.warning("no_jobs_to_be_had", code=away.code)
                await self._pause(away.after_seconds)
                continue
            poll_s, longest_s = self._tuning.poll_s, self._tuning.idle_poll_s
            self._pause_s = poll_s if claims else min(self._pause_s * 1.25, longest_s)
            for claim in claims:
                task = asyncio.create_task(self._runner.run(claim))
                self._held.add(task)
                task.add_done_callback(self._held.discard)
            if len(claims) < free:
                await self._pause(self._pause_s)
