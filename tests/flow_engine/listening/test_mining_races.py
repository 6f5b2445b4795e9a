"""MiningResult along while tools write, in every order that Redis may see: the tool's value counts (F18).

A scene on a real Redis; miners and tools are tasks that wait at each of their reads and commits until
Hypothesis lets one of them go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.idempotency import IdempotencyKey
from flow_engine.listening.conclusions import RuleSummariser
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.extraction import ExtractsNothing
from flow_engine.ports.jobs import Job
from flow_engine.ports.models import LLMAnswer, LLMRequest, Message, ModelEvent
from flow_engine.ports.telemetry import Unobserved
from flow_engine.runtime.memory import MINER, MemoryWrite
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.storage import Changes, Committed, ConversationMemory, LoadedConversation, Outcome
from flow_engine.use_cases.background import BackgroundDependencies, BackgroundWork
from flow_engine.use_cases.dialogue import DialogueService, Utterance
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor
from flow_engine.use_cases.versions_in_use import VersionsInUse
from memory.connection import connect
from system_prompts.loader import load_system_prompts
from tests.api.harness import BASE_URL, CALL, Scene, clinic, open_scene
from tests.flow_engine.listening.test_mining import rollouts_of
from tests.redis_fixture import RedisServer

TEXTS = st.sampled_from(["ECG", "MRI", "X-ray"])
VALUES = {"var_string": TEXTS, "var_number": st.integers(0, 3), "var_boolean": st.booleans()}
READINGS = st.fixed_dictionaries({}, optional=VALUES)
TAKEN_BACK = {name: st.none() | values for name, values in VALUES.items()}
BATCHES = st.fixed_dictionaries({}, optional=TAKEN_BACK).filter(bool)

Batch = Mapping[str, Any]
_numbers = count()


@dataclass(frozen=True)
class Plan:
    """What everybody is about to do, and in which order they are let go on."""

    readings: Sequence[Sequence[Batch]]
    writes: Sequence[Sequence[Batch]]
    order: Sequence[int]


PLANS = st.builds(
    Plan,
    readings=st.lists(st.lists(READINGS, min_size=1, max_size=2), min_size=1, max_size=2),
    writes=st.lists(st.lists(BATCHES, min_size=1, max_size=3), min_size=1, max_size=2),
    order=st.lists(st.integers(0, 3), max_size=60),
)


@dataclass
class Turns:
    """Lets one of those who wait go on, once all who are at work wait."""

    order: Sequence[int]
    at_work: int
    waiting: dict[int, asyncio.Future[None]] = field(default_factory=dict[int, "asyncio.Future[None]"])
    given: int = 0

    async def mine(self, actor: int) -> None:
        self.waiting[actor] = asyncio.get_running_loop().create_future()
        self._go_on()
        await self.waiting[actor]

    def leave(self) -> None:
        self.at_work -= 1
        self._go_on()

    def _go_on(self) -> None:
        waiting = sorted(actor for actor, turn in self.waiting.items() if not turn.done())
        if not waiting or len(waiting) < self.at_work:
            return
        choice = self.order[self.given] if self.given < len(self.order) else self.given
        self.given += 1
        self.waiting[waiting[choice % len(waiting)]].set_result(None)


@dataclass
class InTurn:
    """A `ConversationMemory` at which one actor waits for its turn. `log` holds all that was committed."""

    inner: ConversationMemory
    turns: Turns
    actor: int
    log: list[Changes]

    async def load(
        self,
        conversation: ConversationRef,
        *,
        idempotency: IdempotencyKey | None = None,
        with_turns: bool = False,
    ) -> LoadedConversation:
        await self.turns.mine(self.actor)
        return await self.inner.load(conversation, idempotency=idempotency, with_turns=with_turns)

    def held(self, conversation: ConversationRef) -> LoadedConversation | None:
        return self.inner.held(conversation)

    def may_be_new(self, conversation: ConversationRef) -> bool:
        return self.inner.may_be_new(conversation)

    async def commit(self, conversation: ConversationRef, changes: Changes) -> Outcome:
        await self.turns.mine(self.actor)
        outcome = await self.inner.commit(conversation, changes)
        if isinstance(outcome, Committed):
            self.log.append(changes)
        return outcome


@dataclass
class Answering:
    """A model that answers with `values`."""

    values: Batch = field(default_factory=dict[str, Any])

    async def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
        yield LLMAnswer(Message("assistant", ""), "scripted", 1, 1, {"values": self.values})


class Race:
    """One conversation, and those who work on it at the same moment."""

    def __init__(self, scene: Scene, plan: Plan) -> None:
        self.scene = scene
        self.plan = plan
        self.conversation = ConversationRef("default", f"race-{next(_numbers)}")
        self.log: list[Changes] = []
        self.turns = Turns(plan.order, len(plan.readings) + len(plan.writes))

    async def run(self) -> None:
        await self.scene.started(conversationId=self.conversation.conversation_id)
        actors = [self._reads(values) for values in self.plan.readings]
        actors += [self._writes(batches) for batches in self.plan.writes]
        await asyncio.gather(*(self._at_work(actor, work) for actor, work in enumerate(actors)))

    async def _at_work(self, actor: int, work: Callable[[ConversationDependencies], Awaitable[None]]) -> None:
        memory = InTurn(self.scene.memory.conversations, self.turns, actor, self.log)
        try:
            await work(dependencies(self.scene, memory))
        finally:
            self.turns.leave()

    def _reads(self, readings: Sequence[Batch]) -> Callable[[ConversationDependencies], Awaitable[None]]:
        async def work(using: ConversationDependencies) -> None:
            transactor, model = Transactor(using), Answering()
            background = BackgroundDependencies(
                ExtractsNothing(),
                model,
                has_model=True,
                observer=Unobserved(),
                rollouts=rollouts_of(self.scene),
            )
            for values in readings:
                said = f"m{next(_numbers)}"
                await DialogueService(transactor, using).utterance(self.conversation, self._utterance(said))
                model.values = values
                await BackgroundWork(transactor, background).mine(Job("mine", self.conversation))

        return work

    def _writes(self, batches: Sequence[Batch]) -> Callable[[ConversationDependencies], Awaitable[None]]:
        async def work(using: ConversationDependencies) -> None:
            for batch in batches:
                writes = [MemoryWrite(var, value, CALL["contactId"], "tool") for var, value in batch.items()]
                await DialogueService(Transactor(using), using).put_memory(self.conversation, writes)
                await self._check_reading()

        return work

    def _utterance(self, message_id: str) -> Utterance:
        return Utterance(CALL["contactId"], message_id, self.scene.clock.now(), "message", "user", "Well")

    async def _check_reading(self) -> None:
        """Nobody goes on meanwhile, since this actor does not wait: what was committed last is read."""
        read = await self.scene.http.get(f"/v1/memory/{self.conversation.conversation_id}")
        assert values_of(read.json()) == expected(self.log)[0]

    async def check(self) -> None:
        read = await self.scene.http.get(f"/v1/memory/{self.conversation.conversation_id}")
        values, tools, mined = expected(self.log)
        assert values_of(read.json()) == values
        loaded = await self.scene.memory.conversations.load(self.conversation, with_turns=True)
        assert {name: loaded.tools[name].value for name in VALUES} == tools
        assert {name: loaded.mined[name].value for name in VALUES} == mined
        batches = sorted(map(repr, (dict(b) for batches in self.plan.writes for b in batches)))
        stored = [{name: e.value for name, e in c.set_tools.items()} for c in self.log if c.set_tools]
        assert sorted(map(repr, stored)) == batches, "each batch is stored once, and whole"
        assert loaded.memory_revision == sum(bool(c.set_tools or c.set_mined) for c in self.log)
        assert [t.message_id for t in loaded.turns] == [c.turn.message_id for c in self.log if c.turn]
        read_through = [c.mining.mined_through for c in self.log if c.mining is not None]
        said = [f"{turn.contact_id}/{turn.message_id}" for turn in loaded.turns]
        places = [said.index(message) for message in read_through if message is not None]
        assert places == sorted(places), "reading along never goes back"
        assert loaded.mining.mined_through == loaded.last_user_turn


def expected(log: Sequence[Changes]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The law, by the commits in their order: the values that count, the tools' and the miner's."""
    tools: dict[str, Any] = dict.fromkeys(VALUES)
    mined: dict[str, Any] = dict.fromkeys(VALUES)
    for changes in log:
        tools |= {name: entry.value for name, entry in changes.set_tools.items()}
        mined |= {name: entry.value for name, entry in changes.set_mined.items()}
    return {n: mined[n] if tools[n] is None else tools[n] for n in VALUES}, tools, mined


