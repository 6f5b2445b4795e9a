"""Jobs run in this process: claimed, so many at a time, and given back as done, to be tried again, or buried
(F41, F42).

1. A job is tried at most `attempts` times, ever later. Killed workers count too: the schedule counts claims.
2. A handler says with TryJobAgain, or with an error of the core, that it may go better later, and with
   NeverTryAgain that it will not. Any other exception is a bug: logged with its trace, and tried again.
   RetryLater is about a store, not about the job: it is tried ever later, and no attempt is counted.
   A schedule that refuses is waited for as one that is away: what its operator puts right goes on by itself.
3. While a handler works its job's lease is renewed, so a lease may be short and a job long. A job that
   somebody else has taken over is let go of.
4. A job that has no handler in this process is left for one that has.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import structlog

from flow_engine.errors import CallTheOperator, FlowEngineError, RetryLater
from flow_engine.outages import Outage
from flow_engine.ports.clock import Clock
from flow_engine.ports.jobs import Claim, Job, JobHandler, JobKind, JobSchedule, NeverTryAgain, TryJobAgain
from flow_engine.ports.telemetry import Observer, Tracing, Untraced

UNHANDLED_AGAIN_AFTER = timedelta(hours=1)
REFUSED_AGAIN_AFTER_S = 5.0

log: Any = structlog.get_logger("flow_engine.jobs")


@dataclass(frozen=True, slots=True)
class Tuning:
    """How jobs are run; times in seconds. `lease_s`: when a killed worker's job is due again; `timeout_s`: of
    one attempt. The n-th pause between attempts is `first_pause_s` · 2^(n-1), at most `longest_pause_s`, of
    which up to a half is taken off by chance. `poll_s` is the time between two looks for work, and grows up
    to `idle_poll_s` while there is none. `stop_within_s`: so long a stopping worker waits for what it holds.
    After `attempts` failed ones a job is buried."""

    lease_s: float = 15.0
    timeout_s: float = 60.0
    attempts: int = 10
    concurrency: int = 16
    first_pause_s: float = 1.0
    longest_pause_s: float = 300.0
    poll_s: float = 0.05
    idle_poll_s: float = 0.25
    stop_within_s: float = 10.0

    def pause_s(self, attempt: int, chance: float) -> float:
        """Seconds before the next attempt. `chance` is from 0 up to 1."""
        longest = min(self.first_pause_s * 2.0 ** min(attempt - 1, 30), self.longest_pause_s)
        return longest * (1 - chance / 2)


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    bug: BaseException | None = None
    final: bool = False
    delayed: bool = False


_Outcome = Literal["done", "taken_over"] | _Failure


class JobRunner:
    """Runs claims of one schedule. `chance` gives random numbers from 0 up to 1.

    Where traces are on, a job goes on in the trace of what caused it: `cause` gives its `traceparent`.
    """

    def __init__(
        self,
        schedule: JobSchedule,
        handlers: Mapping[JobKind, JobHandler],
        clock: Clock,
        observer: Observer,
        tuning: Tuning,
        *,
        chance: Callable[[], float] = random.random,
        tracing: Tracing | None = None,
        cause: Callable[[Job], Awaitable[str | None]] | None = None,
    ) -> None:
        self.schedule = schedule
        self.clock = clock
        self.tuning = tuning
        self._handlers = handlers
        self._observer = observer
        self._chance = chance
        self._tracing = tracing or Untraced()
        self._cause = cause

    async def run(self, claim: Claim) -> None:
        """Never raises but when cancelled; the job is then given back, due at once, for somebody else to
        take. A failed one is due again after `Tuning.pause_s` seconds."""
        job, conversation_id = claim.job, claim.job.conversation.conversation_id
        whose = {"conversation_id": conversation_id} if conversation_id else {"subject": job.subject}
        with structlog.contextvars.bound_contextvars(
            job=job.kind, tenant_id=job.conversation.tenant_id, attempt=claim.attempt, **whose
        ):
            try:
                parent = None
                if self._tracing.on and self._cause is not None:
                    with suppress(RetryLater):  # the handler meets the same, and its job is put off
                        parent = await self._cause(job)
                attributes = {
                    "flow_engine.job.kind": job.kind,
                    "flow_engine.job.attempt": claim.attempt,
                    "flow_engine.conversation.id": conversation_id,
                }
                with self._tracing.span(f"job {job.kind}", "consumer", parent=parent, attributes=attributes):
                    await self._run(claim)
            except (RetryLater, CallTheOperator) as away:
                # Its lease ends without us.
                log.warning("job_not_given_back", code=away.code, detail=away.detail)

    async def _run(self, claim: Claim) -> None:
        handler = self._handlers.get(claim.job.kind)
        if handler is None:
            self._observer.count("jobs_unhandled", kind=claim.job.kind)
            await self.schedule.retry(claim, self.clock.now() + UNHANDLED_AGAIN_AFTER)
            return
        if claim.attempt > self.tuning.attempts:
            await self._bury(claim, "every worker that took it was killed or lost its store")
            return
        try:
            outcome = await self._attempt(claim, handler)
        except asyncio.CancelledError:
            await self.schedule.retry(claim, self.clock.now())
            raise
        match outcome:
            case "done":
                await self.schedule.finish(claim)
                self._tracing.note({"flow_engine.job.outcome": "done"})
                self._observer.count("jobs_done", kind=claim.job.kind)
            case "taken_over":
                log.warning("job_taken_over")
                self._tracing.note({"flow_engine.job.outcome": "taken_over"})
            case _Failure() as failure:
                self._observer.count("jobs_failed", kind=claim.job.kind)
                self._tracing.note({"flow_engine.job.outcome": "failed", "error.type": failure.reason})
                if failure.bug is not None:
                    log.error("job_failed", reason=failure.reason, exc_info=failure.bug)
                else:
                    log.warning("job_failed", reason=failure.reason)
                if failure.delayed:
                    pause = self.tuning.pause_s(claim.delays + 1, self._chance())
                    again_at = self.clock.now() + timedelta(seconds=pause)
                    await self.schedule.retry(claim, again_at, delayed=True)
                elif failure.final or claim.attempt >= self.tuning.attempts:
                    await self._bury(claim, failure.reason)
                else:
                    pause = self.tuning.pause_s(claim.attempt, self._chance())
                    await self.schedule.retry(claim, self.clock.now() + timedelta(seconds=pause))

    async def _attempt(self, claim: Claim, handler: JobHandler) -> _Outcome:
        work = asyncio.ensure_future(handler(claim.job))
        try:
            interrupted = await self._hold(claim, work)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        if interrupted is not None:
            if not work.cancelled():
                work.exception()  # asked for, so that asyncio does not report it as forgotten
            return interrupted
        # It was cancelled by something that the handler waited for: a worker that stops does not come here.
        match asyncio.CancelledError() if work.cancelled() else work.exception():
            case None:
                return "done"
            case TryJobAgain() as failure:
                return _Failure(str(failure))
            case NeverTryAgain() as failure:
                return _Failure(str(failure), final=True)
            case RetryLater() as away:
                return _Failure(away.code, delayed=True)
            case FlowEngineError() as error:
                return _Failure(error.code)
            case bug:
                return _Failure(type(bug).__name__, bug)

    async def _hold(self, claim: Claim, work: asyncio.Future[None]) -> _Outcome | None:
        """Until the work is done: None. The outcome where it has to be interrupted."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.tuning.timeout_s
        while True:
            await asyncio.wait({work}, timeout=min(self.tuning.lease_s / 3, deadline - clock()))
            if work.done():
                return None
            if clock() >= deadline:
                return _Failure("took too long")
            with suppress(RetryLater, CallTheOperator):  # nobody can take it over either
                if not await self.schedule.renew(claim, self.clock.now(), lease_s=self.tuning.lease_s):
                    return "taken_over"

    async def _bury(self, claim: Claim, reason: str) -> None:
        await self.schedule.bury(claim, reason, self.clock.now())
        self._observer.count("jobs_buried", kind=claim.job.kind)
        log.error("job_buried", reason=reason)


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
        """Yields the task that takes jobs: it ends before this does only by a bug.

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
        outage = Outage(log, "no_jobs_to_be_had", "jobs_to_be_had_again")
        while self._wanted:
            free = self._tuning.concurrency - len(self._held)
            if free == 0:
                ended, _ = await asyncio.wait(self._held, return_when=asyncio.FIRST_COMPLETED)
                self._held -= ended  # their callbacks have not run yet, and would not before the next wait
                continue
            try:
                now, lease_s = self._runner.clock.now(), self._tuning.lease_s
                claims = await self._runner.schedule.claim(now, at_most=free, lease_s=lease_s)
            except (RetryLater, CallTheOperator) as wrong:
                outage.met(wrong)
                away = isinstance(wrong, RetryLater)
                await self._pause(wrong.after_seconds if away else REFUSED_AGAIN_AFTER_S)
                continue
            outage.ended()
            poll_s, longest_s = self._tuning.poll_s, self._tuning.idle_poll_s
            self._pause_s = poll_s if claims else min(self._pause_s * 1.25, longest_s)
            for claim in claims:
                task = asyncio.create_task(self._runner.run(claim))
                self._held.add(task)
                task.add_done_callback(self._held.discard)
            if len(claims) < free:
                await self._pause(self._pause_s)
