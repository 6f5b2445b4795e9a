"""Erasing a conversation: nothing of it stays but word of its erasure (contract 18)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import orjson
import pytest

from flow_engine.errors import RetryLater
from flow_engine.idempotency import IdempotencyKey
from flow_engine.ports.dialogue import ConversationRef, encoded_id
from flow_engine.ports.jobs import Claim, DueJob, Job
from flow_engine.ports.telemetry import Unobserved
from flow_engine.runtime.events import erasure_event
from flow_engine.runtime.memory import PreviousContact
from flow_engine.runtime.storage import Committed, Conflict, Erasure, LoadedConversation
from flow_engine.use_cases.delivery import Relay
from memory import erasing
from memory.connection import RedisMemory, connect
from memory.in_process import embedded
from memory.keys import JOBS_KEY, ConversationKeys, due_score, index_key
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


async def test_the_jobs_of_many_conversations_are_looked_at_in_small_steps(
    redis_server: RedisServer,
) -> None:  # contract 18, operations
    """Redis does nothing else while a command runs: one that looked at a million jobs held up everybody for
    seconds."""
    store = connect(redis_server.url)
    client, many = client_of(store), 20 * erasing.JOBS_AT_ONCE
    tomorrow = due_score(T0 + timedelta(days=1))
    others = [Job("expire", ConversationRef("other", f"c{number}")).name for number in range(many)]
    await client.delete(JOBS_KEY)
    await client.zadd(JOBS_KEY, dict.fromkeys(others, tomorrow))
    talk = await lived(store)
    await client.config_resetstat()
    assert await store.conversations.erase(talk.ref, ERASURE)
    used = await client.info("commandstats")
    assert used["cmdstat_zscan"]["calls"] >= many // erasing.JOBS_AT_ONCE
    assert not {"cmdstat_hkeys", "cmdstat_hgetall", "cmdstat_keys"} & used.keys()
    assert used["cmdstat_zrange"]["calls"] <= 2  # of the conversation's forks
    jobs = {Job.named(name.decode()) for name, _ in await store.driver.zrange(JOBS_KEY, at_most=2 * many)}
    assert {job.kind for job in jobs if job.conversation == talk.ref} == {"relay"}
    assert len(jobs) == many + 1
    await client.delete(JOBS_KEY)
    await store.close()


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


def events_of(store: RedisMemory) -> tuple[RedisEvents, Relay]:
    events = RedisEvents(store.driver, Routing(10_000, webhook=False))
    schedule = RedisJobSchedule(store.driver).schedule
    return events, Relay(events, Clock(), Unobserved(), schedule, has_webhook=False)


async def told(store: RedisMemory, ref: ConversationRef) -> list[str]:
    found = await in_stream(client_of(store), ref)
    return [entry["event"] for entry in found if entry["conversation"] == ref.conversation_id]


async def test_the_events_already_sent_are_taken_back_and_word_follows(
    store: RedisMemory, monkeypatch: pytest.MonkeyPatch
) -> None:  # contract 18, journal: DELETE
    monkeypatch.setattr(erasing, "EVENTS_AT_ONCE", 2)
    talk = await lived(store)
    neighbour = Conversation(store, ConversationRef(talk.ref.tenant_id, "n"))
    stranger = Conversation(store, ConversationRef("stranger", talk.ref.conversation_id))
    _, relay = events_of(store)
    for other in (neighbour, stranger):
        await other.start(events=tuple(b'{"eventId":"%d"}' % number for number in range(3)))
        await relay.relay(Job("relay", other.ref))
    await relay.relay(Job("relay", talk.ref))
    assert await told(store, talk.ref) == ['{"eventId":"1"}']
    await store.conversations.erase(talk.ref, ERASURE)
    assert await told(store, talk.ref) == []
    await relay.relay(Job("relay", talk.ref))
    assert await told(store, talk.ref) == [ERASED.decode()]
    assert await names_of(store, talk.ref) == set()
    assert [len(await told(store, other.ref)) for other in (neighbour, stranger)] == [3, 3]


async def test_word_of_an_earlier_erasure_stays_and_what_only_looks_like_it_goes(
    store: RedisMemory,
) -> None:  # journal: DELETE
    talk = Conversation.fresh(store)
    word = erasure_event(talk.ref, T0)
    reported = (
        b'{"eventId":"2","body":{"subtype":"conversation_erased"},"type":"system","src":"bot","meta":null}'
    )
    await talk.start(events=(word, reported))
    _, relay = events_of(store)
    await relay.relay(Job("relay", talk.ref))
    await store.conversations.erase(talk.ref, ERASURE)
    assert await told(store, talk.ref) == [word.decode()]


async def test_what_is_sent_on_while_it_is_erased_is_taken_back(store: RedisMemory) -> None:
    talk = await lived(store)
    events, _ = events_of(store)
    waiting = await events.in_outbox(talk.ref, at_most=9)
    assert await store.conversations.erase(talk.ref, ERASURE)
    assert await events.publish(talk.ref, waiting) == 0
    assert await told(store, talk.ref) == []


class Elsewhere:
    """What another store has of conversations."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    async def remove(self, conversation: ConversationRef) -> None:
        self.removed.append(conversation.conversation_id)


