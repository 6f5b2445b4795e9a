"""The worker in this process: when jobs are run, tried again, given up and given back (F41)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, cast

import pytest
from fakeredis import FakeServer
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from adapters.jobs import UNHANDLED_AGAIN_AFTER, JobRunner, Tuning, Worker
from flow_engine.errors import CallTheOperator, FlowEngineError, RetryLater
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Claim, Job, JobHandler, JobKind, JobSchedule, TryJobAgain
from flow_engine.ports.telemetry import Untraced
from memory.connection import RedisMemory
from memory.in_process import embedded
from memory.keys import JOBS_KEY, due_score
from memory.schedule import RedisDeadLetters, RedisJobSchedule

pytestmark = pytest.mark.anyio

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


def job(conversation_id: str = "c", kind: JobKind = "mine") -> Job:
    return Job(kind, ConversationRef("tenant", conversation_id))


@dataclass
class Counting:
    """Implements `Observer`."""

    counted: Counter[str] = field(default_factory=Counter[str])

    def warn(self, event: str, /, **details: str) -> None:
        raise AssertionError("no warning is expected here")

    def count(self, what: str, amount: int = 1, /, **labels: str) -> None:
        self.counted[" ".join((what, *labels.values()))] += amount


class TracingOn(Untraced):
    """Implements `Tracing`: keeps nothing, but has callers trace."""

    on = True


@dataclass
class Time:
    """Implements `Clock`; passes only while a worker pauses, and only up to `until`."""

    at: datetime = T0
    until: datetime = T0

    def now(self) -> datetime:
        return self.at

    @property
    def seconds(self) -> float:
        return (self.at - T0).total_seconds()

    async def pause(self, seconds: float) -> None:
        self.at = min(self.at + timedelta(seconds=seconds), max(self.until, self.at))
        await asyncio.sleep(0)


@dataclass
class Bench:
    """A schedule, and workers on it that live in the bench's time."""

    memory: RedisMemory
    time: Time = field(default_factory=Time)
    observer: Counting = field(default_factory=Counting)
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def schedule(self) -> RedisJobSchedule:
        return RedisJobSchedule(self.memory.driver)

    def runner(self, handlers: Mapping[JobKind, JobHandler], chance: float = 0.0) -> JobRunner:
        return JobRunner(
            self.schedule, handlers, self.time, self.observer, self.tuning, chance=lambda: chance
        )

    def worker(self, mine: JobHandler) -> Worker:
        return Worker(self.runner({"mine": mine}), pause=self.time.pause)

    async def put(self, *jobs: Job, after_s: float = 0.0) -> None:
        due = due_score(T0 + timedelta(seconds=after_s))
        await self.memory.driver.client.zadd(JOBS_KEY, {each.name: due for each in jobs})

    async def due_in_s(self) -> list[float]:
        scores = [
            score for _, score in await self.memory.driver.client.zrange(JOBS_KEY, 0, -1, withscores=True)
        ]
        return [score / 1_000 - T0.timestamp() for score in scores]

    async def run(self, mine: JobHandler, *, for_s: float) -> None:
        """Let a worker work for that long of the bench's time."""
        self.time.until = self.time.at + timedelta(seconds=for_s)
        async with self.worker(mine).running():
            await eventually(lambda: self.time.at >= self.time.until)
            for _ in range(50):
                await asyncio.sleep(0)


async def eventually(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0.001)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    memory = embedded(FakeServer())
    yield Bench(memory)
    await memory.close()


def failing(error: Exception, at: list[float], time: Time) -> JobHandler:
    async def handle(_: Job) -> None:
        at.append(round(time.seconds, 1))
        raise error

    return handle


