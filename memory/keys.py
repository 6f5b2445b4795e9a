"""Names of everything that is kept in Redis (F16).

All keys of a conversation carry the hash tag `{tenant:conversation}`, so that one script may touch
them together on a cluster. Ids are percent-encoded: no id can forge a separator or another tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from urllib.parse import quote

from flow_engine.ports.dialogue import ConversationRef, encoded_id

STATE: Mapping[str, str] = {
    "snapshot": "::snapshot",  # hash: the session and its revisions, see commit.lua
    "tenant": "::tenant",  # string: JSON object
    "mined": "::vars::convMiner",  # hash: variable id → entry
    "tools": "::vars::tools",  # hash: variable id → entry
    "previous": "::previousContacts",  # list of JSON objects
    "utterances": "::utterances",  # list of JSON objects, oldest first
    "messages": "::messages",  # hash: contact and message id → number of arrival, what F33 deduplicates by
    "journal": "::journal",  # stream: one commit an entry under its number, see commit.lua
    "segments": "::journal::segments",  # list: the journal's ended segments, oldest first: `first:bytes`
    "outbox": "::outbox",  # stream: one event an entry, in field "event"
}
"""What a script calls a key, and how its name ends."""
ERASING_END = "::erasing"

NAMES_KEPT = 4_096
"""Conversations of which it is kept how their keys begin."""


@dataclass(frozen=True, slots=True)
class ConversationKeys:
    """All keys of a conversation, each of which begins with its hash tag. Ids in it are percent-encoded
    UTF-8."""

    tag: str

    @classmethod
    @lru_cache(maxsize=NAMES_KEPT)
    def of(cls, conversation: ConversationRef) -> ConversationKeys:
        return cls(f"{{{encoded_id(conversation.tenant_id)}:{encoded_id(conversation.conversation_id)}}}")

    @property
    def named(self) -> Mapping[str, str]:
        """The keys that live and expire together, by what the scripts call them."""
        return {name: self.tag + end for name, end in STATE.items()}

    @property
    def state(self) -> tuple[str, ...]:
        """As `named`, the names left out."""
        return tuple(self.named.values())

    @property
    def webhook_queue(self) -> str:
        """Stream: what has left the outbox and waits for the webhook."""
        return f"{self.named['outbox']}::webhook"

    @property
    def confirmation(self) -> str:
        """String, empty: written where replicas are to confirm what was written before it."""
        return f"{self.tag}::confirmation"

    @property
    def erasing(self) -> str:
        """String: an erasure that is not done yet, see erase.lua. While it is there, no other conversation
        begins under the id."""
        return self.tag + ERASING_END

    @property
    def forks(self) -> str:
        """Sorted set: ids of conversations that were forked from this one, by when (ms since 1970)."""
        return f"{self.tag}::forks"

    @property
    def notices(self) -> str:
        """Channel: a notice of each change of the memory, `{conversationId, revision, memoryRevision}`. A
        JSON text. commit.lua makes its name of the snapshot's."""
        return f"{self.tag}::memory"

    @property
    def replies(self) -> str:
        """Glob that matches every `reply` of the conversation. Encoded ids hold no sign of globs, and the
        hash tag stands there as it is: a cluster of Redis 7.4 looks through the keys of its slot alone."""
        return f"{self.tag}::reply::*"

    def reply(self, idempotency_key: str | None) -> str:
        """Where the reply to a request with that key is kept; None names one that no request reads."""
        return self.tag + reply_end(idempotency_key)


def reply_end(idempotency_key: str | None) -> str:
    """Of the key of a reply, see `ConversationKeys.reply`."""
    return f"::reply::{quote(idempotency_key, safe='') if idempotency_key else '-'}"


def snapshots_of(tenant_id: str) -> tuple[str, str, str]:
    """How the names of a tenant's snapshots start, the glob that matches them, and how they end. Ids are
    percent-encoded UTF-8."""
    start, end = f"{{{encoded_id(tenant_id)}:", "}::snapshot"
    return start, f"{start}*{end}", end


def index_key(tenant_id: str) -> str:
    """Sorted set: a tenant's newest conversations by the start of each, in milliseconds since 1970."""
    return f"{{{encoded_id(tenant_id)}:conversations}}::index"


def outcome_keys(tenant_id: str, split_id: str) -> Mapping[str, str]:
    """The two hashes of a split, by what the scripts call them. Ids are percent-encoded UTF-8."""
    tag = f"{{{encoded_id(tenant_id)}:rollout:{encoded_id(split_id)}}}"
    return {name: f"{tag}::{name}" for name in ("sums", "counted")}


def calls_key(tenant_id: str) -> str:
    """Stream: the accounts of a tenant's model calls. The id is percent-encoded UTF-8."""
    return f"{{{encoded_id(tenant_id)}:model-calls}}"


def try_keys(tenant_id: str, try_id: str) -> Mapping[str, str]:
    """The key of a try and that of its tenant's index, by what the scripts call them. Ids are percent-encoded
    UTF-8."""
    tag = f"{{{encoded_id(tenant_id)}:tries}}"
    return {"try": f"{tag}::try:{encoded_id(try_id)}", "index": f"{tag}::index"}


def definition_key(tenant_id: str, content_hash: str) -> str:
    """The compiled definition of a version: shared by conversations, so under a tag of its own."""
    return f"{{{encoded_id(tenant_id)}:definition:{content_hash}}}"


EVENTS_KEY = "{flow-engine}:events"
"""Stream for consumers: one event an entry, fields `event`, `tenant`, `conversation` and `kind`."""

PROCESSES_KEY = "{flow-engine}:processes"
"""Sorted set: a process of the installation, as JSON, by when it last said that it lives (ms since 1970)."""

READY_KEY = "{flow-engine}:ready"
"""String, empty: what a readiness check writes, to see that writes are taken."""

JOBS_KEY = "{flow-engine}:jobs"
"""Sorted set: a job's name by the time it is due, in milliseconds since 1970."""

JOB_LEASES_KEY = "{flow-engine}:jobs::leases"
"""Hash: a job's name → who holds it, see claim_jobs.lua. Keeps the attempts of one to be tried again."""

DEAD_LETTERS_KEY = "{flow-engine}:jobs::dead"
"""Sorted set: the ids of buried jobs by the time they were buried, in milliseconds since 1970."""

DEAD_LETTER_TEXTS_KEY = "{flow-engine}:jobs::dead::letters"
"""Hash: the id of a buried job → JSON object."""


LETTER_KEYS: Mapping[str, str] = {"letter_ids": DEAD_LETTERS_KEY, "letters": DEAD_LETTER_TEXTS_KEY}
"""The two keys of buried jobs, by what the scripts call them."""


def job_owner(conversation: ConversationRef) -> str:
    """The middle of the names of a conversation's jobs."""
    return f":{encoded_id(conversation.tenant_id)}:{encoded_id(conversation.conversation_id)}:"


def model_calls_key(minute: int, budget: str = "model-calls") -> str:
    """String: how many model calls a minute since 1970 has seen, over all processes of that budget."""
    return f"{{flow-engine}}:{budget}:{minute}"


def model_shares_key(minute: int, budget: str = "model-calls") -> str:
    """Hash: a tenant → how many model calls it has had in a minute since 1970."""
    return f"{{flow-engine}}:{budget}:{minute}::tenants"


def event_shares_key(minute: int) -> str:
    """Hash: a tenant → how many events it has put into the stream in a minute since 1970."""
    return f"{EVENTS_KEY}::shares:{minute}"


def due_score(due_at: datetime) -> int:
    return int(due_at.timestamp() * 1000)