async def cut_off(
    store: RedisMemory, talk: Conversation, monkeypatch: pytest.MonkeyPatch, elsewhere: Elsewhere
) -> None:
    """An erasure whose process dies before it has looked for what lies outside of the keys."""

    async def dies(*_: object) -> None:
        raise RetryLater("memory_unavailable", "cut off")

    erasure = Erasure(ERASED, b"{}", T0, KEY, elsewhere=elsewhere.remove)
    with monkeypatch.context() as patched:
        patched.setattr(erasing.Eraser, "_sweep", dies)
        with pytest.raises(RetryLater, match="cut off"):
            await store.conversations.erase(talk.ref, erasure)


async def jobs_of(store: RedisMemory, ref: ConversationRef) -> dict[str, float]:
    found = [(Job.named(name.decode()), at) for name, at in await store.driver.zrange(JOBS_KEY, at_most=99)]
    return {job.kind: at for job, at in found if job.conversation == ref}


async def test_one_that_was_cut_off_is_finished_by_whoever_finds_it(
    store: RedisMemory, monkeypatch: pytest.MonkeyPatch
) -> None:  # contract 18
    talk, elsewhere = await lived(store), Elsewhere()
    _, relay = events_of(store)
    await relay.relay(Job("relay", talk.ref))
    await cut_off(store, talk, monkeypatch, elsewhere)
    assert elsewhere.removed == []
    due = await jobs_of(store, talk.ref)
    assert due["erase"] == due_score(T0 + timedelta(minutes=1))
    await store.conversations.finish_erasure(talk.ref, T0, elsewhere.remove)
    keys = ConversationKeys.of(talk.ref)
    assert await names_of(store, talk.ref) == {keys.named["outbox"], keys.reply(KEY.key)}
    assert (await jobs_of(store, talk.ref)).keys() == {"relay"}
    assert (await told(store, talk.ref), await talk.events()) == ([], [ERASED])
    assert await RedisDeadLetters(store.driver).list(at_most=99) == []
    await store.conversations.finish_erasure(talk.ref, T0, elsewhere.remove)
    assert elsewhere.removed == [talk.ref.conversation_id]  # once


async def test_a_fork_whose_erasure_was_cut_off_is_finished_with_the_original(
    store: RedisMemory, monkeypatch: pytest.MonkeyPatch
) -> None:  # contract 18
    talk, elsewhere = await lived(store), Elsewhere()
    fork = Conversation(store, ConversationRef(talk.ref.tenant_id, "fork"))
    await fork.start(idempotency=IdempotencyKey("f", "f"))
    await cut_off(store, fork, monkeypatch, elsewhere)
    await cut_off(store, talk, monkeypatch, elsewhere)
    await client_of(store).zadd(ConversationKeys.of(talk.ref).forks, {"fork": 1})
    # As where ids were used again: forks that go round in a circle.
    await client_of(store).zadd(ConversationKeys.of(fork.ref).forks, {talk.ref.conversation_id: 1})
    await store.conversations.finish_erasure(talk.ref, T0, elsewhere.remove)
    outboxes = {ConversationKeys.of(ref).named["outbox"] for ref in (talk.ref, fork.ref)}
    receipts = {ConversationKeys.of(ref).reply(KEY.key) for ref in (talk.ref, fork.ref)}
    assert await names_of(store, talk.ref) | await names_of(store, fork.ref) == outboxes | receipts


async def test_nobody_begins_under_the_id_before_all_is_gone(
    store: RedisMemory, monkeypatch: pytest.MonkeyPatch
) -> None:  # contract 18, F15
    talk, elsewhere = await lived(store), Elsewhere()
    await cut_off(store, talk, monkeypatch, elsewhere)
    with pytest.raises(RetryLater, match="memory_unavailable"):
        await talk.start()
    assert (await store.conversations.load(talk.ref)).session is None
    await store.conversations.finish_erasure(talk.ref, T0, elsewhere.remove)
    assert isinstance(await talk.start(), Committed)


async def test_who_is_overtaken_leaves_the_next_conversation_whole(
    store: RedisMemory, monkeypatch: pytest.MonkeyPatch
) -> None:  # contract 18, F15: two that finish it, and one is faster
    talk, elsewhere = await lived(store), Elsewhere()
    await cut_off(store, talk, monkeypatch, elsewhere)
    _, relay = events_of(store)
    scan, later = store.driver.scan, DueJob(Job("conclude", talk.ref, "x"), T0 + timedelta(hours=1))

    async def overtaken(pattern: str) -> AsyncIterator[str]:
        with monkeypatch.context() as patched:
            patched.setattr(store.driver, "scan", scan)
            await store.conversations.finish_erasure(talk.ref, T0, elsewhere.remove)
        start = talk.start(
            events=(b'{"eventId":"new"}',), jobs=(later,), idempotency=IdempotencyKey("new", "f")
        )
        assert isinstance(await start, Committed)
        await relay.relay(Job("relay", talk.ref))
        async for key in scan(pattern):
            yield key

    with monkeypatch.context() as patched:
        patched.setattr(store.driver, "scan", overtaken)
        await store.conversations.finish_erasure(talk.ref, T0, elsewhere.remove)
    assert '{"eventId":"new"}' in await told(store, talk.ref)
    assert "conclude" in await jobs_of(store, talk.ref)
    assert await client_of(store).zscore(index_key(talk.ref.tenant_id), talk.ref.conversation_id) is not None
    assert (await store.conversations.load(talk.ref, idempotency=IdempotencyKey("new", "f"))).replay


