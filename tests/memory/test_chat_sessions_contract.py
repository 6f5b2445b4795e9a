"""What every store of chat sessions promises, checked on Redis and on its twin in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from channels.chat.sessions import SessionStore
from flow_engine.errors import FlowEngineError, RetryLater
from flow_engine.ports.chat import (
    FRAMES_KEPT,
    LEASE_S,
    MOST_WAITING,
    ChatBus,
    LeaseLost,
    SessionRef,
    frames_topic,
)
from memory.chat_in_process import InProcessChat
from memory.chat_sessions import RECONNECT_S, RedisBus, RedisChat
from memory.connection import connect
from tests.redis_fixture import RedisServer, StartRedis

pytestmark = pytest.mark.anyio


@dataclass
class Stores:
    store: SessionStore
    bus: ChatBus


@pytest.fixture(params=["in process", "redis"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    if request.param == "in process":
        chat = InProcessChat()
        yield Stores(chat, chat)
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    memory = connect(server.url)
    bus = RedisBus(memory.driver)
    yield Stores(RedisChat(memory.driver), bus)
    await bus.aclose()
    await memory.close()


@pytest.fixture
def ref(request: pytest.FixtureRequest) -> SessionRef:
    """A session of the test's own."""
    return SessionRef("t:1", f"s/ü {request.node.name}")


async def test_a_session_is_kept_and_changed_by_its_holder_only(
    stores: Stores, ref: SessionRef
) -> None:  # C14
    store = stores.store
    assert await store.load(ref) is None
    await store.create(ref, b"one")
    assert await store.load(ref) == b"one"
    with pytest.raises(LeaseLost):
        await store.save(ref, b"two", "h1")
    assert await store.hold(ref, "h1")
    assert await store.hold(ref, "h1")
    assert not await store.hold(ref, "h2")
    await store.save(ref, b"two", "h1")
    assert await store.load(ref) == b"two"


async def test_messages_wait_in_line_once_each(stores: Stores, ref: SessionRef) -> None:  # C12
    store = stores.store
    await store.create(ref, b"")
    ids = [str(number) for number in range(MOST_WAITING + 2)]
    outcomes = [await store.put(ref, each, each.encode()) for each in ids]
    assert outcomes == ["queued"] * (MOST_WAITING + 1) + ["busy"]
    assert await store.put(ref, "0", b"0") == "duplicate"
    assert await store.put(ref, "aside", b"aside", bounded=False) == "queued"
    assert await store.put(ref, "aside", b"aside", bounded=False) == "duplicate"
    assert await store.hold(ref, "h1")
    taken: list[bytes] = []
    line = await store.waiting(ref)
    assert (line[0], len(line)) == (await store.head(ref, "h1"), MOST_WAITING + 2)
    while (message := await store.head(ref, "h1")) is not None:
        assert await store.head(ref, "h1") == message
        taken.append(message)
        await store.done(ref, "h1", b"after " + message)
        assert await store.load(ref) == b"after " + message
    assert taken == [*(each.encode() for each in ids[:-1]), b"aside"]
    assert await store.put(ref, "0", b"0") == "duplicate"
    assert await store.hold(ref, "h2")  # the empty line gave the lease back
    for late in (store.head(ref, "h1"), store.done(ref, "h1", b"late"), store.append(ref, b"{}", "h1")):
        with pytest.raises(LeaseLost):
            await late
    assert await store.load(ref) != b"late"


async def test_frames_have_numbers_without_gaps_and_the_newest_are_kept(
    stores: Stores, ref: SessionRef
) -> None:  # C12
    store, heard = stores.store, list[bytes]()
    await store.create(ref, b"")
    await store.hold(ref, "h1")
    assert await store.last(ref) == 0
    await stores.bus.listen(frames_topic(ref), heard.append)
    numbers = await asyncio.gather(*(store.append(ref, b'{"n":%d}' % n, None) for n in range(20)))
    assert sorted(numbers) == list(range(1, 21))
    for _ in range(FRAMES_KEPT - 10):
        await store.append(ref, b"{}", "h1")
    last = await store.last(ref)
    assert last == FRAMES_KEPT + 10
    kept = await store.after(ref, 0)
    assert [frame.seq for frame in kept] == list(range(11, last + 1))
    assert [frame.seq for frame in await store.after(ref, last - 2)] == [last - 1, last]
    assert await store.after(ref, last) == []
    async with asyncio.timeout(30):
        while len(heard) < last:
            await asyncio.sleep(0.01)
    assert [int(message.partition(b"\n")[0]) for message in heard] == list(range(1, last + 1))


async def test_connections_of_a_user_have_growing_numbers_and_a_secret_is_shared(
    stores: Stores,
) -> None:  # C12
    store = stores.store
    first = await store.arrive("t", "u")
    assert [await store.arrive("t", "u") for _ in range(2)] == [first + 1, first + 2]
    assert await store.arrive("t", "somebody else") <= first
    secret = await store.secret()
    assert (len(secret), await store.secret()) == (32, secret)


