"""The relay: in order, never lost, exactly once where one server can promise it (F40, F41)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from fakeredis import FakeServer
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import NoScriptError

from flow_engine.errors import RetryLater
from flow_engine.masking import MASKS
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.ports.telemetry import Unobserved
from flow_engine.runtime.events import marked_unread
from flow_engine.use_cases import delivery as delivery_module
from flow_engine.use_cases.delivery import Relay
from memory.connection import connect
from memory.in_process import embedded
from memory.keys import EVENTS_KEY
from memory.streams import WEBHOOK_QUEUE_LIFETIME_S, RedisEvents
from tests.memory.events_scene import (
    Breaking,
    Killed,
    Moment,
    events_on,
    firsts,
    fresh_ref,
    ids_in_stream,
    in_stream,
    left_for_webhook,
    left_in_outbox,
    new_redis,
    outbox_key,
    some_events,
    write_down,
)
from tests.redis_fixture import RedisServer

pytestmark = pytest.mark.anyio
T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEN = [f"e{n}" for n in range(10)]


class StandingClock:
    def now(self) -> datetime:
        return T0


def relaying(events: RedisEvents, scheduled: list[DueJob] | None = None) -> Relay:
    async def schedule(due: DueJob) -> None:
        if scheduled is not None:
            scheduled.append(due)

    return Relay(events, StandingClock(), Unobserved(), schedule, has_webhook=scheduled is not None)


@pytest.fixture(params=["embedded", "redis", "cluster"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, bool]]:
    """A client, and whether one server holds every slot."""
    if request.param == "embedded":
        memory = embedded(FakeServer())
    else:
        cluster = request.param == "cluster"
        server: RedisServer = request.getfixturevalue("redis_cluster" if cluster else "redis_server")
        memory = connect(server.url, cluster=cluster)
    yield memory.driver.client, request.param != "cluster"
    await memory.close()


class TestSendingOn:
    async def test_events_come_in_order_with_what_a_consumer_needs_to_sort_them(
        self, store: tuple[Any, bool]
    ) -> None:  # F40
        client, single_node = store
        conversation, events = fresh_ref(), some_events(4)
        await write_down(client, conversation, events)
        await relaying(events_on(client, single_node=single_node)).relay(Job("relay", conversation))
        seen = await in_stream(client, conversation)
        assert [e["event"].encode() for e in seen] == events
        assert [e["kind"] for e in seen] == ["message", "message", "checkpoint", "message"]
        assert {e["conversation"] for e in seen} == {"c:é"}
        assert await left_in_outbox(client, conversation) == []
        assert await left_for_webhook(client, conversation) == []

    async def test_words_that_nobody_looks_for_values_in_are_not_sent(
        self, store: tuple[Any, bool]
    ) -> None:  # journal: sensitive
        client, single_node = store
        conversation, (plain, *_) = fresh_ref(), some_events(1)
        words = orjson.dumps({**orjson.loads(plain), "body": "my number is 4111"})
        await write_down(client, conversation, [plain, marked_unread(words, "c/m", T0)])
        on = events_on(client, single_node=single_node, webhook=True)
        await relaying(on, []).relay(Job("relay", conversation))
        sent = [each["event"].encode() for each in await in_stream(client, conversation)]
        assert sent == await left_for_webhook(client, conversation)
        assert sent[0] == plain
        assert orjson.loads(sent[1]) == {**orjson.loads(plain), "body": MASKS[True]}

    async def test_more_than_a_batch_is_sent_on_in_one_go(
        self, store: tuple[Any, bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(delivery_module, "BATCH", 3)
        client, single_node = store
        conversation = fresh_ref()
        await write_down(client, conversation, some_events(10))
        await relaying(events_on(client, single_node=single_node)).relay(Job("relay", conversation))
        assert await ids_in_stream(client, conversation) == TEN

    async def test_with_a_webhook_the_same_events_wait_for_it_for_a_week(
        self, store: tuple[Any, bool]
    ) -> None:  # F40
        client, single_node = store
        conversation, events, scheduled = fresh_ref(), some_events(3), list[DueJob]()
        await write_down(client, conversation, events)
        on = events_on(client, single_node=single_node, webhook=True)
        await relaying(on, scheduled).relay(Job("relay", conversation))
        assert await left_for_webhook(client, conversation) == events
        assert scheduled == [DueJob(Job("deliver", conversation), T0)]
        lifetime = await client.ttl(f"{outbox_key(conversation)}::webhook")
        assert WEBHOOK_QUEUE_LIFETIME_S - 60 < lifetime <= WEBHOOK_QUEUE_LIFETIME_S

    async def test_a_conversation_that_has_gone_leaves_no_trace(self, store: tuple[Any, bool]) -> None:
        client, single_node = store
        conversation = fresh_ref()
        await relaying(events_on(client, single_node=single_node, webhook=True), []).relay(
            Job("relay", conversation)
        )
        assert await in_stream(client, conversation) == []
        assert not await client.exists(f"{outbox_key(conversation)}::webhook")

    async def test_the_stream_forgets_the_oldest_beyond_its_length(self) -> None:  # F40
        client, conversation = new_redis(), fresh_ref()
        await write_down(client, conversation, some_events(2_000))
        await relaying(events_on(client, stream_length=1_000)).relay(Job("relay", conversation))
        ids = await ids_in_stream(client, conversation)
        assert 1_000 <= len(ids) < 1_200
        assert ids[-1] == "e1999"

    async def test_a_full_redis_takes_an_event_whole_or_not_at_all(self, start_redis: Any) -> None:
        server: RedisServer = start_redis()
        memory, conversation = connect(server.url), fresh_ref()
        await write_down(memory.driver.client, conversation, some_events(3))
        await memory.driver.client.config_set("maxmemory", "100kb")
        on = events_on(memory.driver.client, webhook=True)
        with pytest.raises(RetryLater):
            await relaying(on, []).relay(Job("relay", conversation))
        assert len(await left_in_outbox(memory.driver.client, conversation)) == 3
        assert await in_stream(memory.driver.client, conversation) == []
        await memory.driver.client.config_set("maxmemory", "0")
        await relaying(on, []).relay(Job("relay", conversation))
        assert await ids_in_stream(memory.driver.client, conversation) == ["e0", "e1", "e2"]
        await memory.close()

    async def test_a_redis_that_is_away_has_the_job_tried_again(self, start_redis: Any) -> None:  # F44
        server: RedisServer = start_redis()
        memory = connect(server.url)
        server.kill()
        with pytest.raises(RetryLater, match="memory_unavailable"):
            await relaying(events_on(memory.driver.client)).relay(Job("relay", fresh_ref()))
        await memory.close()


class TestKilledInBetween:
    @pytest.mark.parametrize("moment", ["before", "after"])
    @pytest.mark.parametrize("at", range(6))
    async def test_nothing_is_lost_or_out_of_order_and_one_server_repeats_nothing(
        self, store: tuple[Any, bool], at: int, moment: Moment, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # F41
        monkeypatch.setattr(delivery_module, "BATCH", 4)
        client, single_node = store
        conversation, scheduled = fresh_ref(), list[DueJob]()
        await write_down(client, conversation, some_events(10))
        breaking = events_on(Breaking(client, at, moment), single_node=single_node, webhook=True)
        with pytest.raises(Killed):
            await relaying(breaking, scheduled).relay(Job("relay", conversation))
        await relaying(events_on(client, single_node=single_node, webhook=True), scheduled).relay(
            Job("relay", conversation)
        )
        ids = await ids_in_stream(client, conversation)
        assert firsts(ids) == TEN
        assert not single_node or ids == TEN
        assert await left_for_webhook(client, conversation) == some_events(10)
        assert await left_in_outbox(client, conversation) == []
        assert scheduled


class Turns:
    """Lets one of several relays run one command at a time, in the order that was drawn."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def of(self, name: str) -> Any:
        turns = self

        class Client:
            async def evalsha(self, *args: Any) -> Any:
                raise NoScriptError

            async def eval(self, *args: Any) -> Any:
                await turns.wait(name)
                return await turns._client.eval(*args)

            async def xrange(self, *args: Any, **options: Any) -> Any:
                await turns.wait(name)
                return await turns._client.xrange(*args, **options)

        return Client()

    async def wait(self, name: str) -> None:
        self._waiting[name] = asyncio.get_running_loop().create_future()
        try:
            await self._waiting[name]
        finally:
            self._waiting.pop(name, None)

    def let(self, name: str) -> None:
        self._waiting.pop(name).set_result(None)

    def has(self, name: str) -> bool:
        return name in self._waiting


