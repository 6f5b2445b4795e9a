"""A commit whose reply was lost: its jobs are done all the same, and its replicas asked again (A13, A17)."""

from __future__ import annotations

from typing import Any

import pytest

from flow_engine.errors import RetryLater
from flow_engine.idempotency import IdempotencyKey
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.runtime.storage import AlreadyAnswered, Committed
from memory.connection import connect
from memory.keys import JOBS_KEY
from memory.manager import MemoryManager
from memory.redis_py import RedisPyDriver
from memory.schedule import RedisJobSchedule
from tests.memory.conversation_samples import T0, Conversation, written
from tests.redis_fixture import DURABLE, RedisServer, StartRedis, client_of

pytestmark = pytest.mark.anyio
KEY = IdempotencyKey("k", "f")


class DiesAfterCommit(RedisPyDriver):
    """Its process is gone once the commit has been made: nothing after it is sent."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.committed = False

    async def run(self, script: Any, keys: Any, args: Any, *, confirmed: bool = False) -> Any:
        answer = await super().run(script, keys, args, confirmed=confirmed)
        self.committed = self.committed or "expected_revision" in args
        return answer

    async def zadd(self, key: str, scores: Any, *, confirmed: bool = False) -> None:
        if self.committed:
            raise RetryLater("memory_unavailable", "gone")
        await super().zadd(key, scores, confirmed=confirmed)


async def test_on_a_cluster_no_cause_is_left_without_its_job(redis_cluster: RedisServer) -> None:  # A13
    memory = connect(redis_cluster.url, cluster=True)
    await client_of(memory).delete(JOBS_KEY)
    talk = Conversation.fresh(memory)
    job = Job("relay", talk.ref)
    dying = MemoryManager(DiesAfterCommit(client_of(memory)))
    await talk.start()
    changes = talk.changes(1, set_tools={"n": written(1)}, jobs=(DueJob(job, T0),), idempotency=KEY)
    with pytest.raises(RetryLater):
        await dying.commit(talk.ref, changes)
    schedule = RedisJobSchedule(memory.driver)
    assert await schedule.claim(T0, at_most=9, lease_s=9) == [], "too early: a worker would forget it"
    assert await client_of(memory).zscore(JOBS_KEY, job.name) is not None
    await client_of(memory).delete(JOBS_KEY)  # its node is gone too
    assert isinstance(await memory.conversations.commit(talk.ref, changes), AlreadyAnswered)
    assert await client_of(memory).zscore(JOBS_KEY, job.name) is not None
    await client_of(memory).delete(JOBS_KEY)
    assert (await memory.conversations.load(talk.ref, idempotency=KEY)).replay is not None
    assert await client_of(memory).zscore(JOBS_KEY, job.name) is not None
    await client_of(memory).delete(JOBS_KEY)
    await memory.close()


async def test_no_write_is_acknowledged_that_no_replica_has(start_redis: StartRedis) -> None:  # A17
    primary = start_redis()
    replica = start_redis((*DURABLE, "--replicaof", "127.0.0.1", str(primary.port)))
    memory = connect(primary.url, wait_replicas=1)
    talk = Conversation.fresh(memory)
    for _ in range(20):  # until the replica has joined
        try:
            started = await talk.start()
            break
        except RetryLater:
            continue
    assert (
        isinstance(started, Committed | AlreadyAnswered)
        or (await memory.conversations.load(talk.ref)).session
    )
    assert isinstance(await talk.commit(1, set_tools={"n": written(1)}, idempotency=KEY), Committed)
    replica.pause()
    other = IdempotencyKey("k2", "f")
    with pytest.raises(RetryLater, match="memory_not_replicated"):
        await talk.commit(1, set_tools={"n": written(2)}, idempotency=other)
    with pytest.raises(RetryLater, match="memory_not_replicated"):
        await memory.conversations.load(talk.ref, idempotency=other)
    replica.resume()
    replayed = await memory.conversations.load(talk.ref, idempotency=other)
    assert replayed.replay is not None
    assert replayed.tools["n"] == written(2)
    await memory.close()
