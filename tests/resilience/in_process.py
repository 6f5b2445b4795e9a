"""Two engine "processes" in this event loop, on a store of one's choice: the same use cases, no HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import orjson

from adapters.outbound.fake import ScriptedOutbound
from api.problems import error_response
from flow_engine.errors import FlowEngineError
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.listening.conclusions import RuleSummariser
from flow_engine.ports.clock import SystemClock
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.memory import MemoryWrite
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.runner import NewContact as AnnouncedContact
from flow_engine.runtime.storage import ConversationMemory
from flow_engine.use_cases.conversations import Conversations
from flow_engine.use_cases.dialogue import DialogueService, Utterance
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor
from flow_engine.use_cases.versions_in_use import VersionChoice, VersionsInUse
from memory.connection import RedisMemory, connect
from service.settings import Settings
from service.stores import new_id, open_flow_database
from system_prompts.loader import load_system_prompts
from tests.resilience.flow import TENANT, VERSION_ID
from tests.resilience.operations import (
    ChangeTask,
    NewContact,
    Operation,
    ReadMemory,
    Reply,
    Say,
    WriteMemory,
)

StoreOn = Callable[[RedisMemory], ConversationMemory]


class InProcessEngine:
    """Implements `Engine`."""

    def __init__(self, use_cases: list[tuple[Conversations, DialogueService]]) -> None:
        self._use_cases = use_cases

    @property
    def processes(self) -> int:
        return len(self._use_cases)

    async def send(self, process: int, operation: Operation, key: str | None) -> Reply:
        idempotency = None if key is None else IdempotencyKey(key, repr(operation))
        try:
            answer = await _run(*self._use_cases[process], operation, idempotency)
        except FlowEngineError as error:
            response = error_response(error)
            return Reply(response.status_code, bytes(response.body), response.headers.get("retry-after"))
        return Reply(answer.status, answer.body)


async def _run(
    conversations: Conversations,
    dialogue: DialogueService,
    operation: Operation,
    idempotency: IdempotencyKey | None,
) -> FinalReply:
    conversation = ConversationRef(TENANT, operation.conversation)
    match operation:
        case NewContact(_, contact):
            announced = AnnouncedContact(contact, "chat", {}, {}, None)
            return await conversations.new_contact(
                conversation, announced, VersionChoice(VERSION_ID), idempotency
            )
        case ChangeTask(_, contact, task):
            return await conversations.change_task(conversation, contact, task, idempotency)
        case Say(_, contact, message):
            now = datetime(2026, 3, 1, 12, tzinfo=UTC)
            said = Utterance(contact, message, now, "message", "user", f"I say {message}")
            return await dialogue.utterance(conversation, said, idempotency)
        case WriteMemory(_, contact, tool, values):
            writes = [MemoryWrite(name, value, contact, tool) for name, value in values.items()]
            return await dialogue.put_memory(conversation, writes, idempotency)
        case ReadMemory():
            return FinalReply(200, orjson.dumps(await dialogue.get_memory(conversation)))


@asynccontextmanager
async def in_process(
    url: str, data_dir: Path, store_on: StoreOn, processes: int = 2
) -> AsyncGenerator[InProcessEngine]:
    """Each "process" has a connection, a cache and a store object of its own."""
    prompts = load_system_prompts()
    use_cases: list[tuple[Conversations, DialogueService]] = []
    async with AsyncExitStack() as stack:
        for _ in range(processes):
            redis = connect(url)
            stack.push_async_callback(redis.close)
            database = open_flow_database(Settings(data_dir=data_dir))
            await database.connection.open()
            stack.push_async_callback(database.connection.close)
            clock = SystemClock()
            flow_service = FlowService(
                flows=database.flows, versions=database.versions, clock=clock, new_id=new_id
            )
            dependencies = ConversationDependencies(
                memory=store_on(redis),
                versions=VersionsInUse(flow_service, redis.definitions),
                platform=Platform(prompts, lambda: "http://127.0.0.1", "markdown"),
                clock=clock,
                summariser=RuleSummariser(prompts),
                outbound=ScriptedOutbound({}),
            )
            transactor = Transactor(dependencies)
            use_cases.append(
                (Conversations(transactor, dependencies), DialogueService(transactor, dependencies))
            )
        yield InProcessEngine(use_cases)
