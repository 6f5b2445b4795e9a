"""What a process holds of a conversation changes no answer: it only saves reading (F15)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from fakeredis import FakeServer
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.outbound import OutboundReply
from flow_engine.runtime.memory import PreviousContact, merge
from flow_engine.runtime.mining_state import MiningState
from flow_engine.runtime.storage import Committed, Conflict, Erasure, LoadedConversation, NewMemory
from memory.connection import RedisMemory
from memory.driver import Driver, Script
from memory.held import HeldConversations
from memory.in_process import embedded
from memory.manager import MemoryManager
from tests.api.harness import HANDLER, clinic, entry, open_scene, over_many_contacts
from tests.flow_engine.documents.samples import JsonObject
from tests.memory.conversation_samples import (
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

NAMES = st.sampled_from(("c", "d"))
PROCESSES = st.sampled_from(("much", "also much", "little", "nothing"))


@dataclass
class Processes:
    """Several processes on one Redis; `nothing` holds nothing, so it is what the others are compared with."""

    server: FakeServer = field(default_factory=FakeServer)
    step: int = 0

    def __post_init__(self) -> None:
        self.driver = embedded(self.server).driver
        self.managers = {
            "much": MemoryManager(self.driver),
            "also much": MemoryManager(self.driver),
            "little": MemoryManager(self.driver, held=HeldConversations(3_000)),
            "nothing": MemoryManager(self.driver, held=HeldConversations(0)),
        }

    async def do(self, process: str, name: str, action: str, on_held: bool) -> None:
        """One commit or erasure of `process`, on what it holds or on what it reads."""
        self.step += 1
        manager, ref = self.managers[process], ConversationRef("tenant", name)
        held = manager.held(ref) if on_held else None
        base = held or await manager.load(ref)
        assert base.merged == merge(base.mined, base.tools)  # what a commit makes is made from it
        stored = await self.managers["nothing"].load(ref)
        if action == "erase":
            await manager.erase(ref, Erasure(b"{}", b"", T0))
            return
        more = self.changes(action, ref, base)
        if more is None:
            return
        changes = msgspec.structs.replace(
            Conversation(embedded(self.server), ref).changes(base.revision, **more),
            expected_state=b"" if held is None else held.state,
            now=T0 + timedelta(seconds=self.step),
        )
        outcome = await manager.commit(ref, changes)
        assert isinstance(outcome, Committed | Conflict)
        if held is not None:
            assert isinstance(outcome, Committed) == (held.state == stored.state)
            if isinstance(outcome, Conflict):  # whoever loses gets what is stored in the same trip
                assert outcome.newer == stored
                assert manager.held(ref) in (None, stored)
        if isinstance(outcome, Committed) and (own := manager.held(ref)) is not None:
            now_stored = await self.managers["nothing"].load(ref)
            assert own.state == now_stored.state  # else the next commit on it would lose

    def changes(self, action: str, ref: ConversationRef, base: LoadedConversation) -> dict[str, Any] | None:
        if action == "start":
            after = session(ref, base.revision + 1)
            return {"session": after, "new_memory": NewMemory(TENANT_FACTS, empty_memory())}
        if base.session is None:
            return None
        now = T0 + timedelta(seconds=self.step)
        name, value = VARIABLES[self.step % 3], [self.step, "x" * (self.step % 3 * 700)]
        return {
            "tools": {"set_tools": {name: written(value)}},
            "mine": {
                "set_mined": {name: written(value)},
                "mining": MiningState(mined_through=str(self.step)),
            },
            "say": {"turn": turn(f"m-{self.step}", "user words")},
            "move": {"session": base.session.model_copy(update={"revision": base.revision + 1})},
            "add": {"added_variables": {f"new-{self.step % 4}": empty_memory()["name"]}},
            "remember": {"previous_contacts": (PreviousContact(now, "chat", "resume"),)},
            "rewrite": {"rewrite_previous_contacts": True, "previous_contacts": base.previous_contacts[:1]},
        }[action]

    async def agree(self) -> None:
        for name in ("c", "d"):
            ref = ConversationRef("tenant", name)
            stored = await self.managers["nothing"].load(ref, with_turns=True)
            for process, manager in self.managers.items():
                held = manager.held(ref)
                if held is not None and held.state == stored.state:
                    assert held.merged == stored.merged, process
                    assert held == msgspec.structs.replace(stored, turns=(), former=()), process
                found = await manager.load(ref, with_turns=True)
                assert (found, found.state) == (stored, stored.state), process


ACTIONS = st.sampled_from(
    ("start", "tools", "tools", "mine", "say", "move", "add", "remember", "rewrite", "erase")
)


@settings(max_examples=40)
@given(st.lists(st.tuples(PROCESSES, NAMES, ACTIONS, st.booleans()), max_size=25))
def test_processes_that_hold_much_little_or_nothing_read_the_same_after_every_step(
    steps: list[tuple[str, str, str, bool]],
) -> None:
    async def play() -> None:
        processes = Processes()
        for process in processes.managers:
            await processes.do(process, "c", "start", on_held=False)
        for step in steps:
            await processes.do(*step)
            await processes.agree()

    asyncio.run(play())


@dataclass
class Counting:
    """A driver that counts the trips and the bytes of their answers."""

    inner: Driver
    answers: list[int] = field(default_factory=list[int])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def run(self, script: Script, *args: Any, **options: Any) -> Any:
        answer = await self.inner.run(script, *args, **options)
        self.answers.append(len(repr(answer)))
        return answer


class Spread(Counting):
    """A driver whose slots lie on several servers."""

    single_node = False


@pytest.mark.anyio
async def test_what_is_unchanged_is_not_sent_again() -> None:
    memory = embedded()
    driver: Any = Counting(memory.driver)
    manager, ref = MemoryManager(driver), ConversationRef("tenant", "c")
    await manager.init(ref, session(ref), NewMemory(TENANT_FACTS, empty_memory()), lifetime_s=LIFETIME_S)
    other = MemoryManager(driver)
    driver.answers.clear()
    first, again = await other.load(ref), await other.load(ref)
    assert first == again
    assert driver.answers[1] < driver.answers[0] / 4
    await manager.set_vars(ref, {"name": written(["Ana"])}, lifetime_s=LIFETIME_S, now=T0)
    assert (await other.load(ref)).tools["name"].value == ["Ana"]


@pytest.mark.anyio
async def test_a_write_on_what_is_over_takes_two_trips() -> None:  # F15
    server = FakeServer()
    async with open_scene(clinic(), server=server) as one, open_scene(clinic(), server=server) as other:
        await one.started()
        await other.write(entry("size", "S"))
        await one.write(entry("size", "M"))  # what `other` holds is over
        memory = other.memory
        counting: Any = Counting(memory.driver)
        memory.conversations._driver = counting
        await other.written(entry("size", "S"))
        assert len(counting.answers) == 2
        found = (await one.http.get("/v1/memory/conv-1")).json()["vars"]
        assert [each["value"] for each in found if each["name"] == "size"] == ["S"]


@pytest.mark.anyio
async def test_a_contact_of_an_id_that_is_not_held_is_taken_for_a_new_conversation() -> None:  # F15, F28
    server, flow = FakeServer(), over_many_contacts()
    async with open_scene(flow, server=server) as one, open_scene(flow, server=server) as other:
        trips: dict[str, list[int]] = {}
        for name, scene in (("one", one), ("other", other)):
            counting: Any = Counting(scene.memory.driver)
            scene.memory.conversations._driver = counting
            trips[name] = counting.answers
        assert (await one.started())["command"] == "/start"
        assert len(trips["one"]) == 1
        again = await one.started(contactId="contact-2")  # which is held here
        assert (again["command"], len(trips["one"])) == ("/resume", 3)
        elsewhere = await other.started(contactId="contact-3")
        assert (elsewhere["command"], len(trips["other"])) == ("/resume", 3)
        assert elsewhere["revision"] == again["revision"] + 1
        metrics = (await other.http.get("/metrics")).text
        assert "flow_engine_commits_lost_total 0.0" in metrics  # nobody was faster


@pytest.mark.anyio
async def test_a_cluster_which_is_told_of_a_start_before_it_commits_reads_first() -> None:  # F15
    memory, ref = embedded(), ConversationRef("tenant", "c")
    assert MemoryManager(memory.driver).may_be_new(ref)
    spread: Any = Spread(memory.driver)
    assert not MemoryManager(spread).may_be_new(ref)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("flow", "status", "trips"), [(clinic(), "closed", 1), (over_many_contacts(), "between_contacts", 2)]
)
async def test_the_end_of_a_contact_reads_what_was_said_only_to_sum_it_up(
    flow: JsonObject, status: str, trips: int
) -> None:
    async with open_scene(flow, answers={HANDLER: [OutboundReply(200, b"false")]}) as scene:
        await scene.started()
        await scene.say("m1", "I would like a haircut")
        counting: Any = Counting(scene.memory.driver)
        scene.memory.conversations._driver = counting
        assert (await scene.end()).json()["status"] == status
        assert len(counting.answers) == trips


@pytest.mark.anyio
async def test_a_process_may_be_told_to_hold_nothing() -> None:
    manager, ref = (
        RedisMemory.on(embedded().driver, held_bytes=0).conversations,
        ConversationRef("tenant", "c"),
    )
    await manager.init(ref, session(ref), NewMemory(TENANT_FACTS, empty_memory()), lifetime_s=LIFETIME_S)
    for _ in range(2):
        assert (await manager.load(ref)).session is not None
        assert manager.held(ref) is None


@pytest.mark.anyio
async def test_the_bytes_that_are_held_are_bounded() -> None:
    memory = embedded()
    held = HeldConversations(20_000)
    manager = MemoryManager(memory.driver, held=held)
    refs = [ConversationRef("tenant", f"c{number}") for number in range(40)]
    for ref in refs:
        await manager.init(ref, session(ref), NewMemory(TENANT_FACTS, empty_memory()), lifetime_s=LIFETIME_S)
    kept = [ref for ref in refs if manager.held(ref) is not None]
    assert kept == refs[-len(kept) :]
    assert 2 < len(kept) < 20
    for ref in refs:
        assert (await manager.load(ref)).session is not None


@pytest.mark.anyio
async def test_a_table_is_made_once_until_the_memory_is_written() -> None:
    talk = Conversation.fresh(embedded())
    await talk.start()
    held = talk.store.conversations
    first = held.held(talk.ref)
    assert first is not None
    assert first.merged
    first.composed.table = (first.merged,), "|name|"
    await talk.commit(1, session=session(talk.ref, 2))
    moved = held.held(talk.ref)
    assert moved is not None
    assert moved.composed.table == ((moved.merged,), "|name|")
    assert moved.merged is first.merged
    await talk.commit(2, set_tools={"name": written("x")})
    wrote = held.held(talk.ref)
    assert wrote is not None
    assert wrote.composed.table is not None
    assert wrote.composed.table[0][0] is not wrote.merged
    assert wrote.merged["name"].value == "x"