class TestDoing:
    async def test_a_job_is_done_once_when_it_is_due(self, bench: Bench) -> None:
        done: list[tuple[Job, float]] = []

        async def mine(due: Job) -> None:
            done.append((due, bench.time.seconds))

        await bench.put(job(), after_s=5)
        await bench.run(mine, for_s=60)
        ((which, when),) = done
        assert which == job()
        assert 5 <= when <= 5 + bench.tuning.idle_poll_s
        assert await bench.due_in_s() == []
        assert bench.observer.counted == {"jobs_done mine": 1}

    async def test_no_more_run_at_once_than_allowed(self, bench: Bench) -> None:
        bench.tuning = Tuning(concurrency=3)
        running: list[int] = []
        now = 0

        async def mine(_: Job) -> None:
            nonlocal now
            now += 1
            running.append(now)
            await asyncio.sleep(0.001)
            now -= 1

        await bench.put(*(job(f"c{number}") for number in range(20)))
        await bench.run(mine, for_s=30)
        assert len(running) == 20
        assert max(running) == 3

    async def test_a_job_that_is_asked_for_while_it_runs_runs_again_and_never_beside_itself(
        self, bench: Bench
    ) -> None:
        starts, running = 0, 0

        async def mine(due: Job) -> None:
            nonlocal starts, running
            starts, running = starts + 1, running + 1
            assert running == 1
            if starts == 1:
                await bench.put(due)
                await asyncio.sleep(0)
            running -= 1

        await bench.put(job())
        await bench.run(mine, for_s=10)
        assert starts == 2
        assert bench.observer.counted == {"jobs_done mine": 2}

    async def test_an_idle_worker_looks_ever_less_often(self, bench: Bench) -> None:
        pauses: list[float] = []

        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            await asyncio.sleep(0)

        async with Worker(bench.runner({}), pause=pause).running():
            await eventually(lambda: len(pauses) > 20)
        assert pauses[0] < 0.1
        assert pauses[20] == bench.tuning.idle_poll_s


