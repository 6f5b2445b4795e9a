"""MemoryManager: the conversation's store on Redis, one script to read and one to commit (F15, F16).

The two scripts are the only way in and out. `load` sees one instant, never half of another writer's
commit; `commit` compares the revision and writes everything, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import orjson

from flow_engine.errors import CallTheOperator
from flow_engine.idempotency import IdempotencyKey
from flow_engine.ports.dialogue import ConversationRef, is_user_turn
from flow_engine.ports.jobs import Job
from flow_engine.runtime.memory import (
    MemoryEntry,
    decode_entry,
    decode_previous_contact,
    encode_entry,
    encode_previous_contact,
)
from flow_engine.runtime.mining_state import MiningState, decode_mining, encode_mining
from flow_engine.runtime.session import decode_session, encode_session
from flow_engine.runtime.storage import (
    AlreadyAnswered,
    Changes,
    Committed,
    Conflict,
    DuplicateMessage,
    LoadedConversation,
    Outcome,
)
from memory.codec import decode_reply, decode_turn, encode_reply_head, encode_turn
from memory.instants import decode_instant, encode_instant
from memory.keys import JOBS_KEY, ConversationKeys, definition_key, due_score
from memory.script import Script, ScriptRunner
from memory.translate import store_errors_translated

REPLY_LIFETIME_S = 24 * 60 * 60
TURNS_KEPT = 1000
_NO_REPLY_KEY = "-"

_Value = TypeVar("_Value")


class RedisCommands(ScriptRunner, Protocol):
    """The part of a redis-py asyncio client, standalone or cluster, that the stores need."""

    async def get(self, name: str) -> Any: ...
    async def set(self, name: str, value: bytes, *, ex: int) -> Any: ...
    async def expire(self, name: str, time: int) -> Any: ...
    async def zadd(self, name: str, mapping: Mapping[str, float]) -> Any: ...
    async def hget(self, name: str, key: str) -> Any: ...


class MemoryManager:
    """Implements `ConversationMemory` over redis-py's asyncio client.

    `single_node` is True where one server holds every hash slot: the definition's expiry is then moved
    inside the commit instead of by a command of its own.
    """

    def __init__(self, redis: RedisCommands, *, single_node: bool = True) -> None:
        self._redis = redis
        self._single_node = single_node
        self._load = Script.read("load")
        self._commit = Script.read("commit")

    async def load(
        self,
        conversation: ConversationRef,
        *,
        idempotency: IdempotencyKey | None = None,
        with_turns: bool = False,
    ) -> LoadedConversation:
        keys = ConversationKeys.of(conversation)
        reply_key = keys.reply(idempotency.key if idempotency else _NO_REPLY_KEY)
        with store_errors_translated():
            found = await self._load.run(
                self._redis, (*keys.state[:6], reply_key), ("1" if with_turns else "0",)
            )
        head, tenant, mined, tools, previous, turns, reply = found
        session, memory_revision, memory_updated_at, last_user_turn, mining, mining_revision = head
        replay = None if reply is None or idempotency is None else decode_reply(reply)
        if session is None:
            return LoadedConversation(replay=replay)
        if tenant is None:
            raise CallTheOperator(
                "conversation_incomplete", f"the keys {keys.tag} are partly gone: something else deleted them"
            )
        return LoadedConversation(
            session=decode_session(session),
            memory_revision=int(memory_revision),
            memory_updated_at=None if memory_updated_at is None else decode_instant(memory_updated_at),
            mined=_fields(mined, decode_entry),
            tools=_fields(tools, decode_entry),
            tenant=orjson.loads(tenant),
            previous_contacts=tuple(map(decode_previous_contact, previous)),
            turns=tuple(map(decode_turn, turns)),
            last_user_turn=None if last_user_turn is None else last_user_turn.decode(),
            mining=MiningState() if mining is None else decode_mining(mining),
            mining_revision=int(mining_revision or 0),
            replay=replay,
        )

    async def commit(self, conversation: ConversationRef, changes: Changes) -> Outcome:
        keys = ConversationKeys.of(conversation)
        definition = definition_key(conversation.tenant_id, changes.content_hash)
        script_keys = (
            *keys.state,
            keys.reply(changes.idempotency.key if changes.idempotency else _NO_REPLY_KEY),
        )
        if self._single_node:
            script_keys = (*script_keys, definition, JOBS_KEY)
        with store_errors_translated():
            if not self._single_node:
                # Before the commit: a job without its cause finds nothing to do, a cause without job is lost.
                await self._write_down(changes)
            verdict, *rest = await self._commit.run(self._redis, script_keys, tuple(_arguments(changes)))
            match verdict:
                case b"lost":
                    return Conflict()
                case b"seen":
                    return DuplicateMessage()
                case b"replayed":
                    return AlreadyAnswered(decode_reply(rest[0]))
                case _:
                    present = bool(rest[1])
                    if not self._single_node:
                        present = bool(await self._redis.expire(definition, 2 * changes.lifetime_s))
                        await self._write_down(changes)  # a worker may have looked before there was a cause
        reply = changes.reply
        return Committed(reply.body(int(rest[0])), reply.status, present)

    async def trace_of(self, job: Job) -> str | None:
        """The `traceparent` of the request that scheduled a job last; None when nothing was traced then."""
        snapshot = ConversationKeys.of(job.conversation).state[0]
        with store_errors_translated():
            trace = await self._redis.hget(snapshot, f"trace:{job.kind}")
        return None if trace is None else trace.decode()

    async def _write_down(self, changes: Changes) -> None:
        if changes.jobs:
            await self._redis.zadd(JOBS_KEY, {d.job.name: due_score(d.due_at) for d in changes.jobs})


class RedisDefinitions:
    """Implements `DefinitionStore`: version documents by content hash (F13)."""

    def __init__(self, redis: RedisCommands) -> None:
        self._redis = redis

    async def get(self, tenant_id: str, content_hash: str) -> bytes | None:
        with store_errors_translated():
            return await self._redis.get(definition_key(tenant_id, content_hash))

    async def put(self, tenant_id: str, content_hash: str, document: bytes, lifetime_s: int) -> None:
        with store_errors_translated():
            await self._redis.set(definition_key(tenant_id, content_hash), document, ex=2 * lifetime_s)


def _fields(flat: Sequence[bytes], decode: Callable[[bytes], _Value]) -> Mapping[str, _Value]:
    return {name.decode(): decode(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _arguments(changes: Changes) -> Iterator[bytes | str | int]:
    """In the order in which commit.lua takes them."""
    reply, session, turn = changes.reply, changes.session, changes.turn
    memory_revision = changes.expected_memory_revision
    yield changes.expected_revision
    yield "" if memory_revision is None else memory_revision
    yield changes.lifetime_s
    yield 2 * changes.lifetime_s
    yield encode_reply_head(changes.idempotency.fingerprint, reply.status) if changes.idempotency else b""
    yield REPLY_LIFETIME_S
    yield reply.head
    yield "0" if reply.tail is None else "1"
    yield reply.tail or b""
    yield encode_instant(changes.now)
    yield "" if session is None else session.revision
    yield b"" if session is None else encode_session(session)
    yield "" if session is None else session.version_id
    yield turn.message_id if turn else ""
    yield encode_turn(turn) if turn else b""
    yield TURNS_KEPT
    yield _reply_when_seen(changes)
    yield "1" if turn is not None and is_user_turn(turn) else "0"
    expected_mining = changes.expected_mining_revision
    yield "" if expected_mining is None else expected_mining
    yield b"" if changes.mining is None else encode_mining(changes.mining)
    yield from _memory_arguments(changes)
    yield len(changes.events)
    yield from changes.events
    yield changes.trace or ""
    yield len(changes.jobs)
    for due in changes.jobs:
        yield due_score(due.due_at)
        yield due.job.name


def _reply_when_seen(changes: Changes) -> bytes:
    if changes.idempotency is None or changes.on_seen is None:
        return b""
    return encode_reply_head(changes.idempotency.fingerprint, changes.on_seen.status) + changes.on_seen.head


def _memory_arguments(changes: Changes) -> Iterator[bytes | str | int]:
    if changes.new_memory is None:
        yield "0"
    else:
        yield "1"
        yield orjson.dumps(changes.new_memory.tenant)
        yield from _counted_entries(changes.new_memory.variables)
    yield from _counted_entries(changes.added_variables)
    yield from _counted_entries(changes.set_tools)
    yield from _counted_entries(changes.set_mined)
    yield "1" if changes.rewrite_previous_contacts else "0"
    yield len(changes.previous_contacts)
    yield from map(encode_previous_contact, changes.previous_contacts)


def _counted_entries(entries: Mapping[str, MemoryEntry]) -> Iterator[bytes | str | int]:
    yield len(entries)
    for var_id, entry in entries.items():
        yield var_id
        yield encode_entry(entry)
