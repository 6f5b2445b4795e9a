"""The contract between a step and the store: what is read in one trip, what is committed at once.

A request reads everything it may need with `load`, decides without I/O, and hands one `Changes` to
`commit`, which takes effect as a whole or not at all (F15).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from flow_engine.idempotency import IdempotencyKey, KeptReply
from flow_engine.ports.dialogue import ConversationHead, ConversationRef, DialogueTurn, is_user_turn
from flow_engine.ports.jobs import DueJob
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.runtime.memory import MemoryEntry, PreviousContact, merge
from flow_engine.runtime.mining_state import NOTHING_MINED, MiningState
from flow_engine.runtime.session import Session

MAX_STATE_BYTES = 8 * 1024 * 1024
"""All that is stored of one conversation; a step that would store more is refused."""
MAX_TURN_BYTES = 3 * 1024 * 1024
"""The messages among it; the oldest make room for the newest."""
FORMER_TURNS_BYTES = 512 * 1024
"""The messages of all conversations that were started anew under one id and are not concluded yet."""


class ReplyTemplate(msgspec.Struct, frozen=True):
    """A reply of which every byte is known before the commit but the new memory revision.

    With `tail` set, the body is `head + str(memory revision) + tail`: writers of different variables
    then need no compare-and-set against one another.
    """

    head: bytes
    tail: bytes | None = None
    status: int = 200

    def body(self, memory_revision: int) -> bytes:
        return self.head if self.tail is None else self.head + str(memory_revision).encode() + self.tail


@dataclass(frozen=True, slots=True)
class FormerConversation:
    """A conversation that was started anew under its id, until its contacts are concluded (F39).

    `turns` are the newest whose texts FORMER_TURNS_BYTES hold, in bytes, beside those of other former
    conversations. `session` is without caller data and texts, which no conclusion is drawn from.
    """

    session: Session
    mining: MiningState
    turns: tuple[DialogueTurn, ...]

    @property
    def name(self) -> str:
        """Unique among the conversations of one id: its start in ms since 1970."""
        return str(int(self.session.started_at.timestamp() * 1000))

    @property
    def turn_bytes(self) -> int:
        return sum(len(turn.body) for turn in self.turns)

    @classmethod
    def of(cls, session: Session, loaded: LoadedConversation) -> FormerConversation:
        kept: list[DialogueTurn] = []
        left = FORMER_TURNS_BYTES - sum(other.turn_bytes for other in loaded.former)
        for turn in reversed(loaded.turns):
            left -= len(turn.body)
            if left < 0:
                break
            kept.append(turn)
        contacts = {
            id: contact.model_copy(update={"data": {}}) for id, contact in session.own_contacts.items()
        }
        task = session.task.model_copy(update={"global_prompt": "", "prompt": "", "descriptions": {}})
        active = session.active_contact_id if session.active_contact_id in contacts else None
        bare = session.model_copy(update={"contacts": contacts, "task": task, "active_contact_id": active})
        return cls(bare, loaded.mining, tuple(reversed(kept)))


class Composed(msgspec.Struct):
    """What steps and prompts of a conversation have made, each beside the very objects that it follows from:
    it is right while they are the same. None where nothing is made. `fits`: a session, and the version that
    it was found to fit. `merged`: mined and told memory, and what everybody reads of them."""

    fits: tuple[Session, CompiledFlow] | None = None
    merged: tuple[object, object, Mapping[str, MemoryEntry]] | None = None
    of_session: tuple[tuple[object, ...], tuple[object, ...], str] | None = None
    contact: tuple[object, object, str] | None = None
    table: tuple[tuple[object, ...], str] | None = None


class LoadedConversation(msgspec.Struct, frozen=True, eq=False):  # noqa: PLW1641
    """Everything stored of a conversation, read at one instant. Revision 0: nothing is stored.

    `turns` and `former` are read only when they are asked for. Times are in UTC, `tenant` is JSON. `state`
    names what is stored, opaque bytes; a commit that expects it takes effect on nothing else. `stored_bytes`
    is at least what it takes without messages, 0 where nobody knows. `composed` is handed on from step to
    step. Two are equal when the same is stored, whatever those three say.
    """

    session: Session | None = None
    memory_revision: int = 0
    memory_updated_at: datetime | None = None
    mined: Mapping[str, MemoryEntry] = {}
    tools: Mapping[str, MemoryEntry] = {}
    tenant: Mapping[str, object] = {}
    previous_contacts: tuple[PreviousContact, ...] = ()
    turns: tuple[DialogueTurn, ...] = ()
    last_user_turn: str | None = None
    mining: MiningState = NOTHING_MINED
    mining_revision: int = 0
    replay: KeptReply | None = None
    former: tuple[FormerConversation, ...] = ()
    state: bytes = b""
    stored_bytes: int = 0
    composed: Composed = msgspec.field(default_factory=Composed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LoadedConversation):
            return NotImplemented
        mine, others = (
            msgspec.structs.replace(each, state=b"", stored_bytes=0, composed=_NOTHING)
            for each in (self, other)
        )
        return msgspec.structs.astuple(mine) == msgspec.structs.astuple(others)

    @property
    def merged(self) -> Mapping[str, MemoryEntry]:
        """The memory as everybody reads it (F18), by variable id."""
        known = self.composed.merged
        if known is None or known[0] is not self.mined or known[1] is not self.tools:
            known = self.composed.merged = self.mined, self.tools, merge(self.mined, self.tools)
        return known[2]

    def merge_after(self, before: LoadedConversation, written: Collection[str]) -> None:
        """Take up what was merged of `before`; only the variables `written`, by their ids, are others."""
        known = before.composed.merged
        if known is None or known[0] is not before.mined or known[1] is not before.tools:
            return
        merged = known[2]
        if not merged.keys() >= {*written}:
            return
        if written:
            heard = {id: self.mined[id] for id in written if id in self.mined}
            told = {id: self.tools[id] for id in written if id in self.tools}
            merged = {**merged, **merge(heard, told)}
        self.composed.merged = self.mined, self.tools, merged

    @property
    def revision(self) -> int:
        return 0 if self.session is None else self.session.revision

    def after(
        self,
        changes: Changes,
        *,
        memory_revision: int | None = None,
        state: bytes = b"",
        stored_bytes: int = 0,
    ) -> LoadedConversation:
        """What a store holds once it has taken the changes, as commit.lua writes them, but for what it keeps
        of former conversations and of replies. Nothing is checked. `memory_revision` is the next one if it is
        not given."""
        new, turn, before = changes.new_memory, changes.turn, self
        added, set_mined, set_tools = changes.added_variables, changes.set_mined, changes.set_tools
        if new is not None:
            before = LoadedConversation(
                memory_revision=self.memory_revision + 1 if self.revision else 0,
                mined=new.variables,
                tools=new.variables,
                tenant=new.tenant,
                composed=changes.composed or Composed(),
            )
        written = bool(set_tools or set_mined)
        contacts = () if changes.rewrite_previous_contacts else before.previous_contacts
        after = LoadedConversation(
            session=changes.session or self.session,
            memory_revision=before.memory_revision + written if memory_revision is None else memory_revision,
            memory_updated_at=changes.now if written else before.memory_updated_at,
            mined=_hash(before.mined, added, set_mined) if added or set_mined else before.mined,
            tools=_hash(before.tools, added, set_tools) if added or set_tools else before.tools,
            tenant=before.tenant,
            previous_contacts=contacts + changes.previous_contacts,
            turns=before.turns if turn is None else (*before.turns, turn),
            last_user_turn=before.last_user_turn if turn is None or not is_user_turn(turn) else turn.name,
            mining=changes.mining or before.mining,
            mining_revision=before.mining_revision + (changes.mining is not None),
            state=state,
            stored_bytes=stored_bytes,
            composed=before.composed,
        )
        if not added:
            after.merge_after(before, (*set_tools, *set_mined))
        return after


def _hash(
    stored: Mapping[str, MemoryEntry], added: Mapping[str, MemoryEntry], put: Mapping[str, MemoryEntry]
) -> Mapping[str, MemoryEntry]:
    fresh = {id: entry for id, entry in added.items() if id not in stored} if added else added
    return {**stored, **fresh, **put}


_NOTHING = Composed()


class NewMemory(msgspec.Struct, frozen=True):
    """A fresh start: both hashes hold every variable empty (F17), all that was there is dropped. `tenant` is
    JSON."""

    tenant: Mapping[str, object]
    variables: Mapping[str, MemoryEntry]


Operation = Literal[
    "handle-new-contact",
    "change-task",
    "memory",
    "handle-utterance",
    "handle-end-contact",
    "handle-human-task",
    "prompt",
    "extraction",
    "advance",
    "conclusion",
    "expiry",
    "routing",
    "migration",
    "fork",
    "rollback",
]
"""What made a commit: the last segment of a route's path, or the background work."""


