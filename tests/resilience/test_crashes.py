"""Killed workers, and a Redis that stalls, dies or forgets its scripts: nothing is lost, doubled or half
written, and the processes that live on need no restart (F15, F16, F44)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory.connection import RedisMemory
from tests.redis_fixture import RedisServer, StartRedis
from tests.resilience.fleet import HttpEngine, Worker, running
from tests.resilience.flow import publish
from tests.resilience.operations import ChangeTask, NewContact, ReadMemory, Reply, Say, WriteMemory
from tests.resilience.verifier import breaches_of, read_stored
from tests.resilience.workload import Workload

pytestmark = [pytest.mark.long, pytest.mark.anyio]

QUIET_S = 0.6
"""How long the clients work between two blows."""
REST_S = 0.02


async def test_a_worker_killed_again_and_again_leaves_nothing_half_written(
    fleet: tuple[RedisServer, list[Worker]], store: RedisMemory, engine: HttpEngine
) -> None:  # F15, F16
    _, workers = fleet

    async def blows() -> None:
        for victim in (workers[0], workers[1], workers[0]):
            await asyncio.sleep(QUIET_S)
            await asyncio.to_thread(victim.kill)
            await asyncio.sleep(QUIET_S / 2)
            victim.start()
            await asyncio.to_thread(victim.wait_until_ready)
        await asyncio.sleep(QUIET_S)

    workload = Workload(engine, "killed", keep_trying=True, rest_s=REST_S)
    ledger = await workload.run_during(blows())

    assert ledger.unanswered > 0, "no request was under way when a worker was killed"
    assert ledger.unavailable == []
    assert await breaches_of(workload, store) == []


async def test_while_redis_stalls_dies_and_comes_back_clients_get_503_and_nothing_is_lost(
    fleet: tuple[RedisServer, list[Worker]], store: RedisMemory, engine: HttpEngine
) -> None:  # F15, F44
    redis, workers = fleet
    pids = [worker.process.pid for worker in workers]

    async def blows() -> None:
        await asyncio.sleep(QUIET_S)
        redis.pause()
        await asyncio.sleep(2.5)  # longer than the service waits for an answer
        redis.resume()
        await asyncio.sleep(QUIET_S)
        for _ in range(2):
            await asyncio.to_thread(redis.kill)
            await asyncio.sleep(QUIET_S / 2)
            redis.start()
            await asyncio.to_thread(redis.wait_until_ready)
            await asyncio.sleep(QUIET_S)
        with redis.client() as client:
            client.execute_command("SCRIPT", "FLUSH")
            await asyncio.sleep(QUIET_S / 2)
            client.execute_command("CLIENT", "PAUSE", 2_300, "ALL")
        await asyncio.sleep(2.3 + QUIET_S)

    workload = Workload(engine, "away", keep_trying=True, rest_s=REST_S)
    ledger = await workload.run_during(blows())

    assert len(ledger.unavailable) > 0
    assert {reply.json["code"] for reply in ledger.unavailable} == {"memory_unavailable"}
    assert ledger.unanswered == 0, "a process must answer 503, not drop the connection"
    assert [worker.process.pid for worker in workers] == pids
    assert [worker.process.poll() for worker in workers] == [None, None]
    assert await breaches_of(workload, store) == []


class Full:
    """A conversation on one worker, and a Redis of its own that can be made to refuse writes."""

    def __init__(self, redis: RedisServer, worker: Worker) -> None:
        self.redis = redis
        self.worker = worker

    def configure(self, setting: str, value: str) -> None:
        with self.redis.client() as client:
            client.config_set(setting, value)

    def everything(self) -> dict[bytes | str, Any]:
        """What is stored by key. The order of a hash is left out: Redis may change it at a read."""
        with self.redis.client() as client:
            return {
                key: client.hgetall(key) if client.type(key) == b"hash" else client.dump(key)
                for key in client.keys("*")
            }


@pytest.fixture
def full(start_redis: StartRedis, tmp_path: Path) -> Iterator[Full]:
    asyncio.run(publish(tmp_path))
    redis = start_redis()
    with running(redis, tmp_path, processes=1) as (worker,):
        yield Full(redis, worker)


MUTATIONS = (
    ChangeTask("c", "anna", "green"),
    WriteMemory("c", "anna", "tool", {"count_0": 2, "twin_0": 2}),
    Say("c", "anna", "m2"),
    NewContact("c", "bruno"),  # supersedes anna
    NewContact("never seen", "carla"),
)


@pytest.mark.parametrize(
    ("setting", "refusing", "accepting"),
    [("maxmemory", "1mb", "0"), ("min-replicas-to-write", "1", "0")],
    ids=["out of memory", "too few replicas"],
)
async def test_a_redis_that_takes_no_writes_means_503_with_retry_after_and_nothing_written(
    full: Full, setting: str, refusing: str, accepting: str
) -> None:  # F44, F16
    http = HttpEngine([full.worker])
    await http.send(0, NewContact("c", "anna"), None)
    await http.send(0, WriteMemory("c", "anna", "tool", {"count_0": 1, "twin_0": 1}), None)
    await http.send(0, Say("c", "anna", "m1"), None)

    full.configure(setting, refusing)
    before = full.everything()
    refused = await asyncio.gather(*(http.send(0, m, f"key-{n}") for n, m in enumerate(MUTATIONS)))
    after = full.everything()
    read = await http.send(0, ReadMemory("c"), None)
    full.configure(setting, accepting)
    accepted = [await http.send(0, mutation, f"key-{n}") for n, mutation in enumerate(MUTATIONS)]
    await http.aclose()

    assert [_verdict(reply) for reply in refused] == [(503, "memory_unavailable", True)] * len(MUTATIONS)
    assert after == before
    assert read.status == 200
    assert [reply.status for reply in accepted] == [200] * len(MUTATIONS)
    assert accepted[-1].json["revision"] == 1


def _verdict(reply: Reply) -> tuple[int, str, bool]:
    return reply.status, reply.json.get("code", ""), reply.retry_after is not None


async def test_a_retry_after_the_reply_was_lost_with_its_worker_takes_effect_once(
    fleet: tuple[RedisServer, list[Worker]], store: RedisMemory, engine: HttpEngine
) -> None:  # F15
    _, workers = fleet
    await engine.send(0, NewContact("retried", "anna"), None)
    change = ChangeTask("retried", "anna", "green")
    first = await engine.send(0, change, "once")
    await asyncio.to_thread(workers[0].kill)
    second = await engine.send(1, change, "once")
    workers[0].start()
    await asyncio.to_thread(workers[0].wait_until_ready)

    assert first.json["result"] is True
    assert second.body == first.body
    assert (await read_stored(store, "retried")).loaded.revision == first.json["revision"] == 2


def test_processes_that_start_together_on_an_empty_flow_store_all_start(
    redis_server: RedisServer, tmp_path: Path
) -> None:  # F42
    with running(redis_server, tmp_path, processes=2, SAMPLES="true") as workers:
        assert [worker.ready for worker in workers] == [True] * 2
