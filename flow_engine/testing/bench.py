"""Where scenarios run: the real use cases on given stores, with a clock and a customHandler that obey.

Doubles for what a scenario decides itself, nothing else: time, the answers of the world, and the expiry
that a store would bring about by its own clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from flow_engine.idempotency import IdempotencyKey
from flow_engine.listening import mining
from flow_engine.listening.conclusions import RuleSummariser
from flow_engine.listening.effects import MiningEffects
from flow_engine.ports import flow_store, outbound, system_prompts
from flow_engine.ports.clock import Clock
from flow_engine.ports.dialogue import ActedOn, ConversationRef
from flow_engine.ports.extraction import Extractor
from flow_engine.runtime import compiled, platform, storage
from flow_engine.runtime.memory import MINER
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.testing.format import ModelAnswer, Verdict
from flow_engine.use_cases.background import reading
from flow_engine.use_cases.conversations import Conversations
from flow_engine.use_cases.dialogue import DialogueService
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.submissions import Submission
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor
from flow_engine.use_cases.transitions import Decision
from flow_engine.use_cases.versions_in_use import VersionChoice, Versions, VersionsInUse

START = datetime(2026, 1, 15, 9, 0, tzinfo=UTC)  # a Thursday morning: every scenario begins then
BASE_URL = "http://127.0.0.1:8080"
AUTHOR = "flow-test"


class SettableClock:
    """Implements `Clock`; time passes only by `advance`. In seconds, forwards; UTC."""

    def __init__(self, at: datetime = START) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at

    def advance(self, seconds: float) -> None:
        self._at += timedelta(seconds=seconds)


class ScriptedHandler:
    """Implements `OutboundSender`: the customHandler, which answers the verdict set last. `true` or `false`
    as JSON. Raises OutboundFailed where the scenario wants it."""

    def __init__(self) -> None:
        self.verdict: Verdict = False
        self.requests = 0

    async def request(self, method: str, url: str, **options: object) -> outbound.OutboundReply:
        self.requests += 1
        if self.verdict == "fails":
            raise outbound.OutboundFailed(f"{url} fails, as the scenario wants it")
        return outbound.OutboundReply(200, b"true" if self.verdict else b"false")


class ForgetfulMemory:
    """Implements `ConversationMemory` over another, whose keys it drops when their time is over (F16).

    The store counts lifetimes in real time, a scenario waits days in an instant.
    """

    def __init__(
        self,
        memory: storage.ConversationMemory,
        forget: Callable[[ConversationRef], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._memory = memory
        self._forget = forget
        self._clock = clock
        self._over_at: dict[ConversationRef, datetime] = {}

    async def load(
        self,
        conversation: ConversationRef,
        *,
        idempotency: IdempotencyKey | None = None,
        with_turns: bool = False,
    ) -> storage.LoadedConversation:
        over_at = self._over_at.get(conversation)
        if over_at is not None and over_at <= self._clock.now():
            await self._forget(conversation)
            del self._over_at[conversation]
        return await self._memory.load(conversation, idempotency=idempotency, with_turns=with_turns)

    def held(self, conversation: ConversationRef) -> storage.LoadedConversation | None:
        over_at = self._over_at.get(conversation)
        if over_at is not None and over_at <= self._clock.now():
            return None
        return self._memory.held(conversation)

    def may_be_new(self, conversation: ConversationRef) -> bool:
        return self._memory.may_be_new(conversation)

    async def commit(self, conversation: ConversationRef, changes: storage.Changes) -> storage.Outcome:
        outcome = await self._memory.commit(conversation, changes)
        self._over_at[conversation] = changes.now + timedelta(seconds=changes.lifetime_s)
        return outcome

    async def erase(self, conversation: ConversationRef, erasure: storage.Erasure) -> bool:
        self._over_at.pop(conversation, None)
        return await self._memory.erase(conversation, erasure)

    async def finish_erasure(
        self, conversation: ConversationRef, now: datetime, elsewhere: storage.RemoveElsewhere
    ) -> None:
        await self._memory.finish_erasure(conversation, now, elsewhere)


@dataclass(frozen=True, slots=True)
class Stores:
    """Empty stores. `forget` removes everything that `memory` holds of a conversation."""

    memory: storage.ConversationMemory
    forget: Callable[[ConversationRef], Awaitable[None]]
    definitions: flow_store.DefinitionStore
    flows: flow_store.FlowStore
    versions: flow_store.VersionStore


@dataclass(frozen=True, slots=True)
class Stage:
    """What one scenario runs on: a conversation that has not begun, and its own time."""

    conversation: ConversationRef
    flow: compiled.CompiledFlow
    clock: SettableClock
    handler: ScriptedHandler
    transactor: Transactor
    conversations: Conversations
    dialogue: DialogueService
    extractor: Extractor

    async def runner(self) -> ConversationalFlowRunner:
        """The conversation as it is now. Raises LookElsewhere `conversation_unknown` before it has begun."""
        loaded = await self.transactor.memory.load(self.conversation)
        return await self.transactor.resume(self.conversation, loaded)

    async def read(self, answer: ModelAnswer | None) -> None:
        """Read what the user has said since the last reading: by rules, then by the model's answer where one
        is given. Raises as the use cases do."""
        loaded = await self.transactor.memory.load(self.conversation, with_turns=True)
        runner = await self.transactor.resume(self.conversation, loaded)
        request = mining.mining_request_of(runner)
        if request is None:
            return
        result = mining.read_by_rules(self.extractor, request)
        if answer is not None and answer.fails:
            result = replace(result, failed=True)
        elif answer is not None:
            reached = [{"id": id, "reason": reason} for id, reason in answer.checkpoints.items()]
            data = {"values": answer.values, "confidence": answer.confidence, "checkpoints": reached}
            result = mining.together(result, mining.read_answer(request, data, runner))

        async def decide(fresh: storage.LoadedConversation) -> Decision[MiningEffects | None]:
            return reading(await self.transactor.resume(self.conversation, fresh), request, result)

        await self.transactor.apply(ActedOn(*self.conversation, MINER), decide)


def set_up(
    conversation: ConversationRef,
    flow: compiled.CompiledFlow,
    clock: SettableClock,
    memory: storage.ConversationMemory,
    versions: Versions,
    world: platform.Platform,
    extractor: Extractor,
) -> Stage:
    handler = ScriptedHandler()
    dependencies = ConversationDependencies(
        memory=memory,
        versions=versions,
        platform=world,
        clock=clock,
        summariser=RuleSummariser(world.prompts),
        outbound=handler,
    )
    transactor = Transactor(dependencies)
    conversations = Conversations(transactor, dependencies)
    dialogue = DialogueService(transactor, dependencies)
    return Stage(conversation, flow, clock, handler, transactor, conversations, dialogue, extractor)


class Bench:
    """Flows installed in stores of their own. Each has its own tenant, so that equal ids do not meet."""

    def __init__(self, stores: Stores, prompts: system_prompts.SystemPrompts, extractor: Extractor) -> None:
        self._stores = stores
        self._extractor = extractor
        self._prompts = prompts
        flow_service = FlowService(
            flows=stores.flows, versions=stores.versions, clock=SettableClock(), new_id=lambda: AUTHOR
        )
        self._versions = VersionsInUse(flow_service, stores.definitions)
        self._installed = 0
        self._staged = 0

    async def install(self, submission: Submission, flow_id: str) -> InstalledFlow:
        """Raises ReloadAndDecide `version_is_draft` for a draft."""
        self._installed += 1
        tenant_id, version_id = f"flow-{self._installed}", submission.entry.version_id
        version = flow_store.StoredVersion(version_id, flow_id, submission.document)
        await self._stores.versions.insert(tenant_id, version)
        listing = flow_store.FlowRecord(
            flow_id, flow_id, AUTHOR, "1.0.0", AUTHOR, START, versions=(submission.entry,)
        )
        await self._stores.flows.insert(tenant_id, listing)
        startable = await self._versions.to_start(tenant_id, VersionChoice(version_id))
        return InstalledFlow(self, tenant_id, startable.version.flow)

    def stage(self, tenant_id: str, flow: compiled.CompiledFlow, start: datetime = START) -> Stage:
        """Its time begins at `start`, in UTC."""
        self._staged += 1
        clock, conversation = SettableClock(start), ConversationRef(tenant_id, f"scenario-{self._staged}")
        memory = ForgetfulMemory(self._stores.memory, self._stores.forget, clock)
        world = platform.Platform(self._prompts, lambda: BASE_URL, "markdown")
        return set_up(conversation, flow, clock, memory, self._versions, world, self._extractor)


@dataclass(frozen=True, slots=True)
class InstalledFlow:
    bench: Bench
    tenant_id: str
    flow: compiled.CompiledFlow

    def stage(self, start: datetime | None = None) -> Stage:
        """A conversation that has not begun, at `start` (UTC), `START` if not given."""
        return self.bench.stage(self.tenant_id, self.flow, start or START)