@settings(max_examples=120, deadline=None)
@given(
    order=st.lists(st.sampled_from(["a", "b", "commit", "kill a", "kill b"]), max_size=40),
    single_node=st.booleans(),
    at_first=st.integers(0, 5),
)
def test_two_relays_at_once_keep_the_order_however_they_take_turns(
    order: list[str], single_node: bool, at_first: int
) -> None:  # F40, F41
    async def play() -> None:
        client, conversation = new_redis(), fresh_ref()
        await write_down(client, conversation, some_events(at_first))
        written = at_first
        turns = Turns(client)
        tasks: dict[str, asyncio.Task[None]] = {}
        for move in order:
            name = move[-1]
            if move == "commit":
                await write_down(client, conversation, some_events(2, written))
                written += 2
                continue
            if move.startswith("kill"):
                if name in tasks:
                    tasks[name].cancel()
                    await asyncio.wait({tasks.pop(name)})
                continue
            if name not in tasks or tasks[name].done():
                tasks[name] = start(turns, name, single_node, conversation)
                await until(lambda name=name: turns.has(name) or tasks[name].done())
            if turns.has(name):
                turns.let(name)
                await until(lambda name=name: turns.has(name) or tasks[name].done())
        for task in tasks.values():
            task.cancel()
            await asyncio.wait({task})
        await relaying(events_on(client, single_node=single_node, webhook=True), []).relay(
            Job("relay", conversation)
        )
        expected = [f"e{n}" for n in range(written)]
        ids = await ids_in_stream(client, conversation)
        assert firsts(ids) == expected
        assert not single_node or ids == expected
        assert await left_for_webhook(client, conversation) == some_events(written)

    delivery_module_batch, delivery_module.BATCH = delivery_module.BATCH, 2  # type: ignore[misc]
    try:
        asyncio.run(play())
    finally:
        delivery_module.BATCH = delivery_module_batch  # type: ignore[misc]


def start(turns: Turns, name: str, single_node: bool, conversation: ConversationRef) -> asyncio.Task[None]:
    events = events_on(turns.of(name), single_node=single_node, webhook=True)
    return asyncio.ensure_future(relaying(events, []).relay(Job("relay", conversation)))  # type: ignore[return-value]


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0)


def test_the_stream_of_all_conversations_has_the_documented_name() -> None:
    assert EVENTS_KEY == "{flow-engine}:events"