async def test_who_no_longer_listens_hears_nothing(stores: Stores) -> None:  # C12
    heard, others = list[bytes](), list[bytes]()
    await stores.bus.listen("topic", heard.append)
    listener = others.append
    await stores.bus.listen("topic", listener)
    await stores.bus.unlisten("topic", listener)
    await stores.bus.publish("topic", b"x")
    async with asyncio.timeout(30):
        while not heard:
            await asyncio.sleep(0.01)
    assert (heard, others) == ([b"x"], [])


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def test_a_session_that_is_left_is_found_and_taken_over(ref: SessionRef) -> None:  # C12
    clock = Clock()
    store = InProcessChat(monotonic=clock)
    await store.create(ref, b"")
    await store.put(ref, "m", b"m")
    await store.hold(ref, "h1")
    assert await store.abandoned() == []
    clock.now += LEASE_S
    assert await store.abandoned() == [ref]
    assert await store.hold(ref, "h2")
    with pytest.raises(LeaseLost):
        await store.append(ref, b"{}", "h1")
    assert await store.idle(3600) == []
    await store.done(ref, "h2", b"")
    clock.now += 3600
    assert await store.idle(3600) == [ref]
    assert await store.idle(3600) == []
    clock.now += LEASE_S
    assert await store.idle(3600) == [ref]
    await store.forget(ref)
    clock.now += LEASE_S
    assert await store.idle(3600) == []


async def test_redis_finds_sessions_that_were_left_or_are_idle(
    redis_server: RedisServer, ref: SessionRef
) -> None:  # C12
    clock = Clock()
    memory = connect(redis_server.url)
    store = RedisChat(memory.driver, clock=clock)
    await store.create(ref, b"")
    await store.put(ref, "m", b"m")
    assert await store.hold(ref, "h1")
    assert ref not in await store.abandoned()
    clock.now += LEASE_S + 0.1
    assert ref in await store.abandoned()
    await store.done(ref, "h1", b"")
    assert await store.head(ref, "h1") is None
    assert ref not in await store.abandoned()
    assert ref not in await store.idle(3600)
    clock.now += 3600
    assert ref in await store.idle(3600)
    assert ref not in await store.idle(3600)
    clock.now += LEASE_S
    assert ref in await store.idle(3600)
    await store.forget(ref)
    clock.now += LEASE_S
    assert ref not in await store.idle(3600)
    await memory.close()


async def test_a_frame_that_may_not_be_told_is_not_kept(start_redis: StartRedis) -> None:  # C12, C13
    server = start_redis()
    memory, ref = connect(server.url), SessionRef("t", "s")
    store = RedisChat(memory.driver)
    await store.create(ref, b"")
    async with Redis.from_url(server.url) as operator:
        await operator.execute_command("ACL", "SETUSER", "default", "resetchannels")
        with pytest.raises(FlowEngineError):
            await store.append(ref, b"one", None)
        await operator.execute_command("ACL", "SETUSER", "default", "allchannels")
    assert await store.append(ref, b"two", None) == 1
    assert [frame.frame for frame in await store.after(ref, 0)] == [b"two"]
    await memory.close()


async def test_the_log_says_once_why_nothing_is_heard_and_once_that_it_is_again(
    start_redis: StartRedis,
) -> None:  # C12, F46
    server = start_redis()
    memory, heard = connect(server.url), asyncio.Event()
    bus = RedisBus(memory.driver)
    await bus.listen("topic", lambda _: heard.set())
    with capture_logs() as logs:
        server.stop()
        async with asyncio.timeout(20):
            while not any("Connect call failed" in line["reason"] for line in logs):
                await asyncio.sleep(0.05)
        await asyncio.sleep(2.5 * RECONNECT_S)
        server.start()
        async with asyncio.timeout(20):
            while not heard.is_set():
                with suppress(RetryLater):
                    await bus.publish("topic", b"x")
                await asyncio.sleep(0.05)
    await bus.aclose()
    await memory.close()
    *away, back = logs
    assert [line["event"] for line in away] == ["bus_away"] * len(away)
    assert len({line["reason"] for line in away}) == len(away)
    assert back["event"] == "bus_back"


async def test_a_redis_that_refused_for_a_while_is_heard_again(start_redis: StartRedis) -> None:  # C12, F46
    server = start_redis()
    memory, heard = connect(server.url), asyncio.Event()
    bus = RedisBus(memory.driver)
    await bus.listen("topic", lambda _: heard.set())
    async with Redis.from_url(server.url) as operator, asyncio.timeout(20):
        with capture_logs() as logs:
            await operator.execute_command("ACL", "SETUSER", "default", "resetchannels")
            while not logs:  # whoever has subscribed is cut off, and refused when it comes again
                await asyncio.sleep(0.05)
            await operator.execute_command("ACL", "SETUSER", "default", "allchannels")
            while not heard.is_set():
                await bus.publish("topic", b"x")
                await asyncio.sleep(0.05)
        await bus.aclose()
    await memory.close()
    assert {(line["event"], line["log_level"]) for line in logs[:-1]} == {("bus_away", "error")}
    assert logs[-1]["event"] == "bus_back"
