"""Names of everything that is kept in Redis (F16).

All keys of a conversation carry the hash tag `{tenant:conversation}`, so that one script may touch
them together on a cluster. Ids are percent-encoded: no id can forge a separator or another tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from flow_engine.ports.dialogue import ConversationRef


def _encode(part: str) -> str:
    return quote(part, safe="")


@dataclass(frozen=True, slots=True)
class ConversationKeys:
    """`state` lists the keys that live and expire together, in the order the scripts expect."""

    tag: str
    state: tuple[str, ...]

    @classmethod
    def of(cls, conversation: ConversationRef) -> ConversationKeys:
        tag = f"{{{_encode(conversation.tenant_id)}:{_encode(conversation.conversation_id)}}}"
        names = (
            "snapshot",  # hash: the session and its revisions, see commit.lua
            "tenant",  # string: JSON object
            "vars::convMiner",  # hash: variable id → entry
            "vars::tools",  # hash: variable id → entry
            "previousContacts",  # list of JSON objects
            "utterances",  # list of JSON objects, oldest first
            "messages",  # hash: message id → "1", what F33 deduplicates by
            "outbox",  # stream: one event an entry, in field "event"
        )
        return cls(tag, tuple(f"{tag}::{name}" for name in names))

    def reply(self, idempotency_key: str) -> str:
        return f"{self.tag}::reply::{_encode(idempotency_key)}"


def outbox_key(conversation: ConversationRef) -> str:
    return ConversationKeys.of(conversation).state[-1]


def definition_key(tenant_id: str, content_hash: str) -> str:
    """The compiled definition of a version: shared by conversations, so under a tag of its own."""
    return f"{{{_encode(tenant_id)}:definition:{content_hash}}}"


JOBS_KEY = "{flow-engine}:jobs"
"""Sorted set: a job's name by the time it is due, in milliseconds since 1970."""

JOB_LEASES_KEY = "{flow-engine}:jobs::leases"
"""Hash: a job's name → who holds it, see claim_jobs.lua. Keeps the attempts of one to be tried again."""

DEAD_LETTERS_KEY = "{flow-engine}:jobs::dead"
"""Sorted set: the ids of buried jobs by the time they were buried, in milliseconds since 1970."""

DEAD_LETTER_TEXTS_KEY = "{flow-engine}:jobs::dead::letters"
"""Hash: the id of a buried job → JSON object."""


def model_calls_key(minute: int) -> str:
    """String: how many model calls a minute since 1970 has seen, over all processes."""
    return f"{{flow-engine}}:model-calls:{minute}"


def due_score(due_at: datetime) -> int:
    return int(due_at.timestamp() * 1000)
