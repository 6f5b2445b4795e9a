"""Load, step, commit; and again when another writer was faster (F15).

The only place where a step meets its store. A request that meets too many faster writers ends with a
conflict that carries the current state, never with a lost or a doubled write.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Generic, Protocol, TypeVar, cast

import msgspec

from flow_engine.errors import (
    CorrectTheInput,
    FlowEngineError,
    ReloadAndDecide,
    unknown_conversation,
)
from flow_engine.idempotency import FinalReply, IdempotencyKey, KeptReply
from flow_engine.json_values import rough_size
from flow_engine.ports.clock import Clock
from flow_engine.ports.dialogue import ENGINE, ConversationRef, DialogueTurn, Fork, Summariser
from flow_engine.ports.jobs import DueJob
from flow_engine.ports.outbound import OutboundSender
from flow_engine.ports.telemetry import Observer, Unobserved
from flow_engine.runtime import storage
from flow_engine.runtime.agent_data import told_of_advance
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.mining_state import MiningState
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.privacy import masked_event
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.session import Contact
from flow_engine.use_cases.versions_in_use import Versions

ATTEMPTS = 24
FORMER_BYTES = 4 * 1024
"""What a conversation that was started anew takes beside its messages until it is concluded."""

ARCHIVE_AFTER_S = 2.0
"""After the last commit: what is heard and concluded at the end makes one archiving of several."""

_Result = TypeVar("_Result")

QUIET_BYTES = 64 * 1024 * 1024
"""Of replies that a process keeps to answer with again."""


class ArchivedConversations(Protocol):
    """What is kept of conversations that are over, as an erasure sees it. Raises RetryLater
    `flow_store_unavailable`."""

    async def has(self, conversation: ConversationRef) -> bool: ...

    async def remove(self, conversation: ConversationRef) -> None:
        """It and what was forked from it, so that nothing of what it was until now comes back."""
        ...


class NoArchive:
    """Implements `ArchivedConversations` where nothing is archived. Never raises."""

    async def has(self, conversation: ConversationRef) -> bool:
        return False

    async def remove(self, conversation: ConversationRef) -> None:
        return


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
    archive: ArchivedConversations = field(default_factory=NoArchive)


class Transition(msgspec.Struct, frozen=True):
    """A runner after its moves, and what else goes into the commit.

    `asked` is what its entry in the journal tells of it.
    `guards_memory`: the decision was taken on the memory, so the commit must not pass over a write to
    it. `turn`: a message to remember once; `late`: one to know again only; `on_seen` answers when it was
    remembered before.
    `forked_from`: a new conversation begins with the runner's state; nothing of it is told outside.
    """

    runner: ConversationalFlowRunner
    reply: storage.ReplyTemplate
    asked: storage.JournalInput
    guards_memory: bool = False
    set_tools: Mapping[str, MemoryEntry] | None = None
    added_variables: Mapping[str, MemoryEntry] | None = None
    turn: DialogueTurn | None = None
    late: DialogueTurn | None = None
    on_seen: storage.ReplyTemplate | None = None
    events: tuple[bytes, ...] = ()
    jobs: tuple[DueJob, ...] = ()
    set_mined: Mapping[str, MemoryEntry] | None = None
    mining: MiningState | None = None
    rewrite_previous_contacts: bool = False
    forget_former: str | None = None
    forked_from: Fork | None = None


@dataclass(frozen=True, slots=True)
class Decision(Generic[_Result]):
    """What background work has decided, and what is to be committed for it; None: nothing is to do."""

    result: _Result
    transition: Transition | None = None


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
            _check_size(transition)
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
            _check_size(transition)
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
            _check_size(decision.transition)
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


def _check_size(transition: Transition) -> None:
    """What would be stored, roughly: sizes of texts, not of their encoding."""
    runner = transition.runner
    if not (transition.set_tools or runner.changed):
        return
    if runner.loaded.session is None and transition.forked_from is None:
        return  # one that begins has caller data and texts, each with a bound far below
    most = storage.MAX_STATE_BYTES - storage.MAX_TURN_BYTES
    if _at_most(transition) <= most:
        return
    entries = {**runner.memory, **(transition.set_tools or {})}
    task, former = runner.session.task, runner.loaded.former
    size = sum(
        rough_size(part)
        for part in (
            *(contact.data for contact in runner.session.contacts.values()),
            *(entry.value for entry in entries.values()),
            *(contact.resume for contact in runner.previous_contacts),
            *(task.global_prompt, task.prompt, task.descriptions),
            runner.tenant,
        )
    ) + sum(other.turn_bytes + FORMER_BYTES for other in former)
    if size > most:
        message = f"a conversation holds at most {most} bytes of caller data, variables and texts"
        raise CorrectTheInput.breach("conversation_too_large", message)


def _at_most(transition: Transition) -> int | float:
    """A bound of the size that is had without a look at what was stored before: looking at every text takes
    longer than a step. Its rough size is at most twice its bytes, and that of a list at most its JSON's."""
    runner, loaded = transition.runner, transition.runner.loaded
    before = loaded.session
    if before is not None and not loaded.stored_bytes:
        return inf
    texts = 0
    parts: list[object] = [entry.value for entry in (transition.set_tools or {}).values()]
    if runner.session is not before:
        contacts: Mapping[str, Contact] = {} if before is None else before.contacts
        for contact_id, contact in runner.session.contacts.items():
            if contact_id not in contacts or contact.data is not contacts[contact_id].data:
                parts.append(contact.data)
        task = runner.session.task
        if before is None or task is not before.task:
            texts += len(task.global_prompt) + len(task.prompt) + 2 * _TEXT_REST
            parts.append(task.descriptions)
    if runner.tenant is not loaded.tenant:
        parts.append(runner.tenant)
    if runner.memory is not loaded.merged:
        parts.append([entry.value for entry in runner.memory.values() if entry.value is not None])
        texts += _NULL_SIZE * len(runner.memory)
    if runner.previous_contacts is not loaded.previous_contacts:
        parts += [contact.resume for contact in runner.previous_contacts]
    former = sum([other.turn_bytes + FORMER_BYTES for other in loaded.former])
    return 2 * loaded.stored_bytes + former + texts + len(msgspec.json.encode(parts))


