"""Whatever processes keep, and whoever of them answers: replies, events and all that is stored are those of
a process that begins with nothing, for each request anew (F15, F23)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from adapters.outbound.fake import ScriptedOutbound
from flow_engine.errors import FlowEngineError, RetryLater
from flow_engine.idempotency import IdempotencyKey
from flow_engine.listening.conclusions import RuleSummariser
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.outbound import OutboundReply
from flow_engine.runtime.commands import NewContact
from flow_engine.runtime.human_part import HumanReport
from flow_engine.runtime.kept import Kept
from flow_engine.runtime.memory import MemoryWrite
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.rendered import TaskTexts
from flow_engine.use_cases.conversations import Conversations
from flow_engine.use_cases.dialogue import DialogueService, Utterance
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor
from flow_engine.use_cases.versions_in_use import VersionChoice, VersionsInUse
from memory.connection import RedisMemory, connect
from memory.held import HeldConversations
from memory.keys import ConversationKeys
from memory.manager import MemoryManager
from system_prompts.loader import load_system_prompts
from tests.api.harness import HANDLER, SettableClock, clinic, multi_contact, open_scene, sqlite_in_memory
from tests.flow_engine.documents.samples import JsonObject, parameter
from tests.redis_fixture import RedisServer

TENANT = "default"
PROMPTS = load_system_prompts()


def document() -> JsonObject:
    """What follows from the version, what from the caller, and what from the memory, in one reply."""
    tool = {"toolName": "book", "toolParameters": [parameter("who", "variable", "var_string")]}
    version = clinic(
        globalPrompt="For {{ $tenant.name }}, in {{ $language }}.",
        mediaConfig={
            "audio": {"presetId": "default"},
            "text": {"llm": {"provider": "openai", "model": "{{ $tenant.model }}", "temperature": 0.3}},
        },
        mcpServers=[
            {
                "name": "agenda",
                "url": "http://agenda.internal:8080/mcp",
                "includedTools": [{"toolName": "book", "uiToolDescription": "Books a visit"}],
            }
        ],
    )
    for task in version["tasks"]:
        task["closureConfig"] = multi_contact()
        task["description"] = "For {{ $contact.name | default('somebody') }}: {{ $values.var_number }}"
    version["tasks"][1]["mcpToolSelection"] = [{"mcpServerName": "agenda", "selectedTools": [tool]}]
    return version


@dataclass(frozen=True)
class Process:
    conversations: Conversations
    dialogue: DialogueService


@dataclass
class World:
    """A database of a Redis of its own, and the processes on it."""

    redis: RedisMemory
    versions: VersionsInUse
    clock: SettableClock
    kept: dict[str, Process] = field(default_factory=dict[str, Process])

    def process(self, held_bytes: int, *, platform_bytes: int = 1_000_000) -> Process:
        platform = Platform(PROMPTS, lambda: "http://127.0.0.1", "markdown")
        platform.texts = TaskTexts(platform_bytes)
        platform.fixed = Kept(platform_bytes, lambda parts: parts.weight)
        platform.media_texts = Kept(platform_bytes, len)
        platform.beginnings = Kept(platform_bytes, lambda beginning: beginning.weight)
        dependencies = ConversationDependencies(
            memory=MemoryManager(self.redis.driver, held=HeldConversations(held_bytes)),
            versions=self.versions,
            platform=platform,
            clock=self.clock,
            summariser=RuleSummariser(PROMPTS),
            outbound=ScriptedOutbound({HANDLER: [OutboundReply(200, b"false")]}),
        )
        transactor = Transactor(dependencies)
        return Process(Conversations(transactor, dependencies), DialogueService(transactor, dependencies))

    def of(self, name: str) -> Process:
        if name not in self.kept:
            sizes = {"nothing": (0, 0), "little": (6_000, 3_000)}.get(name, (1_000_000, 1_000_000))
            self.kept[name] = self.process(sizes[0], platform_bytes=sizes[1])
        return self.kept[name]

    async def stored(self, conversation: ConversationRef) -> tuple[object, list[object]]:
        keys = ConversationKeys.of(conversation).named
        events = await self.redis.driver.xrange(keys["outbox"], at_most=1_000)
        memory = MemoryManager(self.redis.driver, held=HeldConversations(0))
        return await memory.load(conversation, with_turns=True), [fields[b"event"] for _, fields in events]


@dataclass
class Worlds:
    """The same requests to processes that keep what they know, and to new ones each time."""

    keeping: World
    forgetting: World
    clock: SettableClock
    server: RedisServer
    played: int = 0

    async def play(self, steps: list[Step]) -> None:
        self.played += 1
        self.keeping.kept.pop("young", None)
        refs = {name: ConversationRef(TENANT, f"{name}-{self.played}") for name in "cd"}
        for number, (process, name, action, key) in enumerate(steps):
            self.clock.at += timedelta(seconds=7)
            if action == "cut":
                with self.server.client() as client:
                    client.execute_command("CLIENT", "KILL", "TYPE", "normal")
                continue
            idempotency = None if key is None else IdempotencyKey(key, f"{action}{name}")
            request = REQUESTS[action]
            got, expected = [
                await answered(
                    lambda each=each: request(each, refs[name], f"m{number}", idempotency)  # noqa: B023
                )
                for each in (self.keeping.of(process), self.forgetting.process(0, platform_bytes=0))
            ]
            assert got == expected, (number, process, action)
        for ref in refs.values():
            kept, expected = [
                await repeated(lambda each=each: each.stored(ref))  # noqa: B023
                for each in (self.keeping, self.forgetting)
            ]
            assert kept == expected


async def repeated(request: Callable[[], Awaitable[Any]]) -> Any:
    """A connection that was cut is told, and the request sent again."""
    for _ in range(4):
        with suppress(RetryLater):
            return await request()
    raise AssertionError("Redis stays away")


async def answered(request: Callable[[], Awaitable[Any]]) -> object:
    """The reply, or what is wrong."""
    try:
        reply = await repeated(request)
    except FlowEngineError as error:
        return error.code, error.detail, getattr(error, "state", None)
    return tuple(getattr(reply, name, None) for name in ("body", "status", "replayed", "etag"))


Request = Callable[[Process, ConversationRef, str, IdempotencyKey | None], Awaitable[Any]]
Step = tuple[str, str, str, str | None]


def contact(name: str, channel: Any, tenant: dict[str, object], data: dict[str, object]) -> Request:
    announced = NewContact(name, channel, tenant, data, None)
    return lambda p, ref, _, key: p.conversations.new_contact(ref, announced, VersionChoice("version-1"), key)


def change(task: str) -> Request:
    return lambda p, ref, _, key: p.conversations.change_task(ref, "call-1", task, key)


def write(**values: Any) -> Request:
    writes = [MemoryWrite(var, value, "call-1", "tool") for var, value in values.items()]
    return lambda p, ref, _, key: p.dialogue.put_memory(ref, writes, key)


def human(outcome: Any) -> Request:
    return lambda p, ref, _, key: p.conversations.human_task(ref, "call-1", HumanReport(outcome), key)


def said(p: Process, ref: ConversationRef, name: str, key: IdempotencyKey | None) -> Awaitable[Any]:
    words = Utterance("call-1", name, SettableClock().now(), "message", "user", "Hello", language="it")
    return p.dialogue.utterance(ref, words, key)


REQUESTS: dict[str, Request] = {
    "call": contact("call-1", "phone", {"name": "Roma"}, {"name": "Ada"}),
    "chat": contact("call-1", "chat", {"name": "Bari", "model": "gpt"}, {}),
    "another": contact("call-2", "chat", {"name": "Roma"}, {"name": "Bea"}),
    "visit": change("visit"),
    "reception": change("reception"),
    "operator": change("operator"),
    "nowhere": change("nowhere"),
    "fill": write(var_string="Ada", var_boolean=True),
    "count": write(var_number=3),
    "clear": write(var_string=None),
    "wrong": write(var_number="many"),
    "connected": human("connected"),
    "say": said,
    "end": lambda p, ref, _, key: p.conversations.end_contact(ref, "call-1", "hangup", key),
    "prompt": lambda p, ref, _, __: p.dialogue.prompt(ref),
    "memory": lambda p, ref, _, __: p.dialogue.get_memory(ref),
}
ACTIONS = st.sampled_from((*REQUESTS, "cut", "visit", "fill", "reception", "prompt", "count", "chat"))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("much", "also much", "little", "nothing", "young")),
        st.sampled_from("ccd"),
        ACTIONS,
        st.sampled_from((None, None, None, "k")),
    ),
    min_size=10,
    max_size=24,
)


@pytest.fixture(scope="module")
def worlds(redis_server: RedisServer) -> Iterator[tuple[asyncio.Runner, Worlds]]:
    async def open_worlds(stack: AsyncExitStack) -> Worlds:
        database = sqlite_in_memory()
        await stack.enter_async_context(open_scene(document(), flows=database))
        clock = SettableClock()
        flows = FlowService(
            flows=database.flows, versions=database.versions, clock=clock, new_id=lambda: "id"
        )
        opened: list[World] = []
        for number in (1, 2):
            redis = connect(redis_server.url[:-1] + str(number))
            stack.push_async_callback(redis.close)
            opened.append(World(redis, VersionsInUse(flows, redis.definitions), clock))
        return Worlds(opened[0], opened[1], clock, redis_server)

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield runner, runner.run(open_worlds(stack))
        finally:
            runner.run(stack.aclose())


@settings(max_examples=12, phases=[Phase.generate])
@given(STEPS)
def test_processes_with_and_without_memory_answer_and_store_the_same(
    worlds: tuple[asyncio.Runner, Worlds], steps: list[Step]
) -> None:
    runner, both = worlds
    runner.run(both.play([("much", "c", "call", None), ("much", "d", "chat", None), *steps]))


def test_the_worlds_are_asked_for_what_they_have(worlds: tuple[asyncio.Runner, Worlds]) -> None:
    """A conversation's life: without this, all replies might be the same refusal."""
    runner, both = worlds
    process, ref = both.keeping.of("much"), ConversationRef(TENANT, "life")

    async def ask(action: str) -> Any:
        reply = await REQUESTS[action](process, ref, "m", None)
        return orjson.loads(reply.body)

    async def live() -> None:
        started = await ask("chat")
        assert started["llm"]["model"] == "gpt"
        assert "For Bari" in started["prompt"]
        assert "somebody" in started["reachableTasks"][0]["description"]
        assert (await ask("visit"))["result"] is False
        await ask("fill")
        moved = await ask("visit")
        assert (moved["result"], moved["taskName"]) == (True, "Visita Perché")
        parameters = moved["mcpTools"][-1]["tools"][0]["parameters"]
        assert [each["value"] for each in parameters] == ["Ada"]
        assert (await ask("end"))["status"] == "between_contacts"

    runner.run(live())
