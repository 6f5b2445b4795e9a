"""What every conversation memory promises, checked on each way to open one (F13, F15–F17, F20, F42, F44)."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.crc import key_slot

import memory
from flow_engine.errors import CallTheOperator, LookElsewhere
from flow_engine.idempotency import IdempotencyKey, KeptReply
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime import storage
from flow_engine.runtime.memory import PreviousContact
from flow_engine.runtime.mining_state import MiningState
from flow_engine.runtime.storage import (
    AlreadyAnswered,
    Committed,
    Conflict,
    DuplicateMessage,
    FormerConversation,
    LoadedConversation,
    NewMemory,
    Outcome,
    ReplyTemplate,
)
from memory import commit as commit_module
from memory import connection, in_process
from memory.codec import encode_turn
from memory.commit import TURNS_KEPT
from memory.connection import RedisMemory, connect
from memory.driver import Script
from memory.in_process import embedded
from memory.keys import ConversationKeys, definition_key
from memory.manager import MemoryManager, RedisDefinitions
from tests.memory.conversation_samples import (
    HASH,
    LIFETIME_S,
    T0,
    TENANT_FACTS,
    VARIABLES,
    Conversation,
    empty_memory,
    session,
    turn,
    written,
)
from tests.redis_fixture import RedisServer, client_of

pytestmark = pytest.mark.anyio

PLACES = ["embedded", "standalone", "cluster"]
OPENED_HERE: set[Callable[..., RedisMemory]] = {connect, embedded}
CHECKED_HERE = {MemoryManager, RedisDefinitions}
HOSTILE_IDS = [
    "{a}",
    "a}b{",
    "a:b",
    "a::vars::tools",
    " ",
    "a b\n\r\t",
    "%7B",
    "%",
    "日本語-ñ-🙂",
    "\x00",
    "x" * 512,
]
KEYED = IdempotencyKey("key 1", "fingerprint")


@pytest.fixture(params=PLACES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[RedisMemory]:
    if request.param == "embedded":
        opened = embedded()
    else:
        name = "redis_cluster" if request.param == "cluster" else "redis_server"
        server: RedisServer = request.getfixturevalue(name)
        opened = connect(server.url, cluster=request.param == "cluster")
    yield opened
    await opened.close()


@pytest.fixture
def talk(store: RedisMemory) -> Conversation:
    """A conversation that nobody has started."""
    return Conversation.fresh(store)


async def load(talk: Conversation, idempotency: IdempotencyKey | None = None) -> LoadedConversation:
    return await talk.store.conversations.load(talk.ref, idempotency=idempotency, with_turns=True)


def test_the_suite_checks_every_store_and_every_way_to_open_one() -> None:  # F42
    stores: set[type] = set()
    for module in pkgutil.iter_modules(memory.__path__, "memory."):
        for _, member in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            store_like = {"load", "commit"} <= vars(member).keys() or {"get", "put"} <= vars(member).keys()
            if store_like and member.__module__ == module.name:
                stores.add(member)
    assert stores == CHECKED_HERE
    public = [
        f
        for module in (connection, in_process)
        for name, f in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_")
    ]
    assert {f for f in public if get_type_hints(f).get("return") is RedisMemory} == OPENED_HERE
    assert set(PLACES) == {"embedded", "standalone", "cluster"}


class TestNewConversation:
    async def test_a_conversation_that_nobody_started_loads_as_nothing(self, talk: Conversation) -> None:
        assert await load(talk) == LoadedConversation()
        assert await talk.expiries_ms() == {}

    async def test_it_is_read_back_as_it_was_committed(self, talk: Conversation) -> None:  # F14, F17
        outcome = await talk.start(events=(b"one", b"\xfftwo"))
        assert isinstance(outcome, Committed)
        assert (outcome.body, outcome.status) == (b"{}", 200)
        assert await load(talk) == LoadedConversation(
            session=session(talk.ref), mined=empty_memory(), tools=empty_memory(), tenant=TENANT_FACTS
        )
        assert await talk.events() == [b"one", b"\xfftwo"]

    async def test_of_many_that_start_it_at_once_one_wins(self, talk: Conversation) -> None:  # F15, F28
        outcomes = await asyncio.gather(*(talk.start(events=(b"started",)) for _ in range(10)))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Committed"] + ["Conflict"] * 9
        assert await talk.events() == [b"started"]

    async def test_one_with_a_thousand_variables_and_large_values_is_kept_exactly(
        self, talk: Conversation
    ) -> None:  # F21
        many = {f"v{number}": written(None) for number in range(1_000)}
        await talk.start(new_memory=NewMemory({}, many))
        values: dict[str, Any] = {
            "v0": "ñ" * 500_000,
            "v1": 2**64 - 1,
            "v2": -(2**63),
            "v3": {"empty list": [], "empty object": {}, "digits": 9007199254740993, "text": '{"[]\\u0000'},
            "v4": False,
            "v5": 0,
            "v6": 1e-300,
        }
        entries = {name: written(value) for name, value in values.items()}
        await talk.commit(1, set_tools=entries)
        assert (await load(talk)).tools == {**many, **entries}
        assert (await load(talk)).mined == many


class TestCompareAndSet:
    @pytest.mark.parametrize("expected", [0, 1, 3])
    async def test_a_commit_on_another_revision_changes_nothing(
        self, talk: Conversation, expected: int
    ) -> None:  # F15
        await talk.start()
        await talk.commit(1, session=session(talk.ref, 2))
        before = await talk.everything()
        outcome = await talk.commit(
            expected,
            session=session(talk.ref, expected + 1),
            new_memory=NewMemory({}, {}),
            set_tools={"name": written("x")},
            previous_contacts=(PreviousContact(T0, "chat", "r"),),
            turn=turn("m"),
            events=(b"e",),
            idempotency=KEYED,
        )
        assert outcome == Conflict()
        assert await talk.everything() == before
        assert (await load(talk, KEYED)).replay is None

    async def test_a_commit_on_a_conversation_that_is_gone_changes_nothing(self, talk: Conversation) -> None:
        assert await talk.commit(1, set_tools={"name": written("x")}) == Conflict()
        assert await talk.expiries_ms() == {}

    async def test_who_decided_on_the_memory_loses_to_a_write_of_it(self, talk: Conversation) -> None:  # F11
        await talk.start()
        await talk.commit(1, set_tools={"name": written("x")})
        guarded = {"session": session(talk.ref, 2), "events": (b"e",)}
        assert await talk.commit(1, expected_memory_revision=0, **guarded) == Conflict()
        assert (await load(talk)).revision == 1
        assert isinstance(await talk.commit(1, expected_memory_revision=1, **guarded), Committed)

    async def test_of_two_readings_of_one_dialogue_the_first_counts(self, talk: Conversation) -> None:  # F37
        await talk.start()
        for expected, read in ((0, "m1"), (1, "m2")):
            reading = {"mining": MiningState(mined_through=read), "set_mined": {"name": written(read)}}
            assert await talk.commit(1, expected_mining_revision=1 - expected, **reading) == Conflict()
            assert isinstance(await talk.commit(1, expected_mining_revision=expected, **reading), Committed)
        assert (await load(talk)).mined["name"] == written("m2")

    async def test_of_many_on_one_revision_exactly_one_wins(self, talk: Conversation) -> None:  # F15
        await talk.start()
        steps = [talk.commit(1, session=session(talk.ref, 2), events=(b"%d" % n,)) for n in range(20)]
        outcomes = await asyncio.gather(*steps)
        winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        assert len(winners) == 1
        assert await talk.events() == [b"%d" % winners[0]]

    async def test_writers_of_different_variables_lose_nothing_and_share_no_memory_revision(
        self, talk: Conversation
    ) -> None:  # F19, F32
        await talk.start()
        replies = await asyncio.gather(
            *(
                talk.commit(
                    1, reply=ReplyTemplate(b"<", b">"), set_tools={f"v{n}": written(n), f"w{n}": written(n)}
                )
                for n in range(20)
            )
        )
        bodies = sorted(outcome.body for outcome in replies if isinstance(outcome, Committed))
        assert bodies == sorted(b"<%d>" % n for n in range(1, 21))
        loaded = await load(talk)
        assert loaded.memory_revision == 20
        assert loaded.memory_updated_at == T0
        assert loaded.tools == {**empty_memory(), **{f"{v}{n}": written(n) for n in range(20) for v in "vw"}}
        assert loaded.revision == 1

    async def test_added_variables_leave_those_alone_that_are_there(self, talk: Conversation) -> None:  # F17
        await talk.start()
        await talk.commit(1, set_tools={"name": written("x")})
        added = {name: written(None, "added") for name in ("name", "new")}
        await talk.commit(1, session=session(talk.ref, 2), added_variables=added)
        loaded = await load(talk)
        assert loaded.tools["name"] == written("x")
        assert loaded.mined["name"] == empty_memory()["name"]
        assert loaded.tools["new"] == loaded.mined["new"] == added["new"]


class TestReplies:
    BODY = b'{"a": "\xff\n\r\n\x00"}\n'

    async def test_a_key_gets_the_same_bytes_again_whatever_has_happened_since(
        self, talk: Conversation
    ) -> None:  # F15
        await talk.start()
        reply = ReplyTemplate(self.BODY, b"\ntail", 207)
        first = await talk.commit(1, reply=reply, set_tools={"name": written("x")}, idempotency=KEYED)
        assert isinstance(first, Committed)
        assert (first.body, first.status) == (self.BODY + b"1\ntail", 207)
        await talk.commit(1, session=session(talk.ref, 2))
        before = await talk.everything()
        kept = KeptReply("fingerprint", 207, first.body)
        retried = await talk.commit(
            1, reply=ReplyTemplate(b"other"), set_tools={"name": written("y")}, idempotency=KEYED
        )
        assert retried == AlreadyAnswered(kept)
        assert (await load(talk, KEYED)).replay == kept
        assert await talk.everything() == before

    async def test_another_request_under_the_key_is_told_the_first_ones_fingerprint(
        self, talk: Conversation
    ) -> None:  # F15
        await talk.start(idempotency=KEYED)
        other = IdempotencyKey(KEYED.key, "another fingerprint")
        replay = (await load(talk, other)).replay
        assert replay is not None
        assert replay.fingerprint == "fingerprint"

    async def test_the_same_key_in_another_conversation_is_another_key(self, talk: Conversation) -> None:
        await talk.start(idempotency=KEYED)
        sibling = Conversation(talk.store, ConversationRef(talk.ref.tenant_id, "sibling"))
        assert (await load(sibling, KEYED)).replay is None
        assert isinstance(await sibling.start(idempotency=KEYED), Committed)

    @pytest.mark.parametrize("key", [*HOSTILE_IDS, "-"])
    async def test_any_text_is_a_key(self, talk: Conversation, key: str) -> None:
        await talk.start(reply=ReplyTemplate(b"started"), idempotency=IdempotencyKey(key, "f"))
        assert (await load(talk, IdempotencyKey(key, "f"))).replay == KeptReply("f", 200, b"started")
        assert (await load(talk, IdempotencyKey(key + "-", "f"))).replay is None
        assert (await load(talk)).replay is None

    async def test_of_one_request_sent_many_times_at_once_one_takes_effect(self, talk: Conversation) -> None:
        await talk.start()
        steps = [
            talk.commit(1, reply=ReplyTemplate(b"", b""), set_tools={"name": written(n)}, idempotency=KEYED)
            for n in range(10)
        ]
        outcomes = await asyncio.gather(*steps)
        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
        assert (
            sum(outcome == AlreadyAnswered(KeptReply("fingerprint", 200, b"1")) for outcome in outcomes) == 9
        )
        assert (await load(talk)).memory_revision == 1

    async def test_it_is_kept_for_a_day(self, talk: Conversation) -> None:  # F15
        await talk.start(idempotency=KEYED)
        expiry = await client_of(talk.store).ttl(ConversationKeys.of(talk.ref).reply(KEYED.key))
        assert 86_390 <= expiry <= 86_400


class TestMessages:
    async def test_a_message_is_stored_once(self, talk: Conversation) -> None:  # F33
        await talk.start()
        assert isinstance(await talk.commit(1, turn=turn("m 1"), events=(b"1",)), Committed)
        before = await talk.everything()
        again = talk.commit(1, turn=turn("m 1", "other"), session=session(talk.ref, 2), events=(b"2",))
        assert await again == DuplicateMessage()
        assert await talk.everything() == before

    async def test_a_repeated_message_is_recognised_on_a_stale_revision_too(self, talk: Conversation) -> None:
        await talk.start()
        await talk.commit(1, turn=turn("m"))
        await talk.commit(1, session=session(talk.ref, 2))
        assert await talk.commit(1, turn=turn("m")) == DuplicateMessage()

    async def test_the_answer_to_a_repeated_message_is_kept_under_its_key(self, talk: Conversation) -> None:
        await talk.start()  # F15
        await talk.commit(1, turn=turn("m"))
        on_seen = ReplyTemplate(b'{"duplicate":true}')
        assert await talk.commit(1, turn=turn("m"), on_seen=on_seen, idempotency=KEYED) == DuplicateMessage()
        kept = KeptReply("fingerprint", 200, b'{"duplicate":true}')
        assert (await load(talk, KEYED)).replay == kept
        assert await talk.commit(
            1, turn=turn("m"), on_seen=ReplyTemplate(b"x"), idempotency=KEYED
        ) == AlreadyAnswered(kept)

    async def test_they_are_read_in_order_and_only_when_asked_for(self, talk: Conversation) -> None:
        await talk.start()
        turns = [turn(f"m{n}", f"body {n} \u2028 ñ") for n in range(5)]
        for said in turns:
            await talk.commit(1, turn=said)
        assert list((await load(talk)).turns) == turns
        assert (await talk.store.conversations.load(talk.ref)).turns == ()

    async def test_the_oldest_beyond_the_cap_are_dropped_and_still_recognised(
        self, talk: Conversation
    ) -> None:  # F33
        await talk.start()
        await talk.commit(1, turn=turn("oldest"))
        fill = [encode_turn(turn(f"f{number}")) for number in range(TURNS_KEPT - 1)]
        await client_of(talk.store).rpush(talk.keys[5], *fill)
        await talk.commit(1, turn=turn("newest"))
        turns = (await load(talk)).turns
        assert len(turns) == TURNS_KEPT
        assert (turns[0].message_id, turns[-1].message_id) == ("f0", "newest")
        assert await talk.commit(1, turn=turn("oldest")) == DuplicateMessage()

    async def test_no_more_bytes_are_kept_than_are_bounded(
        self, talk: Conversation, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # A16, contract 11
        monkeypatch.setattr(storage, "MAX_TURN_BYTES", 4_000)
        await talk.start()
        client = client_of(talk.store)
        for number in range(20):
            if number == 2:  # an earlier release counted nothing
                await client.hdel(talk.keys[0], "turnBytes")
            await talk.commit(1, turn=replace(turn(f"m{number}"), body="è" * 400))
            kept = await client.lrange(talk.keys[5], 0, -1)
            assert sum(map(len, kept)) <= 4_000
            assert int(await client.hget(talk.keys[0], "turnBytes")) == sum(map(len, kept))
        assert (await load(talk)).turns[-1].message_id == "m19"
        assert len((await load(talk)).turns) > 2
        await talk.commit(1, turn=replace(turn("large"), body="x" * 5_000))
        assert [t.message_id for t in (await load(talk)).turns] == ["large"]
        assert await talk.commit(1, turn=turn("m0")) == DuplicateMessage()

    async def test_ids_count_within_their_contact(self, talk: Conversation) -> None:  # D5
        await talk.start()
        assert isinstance(await talk.commit(1, turn=turn("1")), Committed)
        others = replace(turn("1"), contact_id="bruno")
        assert isinstance(await talk.commit(1, turn=others), Committed)
        assert await talk.commit(1, turn=others) == DuplicateMessage()

    async def test_one_that_an_earlier_release_stored_is_known(self, talk: Conversation) -> None:  # F33
        await talk.start()
        await client_of(talk.store).hset(talk.keys[6], "m", "1")
        assert await talk.commit(1, turn=turn("m")) == DuplicateMessage()

    async def test_no_more_are_known_than_are_bounded(
        self, talk: Conversation, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # A16
        monkeypatch.setattr(commit_module, "MESSAGES_KEPT", 10)
        await talk.start()
        for number in range(25):
            await talk.commit(1, turn=turn(f"m{number}"))
            assert await client_of(talk.store).hlen(talk.keys[6]) <= 10
        assert [type(await talk.commit(1, turn=turn(f"m{n}"))) for n in range(20, 25)] == [
            DuplicateMessage
        ] * 5
        assert isinstance(await talk.commit(1, turn=turn("m0")), Committed)


class TestNotices:
    async def test_whoever_listens_is_told_of_each_change_of_the_memory(
        self, talk: Conversation
    ) -> None:  # engine 8
        client = client_of(talk.store)
        is_cluster = isinstance(client, RedisCluster)
        node = (await client.initialize()).get_default_node() if is_cluster else None
        listening = Redis(host=node.host, port=node.port) if node else client
        async with listening.pubsub() as pubsub:
            await pubsub.subscribe(ConversationKeys.of(talk.ref).notices)
            await talk.start()
            await talk.commit(1, session=session(talk.ref, 2))
            await talk.commit(2, set_tools={"name": written("x")})
            told: list[Any] = []
            async with asyncio.timeout(10):
                while len(told) < 2:
                    heard = await pubsub.get_message(ignore_subscribe_messages=True, timeout=1)
                    told += [] if heard is None else [orjson.loads(heard["data"])]
        if node:
            await listening.aclose()
        shared = {"conversationId": talk.ref.conversation_id}
        assert told == [
            {**shared, "revision": 1, "memoryRevision": 0},
            {**shared, "revision": 2, "memoryRevision": 1},
        ]


class TestStartingAnew:
    async def test_it_leaves_nothing_of_before_but_the_outbox_the_kept_replies_and_what_came(
        self, talk: Conversation
    ) -> None:  # F28, F33
        await talk.start(events=(b"first",), idempotency=KEYED)
        await talk.commit(1, set_tools={"name": written("x"), "gone": written("y")})
        await talk.commit(
            1,
            session=session(talk.ref, 2),
            turn=turn("m"),
            previous_contacts=(PreviousContact(T0, "chat", "r"),),
        )
        anew = NewMemory({"other": True}, {"size": written(None)})
        outcome = await talk.commit(2, session=session(talk.ref, 3), new_memory=anew, events=(b"anew",))
        assert isinstance(outcome, Committed)
        assert await load(talk) == LoadedConversation(
            session=session(talk.ref, 3),
            memory_revision=2,  # goes on, so that no prompt's tag comes back with another content
            mined=anew.variables,
            tools=anew.variables,
            tenant={"other": True},
        )
        assert await talk.events() == [b"first", b"anew"]
        assert (await load(talk, KEYED)).replay is not None
        assert await talk.commit(3, late=turn("m")) == DuplicateMessage()
        assert isinstance(await talk.commit(3, late=turn("n")), Committed)
        assert await talk.commit(3, late=turn("n")) == DuplicateMessage()
        assert isinstance(await talk.commit(3, turn=replace(turn("m"), contact_id="bruno")), Committed)
        assert [each.contact_id for each in (await load(talk)).turns] == ["bruno"]

    async def test_of_many_that_conclude_what_was_before_one_wins(self, talk: Conversation) -> None:  # F39
        await talk.start()
        former = FormerConversation.of(session(talk.ref), await load(talk))
        anew = NewMemory({}, empty_memory())
        await talk.commit(1, session=session(talk.ref, 2), new_memory=anew, former=former)
        outcomes = [await talk.commit(2, forget_former=former.name, events=(b"end",)) for _ in range(2)]
        assert isinstance(outcomes[0], Committed)
        assert outcomes[1] == Conflict()
        assert await talk.events() == [b"end"]

    async def test_a_writer_of_before_does_not_reach_the_new_memory(self, talk: Conversation) -> None:  # F15
        await talk.start()
        await talk.commit(1, session=session(talk.ref, 2), new_memory=NewMemory({}, empty_memory()))
        assert await talk.commit(1, set_tools={"name": written("old")}) == Conflict()
        assert (await load(talk)).tools == empty_memory()


class TestPreviousContacts:
    async def test_they_are_kept_in_order(self, talk: Conversation) -> None:  # F20
        remembered = [PreviousContact(T0 + timedelta(days=n), "phone", f"résumé {n}\n|") for n in range(4)]
        await talk.start()
        await talk.commit(1, session=session(talk.ref, 2), previous_contacts=tuple(remembered[:3]))
        await talk.commit(2, session=session(talk.ref, 3), previous_contacts=tuple(remembered[3:]))
        assert list((await load(talk)).previous_contacts) == remembered
        many = tuple(PreviousContact(T0, "phone", f"résumé {n}") for n in range(2_001))
        await talk.commit(
            3, session=session(talk.ref, 4), previous_contacts=many, rewrite_previous_contacts=True
        )
        assert (await load(talk)).previous_contacts == many


class TestExpiry:
    async def test_every_key_expires_at_the_same_moment_and_every_commit_moves_it(
        self, talk: Conversation
    ) -> None:  # F16
        await talk.start()
        begun = (await talk.expiries_ms()).values()
        assert max(begun) - min(begun) <= 1_000
        assert min(begun) >= (LIFETIME_S - 5) * 1_000
        await talk.commit(1)
        await client_of(talk.store).hset(talk.keys[0], "journaled", "by another release")
        await talk.commit(
            1,
            session=session(talk.ref, 2),
            turn=turn("m"),
            previous_contacts=(PreviousContact(T0, "chat", "r"),),
            events=(b"e",),
        )
        assert len(await talk.expiries_ms()) == len(talk.keys)
        for key in talk.keys:
            await client_of(talk.store).expire(key, 1_000)
        await load(talk)
        assert max((await talk.expiries_ms()).values()) <= 1_000_000, "a read moves no expiry"  # F32
        await talk.commit(2, set_tools={"name": written("x")})
        expiries = (await talk.expiries_ms()).values()
        assert max(expiries) - min(expiries) <= 1_000
        assert (LIFETIME_S - 5) * 1_000 <= min(expiries) <= LIFETIME_S * 1_000

    async def test_a_key_that_comes_later_expires_with_the_others(self, talk: Conversation) -> None:  # F16
        """Between renewals, which come once a hundredth of the lifetime is over, or a minute."""
        await talk.start()
        client, nearly_whole = client_of(talk.store), LIFETIME_S * 1_000 - 30_000
        for key in talk.keys:
            await client.pexpire(key, nearly_whole)
        contact = PreviousContact(T0, "chat", "r")
        await talk.commit(1, turn=turn("m"), previous_contacts=(contact,), events=(b"e",))
        expiries = await talk.expiries_ms()
        assert len(expiries) == len(talk.keys) - 1  # no segment of the journal has ended
        assert max(expiries.values()) <= nearly_whole
        assert max(expiries.values()) - min(expiries.values()) <= 1_000
        for key in talk.keys:
            await client.pexpire(key, nearly_whole - 31_000)
        await talk.commit(1, turn=turn("m2"))
        assert min((await talk.expiries_ms()).values()) > nearly_whole

    async def test_a_shorter_lifetime_counts_at_once(self, talk: Conversation) -> None:  # F16
        await talk.start()
        await talk.commit(1, session=session(talk.ref, 2), lifetime_s=LIFETIME_S // 2)
        assert max((await talk.expiries_ms()).values()) <= LIFETIME_S * 500

    async def test_a_commit_makes_no_more_commands_than_it_needs(self, talk: Conversation) -> None:
        client = client_of(talk.store)
        if type(client) is not Redis:
            pytest.skip("counted where one server counts")

        async def counted(commit: Awaitable[Outcome]) -> int:
            before = sum(each["calls"] for each in (await client.info("commandstats")).values())
            assert isinstance(await commit, Committed)
            after = sum(each["calls"] for each in (await client.info("commandstats")).values())
            return after - before - 1  # INFO itself

        await talk.start()  # the script is there
        other = Conversation.fresh(talk.store)
        assert await counted(other.start(events=(b"e",))) <= 21
        assert await counted(other.commit(1, set_tools={"name": written("x")})) <= 13
        assert await counted(other.commit(1, session=session(other.ref, 2), events=(b"e",))) <= 13
        assert await counted(other.commit(2, turn=turn("m"), events=(b"e",))) <= 19

    async def test_a_conversation_that_is_partly_gone_is_refused_not_reset(self, talk: Conversation) -> None:
        await talk.start()  # F16
        await client_of(talk.store).delete(talk.keys[1])
        with pytest.raises(CallTheOperator) as refused:
            await load(talk)
        assert refused.value.code == "conversation_incomplete"

    async def test_one_starts_whole_over_what_a_deleted_snapshot_has_left(self, talk: Conversation) -> None:
        await talk.start(turn=turn("m"))  # F15, F16
        await talk.commit(
            1, set_tools={"name": written("x")}, previous_contacts=(PreviousContact(T0, "chat", "r"),)
        )
        await client_of(talk.store).delete(talk.keys[0])
        fresh = Conversation.fresh(talk.store)
        assert isinstance(await talk.start(), Committed)
        await fresh.start()
        assert (await load(talk)).stored_bytes == (await load(fresh)).stored_bytes
        assert (await load(talk)).turns == ()
        assert isinstance(await talk.commit(1, turn=turn("m")), Committed)
        expiries = await talk.expiries_ms()
        assert min(expiries.values()) > 0
        assert max(expiries.values()) - min(expiries.values()) <= 1_000

    @pytest.mark.parametrize("gone", [2, 3])
    async def test_a_hash_of_variables_that_was_deleted_is_noticed(
        self, talk: Conversation, gone: int
    ) -> None:  # A17
        await talk.start()
        await client_of(talk.store).delete(talk.keys[gone])
        with pytest.raises(CallTheOperator, match="conversation_incomplete"):
            await load(talk)

    async def test_a_key_of_another_type_calls_for_the_operator(self, talk: Conversation) -> None:  # A17
        await talk.start()
        await client_of(talk.store).set(talk.keys[3], "overwritten")
        with pytest.raises(CallTheOperator, match="memory_unreadable"):
            await load(talk)
        with pytest.raises(CallTheOperator, match="memory_unreadable"):
            await talk.commit(1, set_tools={"name": written("x")})

    @pytest.mark.parametrize(
        ("stored", "code"),
        [
            (b"no json", "snapshot_unreadable"),
            (b'{"format": 1}', "snapshot_unreadable"),
            (b'{"format": 99, "of": "later"}', "snapshot_too_new"),
        ],
    )
    async def test_a_snapshot_that_cannot_be_read_is_refused_and_stays(
        self, talk: Conversation, stored: bytes, code: str
    ) -> None:  # F13, F14
        await talk.start()
        await client_of(talk.store).hset(talk.keys[0], "session", stored)
        before = await talk.everything()
        with pytest.raises(CallTheOperator) as refused:
            await load(talk)
        assert refused.value.code == code
        assert await talk.everything() == before


class TestNames:
    @pytest.mark.parametrize("hostile", HOSTILE_IDS)
    async def test_any_text_is_an_id(self, store: RedisMemory, hostile: str) -> None:  # F16
        plain = Conversation.fresh(store)
        hostile_conversation = Conversation(store, ConversationRef(plain.ref.tenant_id, hostile))
        hostile_tenant = Conversation(store, ConversationRef(hostile + plain.ref.tenant_id, "c"))
        for talk in (hostile_conversation, hostile_tenant):
            await talk.start(turn=turn(hostile), set_tools={hostile: written(hostile)})
            loaded = await load(talk)
            assert loaded.session == session(talk.ref)
            assert loaded.tools[hostile] == written(hostile)
            assert loaded.turns == (turn(hostile),)
        assert await load(plain) == LoadedConversation()

    async def test_tenants_see_nothing_of_one_another(self, talk: Conversation) -> None:  # F43
        await talk.start(idempotency=KEYED)
        stranger = Conversation.fresh(talk.store, talk.ref.conversation_id)
        assert await load(stranger, KEYED) == LoadedConversation()
        assert await stranger.commit(1, set_tools={"name": written("x")}) == Conflict()

    async def test_ids_that_read_alike_when_joined_are_apart(self, store: RedisMemory) -> None:  # F16, F43
        one = Conversation(store, ConversationRef("a:b", "c"))
        other = Conversation(store, ConversationRef("a", "b:c"))
        await one.start()
        assert await load(other) == LoadedConversation()
        for key in one.keys:
            await client_of(store).delete(key)

    @given(st.lists(st.tuples(st.text(), st.text()), min_size=2, max_size=2, unique=True), st.text())
    def test_two_conversations_share_no_key_and_each_is_in_one_slot(
        self, ids: list[tuple[str, str]], key: str
    ) -> None:  # F16
        one, other = (ConversationKeys.of(ConversationRef(*pair)) for pair in ids)
        ones, others = ({*keys.state, keys.reply(key)} for keys in (one, other))
        assert not ones & others
        assert len(ones) == len(one.state) + 1
        assert len({key_slot(name.encode()) for name in ones}) == 1


class TestDefinitions:
    async def test_they_are_kept_by_tenant_and_hash_twice_as_long_as_a_conversation(
        self, talk: Conversation
    ) -> None:  # F13
        definitions, tenant = talk.store.definitions, talk.ref.tenant_id
        assert await definitions.get(tenant, HASH) is None
        document = b'{"a": "\xff\n"}' * 70_000
        await definitions.put(tenant, HASH, document, LIFETIME_S)
        assert await definitions.get(tenant, HASH) == document
        assert await definitions.get(tenant, HASH + "0") is None
        assert await definitions.get(tenant + "0", HASH) is None
        expiry = await client_of(talk.store).ttl(definition_key(tenant, HASH))
        assert 2 * LIFETIME_S - 5 <= expiry <= 2 * LIFETIME_S

    async def test_a_commit_touches_the_definition_and_reports_it_missing(
        self, talk: Conversation
    ) -> None:  # F13
        missing = await talk.start()
        assert isinstance(missing, Committed)
        assert missing.definition_present is False
        await talk.store.definitions.put(talk.ref.tenant_id, HASH, b"{}", 10)
        present = await talk.commit(1, set_tools={VARIABLES[0]: written("x")})
        assert isinstance(present, Committed)
        assert present.definition_present is True
        expiry = await client_of(talk.store).ttl(definition_key(talk.ref.tenant_id, HASH))
        assert 2 * LIFETIME_S - 5 <= expiry <= 2 * LIFETIME_S

    async def test_it_outlives_every_conversation_that_is_written(self, talk: Conversation) -> None:  # F13
        await talk.start()
        tenant, client = talk.ref.tenant_id, client_of(talk.store)
        await talk.store.definitions.put(tenant, HASH, b"{}", LIFETIME_S)
        for revision, elapsed_s in enumerate((0, 59, 61, 200), start=1):
            now = T0 + timedelta(seconds=elapsed_s)
            await client.expire(definition_key(tenant, HASH), 2 * LIFETIME_S - elapsed_s)
            await talk.commit(revision, now=now, session=session(talk.ref, revision=revision + 1))
            left = await client.ttl(definition_key(tenant, HASH))
            assert left > 2 * LIFETIME_S - 65  # a cluster's is renewed once a minute
        await client.delete(definition_key(tenant, HASH))
        gone = await talk.commit(5, now=T0 + timedelta(seconds=400), session=session(talk.ref, revision=6))
        assert isinstance(gone, Committed)
        assert gone.definition_present is False


async def test_a_store_that_forgot_its_scripts_goes_on(talk: Conversation) -> None:  # F15
    await talk.start()
    await client_of(talk.store).script_flush()
    assert (await load(talk)).revision == 1
    await client_of(talk.store).script_flush()
    assert isinstance(await talk.commit(1, set_tools={"name": written("x")}), Committed)
    assert (await load(talk)).memory_revision == 1


class TestTheClassDiagramsOperations:
    async def test_each_reads_and_writes_the_same_conversation(
        self, talk: Conversation
    ) -> None:  # F14, F16, engine 3
        manager, ref = talk.store.conversations, talk.ref
        assert await manager.get_snapshot(ref) is None
        memory = NewMemory(TENANT_FACTS, empty_memory())
        assert await manager.init(ref, session(ref), memory, lifetime_s=LIFETIME_S)
        assert not await manager.init(ref, session(ref), memory, lifetime_s=LIFETIME_S)
        assert await manager.get_tenant_data(ref) == TENANT_FACTS
        await manager.set_vars(ref, {"name": written("x")}, lifetime_s=LIFETIME_S, now=T0)
        assert (await manager.get_vars(ref))["name"] == written("x")
        assert set(await manager.get_vars(ref, ["name", "unheard of"])) == {"name"}
        contact = PreviousContact(T0, "chat", "r")
        await manager.add_previous_contact(ref, contact, lifetime_s=LIFETIME_S)
        assert list(await manager.get_contacts_history(ref)) == [contact]
        await manager.set_snapshot(ref, session(ref, 2), lifetime_s=LIFETIME_S)
        assert await manager.get_snapshot(ref) == session(ref, 2)

    async def test_nothing_is_written_to_a_conversation_that_is_not_there(self, talk: Conversation) -> None:
        with pytest.raises(LookElsewhere):
            await talk.store.conversations.set_vars(talk.ref, {}, lifetime_s=LIFETIME_S, now=T0)
        assert await talk.expiries_ms() == {}


def test_a_script_refuses_names_that_it_does_not_have() -> None:
    script = Script.read("take")
    assert script.packed({"webhook_queue": "q"}, {"id": "1-0"}) == (1, ["q", "1-0"])
    for args in ({}, {"ids": "1-0"}, {"id": "1-0", "more": "x"}):
        with pytest.raises(KeyError):
            script.packed({"webhook_queue": "q"}, args)
