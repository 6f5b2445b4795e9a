"""The engine in this process: claims what is due and runs it, so many at a time (F41, F42)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog

from adapters.jobs.running import JobRunner
from flow_engine.errors import RetryLater
from flow_engine.ports.jobs import Claim

log: Any = structlog.get_logger("flow_engine.jobs")


class DueJobs:
    """Claims, and the jobs in this worker's hands. `pause_s` is how long to wait before the next look.

    `wanted` becomes False when the worker stops. Cancelling its task is not enough: Python's `wait_for`
    swallows a cancellation that comes when what it waits for has just ended.
    """

    def __init__(self, runner: JobRunner, pause: Callable[[float], Awaitable[None]]) -> None:
        self._runner = runner
        self._pause = pause
        self.pause_s = runner.tuning.poll_s
        self.wanted = True
        self.held: set[asyncio.Task[None]] = set()

    async def claim(self, at_most: int) -> Sequence[Claim]:
        """What is due. Nothing, after a while, where the schedule is away."""
        tuning = self._runner.tuning
        try:
            claims = await self._runner.schedule.claim(
                self._runner.clock.now(), at_most=at_most, lease_s=tuning.lease_s
            )
        except RetryLater as away:
            log.warning("no_jobs_to_be_had", code=away.code)
            await self._pause(away.after_seconds)
            return ()
        self.pause_s = tuning.poll_s if claims else min(self.pause_s * 1.25, tuning.idle_poll_s)
        return claims

    def started(self, claim: Claim, *, is_fresh: bool = True) -> asyncio.Task[None]:
        """A claim that is not fresh may have been taken over: then nothing is done."""
        run = self._runner.run if is_fresh else self._runner.run_if_still_held
        task = asyncio.create_task(run(claim))
        self.held.add(task)
        task.add_done_callback(self.held.discard)
        return task

    async def one_ends(self) -> None:
        ended, _ = await asyncio.wait(self.held, return_when=asyncio.FIRST_COMPLETED)
        self.held -= ended  # their callbacks have not run yet, and would not before the next wait

    async def let_go(self) -> None:
        """Wait for what is in hand, but not for ever: the rest is given back."""
        if self.held:
            await asyncio.wait(self.held, timeout=self._runner.tuning.stop_within_s)
        late = set(self.held)
        for task in late:
            task.cancel()
        if late:
            log.warning("jobs_given_back", number=len(late))
            await asyncio.wait(late)


class Worker:
    """Takes due jobs while `running` is entered. Any number of these may share a schedule."""

    def __init__(
        self, runner: JobRunner, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._due = DueJobs(runner, pause)
        self._at_once = runner.tuning.concurrency
        self._pause = pause

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[None]]:
        """Yields the task that takes jobs: it ends before this does only by a bug or a wrong set-up.

        On leaving, no job is taken any more, and those in hand are waited for.
        """
        self._due.wanted = True
        taking = asyncio.create_task(self._take())
        try:
            yield taking
        finally:
            self._due.wanted = False
            taking.cancel()
            await asyncio.wait({taking})
            await self._due.let_go()

    async def _take(self) -> None:
        while self._due.wanted:
            free = self._at_once - len(self._due.held)
            if free == 0:
                await self._due.one_ends()
                continue
            claims = await self._due.claim(free)
            for claim in claims:
                self._due.started(claim)
            if len(claims) < free:
                await self._pause(self._due.pause_s)