class TestTryingAgain:
    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (TryJobAgain("the model gave no usable answer"), "the model gave no usable answer"),
            (CallTheOperator("snapshot_too_new", "x"), "snapshot_too_new"),
            (KeyError("somebody@example.com"), "KeyError"),
        ],
    )
    async def test_a_failing_job_is_tried_ever_later_and_then_buried(
        self, bench: Bench, error: Exception, reason: str
    ) -> None:
        bench.tuning = Tuning(attempts=5, first_pause_s=2.0, longest_pause_s=10.0)
        tried_at: list[float] = []
        await bench.put(job())
        with capture_logs() as logs:
            await bench.run(failing(error, tried_at, bench.time), for_s=120)
        pauses = [after - before for before, after in pairwise(tried_at)]
        assert pauses == pytest.approx([2, 4, 8, 10], abs=0.6)
        assert await bench.due_in_s() == []
        (letter,) = await RedisDeadLetters(bench.memory.driver).list(at_most=9)
        assert (letter.job, letter.reason, letter.attempts) == (job(), reason, 5)
        assert bench.observer.counted == {"jobs_failed mine": 5, "jobs_buried mine": 1}
        buried = next(line for line in logs if line["event"] == "job_buried")
        assert (buried["log_level"], buried["reason"]) == ("error", reason)

    @pytest.mark.parametrize("code", ["memory_unavailable", "flow_store_unavailable"])
    async def test_a_store_that_is_away_uses_up_no_attempts_and_what_waited_is_done_when_it_is_back(
        self, bench: Bench, code: str
    ) -> None:  # F41, F44
        bench.tuning = Tuning(attempts=3, first_pause_s=2.0, longest_pause_s=10.0)
        tried_at: list[float] = []
        away = failing(RetryLater(code, "away"), tried_at, bench.time)
        await bench.put(job())
        with capture_logs() as logs:
            await bench.run(away, for_s=120)
        pauses = [after - before for before, after in pairwise(tried_at)]
        assert pauses[:5] == pytest.approx([2, 4, 8, 10, 10], abs=0.6)
        assert await RedisDeadLetters(bench.memory.driver).list(at_most=9) == []
        assert bench.observer.counted == {"jobs_failed mine": len(tried_at)}
        assert {"event": "job_failed", "log_level": "warning", "reason": code}.items() <= logs[0].items()
        bench.observer.counted.clear()
        failed_at: list[float] = []
        await bench.run(failing(TryJobAgain("no usable answer"), failed_at, bench.time), for_s=120)
        assert len(failed_at) == 3
        assert bench.observer.counted == {"jobs_failed mine": 3, "jobs_buried mine": 1}

    async def test_nor_does_one_that_cannot_tell_what_caused_a_job(self, bench: Bench) -> None:  # F41, F46
        async def cause(_: Job) -> str | None:
            raise RetryLater("memory_unavailable", "away")

        done: list[Job] = []

        async def mine(due: Job) -> None:
            done.append(due)

        runner = JobRunner(
            bench.schedule,
            {"mine": mine},
            bench.time,
            bench.observer,
            bench.tuning,
            tracing=TracingOn(),
            cause=cause,
        )
        await bench.put(job())
        await runner.run((await bench.schedule.claim(T0, at_most=1, lease_s=15))[0])
        assert done == [job()]

    async def test_a_bug_is_logged_with_its_trace(self, bench: Bench) -> None:  # F46
        bug = KeyError("x")
        await bench.put(job())
        with capture_logs() as logs:
            await bench.run(failing(bug, [], bench.time), for_s=0.5)
        failed = next(line for line in logs if line["event"] == "job_failed")
        assert failed["log_level"] == "error"
        assert failed["exc_info"] is bug

    async def test_what_took_too_long_is_stopped_and_tried_again(self, bench: Bench) -> None:
        bench.tuning = Tuning(timeout_s=0.02)
        stopped: list[Job] = []

        async def mine(due: Job) -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                stopped.append(due)
                raise

        await bench.put(job())
        await bench.runner({"mine": mine}).run((await bench.schedule.claim(T0, at_most=1, lease_s=15))[0])
        assert stopped == [job()]
        assert await bench.due_in_s() == pytest.approx([1.0], abs=0.01)
        assert bench.observer.counted == {"jobs_failed mine": 1}

    async def test_what_something_else_cancels_is_a_failure_and_tried_again_after_its_pause(
        self, bench: Bench
    ) -> None:  # F41
        async def mine(due: Job) -> None:
            raise asyncio.CancelledError

        await bench.put(job())
        await bench.runner({"mine": mine}).run((await bench.schedule.claim(T0, at_most=1, lease_s=15))[0])
        assert await bench.due_in_s() == pytest.approx([1.0], abs=0.01)
        assert bench.observer.counted == {"jobs_failed mine": 1}

    async def test_a_job_whose_workers_are_always_killed_is_buried(self, bench: Bench) -> None:  # F41, C
        async def mine(_: Job) -> None:
            raise AssertionError("it would kill this worker too")

        await bench.put(job())
        bench.tuning = Tuning(attempts=3)
        for _ in range(3):
            await bench.schedule.claim(bench.time.at, at_most=1, lease_s=15)
            bench.time.at += timedelta(seconds=16)
        await bench.run(mine, for_s=5)
        (letter,) = await RedisDeadLetters(bench.memory.driver).list(at_most=9)
        assert letter.attempts == 4

    async def test_a_kind_without_a_handler_is_left_for_another_process(self, bench: Bench) -> None:
        await bench.put(job(kind="relay"))
        runner = bench.runner({})
        await runner.run((await bench.schedule.claim(T0, at_most=1, lease_s=15))[0])
        assert await bench.due_in_s() == pytest.approx([UNHANDLED_AGAIN_AFTER.total_seconds()], abs=0.01)
        assert bench.observer.counted == {"jobs_unhandled relay": 1}

    @given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
    def test_a_pause_is_between_half_and_the_whole_of_its_step(self, attempt: int, chance: float) -> None:
        tuning = Tuning()
        pause = tuning.pause_s(attempt, chance)
        whole = tuning.pause_s(attempt, 0.0)
        assert whole / 2 <= pause <= whole <= tuning.longest_pause_s


