"""MemoryManager: the conversation's store on Redis, one script to read and one to commit (F15, F16).

The two scripts are the only way in and out. `load` sees one instant, never half of another writer's
commit; `commit` compares the revision and writes everything, or nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, cast
from uuid import uuid4

import msgspec
import orjson

from flow_engine.errors import CallTheOperator, ReloadAndDecide, RetryLater, unknown_conversation
from flow_engine.idempotency import IdempotencyKey
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job, JobKind
from flow_engine.runtime import storage
from flow_engine.runtime.memory import (
    MemoryEntry,
    PreviousContact,
    decode_previous_contact,
    merge,
)
from flow_engine.runtime.mining_state import NOTHING_MINED, decode_mining
from flow_engine.runtime.session import Session, decode_session
from memory import codec
from memory.commit import HELD_ARGUMENTS, commit_arguments, weight
from memory.driver import Driver, KeyNames, Naming, Script
from memory.erasing import EARLY_JOB_DELAY, Eraser
from memory.held import HeldConversations
from memory.keys import (
    ERASING_END,
    JOBS_KEY,
    NAMES_KEPT,
    STATE,
    ConversationKeys,
    definition_key,
    due_score,
    index_key,
    reply_end,
)

FORKS_LIFETIME_S = 400 * 24 * 60 * 60
"""For how long after the last fork the forks of a conversation are known, in seconds."""

DEFINITION_RENEWED_EVERY = timedelta(minutes=1)
"""On a cluster, by a process, while conversations of a definition are written. It is kept for twice as long
as they are."""

_FOUND_UNDONE: tuple[JobKind, ...] = ("relay", "mine")

_LOAD = Script.read("load")
_NO_REPLY = reply_end(None)
_READ = Naming({name: STATE[name] for name in _LOAD.keys[:-1]})


@lru_cache(maxsize=NAMES_KEPT)
def _written(tenant_id: str, content_hash: str, together: bool) -> tuple[str, Naming]:
    """The key of a definition, and those of a commit on it; `together`: one server holds every slot."""
    definition = definition_key(tenant_id, content_hash)
    others = {"definition": definition, "jobs": JOBS_KEY, "index": index_key(tenant_id)}
    return definition, Naming({**STATE, "erasing": ERASING_END}, others if together else {})


def _keys_to_write(
    keys: ConversationKeys, conversation: ConversationRef, changes: storage.Changes, together: bool
) -> tuple[str, KeyNames]:
    definition, naming = _written(conversation.tenant_id, changes.content_hash, together)
    reply_to = _NO_REPLY if changes.idempotency is None else reply_end(changes.idempotency.key)
    return definition, KeyNames(naming, keys.tag, reply_to)


class MemoryManager:
    """Implements `ConversationMemory`, and what single reads and writes of a conversation are called.

    Raises what `Driver` raises, and CallTheOperator where stored data do not fit their format. What is stored
    is JSON, but for ids.
    """

    def __init__(self, driver: Driver, *, held: HeldConversations | None = None) -> None:
        self._driver = driver
        self._held = HeldConversations() if held is None else held
        self._process = uuid4().hex.encode()
        self._commits = 0
        self._renewed: dict[str, datetime] = {}  # definitions, on a cluster
        self._commit = Script.read("commit")
        self._eraser = Eraser(driver)

    async def load(
        self,
        conversation: ConversationRef,
        *,
        idempotency: IdempotencyKey | None = None,
        with_turns: bool = False,
    ) -> storage.LoadedConversation:
        keys = ConversationKeys.of(conversation)
        reply_to = None if idempotency is None else reply_end(idempotency.key)
        held = self._held.get(conversation)
        found = await self._driver.run(
            _LOAD,
            KeyNames(_READ, keys.tag, reply_to),
            {"with_turns": b"1" if with_turns else b"0", "known": b"" if held is None else held.state},
        )
        if isinstance(found, bytes):  # it is the state that is held, and nothing else was asked for
            return cast("storage.LoadedConversation", held)
        state, turns, former, reply, *parts = found
        if parts:
            held = self._decode(conversation, keys, state, parts)
        elif not state:
            self._held.forget(conversation)
            held = None
        replay = None if reply is None or idempotency is None else codec.decode_reply(reply)
        if replay is not None:
            # A reply is repeated: its commit may not be with the replicas, or have died before its jobs.
            await self._driver.confirm(keys.confirmation)
            if not self._driver.single_node:
                now = datetime.now(UTC)
                await self._write_down([DueJob(Job(kind, conversation), now) for kind in _FOUND_UNDONE])
        if held is None or held.session is None:
            return storage.LoadedConversation(replay=replay)
        if replay is None and not with_turns:
            return held
        return msgspec.structs.replace(
            held,
            replay=replay,
            turns=tuple(map(codec.decode_turn, turns)),
            former=tuple(map(codec.decode_former, former)),
        )

    def _decode(
        self, conversation: ConversationRef, keys: ConversationKeys, state: bytes, parts: Sequence[Any]
    ) -> storage.LoadedConversation:
        head, tenant, mined, tools, previous = parts
        session, memory_revision, memory_updated_at, last_user_turn, mining, mining_revision = head
        if session is None:
            self._held.forget(conversation)
            return storage.LoadedConversation()
        if tenant is None or bool(mined) != bool(tools):  # both hashes hold every variable
            raise CallTheOperator(
                "conversation_incomplete", f"the keys {keys.tag} are partly gone: something else deleted them"
            )
        mined_entries, tools_entries = codec.decode_entries(mined, tools)
        rest = len(b"".join((tenant, *mined, *tools, *previous, mining or b"")))  # a third of adding lengths
        loaded = storage.LoadedConversation(
            session=decode_session(session),
            memory_revision=int(memory_revision),
            memory_updated_at=None if memory_updated_at is None else codec.decode_instant(memory_updated_at),
            mined=mined_entries,
            tools=tools_entries,
            tenant=orjson.loads(tenant),
            previous_contacts=tuple(map(decode_previous_contact, previous)),
            last_user_turn=None if last_user_turn is None else last_user_turn.decode(),
            mining=NOTHING_MINED if mining is None else decode_mining(mining),
            mining_revision=int(mining_revision or 0),
            state=state,
            stored_bytes=len(session) + rest,
        )
        self._held.read(conversation, loaded, len(session), rest)
        return loaded

    @property
    def holding(self) -> HeldConversations:
        return self._held

    def held(self, conversation: ConversationRef) -> storage.LoadedConversation | None:
        return self._held.get(conversation)

    def may_be_new(self, conversation: ConversationRef) -> bool:
        # A cluster is told of jobs and of the list's new entry before the commit.
        return self._driver.single_node and self._held.get(conversation) is None

    async def commit(self, conversation: ConversationRef, changes: storage.Changes) -> storage.Outcome:
        single_node = self._driver.single_node
        keys = ConversationKeys.of(conversation)
        definition, script_keys = _keys_to_write(keys, conversation, changes, single_node)
        hurried = () if single_node else await self._announced(conversation, changes)
        if changes.forked is not None:
            await self._note_fork(conversation, changes)
        self._commits += 1
        stamp = b"%b%x" % (self._process, self._commits)
        arguments = commit_arguments(conversation, changes, stamp)
        verdict, *rest = await self._driver.run(self._commit, script_keys, arguments, confirmed=True)
        if not single_node:
            await self._write_down(hurried)  # whatever the verdict: an earlier commit may have died here
        match verdict:
            case b"lost":
                return storage.Conflict(self._decode(conversation, keys, rest[0], rest[1:]) if rest else None)
            case b"erasing":
                raise RetryLater("memory_unavailable", "what was stored under this id is still being erased")
            case b"seen":
                await self._driver.confirm(keys.confirmation)
                return storage.DuplicateMessage()
            case b"replayed":
                await self._driver.confirm(keys.confirmation)
                return storage.AlreadyAnswered(codec.decode_reply(rest[0]))
            case _:
                memory_revision, present, state_before, state = rest
                self._held.written(
                    conversation,
                    changes,
                    session_bytes=0 if changes.session is None else len(cast("bytes", arguments["session"])),
                    rest_bytes=weight(arguments, HELD_ARGUMENTS),
                    memory_revision=int(memory_revision),
                    state_before=state_before or changes.expected_state,
                    state=state,
                )
                if not single_node:
                    present = await self._renew(definition, changes)
        reply = changes.reply
        return storage.Committed(reply.body(int(memory_revision)), reply.status, bool(present))

    async def _announced(self, conversation: ConversationRef, changes: storage.Changes) -> Sequence[DueJob]:
        """Jobs and the list's new entry, which a cluster has in other slots, before the commit: else a
        process that dies in between leaves a cause without its job. Not due yet, else a worker finds nothing
        to do, and forgets it: those that are to be done sooner once the commit is there."""
        early = changes.now + EARLY_JOB_DELAY
        await self._write_down([DueJob(due.job, max(due.due_at, early)) for due in changes.jobs])
        begins = changes.new_memory is not None or changes.forked is not None
        if begins and changes.session is not None and changes.journal is not None:
            started = {conversation.conversation_id: float(due_score(changes.session.started_at))}
            await self._driver.zadd(index_key(conversation.tenant_id), started)
        return [due for due in changes.jobs if due.due_at < early]

    async def init(
        self, conversation: ConversationRef, session: Session, memory: storage.NewMemory, *, lifetime_s: int
    ) -> bool:
        """Store a conversation at its start. False when there is one already."""
        changes = storage.Changes(
            expected_revision=0,
            lifetime_s=lifetime_s,
            reply=storage.ReplyTemplate(b""),
            now=session.started_at,
            content_hash=session.content_hash,
            session=session,
            new_memory=memory,
        )
        return isinstance(await self.commit(conversation, changes), storage.Committed)

    async def get_snapshot(self, conversation: ConversationRef) -> Session | None:
        return (await self.load(conversation)).session

    async def set_snapshot(self, conversation: ConversationRef, session: Session, *, lifetime_s: int) -> None:
        """Store the next revision of a session. Raises as `set_vars`."""
        await self._change(conversation, lifetime_s, session.started_at, session=session)

    async def get_tenant_data(self, conversation: ConversationRef) -> Mapping[str, object]:
        """Empty for a conversation that is not stored. JSON values."""
        return (await self.load(conversation)).tenant

    async def get_vars(
        self, conversation: ConversationRef, var_ids: Collection[str] | None = None
    ) -> Mapping[str, MemoryEntry]:
        """The merged memory (F18), or what it has of `var_ids`. Values are JSON. Raises CallTheOperator
        `memory_unreadable`."""
        loaded = await self.load(conversation)
        merged = merge(loaded.mined, loaded.tools)
        return merged if var_ids is None else {name: merged[name] for name in var_ids if name in merged}

    async def set_vars(
        self,
        conversation: ConversationRef,
        entries: Mapping[str, MemoryEntry],
        *,
        lifetime_s: int,
        now: datetime,
    ) -> None:
        """Store what a tool has found. `now` is in UTC.

        Raises LookElsewhere `conversation_unknown` and ReloadAndDecide `revision_conflict`.
        """
        await self._change(conversation, lifetime_s, now, set_tools=entries)

    async def get_contacts_history(self, conversation: ConversationRef) -> Sequence[PreviousContact]:
        """Oldest first."""
        return (await self.load(conversation)).previous_contacts

    async def add_previous_contact(
        self, conversation: ConversationRef, contact: PreviousContact, *, lifetime_s: int
    ) -> None:
        """Raises as `set_vars`."""
        await self._change(conversation, lifetime_s, contact.date, previous_contacts=(contact,))

    async def _change(
        self, conversation: ConversationRef, lifetime_s: int, now: datetime, **fields: Any
    ) -> None:
        loaded = await self.load(conversation)
        if loaded.session is None:
            raise unknown_conversation(conversation.conversation_id)
        content_hash = loaded.session.content_hash
        changes = storage.Changes(
            loaded.revision, lifetime_s, storage.ReplyTemplate(b""), now, content_hash, **fields
        )
        if not isinstance(await self.commit(conversation, changes), storage.Committed):
            raise ReloadAndDecide("revision_conflict", "another writer was faster: read again, then decide")

    async def trace_of(self, job: Job) -> str | None:
        """The `traceparent` of the request that scheduled a job last; None when nothing was traced then."""
        snapshot = ConversationKeys.of(job.conversation).named["snapshot"]
        trace = await self._driver.hget(snapshot, f"trace:{job.kind}")
        return None if trace is None else trace.decode()

    async def _note_fork(self, conversation: ConversationRef, changes: storage.Changes) -> None:
        """Before the commit, so that an erasure of the original finds every fork that there is."""
        head = None if changes.journal is None else changes.journal.head
        fork = None if head is None else head.forked_from
        if fork is not None:
            forks = ConversationKeys.of(ConversationRef(conversation.tenant_id, fork.conversation_id)).forks
            await self._driver.zadd(forks, {conversation.conversation_id: float(due_score(changes.now))})
            await self._driver.expire(forks, FORKS_LIFETIME_S)

    async def erase(self, conversation: ConversationRef, erasure: storage.Erasure) -> bool:
        erased = await self._eraser.erase(conversation, erasure)
        self._held.forget(conversation)
        return erased

    async def finish_erasure(
        self, conversation: ConversationRef, now: datetime, elsewhere: storage.RemoveElsewhere
    ) -> None:
        await self._eraser.finish(conversation, now, elsewhere)

    async def _renew(self, definition: str, changes: storage.Changes) -> bool:
        """Whether it is there. What was there a moment ago, is."""
        renewed, every = self._renewed.get(definition), timedelta(seconds=changes.lifetime_s)
        if renewed is not None and changes.now - renewed < min(every, DEFINITION_RENEWED_EVERY):
            return True
        if len(self._renewed) >= NAMES_KEPT:
            self._renewed.clear()
        present = await self._driver.expire(definition, 2 * changes.lifetime_s)
        if present:
            self._renewed[definition] = changes.now
        return present

    async def _write_down(self, jobs: Sequence[DueJob]) -> None:
        if jobs:
            scores = {due.job.name: float(due_score(due.due_at)) for due in jobs}
            await self._driver.zadd(JOBS_KEY, scores, confirmed=True)


class RedisDefinitions:
    """Implements `DefinitionStore`: version documents by content hash (F13). Bytes of JSON, for `lifetime_s`
    seconds. Raises RetryLater when Redis does not answer."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def get(self, tenant_id: str, content_hash: str) -> bytes | None:
        return await self._driver.get(definition_key(tenant_id, content_hash))

    async def put(self, tenant_id: str, content_hash: str, document: bytes, lifetime_s: int) -> None:
        key = definition_key(tenant_id, content_hash)
        await self._driver.set(key, document, lifetime_s=2 * lifetime_s)