_NULL_SIZE = 2
"""What `rough_size` counts for no value."""
_TEXT_REST = 2
"""What `rough_size` counts for a text beside its characters."""


def to_changes(
    transition: Transition,
    idempotency: IdempotencyKey | None,
    expected_state: bytes = b"",
    *,
    by: str = ENGINE,
) -> storage.Changes:
    runner = transition.runner
    loaded = runner.loaded
    anew = runner.new_memory is not None or transition.rewrite_previous_contacts
    known = 0 if anew else len(loaded.previous_contacts)
    forked = transition.forked_from is not None
    events = () if forked else (*runner.outbox, *transition.events)
    secrets = runner.secrets(transition.set_tools, transition.set_mined) if events else None
    if secrets is not None:
        events = tuple(masked_event(event, secrets) for event in events)
    jobs = [] if forked else [*runner.jobs, *transition.jobs]
    if events:
        jobs.append(runner.due("relay"))
    if runner.session.closed and not forked:
        jobs.append(runner.due("archive", after_s=ARCHIVE_AFTER_S))
    return storage.Changes(
        expected_revision=0 if forked else loaded.revision,
        expected_memory_revision=loaded.memory_revision if transition.guards_memory else None,
        expected_state=expected_state,
        lifetime_s=runner.flow.lifetime_s,
        reply=transition.reply,
        now=runner.now,
        content_hash=runner.flow.content_hash,
        session=runner.session if runner.changed or forked else None,
        new_memory=runner.new_memory,
        set_tools=transition.set_tools or {},
        set_mined=transition.set_mined or {},
        mining=transition.mining,
        expected_mining_revision=None if transition.mining is None else loaded.mining_revision,
        rewrite_previous_contacts=transition.rewrite_previous_contacts,
        added_variables=transition.added_variables or {},
        previous_contacts=runner.previous_contacts[known:],
        turn=transition.turn,
        late=transition.late,
        former=runner.former,
        forget_former=transition.forget_former,
        on_seen=transition.on_seen,
        events=events,
        jobs=tuple(jobs),
        idempotency=idempotency,
        journal=_noted(runner, transition, by),
        forked=msgspec.structs.replace(loaded, session=runner.session) if forked else None,
        composed=None if runner.new_memory is None else loaded.composed,
    )


def _noted(runner: ConversationalFlowRunner, transition: Transition, by: str) -> storage.JournalNote:
    asked, fork = transition.asked, transition.forked_from
    outcome: dict[str, object] = {"result": True, "task": runner.task.name}
    if runner.has_task_validation_error():
        outcome.update(result=False, code=runner.get_task_validation_error().code)
    elif runner.text_refusal is not None:
        outcome.update(result=False, code=runner.text_refusal.code)
    if asked.heard:
        outcome.update(asked.heard)
    if runner.advanced is not None:
        outcome.update(told_of_advance(runner))
    if runner.contradicted:
        outcome["conflicts"] = runner.contradicted
    before = None if runner.new_memory is not None or fork is not None else runner.loaded.session
    head = None
    after = runner.session
    if (  # a list tells something else of the conversation
        before is None
        or before.configuration is not after.configuration
        or before.version_id != after.version_id
        or before.active_contact_id != after.active_contact_id
    ):
        head = runner.head(cast("str | None", asked.fields.get("tag")), fork)
    return storage.JournalNote(by, asked, outcome, before, head)


def count_moves(runner: ConversationalFlowRunner, observer: Observer) -> None:
    """Changes of task by their outcome, contacts by their channel and how they ended."""
    if not runner.changed:
        return
    before, after = runner.loaded.session, runner.session
    if runner.has_task_validation_error():
        observer.count("task_changes", outcome=runner.get_task_validation_error().code)
    elif before is None or runner.new_memory is not None or before.version_id != after.version_id:
        pass  # one that begins, or moves to another version, changes no task
    elif before.entered != after.entered:
        observer.count("task_changes", outcome="accepted")
    active_before = None if before is None else before.active_contact_id
    if active_before is not None and active_before != after.active_contact_id:
        ended = after.contacts[active_before]
        observer.count("contacts_ended", channel=ended.channel, how=ended.status)
    started = after.active_contact
    if started is not None and (active_before != after.active_contact_id or runner.new_memory is not None):
        observer.count("contacts_started", channel=started.channel)