class TestLeases:
    async def test_a_long_job_keeps_its_lease(self, bench: Bench) -> None:
        bench.tuning = Tuning(lease_s=0.06)
        claim = await self.claim(bench)

        async def mine(_: Job) -> None:
            await asyncio.sleep(0.05)
            bench.time.at += timedelta(seconds=10)
            await asyncio.sleep(0.05)
            assert not await bench.schedule.claim(bench.time.at, at_most=1, lease_s=15)

        await bench.runner({"mine": mine}).run(claim)
        assert bench.observer.counted == {"jobs_done mine": 1}

    async def test_a_job_that_somebody_took_over_is_let_go_of(self, bench: Bench) -> None:  # F41
        bench.tuning = Tuning(lease_s=0.06)
        claim = await self.claim(bench)
        other = await bench.schedule.claim(T0 + timedelta(seconds=16), at_most=1, lease_s=99)

        async def mine(_: Job) -> None:
            await asyncio.sleep(60)

        await bench.runner({"mine": mine}).run(claim)
        assert bench.observer.counted == {}
        assert await bench.schedule.renew(other[0], T0, lease_s=99)

    @staticmethod
    async def claim(bench: Bench) -> Claim:
        await bench.put(job())
        (claim,) = await bench.schedule.claim(T0, at_most=1, lease_s=15)
        return claim


class TestStopping:
    async def test_it_finishes_what_it_holds_and_takes_no_more(self, bench: Bench) -> None:
        bench.tuning = Tuning(concurrency=1)
        started, go_on = asyncio.Event(), asyncio.Event()
        done: list[Job] = []

        async def mine(due: Job) -> None:
            started.set()
            await go_on.wait()
            done.append(due)

        await bench.put(job("c1"))
        await bench.put(job("c2"), after_s=-1)
        async with bench.worker(mine).running():
            await started.wait()
            asyncio.get_running_loop().call_later(0.01, go_on.set)
        assert done == [job("c2")]
        assert len(await bench.due_in_s()) == 1

    async def test_what_does_not_end_in_time_is_due_again_at_once(self, bench: Bench) -> None:
        bench.tuning = Tuning(stop_within_s=0.01)
        started = asyncio.Event()

        async def mine(_: Job) -> None:
            started.set()
            await asyncio.sleep(60)

        await bench.put(job())
        async with bench.worker(mine).running():
            await started.wait()
        (again,) = await bench.schedule.claim(bench.time.at + timedelta(seconds=0.001), at_most=9, lease_s=1)
        assert again.job == job()


class Flaky:
    """Implements `JobSchedule`; its first calls of each kind fail with `error`."""

    def __init__(self, real: RedisJobSchedule, away: Mapping[str, int], error: FlowEngineError) -> None:
        self._real = real
        self._error = error
        self._away = dict(away)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if self._away.get(name, 0) > 0:
            self._away[name] -= 1
            return self._fail
        return getattr(self._real, name)

    async def _fail(self, *_: Any, **__: Any) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [RetryLater("memory_unavailable", "away"), CallTheOperator("memory_refused", "no permission")],
    ids=["away", "refusing"],
)
class TestAScheduleThatIsAway:
    told: Sequence[str]

    async def run(self, bench: Bench, away: Mapping[str, int], error: FlowEngineError) -> int:
        done = 0

        async def mine(_: Job) -> None:
            nonlocal done
            done += 1

        await bench.put(job())
        runner = bench.runner({"mine": mine})
        runner.schedule = cast("JobSchedule", Flaky(bench.schedule, away, error))
        bench.time.until = T0 + timedelta(seconds=60)
        with capture_logs() as logs:
            async with Worker(runner, pause=bench.time.pause).running() as taking:
                await eventually(lambda: bench.time.at >= bench.time.until)
                assert not taking.done()
        assert {(line["code"], line["detail"]) for line in logs} == {(error.code, error.detail)}  # F46
        assert await bench.due_in_s() == []
        self.told = [line["event"] for line in logs]
        return done

    async def test_claiming_goes_on_when_it_is_back(
        self, bench: Bench, error: FlowEngineError
    ) -> None:  # F44
        assert await self.run(bench, {"claim": 5}, error) == 1
        assert self.told == ["no_jobs_to_be_had", "jobs_to_be_had_again"]  # F46: once each

    async def test_a_job_that_could_not_be_given_back_is_done_again(
        self, bench: Bench, error: FlowEngineError
    ) -> None:
        assert await self.run(bench, {"finish": 1}, error) == 2
