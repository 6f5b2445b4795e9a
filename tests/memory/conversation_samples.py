"""Conversations as the stores see them: valid records, made without a flow."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from flow_engine.ports.dialogue import ConversationHead, ConversationRef, DialogueTurn
from flow_engine.runtime.memory import MemoryEntry, ValueDescription
from flow_engine.runtime.session import Contact, Session, TaskEntry
from flow_engine.runtime.storage import (
    Changes,
    JournalInput,
    JournalNote,
    NewMemory,
    Operation,
    Outcome,
    ReplyTemplate,
)
from memory.connection import RedisMemory
from memory.keys import ConversationKeys
from tests.redis_fixture import client_of

T0 = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
LIFETIME_S = 90_000
HASH = "sha256-of-the-version"
TENANT_FACTS: Mapping[str, object] = {
    "name": "Farmacia Ñandú",
    "empty": [],
    "big": 2**63 - 1,
    "of": {"a": None},
}
VARIABLES = ("name", "size", "visit")


def session(conversation: ConversationRef, revision: int = 1, **changes: Any) -> Session:
    fields: dict[str, Any] = {
        "conversation_id": conversation.conversation_id,
        "tenant_id": conversation.tenant_id,
        "campaign_id": "campaign",
        "flow_id": "flow",
        "version_id": "version",
        "content_hash": HASH,
        "revision": revision,
        "configuration": ("active", "t:red"),
        "history": ("t:red",),
        "contacts": {"anna": Contact(channel="chat", status="active", started_at=T0, data={"name": "Ana"})},
        "active_contact_id": "anna",
        "language": "en-US",
        "started_at": T0,
        "task": TaskEntry(task_id="red", entered_at=T0, global_prompt="g", prompt="p", descriptions={}),
        "entered": {"red": 1},
    }
    return Session(**(fields | changes))


def empty_memory() -> dict[str, MemoryEntry]:
    return {name: MemoryEntry("string", None, None, None, "anna", None) for name in VARIABLES}


def written(value: Any, tool: str = "tool") -> MemoryEntry:
    return MemoryEntry("custom", tool, T0, value, "anna", (ValueDescription("Id", "S|1\n"),))


def turn(message_id: str, body: str = "Hi") -> DialogueTurn:
    return DialogueTurn(message_id, T0, "message", "user", body, "anna", "red", "en-US")


def head(of: Session) -> ConversationHead:
    contacts = tuple(of.contacts)
    return ConversationHead(
        of.flow_id, of.version_id, "red", "red", "active", "chat", of.started_at, contacts
    )


def note(op: Operation = "change-task", **changes: Any) -> JournalNote:
    """An entry of the journal which tells the whole session."""
    fields: dict[str, Any] = {"before": None, "head": None, **changes}
    return JournalNote("tester", JournalInput(op, {}), {"result": True}, **fields)


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of one store."""

    store: RedisMemory
    ref: ConversationRef

    @classmethod
    def fresh(cls, store: RedisMemory, conversation_id: str = "c") -> Conversation:
        return cls(store, ConversationRef(f"tenant-{uuid.uuid4().hex}", conversation_id))

    def changes(self, expected_revision: int, **more: Any) -> Changes:
        own = {"journal": note(head=head(more["session"])) if "session" in more else note(), **more}
        bare = Changes(expected_revision, LIFETIME_S, ReplyTemplate(b"{}"), T0, HASH)
        return msgspec.structs.replace(bare, **own)

    async def commit(self, expected_revision: int, **more: Any) -> Outcome:
        return await self.store.conversations.commit(self.ref, self.changes(expected_revision, **more))

    async def start(self, **more: Any) -> Outcome:
        new = NewMemory(TENANT_FACTS, empty_memory())
        return await self.commit(0, **{"session": session(self.ref), "new_memory": new, **more})

    @property
    def keys(self) -> tuple[str, ...]:
        return ConversationKeys.of(self.ref).state

    async def expiries_ms(self) -> dict[str, int]:
        """Of the keys that exist."""
        found = {key: int(await client_of(self.store).pttl(key)) for key in self.keys}
        return {key: expiry for key, expiry in found.items() if expiry != -2}

    async def everything(self) -> list[Any]:
        """All that is stored of the conversation, to be compared before and after."""
        client, named = client_of(self.store), ConversationKeys.of(self.ref).named
        hashes = [await client.hgetall(named[key]) for key in ("snapshot", "mined", "tools", "messages")]
        lists = [await client.lrange(named[key], 0, -1) for key in ("previous", "utterances", "segments")]
        streams = [await client.xrange(named[key]) for key in ("journal", "outbox")]
        return [*hashes, *lists, await client.get(named["tenant"]), *streams]

    async def events(self) -> list[bytes]:
        return [fields[b"event"] for _, fields in await client_of(self.store).xrange(self.keys[-1])]
