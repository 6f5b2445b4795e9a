"""Load, step, commit; and again when another writer was faster (F15).

The only place where a step meets its store. A request that meets too many faster writers ends with a
conflict that carries the current state, never with a lost or a doubled write.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from flow_engine.errors import FlowEngineError, ReloadAndDecide, unknown_conversation
from flow_engine.idempotency import FinalReply, IdempotencyKey, KeptReply
from flow_engine.ports.clock import Clock
from flow_engine.ports.dialogue import ConversationRef, Summariser
from flow_engine.ports.outbound import OutboundSender
from flow_engine.ports.telemetry import Observer, Unobserved
from flow_engine.runtime import storage
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.use_cases.transitions import Decision, Transition, check_size, count_moves, to_changes
from flow_engine.use_cases.versions_in_use import Versions

ATTEMPTS = 24
_Result = TypeVar("_Result")

QUIET_BYTES = 64 * 1024 * 1024
"""Of replies that a process keeps to answer with again."""


@dataclass(frozen=True, slots=True)
class ConversationDependencies:
    """What the use cases are wired with. `debounce_s`: how long after a user turn it is read. In seconds.
    `quiet_bytes`: of replies that are kept to be sent again, see `QuietReplies`."""

    memory: storage.ConversationMemory
    versions: Versions
    platform: Platform
    clock: Clock
    summariser: Summariser
    outbound: OutboundSender
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    debounce_s: float = 0.3
    observer: Observer = field(default_factory=Unobserved)
    quiet_bytes: int = QUIET_BYTES


class Transactor:
    """Runs steps against the store. Every method raises RetryLater while the store is away."""

    def __init__(self, dependencies: ConversationDependencies) -> None:
        self.memory = dependencies.memory
        self.versions = dependencies.versions
        self.platform = dependencies.platform
        self.clock = dependencies.clock
        self.observer = dependencies.observer

    async def resume(
        self,
        conversation: ConversationRef,
        loaded: storage.LoadedConversation,
        *,
        now: datetime | None = None,
    ) -> ConversationalFlowRunner:
        """As it is `now` (UTC), by the clock if not given. Raises LookElsewhere `conversation_unknown` when
        nothing is stored."""
        session = loaded.session
        if session is None:
            raise unknown_conversation(conversation.conversation_id)
        fits = loaded.composed.fits
        if fits is None or fits[0] is not session:
            pinned = self.versions.pinned
            version = await pinned(conversation.tenant_id, session.version_id, session.content_hash)
            fits = session, version.flow.hiding(session.hidden)
        at = now or self.clock.now()
        runner = ConversationalFlowRunner.resume(fits[1], session, loaded, self.platform, at)
        loaded.composed.fits = fits
        return runner

    async def run(
        self,
        conversation: ConversationRef,
        idempotency: IdempotencyKey | None,
        decide: Callable[[storage.LoadedConversation], Awaitable[Transition]],
        *,
        with_turns: bool = False,
        begins: bool = False,
    ) -> FinalReply:
        """Answer a request. `decide` is asked again on fresh state whenever another writer was faster.
        `begins`: most of these conversations do not exist yet.

        Raises ReloadAndDecide `revision_conflict` after ATTEMPTS, CorrectTheInput `conversation_too_large`.
        The reply's body are bytes of JSON.
        """
        newer = held = None
        if begins and self.memory.may_be_new(conversation):
            held = storage.LoadedConversation()
        elif not with_turns:
            held = self.memory.held(conversation)
        if held is not None:
            outcome = await self._run_on_held(conversation, idempotency, decide, held)
            if isinstance(outcome, FinalReply):
                return outcome
            newer = outcome.newer
        for _ in range(ATTEMPTS):
            loaded = newer or await self.memory.load(
                conversation, idempotency=idempotency, with_turns=with_turns
            )
            if idempotency is not None and loaded.replay is not None:
                return self._replayed(idempotency, loaded.replay)
            transition = await decide(loaded)
            check_size(transition)
            outcome = await self._commit(conversation, idempotency, transition, loaded)
            if isinstance(outcome, FinalReply):
                return outcome
            self.observer.count("commits_lost")
            newer = None
        raise await self._conflict(conversation)

    async def _run_on_held(
        self,
        conversation: ConversationRef,
        idempotency: IdempotencyKey | None,
        decide: Callable[[storage.LoadedConversation], Awaitable[Transition]],
        held: storage.LoadedConversation,
    ) -> FinalReply | storage.Conflict:
        """One trip instead of two; what is held may be over, then the newer state comes with the loss."""
        try:
            transition = await decide(held)
            check_size(transition)
        except FlowEngineError:
            return storage.Conflict()
        return await self._commit(conversation, idempotency, transition, held, expected_state=held.state)

    async def apply(
        self,
        conversation: ConversationRef,
        decide: Callable[[storage.LoadedConversation], Awaitable[Decision[_Result]]],
        *,
        with_turns: bool = False,
    ) -> Decision[_Result]:
        """Do background work: as `run`, for decisions of which nobody waits for a reply.

        The decision that took effect; the one without a transition changed nothing. Raises ReloadAndDecide
        `revision_conflict` after ATTEMPTS.
        """
        for _ in range(ATTEMPTS):
            loaded = await self.memory.load(conversation, with_turns=with_turns)
            decision = await decide(loaded)
            if decision.transition is None:
                return decision
            check_size(decision.transition)
            outcome = await self._commit(conversation, None, decision.transition, loaded)
            if isinstance(outcome, FinalReply):
                return decision
            self.observer.count("commits_lost")
        raise await self._conflict(conversation)

    async def _commit(
        self,
        conversation: ConversationRef,
        idempotency: IdempotencyKey | None,
        transition: Transition,
        loaded: storage.LoadedConversation,
        *,
        expected_state: bytes = b"",
    ) -> FinalReply | storage.Conflict:
        changes = to_changes(transition, idempotency, expected_state, by=conversation.by)
        match await self.memory.commit(conversation, changes):
            case storage.Committed() as done:
                if not done.definition_present:
                    flow, tenant_id = transition.runner.flow, conversation.tenant_id
                    version = await self.versions.pinned(tenant_id, flow.version_id, flow.content_hash)
                    await self.versions.keep_definition(tenant_id, version)
                if changes.session is not None:
                    count_moves(transition.runner, self.observer)
                if transition.set_tools:
                    self.observer.count("memory_writes", len(transition.set_tools), source="tools")
                if transition.set_mined:
                    self.observer.count("memory_writes", len(transition.set_mined), source="mining")
                return FinalReply(done.status, done.body)
            case storage.AlreadyAnswered() as earlier if idempotency is not None:
                return self._replayed(idempotency, earlier.reply)
            case storage.DuplicateMessage() if transition.on_seen is not None:
                return FinalReply(transition.on_seen.status, transition.on_seen.body(loaded.memory_revision))
            case storage.Conflict() as lost:
                return lost
            case _:
                return storage.Conflict()

    async def _conflict(self, conversation: ConversationRef) -> ReloadAndDecide:
        self.observer.count("revision_conflicts")
        runner = await self.resume(conversation, await self.memory.load(conversation))
        return ReloadAndDecide(
            "revision_conflict",
            "other requests changed the conversation each time this one tried to",
            state=runner.facts(),
            accepted=("the same request again",),
        )

    def _replayed(self, idempotency: IdempotencyKey, kept: KeptReply) -> FinalReply:
        reply = kept.replay(idempotency)
        self.observer.count("replays")
        return reply
