"""A job whose worker is killed is taken over by another one within a lease (F41)."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job
from memory.keys import JOB_LEASES_KEY, JOBS_KEY
from tests.adapters.jobs.stubborn_worker import STARTED
from tests.redis_fixture import StartRedis, end, spawn

ROOT = Path(__file__).parents[3]
LEASE_S = 3.0


@pytest.fixture
def redis(start_redis: StartRedis) -> Iterator[Redis]:
    with start_redis().client() as client:
        yield client


def wait_until(happened: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_a_killed_workers_job_is_taken_over_within_a_lease(redis: Redis, tmp_path: Path) -> None:  # F41
    port = redis.connection_pool.connection_kwargs["port"]
    command = (
        sys.executable,
        "-m",
        "tests.adapters.jobs.stubborn_worker",
        f"redis://127.0.0.1:{port}/0",
    )
    with ExitStack() as stack:
        workers = [
            spawn((*command, str(LEASE_S)), tmp_path / f"worker-{number}.log", cwd=ROOT)
            for number in range(2)
        ]
        for worker in workers:
            stack.callback(end, worker, signal.SIGKILL)
        redis.zadd(JOBS_KEY, {Job("mine", ConversationRef("t", "c")).name: int(time.time() * 1000)})
        wait_until(lambda: redis.llen(STARTED) == 1)
        time.sleep(1.2 * LEASE_S)  # a living worker keeps its job beyond its lease
        assert redis.llen(STARTED) == 1
        holder = int(redis.lrange(STARTED, 0, 0)[0])
        next(worker for worker in workers if worker.pid == holder).kill()
        killed_at = time.monotonic()
        wait_until(lambda: redis.llen(STARTED) == 2)
        taken_over_after_s = time.monotonic() - killed_at
        wait_until(lambda: not redis.exists(JOBS_KEY, JOB_LEASES_KEY))
    print(f"taken over after {taken_over_after_s:.2f} s, the lease being {LEASE_S} s")
    assert taken_over_after_s < LEASE_S + 20.0