class JournalInput(msgspec.Struct, frozen=True):
    """What a commit was asked for: `fields` are those of the request, as JSON. `rationale` is the model's
    reason; `heard` is what others answered meanwhile, which no state tells: a summary, a handler's verdict.
    As JSON."""

    op: Operation
    fields: Mapping[str, object]
    rationale: str | None = None
    heard: Mapping[str, object] | None = None


class JournalNote(msgspec.Struct, frozen=True):
    """What a commit tells the journal besides what it changes. `outcome` is JSON, `before` the session that
    the commit was decided on, None at a start. `head` is what a list tells of the conversation from now on;
    None where the commit leaves that as it is."""

    by: str
    asked: JournalInput
    outcome: Mapping[str, object]
    before: Session | None
    head: ConversationHead | None


class Changes(msgspec.Struct, frozen=True):
    """One atomic commit.

    Taken only if the stored revision is `expected_revision` (0: nothing stored) and, where they are given,
    the memory revision is `expected_memory_revision` and the whole state `expected_state`. `lifetime_s` is
    the new expiry of every key of the conversation. A `turn` that is stored already makes the whole commit
    a no-op, but that `on_seen`, a reply without tail, is what the request's key has got. So does a `late`
    one, of what was before the conversation was started anew: it is known again, and not kept. `mining` is
    taken only over `expected_mining_revision`. With `rewrite_previous_contacts` the list is replaced, not
    added to. `added_variables` are put into both hashes where they are not yet (F17). `trace` is the
    `traceparent` that the work on `jobs` continues. `former` is kept beside what starts anew until a commit
    names it in `forget_former`. `lifetime_s` is in seconds, `now` in UTC; `events` are JSON texts.
    `journal` makes the commit an entry of the journal. `forked` is the whole state that a new conversation
    begins with, messages included; nothing else is set then but the session. `composed` is what the step has
    made that begins a conversation, for who holds it.
    """

    expected_revision: int
    lifetime_s: int
    reply: ReplyTemplate
    now: datetime
    content_hash: str
    expected_memory_revision: int | None = None
    expected_state: bytes = b""
    session: Session | None = None
    new_memory: NewMemory | None = None
    set_tools: Mapping[str, MemoryEntry] = {}
    added_variables: Mapping[str, MemoryEntry] = {}
    set_mined: Mapping[str, MemoryEntry] = {}
    mining: MiningState | None = None
    expected_mining_revision: int | None = None
    previous_contacts: tuple[PreviousContact, ...] = ()
    rewrite_previous_contacts: bool = False
    turn: DialogueTurn | None = None
    late: DialogueTurn | None = None
    on_seen: ReplyTemplate | None = None
    events: tuple[bytes, ...] = ()
    jobs: tuple[DueJob, ...] = ()
    trace: str | None = None
    former: FormerConversation | None = None
    forget_former: str | None = None
    idempotency: IdempotencyKey | None = None
    journal: JournalNote | None = None
    forked: LoadedConversation | None = None
    composed: Composed | None = None