def values_of(dump: Any) -> dict[str, Any]:
    found = {v["varId"]: v for v in dump["vars"] if v["varId"] in VALUES}
    assert all(v["value"] is None or v["updatedBy"] in (MINER, "tool") for v in found.values())
    return {name: found[name]["value"] for name in VALUES}


def dependencies(scene: Scene, memory: ConversationMemory) -> ConversationDependencies:
    prompts = load_system_prompts()
    flow_service = FlowService(
        flows=scene.flows.flows, versions=scene.flows.versions, clock=scene.clock, new_id=lambda: "unused"
    )
    return ConversationDependencies(
        memory=memory,
        versions=VersionsInUse(flow_service, scene.memory.definitions),
        platform=Platform(prompts, lambda: BASE_URL, "markdown"),
        clock=scene.clock,
        summariser=RuleSummariser(prompts),
        outbound=scene.outbound,
    )


@pytest.fixture(scope="module")
def racing(redis_server: RedisServer) -> Iterator[tuple[BlockingPortal, Scene]]:
    """A scene on a database of its own: jobs are in one place for all tenants."""
    url = redis_server.url.removesuffix("/0") + "/1"

    @asynccontextmanager
    async def scene_on_redis() -> AsyncGenerator[Scene]:
        async with open_scene(clinic(), memory=connect(url)) as scene:
            yield scene

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(scene_on_redis()) as scene:
        yield portal, scene


@settings(max_examples=60, deadline=None)
@given(plan=PLANS)
def test_a_tools_value_counts_and_no_write_is_lost_in_any_order(  # F15, F18, F37
    racing: tuple[BlockingPortal, Scene], plan: Plan
) -> None:
    portal, scene = racing
    race = Race(scene, plan)
    portal.call(race.run)
    portal.call(race.check)
