"""Erasing a conversation: nothing of it stays but word of its erasure (contract 18)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from flow_engine.idempotency import IdempotencyKey
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Claim, DueJob, Job
from flow_engine.ports.telemetry import Unobserved
from flow_engine.runtime.memory import PreviousContact
from flow_engine.runtime.storage import Conflict, Erasure, LoadedConversation
from flow_engine.use_cases.delivery import Relay
from memory.connection import RedisMemory, connect
from memory.in_process import embedded
from memory.keys import JOBS_KEY, ConversationKeys
from memory.schedule import RedisDeadLetters, RedisJobSchedule
from memory.streams import RedisEvents, Routing
from tests.memory.conversation_samples import T0, Conversation, session, turn, written
from tests.memory.events_scene import in_stream
from tests.redis_fixture import RedisServer, client_of

pytestmark = pytest.mark.anyio
KEY = IdempotencyKey("erase it", "fingerprint")
ERASED = b'{"eventId":"e","body":{"subtype":"conversation_erased"}}'
ERASURE = Erasure(ERASED, b'{"conversationId":"c"}', T0)


class Clock:
    def now(self):
        return T0


@pytest.fixture(params=["embedded", "standalone", "cluster"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[RedisMemory]:
    if request.param == "embedded":
        opened = embedded()
    else:
        cluster = request.param == "cluster"
        server: RedisServer = request.getfixturevalue("redis_cluster" if cluster else "redis_server")
        opened = connect(server.url, cluster=cluster)
    await client_of(opened).delete(JOBS_KEY)
    yield opened
    await opened.close()


async def lived(store: RedisMemory) -> Conversation:
    """A conversation with something under every kind of key."""
    talk = Conversation.fresh(store, "c*[x]")
    job = DueJob(Job("conclude", talk.ref, "call 1"), T0 + timedelta(hours=1))
    await talk.start(events=(b'{"eventId":"1"}',), jobs=(job,), idempotency=IdempotencyKey("other", "f"))
    contact = PreviousContact(T0, "chat", "r")
    await talk.commit(1, turn=turn("m"), set_tools={"name": written("x")}, previous_contacts=(contact,))
    await client_of(store).xadd(ConversationKeys.of(talk.ref).webhook_queue, {"event": b"{}"})
    schedule = RedisJobSchedule(store.driver)
    await schedule.schedule(DueJob(Job("mine", talk.ref), T0))
    (claim,) = await schedule.claim(T0, at_most=1, lease_s=9)
    await schedule.bury(claim, "no good", T0)
    return talk


async def names_of(store: RedisMemory, ref: ConversationRef) -> set[str]:
    tag = ConversationKeys.of(ref).tag
    return {key async for key in store.driver.scan("*") if key.startswith(tag)}


async def test_nothing_stays_but_the_event_of_it_and_the_receipt(
    store: RedisMemory,
) -> None:  # contract 18, peers 5
    talk = await lived(store)
    neighbour = Conversation(store, ConversationRef(talk.ref.tenant_id, "c"))
    await neighbour.start(jobs=(DueJob(Job("conclude", neighbour.ref, "x"), T0 + timedelta(hours=1)),))
    assert await store.conversations.erase(talk.ref, Erasure(ERASED, b"{}", T0, KEY))
    keys = ConversationKeys.of(talk.ref)
    assert await names_of(store, talk.ref) == {keys.named["outbox"], keys.reply(KEY.key)}
    assert await talk.events() == [ERASED]
    jobs = [Job.named(name.decode()) for name, _ in await store.driver.zrange(JOBS_KEY, at_most=99)]
    assert sorted(job.kind for job in jobs if job.conversation == talk.ref) == ["relay"]
    assert any(job.conversation == neighbour.ref for job in jobs)
    letters = await RedisDeadLetters(store.driver).list(at_most=99)
    assert all(letter.job.conversation != talk.ref for letter in letters)
    assert (await neighbour.store.conversations.load(neighbour.ref)).revision == 1


async def test_a_repetition_finds_the_same_bytes_and_a_second_one_nothing(
    store: RedisMemory,
) -> None:  # contract 18
    talk = await lived(store)
    assert await store.conversations.erase(talk.ref, Erasure(ERASED, b'{"at":1}', T0, KEY))
    loaded = await store.conversations.load(talk.ref, idempotency=KEY)
    assert loaded.session is None
    assert loaded.replay is not None
    assert (loaded.replay.status, loaded.replay.body) == (200, b'{"at":1}')
    assert not await store.conversations.erase(talk.ref, ERASURE)
    assert await store.conversations.load(talk.ref) == LoadedConversation()


async def test_who_was_at_work_on_it_writes_nothing_more(store: RedisMemory) -> None:  # contract 18
    talk = await lived(store)
    schedule = RedisJobSchedule(store.driver)
    await schedule.schedule(DueJob(Job("mine", talk.ref), T0))
    (held,) = await schedule.claim(T0, at_most=1, lease_s=9)
    await store.conversations.erase(talk.ref, ERASURE)
    assert await talk.commit(1, session=session(talk.ref, 2)) == Conflict()
    await schedule.retry(Claim(held.job, held.token, 1), T0)
    assert await client_of(store).zscore(JOBS_KEY, held.job.name) is None


async def test_the_events_already_sent_get_word_behind_them(store: RedisMemory) -> None:  # contract 18
    talk = await lived(store)
    events = RedisEvents(store.driver, Routing(1_000, webhook=False))
    relay = Relay(events, Clock(), Unobserved(), RedisJobSchedule(store.driver).schedule, has_webhook=False)
    await relay.relay(Job("relay", talk.ref))
    await store.conversations.erase(talk.ref, ERASURE)
    await relay.relay(Job("relay", talk.ref))
    told = [entry["event"] for entry in await in_stream(client_of(store), talk.ref)]
    assert told == ['{"eventId":"1"}', ERASED.decode()]
    assert await names_of(store, talk.ref) == set()
