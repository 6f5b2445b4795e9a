"""The index of a tenant's conversations on Redis (by their start), and what a list tells of each.

A conversation's head is a field of its snapshot, written with each commit that changes the session; the index
has its id and start alone. So a page costs one read of the index and one of each conversation on it, in one
write.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import orjson

from flow_engine.json_values import as_object
from flow_engine.ports.dialogue import ConversationHead, ConversationRef, ListedConversation, ListedPart
from memory.codec import decode_instant
from memory.driver import Driver, Script
from memory.keys import ConversationKeys, index_key

INDEX_KEPT = 100_000
"""Conversations of a tenant that lists know of; older ones have left the index."""

_READ_AT_ONCE = 100
"""Each read takes a connection of its own from a pool that has an end."""

_FIELDS = ("head", "origin", "seq", "updatedAt")


def encode_head(head: ConversationHead) -> bytes:
    """But for what is of the start. JSON in UTF-8."""
    return orjson.dumps(
        {
            "flow_id": head.flow_id,
            "version_id": head.version_id,
            "task_id": head.task_id,
            "task": head.task,
            "status": head.status,
            "channel": head.channel,
            "started_at": head.started_at,
            "contacts": head.contacts,
        }
    )


def encode_origin(head: ConversationHead) -> bytes:
    """What of a head stays as it was at the start. JSON in UTF-8."""
    return orjson.dumps({"tag": head.tag, "forked_from": head.forked_from})


def forked_from(origin: bytes) -> str | None:
    """The id of the conversation that another one was forked from, of what `encode_origin` wrote."""
    fork = as_object(as_object(orjson.loads(origin)).get("forked_from"))
    return None if not fork else str(fork["conversation_id"])


class RedisConversationList:
    """Implements `ConversationList`. Raises what `Driver` raises."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._list = Script.read("list_conversations")
        self._forget = Script.read("forget_listed")

    async def newest(
        self, tenant_id: str, *, until_ms: int | None, after: str | None, at_most: int
    ) -> ListedPart:
        args = {
            "highest": "" if until_ms is None else until_ms,
            "after": after or "",
            "at_most": at_most,
        }
        listed, ids = await self._driver.run(self._list, {"index": index_key(tenant_id)}, args)
        part: list[ListedConversation] = []
        for first in range(0, len(ids), _READ_AT_ONCE):
            some = (ConversationRef(tenant_id, id.decode()) for id in ids[first : first + _READ_AT_ONCE])
            part += await asyncio.gather(*map(self.one, some))
        return ListedPart(part, full=listed >= INDEX_KEPT)

    async def one(self, conversation: ConversationRef) -> ListedConversation:
        snapshot = ConversationKeys.of(conversation).named["snapshot"]
        head, origin, seq, updated_at = await self._driver.hmget(snapshot, _FIELDS)
        if head is None or updated_at is None:
            return ListedConversation(conversation.conversation_id, None, int(seq or 0), None)
        decoded = msgspec.convert({**orjson.loads(head), **orjson.loads(origin or b"{}")}, ConversationHead)
        return ListedConversation(
            conversation.conversation_id, decoded, int(seq or 0), decode_instant(updated_at)
        )

    async def forget(self, tenant_id: str, conversation_ids: Sequence[str]) -> None:
        keys, ids = {"index": index_key(tenant_id)}, list(conversation_ids)
        await self._driver.run(self._forget, keys, {"ids": ids})
