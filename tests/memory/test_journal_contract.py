"""What every store promises of the journal and of lists, on each way to open one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import orjson
import pytest
from msgspec import structs

import memory.journal as journal_module
from flow_engine.errors import CallTheOperator
from flow_engine.ports.dialogue import ConversationRef, Fork
from flow_engine.runtime.journal import JournalEntry, session_after, states_of
from flow_engine.runtime.memory import MemoryEntry, PreviousContact
from flow_engine.runtime.mining_state import MiningState
from flow_engine.runtime.session import Contact, Session
from flow_engine.runtime.storage import (
    Committed,
    Conflict,
    DuplicateMessage,
    Erasure,
    LoadedConversation,
    NewMemory,
)
from memory.connection import RedisMemory, connect
from memory.in_process import embedded
from tests.memory.conversation_samples import (
    T0,
    Conversation,
    empty_memory,
    head,
    note,
    session,
    turn,
    written,
)
from tests.redis_fixture import RedisServer, client_of

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["embedded", "standalone", "cluster"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[RedisMemory]:
    if request.param == "embedded":
        opened = embedded()
    else:
        cluster = request.param == "cluster"
        server: RedisServer = request.getfixturevalue("redis_cluster" if cluster else "redis_server")
        opened = connect(server.url, cluster=cluster)
    yield opened
    await opened.close()


@pytest.fixture
def talk(store: RedisMemory) -> Conversation:
    return Conversation.fresh(store)


async def entries(talk: Conversation, after: int = 0, at_most: int = 999) -> list[JournalEntry]:
    return list(await talk.store.journal.after(talk.ref, after, at_most=at_most))


async def stored(talk: Conversation) -> LoadedConversation:
    """What is stored, as far as a state that is rebuilt tells it."""
    loaded = await talk.store.conversations.load(talk.ref)
    return structs.replace(loaded, replay=None, turns=(), former=(), state=b"")


class TestEntries:
    async def test_they_are_numbered_without_gaps_whatever_is_written(self, talk: Conversation) -> None:
        await talk.start()
        await talk.commit(1, session=session(talk.ref, 2))
        assert await talk.commit(1, session=session(talk.ref, 2)) == Conflict()
        await talk.commit(2, set_tools={"name": written("x")})
        await talk.commit(2, turn=turn("m"))
        found = await entries(talk)
        assert [(each.seq, each.revision, each.memory_revision) for each in found] == [
            (1, 1, 0),
            (2, 2, 0),
            (3, 2, 1),
            (4, 2, 1),
        ]
        assert [each.seq for each in await entries(talk, after=2)] == [3, 4]
        assert [each.seq for each in await entries(talk, after=1, at_most=2)] == [2, 3]
        assert await entries(talk, after=4) == []

    async def test_who_waits_for_the_next_gets_it_with_its_commit(self, talk: Conversation) -> None:
        await talk.start()
        journal = talk.store.journal
        assert [each.seq for each in await journal.next(talk.ref, 0, at_most=9, within_s=0.5)] == [1]
        assert list(await journal.next(talk.ref, 1, at_most=9, within_s=0.05)) == []
        waiting = asyncio.create_task(journal.next(talk.ref, 1, at_most=9, within_s=30.0))
        await asyncio.sleep(0.05)
        await talk.commit(1, set_tools={"name": written("x")})
        (second,) = await waiting
        assert (second.seq, second.memory_revision) == (2, 1)
        for _ in range(3):
            await talk.commit(1)
        assert [each.seq for each in await journal.next(talk.ref, 1, at_most=2, within_s=0.5)] == [2, 3]

    async def test_a_conversation_that_is_started_anew_goes_on_counting(self, talk: Conversation) -> None:
        await talk.start()
        await talk.commit(1, session=session(talk.ref, 2), new_memory=NewMemory({"a": 1}, empty_memory()))
        assert [each.seq for each in await entries(talk)] == [1, 2]
        before, after = states_of(await talk.store.journal.up_to(talk.ref, 2))
        assert (before.revision, after) == (1, await stored(talk))

    async def test_an_entry_that_is_not_there_is_not_rebuilt(self, talk: Conversation) -> None:
        await talk.start()
        assert await talk.store.journal.up_to(talk.ref, 2) == ()
        nobody = ConversationRef(talk.ref.tenant_id, "nobody")
        assert await talk.store.journal.up_to(nobody, 1) == ()

    async def test_one_that_does_not_fit_its_format_is_the_operators(self, talk: Conversation) -> None:
        await talk.start()
        key = talk.keys[-3]
        await client_of(talk.store).xadd(key, {"entry": b"{}", "memoryRevision": b"1"}, id="2-0")
        with pytest.raises(CallTheOperator) as refused:
            await entries(talk)
        assert refused.value.code == "journal_unreadable"

    @pytest.mark.parametrize("beside", ["unknown", "tools.name"])
    async def test_nor_is_what_stands_beside_one(self, talk: Conversation, beside: str) -> None:
        await talk.start()
        await client_of(talk.store).xadd(talk.keys[-3], {beside: b"x", "memoryRevision": b"1"}, id="2-0")
        with pytest.raises(CallTheOperator) as refused:
            await entries(talk)
        assert refused.value.code == "journal_unreadable"

    @pytest.mark.parametrize("many", [0, 800])
    async def test_variables_stand_beside_it_whatever_their_ids(self, talk: Conversation, many: int) -> None:
        """More than a command takes at once, too; archived, they are the same."""
        ids = ["base", "entry", "a.b", "ñ:", *map(str, range(many))]
        memory = {id: MemoryEntry("string", None, None, None, id, None) for id in ids}
        await talk.start(new_memory=NewMemory({}, memory))
        await talk.commit(1, set_tools={id: written(id) for id in ids}, set_mined={"a.b": written(1, "me")})
        await talk.commit(1, added_variables={"tools.a": written(2)})
        found = await entries(talk)
        assert [[*each.delta] for each in found] == [
            ["session", "tenant", "variables"],
            ["tools", "mined"],
            ["added"],
        ]
        assert states_of(await talk.store.journal.up_to(talk.ref, 3))[1] == await stored(talk)
        (part,) = await talk.store.journal.packed(talk.ref)
        assert list(talk.store.journal.unpacked(part)) == found

    async def test_those_of_releases_before_have_all_in_one_text(self, talk: Conversation) -> None:
        await talk.start()
        await talk.commit(1, set_tools={"name": written("x")})
        found = await entries(talk)
        client, key = client_of(talk.store), talk.keys[-3]
        await client.delete(key)
        for each in found:
            entry = {
                "at": each.at.isoformat(),
                "by": each.by,
                "revision": each.revision,
                "input": each.input,
                "outcome": each.outcome,
                "delta": each.delta,
                "rationale": each.rationale,
                "reply": each.reply_crc32,
            }
            fields = {"entry": orjson.dumps(entry), "memoryRevision": each.memory_revision}
            await client.xadd(key, fields, id=f"{each.seq}-0")
        assert await entries(talk) == found
        await talk.commit(1, set_tools={"name": written("y")})
        assert states_of(await talk.store.journal.up_to(talk.ref, 3))[1] == await stored(talk)

    async def test_nothing_of_them_is_left_of_an_erased_conversation(self, talk: Conversation) -> None:
        await talk.start()
        assert await talk.store.conversations.erase(talk.ref, Erasure(b"{}", b"{}", T0))
        assert await entries(talk) == []
        part = await talk.store.listing.newest(talk.ref.tenant_id, until_ms=None, after=None, at_most=9)
        assert part.conversations == []
        await talk.start()
        assert [each.seq for each in await entries(talk)] == [1]


def a_step(chance: random.Random, now: Session, number: int) -> dict[str, Any]:
    """Some of what one commit may change, at random."""
    at = T0 + timedelta(seconds=number, microseconds=number)
    fields: dict[str, Any] = {"now": at, "journal": note(before=now)}
    if chance.random() < 0.6:
        contact = Contact(channel="phone", status="ended", started_at=T0, ended_at=at, tasks=("a",) * number)
        contacts = dict(now.contacts)
        if chance.random() < 0.3:
            contacts = {"anna": contacts["anna"], f"c{number}": contact}
        counted = {"blue": number} if chance.random() < 0.3 else {**now.entered, "red": number}
        task = now.task.model_copy(update={"prompt": f"p{number}", "entered_at": at})
        changed = {"contacts": contacts, "entered": counted, "revision": now.revision + 1}
        changed |= {"task": task} if chance.random() < 0.5 else {"deadline": at, "language": "it-IT"}
        fields["session"] = now.model_copy(update=changed)
        if chance.random() < 0.15:
            variables = {**empty_memory(), "of": MemoryEntry("string", None, None, None, "anna", None)}
            fields |= {"new_memory": NewMemory({"n": number}, variables), "journal": note(before=None)}
    if chance.random() < 0.4:
        fields["set_tools"] = {chance.choice(["name", "size"]): written([number, None, 1.5, "ñ"])}
    if chance.random() < 0.3:
        fields["set_mined"] = {"visit": written(number, "convMiner")}
    if chance.random() < 0.2:
        fields["added_variables"] = {"name": written(None), f"new{number}": written(None)}
    if chance.random() < 0.3:
        fields["mining"] = MiningState(attempts={"name": number})
    if chance.random() < 0.3:
        fields["previous_contacts"] = (PreviousContact(at, "chat", f"r{number}"),)
        fields["rewrite_previous_contacts"] = chance.random() < 0.5
    if chance.random() < 0.3:
        fields["turn"] = turn(f"m{number}")
    return fields


@pytest.mark.parametrize("seed", range(4))
async def test_every_state_is_rebuilt_from_the_journal_as_it_was_stored(
    talk: Conversation, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # journal: at
    monkeypatch.setattr(journal_module, "SEGMENT_ENTRIES", 5)
    chance, states = random.Random(seed), [LoadedConversation()]
    assert isinstance(await talk.start(), Committed)
    states.append(await stored(talk))
    archived: dict[int, Sequence[JournalEntry]] = {}
    released = 0
    for number in range(1, 18):
        now = states[-1].session
        assert now is not None
        step = a_step(chance, now, number)
        outcome = await talk.commit(now.revision, **step)
        assert isinstance(outcome, Committed)
        expected = states[-1].after(talk.changes(now.revision, **step))
        expected = structs.replace(expected, turns=())
        assert expected == await stored(talk), "what replays keep in memory is the same"
        if chance.random() < 0.1:  # a release without a journal, which has its own stamp
            await client_of(talk.store).hset(talk.keys[0], "stamp", f"theirs{number}")
        states.append(await stored(talk))
        if chance.random() < 0.1:
            for seq in range(released + 1, len(states)):
                archived[seq] = await talk.store.journal.up_to(talk.ref, seq)
            released = len(states) - 1
            assert await talk.store.journal.release(talk.ref, released, kept=timedelta(days=2))
    for seq in range(1, len(states)):
        part = archived.get(seq) or await talk.store.journal.up_to(talk.ref, seq)
        assert len(part) <= 5
        before, after = states_of(part)
        assert (before, after) == (states[seq - 1], states[seq]), seq
        assert session_after(part) == after.session
        assert states_of(part) == (before, after), "the entries are left as they are"


class TestReleased:
    """Of entries that an archive has."""

    async def test_the_next_one_stands_beside_the_state_before_it(self, talk: Conversation) -> None:
        await talk.start()
        await talk.commit(1, set_tools={"name": written("x")})
        before, journal = await stored(talk), talk.store.journal
        assert await journal.released(talk.ref) == 0
        assert await journal.release(talk.ref, 2, kept=timedelta(days=30))
        assert (await entries(talk), await journal.released(talk.ref)) == ([], 2)
        assert await stored(talk) == before
        assert not await client_of(talk.store).exists(talk.keys[-3])
        await talk.commit(1, set_tools={"name": written("y")})
        await talk.commit(1)
        found = await entries(talk)
        assert [(each.seq, each.base is not None) for each in found] == [(3, True), (4, False)]
        assert states_of(await journal.up_to(talk.ref, 3)) == (before, await stored(talk))
        assert (await journal.up_to(talk.ref, 2), await journal.released(talk.ref)) == ((), 2)
        (part,) = await journal.packed(talk.ref)
        assert (part.first, part.last) == (3, 4)
        assert -1 not in (await talk.expiries_ms()).values()

    async def test_newer_ones_and_those_of_a_longer_stay_are_kept(self, talk: Conversation) -> None:
        await talk.start()
        await talk.commit(1)
        journal = talk.store.journal
        assert not await journal.release(talk.ref, 1, kept=timedelta(days=30))
        assert not await journal.release(talk.ref, 2, kept=timedelta(seconds=1))
        assert (len(await entries(talk)), await journal.released(talk.ref)) == (2, 0)

    async def test_of_a_conversation_that_is_not_stored_there_is_nothing(self, talk: Conversation) -> None:
        journal = talk.store.journal
        assert not await journal.release(talk.ref, 1, kept=timedelta(days=30))
        assert await journal.released(talk.ref) is None


class TestForks:
    async def test_a_conversation_begins_with_the_whole_state_of_another(self, talk: Conversation) -> None:
        await talk.start()
        await talk.commit(1, set_tools={"name": written("ñ")}, turn=turn("m"))
        await talk.commit(1, mining=MiningState(attempts={"name": 2}), set_mined={"visit": written(1, "me")})
        await talk.commit(1, previous_contacts=(PreviousContact(T0, "chat", "r"),))
        then = await talk.store.conversations.load(talk.ref, with_turns=True)
        fork = Conversation(talk.store, ConversationRef(talk.ref.tenant_id, "fork"))
        own = session(fork.ref, 7)
        forked = structs.replace(then, session=own)
        origin = structs.replace(head(own), forked_from=Fork("c", 4))
        outcome = await fork.commit(0, session=own, forked=forked, journal=note("fork", head=origin))
        assert isinstance(outcome, Committed)
        assert await fork.store.conversations.load(fork.ref, with_turns=True) == forked
        (first,) = await entries(fork)
        assert (first.seq, first.memory_revision, first.delta) == (1, 2, {})
        before, after = states_of([first])
        assert before == after == await stored(fork)
        listed = await fork.store.listing.newest(fork.ref.tenant_id, until_ms=None, after=None, at_most=9)
        assert {each.conversation_id: each.head for each in listed.conversations}["fork"] == origin
        assert -1 not in (await fork.expiries_ms()).values()
        assert await fork.commit(0, session=own, forked=forked) == Conflict()
        assert isinstance(await fork.commit(7, turn=turn("m")), DuplicateMessage)
        await fork.commit(7, turn=turn("n"), set_tools={"name": written("x")})
        assert [each.seq for each in await entries(fork)] == [1, 2]
        kept = await fork.store.conversations.load(fork.ref, with_turns=True)
        assert [each.message_id for each in kept.turns] == ["m", "n"]


class TestBounds:
    async def test_the_oldest_make_room_and_what_is_left_is_rebuilt(
        self, talk: Conversation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journal_module, "SEGMENT_ENTRIES", 3)
        monkeypatch.setattr(journal_module, "JOURNAL_BYTES", 9_000)
        await talk.start()
        for number in range(1, 40):
            await talk.commit(1, set_tools={"name": written("x" * number)})
        found = await entries(talk)
        assert (found[0].seq % 3, found[-1].seq, 6 < len(found) < 20) == (1, 40, True)
        _, after = states_of(await talk.store.journal.up_to(talk.ref, found[0].seq))
        assert after.tools["name"] == written("x" * (found[0].seq - 1))
        assert await talk.store.journal.up_to(talk.ref, found[0].seq - 1) == ()

    async def test_a_large_commit_ends_its_segment(
        self, talk: Conversation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 1_000)
        await talk.start()
        for number in range(2):
            await talk.commit(1, set_tools={"name": written("x" * 5_000 * (number + 1))})
        await talk.commit(1)
        await talk.commit(1)
        bases = [each.base is not None for each in await entries(talk)]
        assert bases == [False, True, True, True, False]

    async def test_one_of_a_release_before_goes_on_with_a_journal(self, talk: Conversation) -> None:
        await talk.start(journal=None)
        assert await entries(talk) == []
        await talk.commit(1, session=session(talk.ref, 2))
        (first,) = await entries(talk)
        assert (first.seq, first.base is not None) == (1, True)
        before, after = states_of([first])
        assert (before.revision, after) == (1, await stored(talk))


class TestLists:
    async def test_the_newest_come_first_and_a_list_goes_on_where_it_was(self, store: RedisMemory) -> None:
        tenant = Conversation.fresh(store).ref.tenant_id
        for number in (3, 1, 2, 0):
            talk = Conversation(store, ConversationRef(tenant, f"c{number}"))
            started = session(talk.ref, started_at=T0 + timedelta(seconds=number))
            await talk.start(session=started, journal=note(head=head(started)))
        newest = await store.listing.newest(tenant, until_ms=None, after=None, at_most=3)
        assert [each.conversation_id for each in newest.conversations] == ["c3", "c2", "c1"]
        rest = await store.listing.newest(tenant, until_ms=None, after="c1", at_most=3)
        assert [each.conversation_id for each in rest.conversations] == ["c0"]
        until = int(T0.timestamp() * 1000) + 2_000
        earlier = await store.listing.newest(tenant, until_ms=until, after="not listed", at_most=2)
        assert [each.conversation_id for each in earlier.conversations] == ["c2", "c1"]
        one = newest.conversations[0]
        assert (one.head, one.seq, one.updated_at) == (
            head(session(talk.ref, started_at=T0 + timedelta(seconds=3))),
            1,
            T0,
        )

    async def test_it_was_updated_when_its_newest_entry_says(self, talk: Conversation) -> None:
        await talk.start()
        for at in (T0 + timedelta(seconds=1), T0.replace(microsecond=0)):
            await talk.commit(1, now=at, journal=note("memory", head=None))
            assert (await talk.store.listing.one(talk.ref)).updated_at == at

    async def test_a_start_anew_moves_it_to_the_front_with_another_origin(self, talk: Conversation) -> None:
        await talk.start(journal=note(head=structs.replace(head(session(talk.ref)), tag="prod")))
        await talk.commit(
            1,
            session=session(talk.ref, 2),
            journal=note(head=structs.replace(head(session(talk.ref)), task="blue")),
        )
        kept = (await talk.store.listing.one(talk.ref)).head
        assert kept is not None
        assert (kept.tag, kept.task) == ("prod", "blue")
        later = session(talk.ref, 3, started_at=T0 + timedelta(hours=1))
        new = NewMemory({}, empty_memory())
        await talk.commit(2, session=later, new_memory=new, journal=note(head=head(later)))
        part = await talk.store.listing.newest(talk.ref.tenant_id, until_ms=None, after=None, at_most=9)
        assert [each.head for each in part.conversations] == [head(later)]

    async def test_what_has_expired_is_told_without_a_head_and_can_be_taken_out(
        self, talk: Conversation
    ) -> None:
        await talk.start()
        await client_of(talk.store).delete(talk.keys[0])
        listing, tenant = talk.store.listing, talk.ref.tenant_id
        part = await listing.newest(tenant, until_ms=None, after=None, at_most=9)
        assert [(each.head, each.seq) for each in part.conversations] == [(None, 0)]
        await listing.forget(tenant, [talk.ref.conversation_id])
        assert (await listing.newest(tenant, until_ms=None, after=None, at_most=9)).conversations == []
