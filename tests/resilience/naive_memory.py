"""A store that gets, modifies and sets: what the verifier has to catch.

Every part of a commit is written, as by the atomic store, under the same keys. What is missing is any
comparison with what another writer has done since the load.
"""

from __future__ import annotations

from typing import Any

import orjson

from flow_engine.idempotency import IdempotencyKey
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.memory import MemoryEntry, encode_entry, encode_previous_contact
from flow_engine.runtime.session import encode_session
from flow_engine.runtime.storage import Changes, Committed, LoadedConversation, Outcome
from memory.codec import encode_reply_head, encode_turn
from memory.connection import RedisMemory
from memory.keys import ConversationKeys


class NaiveMemory:
    """Has the shape of `ConversationMemory`, and none of its promises."""

    def __init__(self, redis: RedisMemory) -> None:
        self._client: Any = redis.driver.client
        self._reading = redis.conversations

    async def load(
        self,
        conversation: ConversationRef,
        *,
        idempotency: IdempotencyKey | None = None,
        with_turns: bool = False,
    ) -> LoadedConversation:
        return await self._reading.load(conversation, idempotency=idempotency, with_turns=with_turns)

    def held(self, conversation: ConversationRef) -> LoadedConversation | None:
        return None

    def may_be_new(self, conversation: ConversationRef) -> bool:
        return False

    async def commit(self, conversation: ConversationRef, changes: Changes) -> Outcome:
        keys = ConversationKeys.of(conversation)
        before = await self._reading.load(conversation)
        memory_revision = await self._write_memory(keys, before, changes)
        snapshot, *_, utterances, messages, outbox = keys.state
        if changes.turn is not None:
            await self._client.hset(messages, changes.turn.message_id, "1")
            await self._client.rpush(utterances, encode_turn(changes.turn))
        if changes.session is not None:
            session = {"revision": changes.session.revision, "session": encode_session(changes.session)}
            await self._client.hset(snapshot, mapping=session)
        for event in changes.events:
            await self._client.xadd(outbox, {"event": event})
        body = changes.reply.body(memory_revision)
        if changes.idempotency is not None:
            head = encode_reply_head(changes.idempotency.fingerprint, changes.reply.status)
            await self._client.set(keys.reply(changes.idempotency.key), head + body, ex=changes.lifetime_s)
        for key in keys.state:
            await self._client.expire(key, changes.lifetime_s)
        return Committed(body, changes.reply.status, definition_present=True)

    async def _write_memory(
        self, keys: ConversationKeys, before: LoadedConversation, changes: Changes
    ) -> int:
        """The whole hash is set from what was read: a concurrent writer's field goes back in time."""
        snapshot, tenant, mined, tools, previous_contacts, *_ = keys.state
        entries: dict[str, MemoryEntry] = {**before.tools, **changes.set_tools}
        memory_revision = before.memory_revision + bool(changes.set_tools)
        if changes.new_memory is not None:
            entries = dict(changes.new_memory.variables)
            await self._client.set(tenant, orjson.dumps(changes.new_memory.tenant))
            await self._client.hset(mined, mapping=_encoded(entries))
        if changes.set_tools or changes.new_memory is not None:
            await self._client.hset(tools, mapping=_encoded(entries))
            await self._client.hset(snapshot, "memoryRevision", memory_revision)
        for previous in changes.previous_contacts:
            await self._client.rpush(previous_contacts, encode_previous_contact(previous))
        return memory_revision


def _encoded(entries: dict[str, MemoryEntry]) -> dict[str, bytes]:
    return {var_id: encode_entry(entry) for var_id, entry in entries.items()}