async def test_a_job_that_is_written_meanwhile_goes_too_and_word_of_it_stays(
    store: RedisMemory, monkeypatch: pytest.MonkeyPatch
) -> None:  # contract 18
    talk = await lived(store)
    erase_keys = erasing.Eraser._erase_keys

    async def meanwhile(self: erasing.Eraser, *args: Any) -> bool:
        await talk.commit(2, jobs=(DueJob(Job("expire", talk.ref), T0 + timedelta(days=1)),))
        return await erase_keys(self, *args)

    monkeypatch.setattr(erasing.Eraser, "_erase_keys", meanwhile)
    assert await store.conversations.erase(talk.ref, ERASURE)
    assert (await jobs_of(store, talk.ref)).keys() == {"relay"}


async def forked_from(store: RedisMemory, original: Conversation, name: str) -> Conversation:
    fork = Conversation(store, ConversationRef(original.ref.tenant_id, name))
    await fork.start()
    origin = {"tag": None, "forked_from": {"conversation_id": original.ref.conversation_id, "seq": 1}}
    client, snapshot = client_of(store), ConversationKeys.of(fork.ref).named["snapshot"]
    await client.hset(snapshot, "origin", orjson.dumps(origin))
    await client.zadd(ConversationKeys.of(original.ref).forks, {name: 1})
    return fork


async def test_forks_of_forks_are_erased_however_many_there_are() -> None:  # journal: must be shown 5
    store = embedded()
    talk = last = await lived(store)
    for number in range(500):  # deeper than Python's stack
        last = await forked_from(store, last, f"fork-{number}")
    assert await store.conversations.erase(talk.ref, ERASURE)
    left = {name async for name in store.driver.scan("*::snapshot")}
    assert not left
    await store.close()


async def left_of(store: RedisMemory, ref: ConversationRef) -> set[str]:
    """Where something of a conversation is: keys of its own, or shared ones that name it."""
    own = await names_of(store, ref)
    shared = {name async for name in store.driver.scan("*")} - own
    client = client_of(store)
    reads = {b"zset": lambda n: client.zrange(n, 0, -1), b"hash": client.hgetall, b"stream": client.xrange}
    for name in shared:
        kind = await client.type(name)
        found = repr(await reads[kind](name)) if kind in reads else ""
        if ref.conversation_id in found or encoded_id(ref.conversation_id) in found:
            own.add(name)
    return own


@pytest.mark.parametrize(
    ("remover", "place"),
    [
        (None, None),
        ("_sweep", "::reply::other"),
        ("_sweep", ":conversations}::index"),
        ("_sweep", "{flow-engine}:events"),
        ("_erase_keys", "::snapshot"),
        ("_forget_jobs", "{flow-engine}:jobs::dead::letters"),
        ("_erase_forks", "::snapshot"),
    ],
)
async def test_each_remover_is_needed(
    remover: str | None, place: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:  # journal: must be shown 5
    store = embedded()
    talk = await lived(store)
    fork = await forked_from(store, talk, f"{talk.ref.conversation_id}-fork")
    await client_of(store).zadd(index_key(talk.ref.tenant_id), {talk.ref.conversation_id: 1})
    _, relay = events_of(store)
    await relay.relay(Job("relay", talk.ref))

    async def nothing(*_: object, **named: object) -> bool:
        return True

    if remover is not None:
        monkeypatch.setattr(erasing.Eraser, remover, nothing)
    eraser = erasing.Eraser(store.driver)
    assert await eraser.erase(talk.ref, ERASURE)
    waiting = [Job.named(name.decode()) for name, _ in await store.driver.zrange(JOBS_KEY, at_most=99)]
    own = {job.kind for job in waiting if job.conversation == talk.ref}
    # Where the keys are not erased there is no fence, and nothing else is done.
    assert (own <= {"relay"}) is (remover not in ("_forget_jobs", "_erase_keys"))
    outbox = ConversationKeys.of(talk.ref).named["outbox"]
    spared = {outbox, ConversationKeys.of(fork.ref).named["outbox"], JOBS_KEY}
    left = await left_of(store, talk.ref) | await left_of(store, fork.ref)
    if place is None:
        assert left <= spared
    else:
        assert any(name.endswith(place) or place in name for name in left - {outbox})
    await store.close()