class Committed(msgspec.Struct, frozen=True):
    """`definition_present` is False when the compiled definition's own key has gone (F13). `body` are the
    bytes to send."""

    body: bytes
    status: int
    definition_present: bool


class AlreadyAnswered(msgspec.Struct, frozen=True):
    """Another request with the same key was faster; this is its reply."""

    reply: KeptReply


class Conflict(msgspec.Struct, frozen=True):
    """Another writer was faster: load again and decide again. `newer` is what was found in place of the
    state that was expected, if one was."""

    newer: LoadedConversation | None = None


class DuplicateMessage(msgspec.Struct, frozen=True):
    """The turn's message is stored already: nothing was changed."""


Outcome = Committed | AlreadyAnswered | Conflict | DuplicateMessage


RemoveElsewhere = Callable[[ConversationRef], Awaitable[None]]
"""Removes what another store has of a conversation; it may be called again."""


async def nothing_elsewhere(conversation: ConversationRef) -> None:
    return


@dataclass(frozen=True, slots=True)
class Erasure:
    """`event` is all that is told of it afterwards; `receipt` is the reply's body, kept a day. `archived`: it
    is known elsewhere, so there is something to be told of although this store may have nothing. `elsewhere`
    is called before another conversation may begin under the id."""

    event: bytes
    receipt: bytes
    now: datetime
    idempotency: IdempotencyKey | None = None
    archived: bool = False
    elsewhere: RemoveElsewhere = nothing_elsewhere


class ConversationMemory(Protocol):
    """The conversations' store. Raises RetryLater `memory_unavailable` when it does not answer."""

    async def load(
        self,
        conversation: ConversationRef,
        *,
        idempotency: IdempotencyKey | None = None,
        with_turns: bool = False,
    ) -> LoadedConversation: ...

    def held(self, conversation: ConversationRef) -> LoadedConversation | None:
        """What this process has read or written last of a conversation, if it holds that still: without
        messages, and perhaps not what is stored any more. Decide on it only what is committed with its
        `state` expected."""
        ...

    def may_be_new(self, conversation: ConversationRef) -> bool:
        """Whether a request that may begin the conversation is best decided as if nothing were stored: it is
        not held, and a commit that is lost leaves nothing behind."""
        ...

    async def commit(self, conversation: ConversationRef, changes: Changes) -> Outcome: ...

    async def erase(self, conversation: ConversationRef, erasure: Erasure) -> bool:
        """Delete every key, kept reply, pending job, dead letter and waiting event of a conversation.

        False when nothing is stored. A repetition finds the receipt by `load` with its idempotency key. The
        receipt is kept for 24 hours. No other conversation begins under the id until all is gone: a commit
        raises RetryLater `memory_unavailable`. One that is cut off is finished by a job `erase`.
        """
        ...

    async def finish_erasure(
        self, conversation: ConversationRef, now: datetime, elsewhere: RemoveElsewhere
    ) -> None:
        """Remove what an erasure that was cut off has left; nothing where none was. `now` is in UTC."""
        ...


def turns_of_contact(turns: Sequence[DialogueTurn], contact_id: str) -> tuple[DialogueTurn, ...]:
    return tuple(turn for turn in turns if turn.contact_id == contact_id)
