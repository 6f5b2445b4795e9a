"""No tenant pushes the others' events out of the stream, or has all calls of the model (C)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flow_engine.ports.delivery import ShareUsedUp
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.ports.telemetry import Unobserved
from flow_engine.use_cases.delivery import Relay
from memory.call_budget import RedisCallBudget
from memory.connection import connect
from memory.in_process import embedded
from memory.keys import EVENTS_KEY
from memory.streams import RedisEvents, Routing
from tests.memory.events_scene import (
    events_on,
    in_stream,
    left_in_outbox,
    new_redis,
    some_events,
    write_down,
)
from tests.redis_fixture import RedisServer, client_of

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 3, 1, 12, 0, 20, tzinfo=UTC)
NOISY, QUIET = ConversationRef("noisy", "c"), ConversationRef("quiet", "c")


class Clock:
    at = NOW

    def now(self) -> datetime:
        return self.at


@pytest.mark.parametrize("place", ["embedded", "cluster"])
async def test_a_tenant_that_has_had_its_part_waits_for_the_next_minute(
    place: str, request: pytest.FixtureRequest
) -> None:  # C
    if place == "cluster":
        server: RedisServer = request.getfixturevalue("redis_cluster")
        memory = connect(server.url, cluster=True)
        await client_of(memory).delete("{flow-engine}:events")
    else:
        memory = embedded()
    clock, put_off = Clock(), list[DueJob]()
    on = RedisEvents(memory.driver, Routing(100, webhook=False), clock=lambda: clock.now().timestamp())

    async def schedule(due: DueJob) -> None:
        put_off.append(due)

    relay = Relay(on, clock, Unobserved(), schedule, has_webhook=False)
    client = client_of(memory)
    for conversation, number in ((QUIET, 1), (NOISY, 40), (NOISY, 40)):
        await write_down(client, conversation, some_events(number))
        await relay.relay(Job("relay", conversation))
    assert len(await in_stream(client, NOISY)) == 40
    assert len(await left_in_outbox(client, NOISY)) == 40
    assert put_off == [DueJob(Job("relay", NOISY), NOW + timedelta(seconds=40))]
    clock.at += timedelta(seconds=40)
    await relay.relay(Job("relay", NOISY))
    assert await left_in_outbox(client, NOISY) == []
    await client.delete("{flow-engine}:events", "{flow-engine}:events::shares:29539440")
    await memory.close()


async def test_a_tenant_alone_has_the_stream_to_itself() -> None:  # C
    memory = embedded()
    on = RedisEvents(memory.driver, Routing(100, webhook=False), clock=NOW.timestamp)
    for first in range(0, 500, 100):
        await write_down(client_of(memory), NOISY, some_events(100, first))
        assert await on.publish(NOISY, await on.in_outbox(NOISY, at_most=100)) == 100
    await write_down(client_of(memory), QUIET, some_events(1))
    assert await on.publish(QUIET, await on.in_outbox(QUIET, at_most=100)) == 1
    await write_down(client_of(memory), NOISY, some_events(1))
    with pytest.raises(ShareUsedUp):
        await on.publish(NOISY, await on.in_outbox(NOISY, at_most=100))


async def test_calls_of_the_model_are_shared_once_they_are_short() -> None:  # C
    budget = RedisCallBudget(embedded().driver, 20, clock=lambda: 0.0)
    noisy = [await budget.take("noisy") == 0 for _ in range(12)]
    assert noisy == [True] * 12, "alone, a tenant may have them all"
    assert [await budget.take("quiet") == 0 for _ in range(2)] == [True] * 2
    assert await budget.take("noisy") > 0
    assert [await budget.take("quiet") == 0 for _ in range(6)] == [True] * 6
    assert await budget.take("quiet") > 0


@pytest.mark.parametrize("place", ["embedded", "cluster"])
async def test_an_event_is_sent_on_as_it_may_be_shown(
    place: str, request: pytest.FixtureRequest
) -> None:  # journal: sensitive
    memory = embedded()
    if place == "cluster":
        memory = connect(request.getfixturevalue("redis_cluster").url, cluster=True)
    client, talk = client_of(memory), ConversationRef(f"shown-{place}", "conv-1")
    on = RedisEvents(memory.driver, Routing(100, webhook=True))
    await write_down(client, talk, some_events(2))
    first, second = await on.in_outbox(talk, at_most=9)
    shown = replace(first, event=b'{"body":"[hidden]"}', rewritten=True)
    assert await on.publish(talk, [shown, second]) == 2
    assert [each.event for each in await on.for_webhook(talk, at_most=9)] == [shown.event, second.event]
    in_order = [each["event"].encode() for each in await in_stream(client, talk)]
    assert in_order == [shown.event, second.event]
    assert await left_in_outbox(client, talk) == []
    await client.delete("{flow-engine}:events")
    await memory.close()


@pytest.mark.parametrize("single_node", [True, False])
async def test_an_event_is_not_kept_for_longer_than_what_an_erasure_finds(single_node: bool) -> None:  # F40
    client = new_redis()
    on, (now_s, _) = events_on(client, single_node=single_node), await client.time()
    for days in (31, 29):
        event = {"event": f"of {days} days", "tenant": "t", "conversation": "c", "kind": "message"}
        await client.xadd(EVENTS_KEY, event, f"{now_s - days * 86_400}000-0")
    await write_down(client, QUIET, some_events(1))
    relay = Relay(on, Clock(), Unobserved(), _unscheduled, has_webhook=False)
    await relay.relay(Job("relay", QUIET))
    kept = [fields[b"event"] for _, fields in await client.xrange(EVENTS_KEY)]
    assert kept == [b"of 29 days", *some_events(1)]


async def _unscheduled(_: DueJob) -> None:
    raise AssertionError("nothing is put off")
