"""A conversation memory that does not answer: every call says so, and no write counts twice (F44)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fakeredis import FakeServer

from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.runtime.storage import Committed
from memory.cluster import SLOTS_READ_EVERY_S
from memory.connection import RedisMemory, connect
from memory.in_process import embedded
from memory.redis_py import ANSWER_WITHIN_S, RedisPyDriver
from tests.memory.conversation_samples import HASH, Conversation, written
from tests.redis_fixture import CLUSTER, DURABLE, RedisServer, StartRedis

pytestmark = pytest.mark.anyio


def _open(server: RedisServer, place: str) -> RedisMemory:
    return connect(server.url, cluster=place == "cluster")


async def _refused(*calls: Callable[[], Awaitable[object]]) -> None:
    for call in calls:
        with pytest.raises(RetryLater) as refused:
            await call()
        assert refused.value.code == "memory_unavailable"


async def _every_call_is_refused(talk: Conversation) -> None:
    store, tenant = talk.store, talk.ref.tenant_id
    await _refused(
        store.ready,
        lambda: store.conversations.load(talk.ref),
        lambda: talk.commit(1, set_tools={"name": written("x")}),
        lambda: store.definitions.get(tenant, HASH),
        lambda: store.definitions.put(tenant, HASH, b"{}", 10),
        lambda: store.check_safety("aof"),
    )


async def test_the_embedded_store_says_that_it_is_away() -> None:  # F44
    server = FakeServer()
    talk = Conversation.fresh(embedded(server))
    await talk.start()
    server.connected = False
    await _every_call_is_refused(talk)
    server.connected = True
    assert (await talk.store.conversations.load(talk.ref)).revision == 1
    await talk.store.close()


@pytest.mark.parametrize(("place", "options"), [("standalone", DURABLE), ("cluster", CLUSTER)])
async def test_a_redis_that_was_killed_is_away_and_comes_back_with_every_write(
    start_redis: StartRedis, place: str, options: tuple[str, ...]
) -> None:  # F44
    server = start_redis(options)
    talk = Conversation.fresh(_open(server, place))
    await talk.start()
    assert isinstance(await talk.commit(1, set_tools={"name": written("x")}), Committed)
    server.kill()
    await _every_call_is_refused(talk)
    late = Conversation(_open(server, place), talk.ref)  # opened while nobody answers
    await _every_call_is_refused(late)
    server.start()
    server.wait_until_ready()
    await asyncio.sleep(SLOTS_READ_EVERY_S)  # a cluster is asked no more often where its slots are
    for conversation in (talk, late):
        loaded = await conversation.store.conversations.load(conversation.ref)
        assert loaded.tools["name"] == written("x")
        assert loaded.memory_revision == 1
        await conversation.store.close()


@pytest.mark.parametrize(("place", "options"), [("standalone", DURABLE), ("cluster", CLUSTER)])
async def test_a_write_that_a_stalled_redis_did_not_answer_counts_at_most_once(
    start_redis: StartRedis, place: str, options: tuple[str, ...]
) -> None:  # F44
    server = start_redis(options)
    talk = Conversation.fresh(_open(server, place))
    await talk.start()
    server.pause()

    async def resume_when_a_second_try_would_be_under_way() -> None:
        await asyncio.sleep(ANSWER_WITHIN_S + 0.3)
        server.resume()

    async with asyncio.TaskGroup() as group:
        group.create_task(resume_when_a_second_try_would_be_under_way())
        await _refused(lambda: talk.commit(1, set_tools={"name": written("x")}))
    server.wait_until_ready()
    loaded = await talk.store.conversations.load(talk.ref)
    assert loaded.memory_revision <= 1
    assert loaded.tools["name"].has_value == (loaded.memory_revision == 1)
    await talk.store.close()


async def test_no_connection_of_the_pool_outlives_a_restart(start_redis: StartRedis) -> None:  # F44
    server = start_redis()
    talk = Conversation.fresh(connect(server.url))
    await talk.start()
    await asyncio.gather(*(talk.store.conversations.load(talk.ref) for _ in range(10)))
    await asyncio.to_thread(server.kill)
    server.start()
    await asyncio.to_thread(server.wait_until_ready)
    again = await asyncio.gather(*(talk.store.conversations.load(talk.ref) for _ in range(10)))
    assert [loaded.revision for loaded in again] == [1] * 10
    await talk.store.close()


class ClosedInBetween:
    """A client whose connection another task closes after it was chosen: so it says it on a cluster."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def get(self, key: str) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("'NoneType' object has no attribute 'writelines'"),
        RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed"),
    ],
)
async def test_a_connection_that_is_closed_just_before_a_command_is_away_too(error: Exception) -> None:
    # F44
    with pytest.raises(RetryLater, match="memory_unavailable"):
        await RedisPyDriver(ClosedInBetween(error)).get("key")


async def test_a_bug_stays_a_bug() -> None:
    with pytest.raises(RuntimeError, match="of ours"):
        await RedisPyDriver(ClosedInBetween(RuntimeError("a mistake of ours"))).get("key")


async def test_a_user_without_a_right_to_the_channels_leaves_nothing_half_written(
    start_redis: StartRedis,
) -> None:  # F15, F44
    server = start_redis(DURABLE)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">apps-secret", "~*", "+@all")
        talk = Conversation.fresh(connect(f"redis://app:apps-secret@127.0.0.1:{server.port}"))
        with pytest.raises(CallTheOperator, match="lacks permission for a command, a key or a channel"):
            await talk.start()
        assert client.keys() == []
        client.execute_command("ACL", "SETUSER", "app", "allchannels")
    await talk.start()
    await talk.store.close()
