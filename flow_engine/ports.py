"""What the core needs from outside, as small protocols.

Every implementation of a port passes the port's contract suite in `tests/contracts/`. Doubles for
tests ship beside the real parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The only source of time. `now` is aware and in UTC."""

    def now(self) -> datetime: ...


# --- flows and versions (F1, F6, F7) ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A version as its flow lists it. A version exists from the moment its flow lists it (F7)."""

    version_id: str
    draft: bool
    channels: tuple[str, ...]
    content_hash: str
    created_by: str
    created_at: datetime
    parent_version_id: str | None = None


@dataclass(frozen=True, slots=True)
class TagEntry:
    """Where a tag points now, and who moved it there when."""

    tag: str
    version_id: str
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredReply:
    """The reply of a designer's mutation, kept under its idempotency key (F15)."""

    key: str
    fingerprint: str
    status: int
    body: bytes
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """One flow with its versions' entries and tags: the unit of atomic change in a flow store."""

    flow_id: str
    name: str
    campaign_id: str
    schema_version: str
    updated_by: str
    updated_at: datetime
    revision: int = 1
    versions: tuple[VersionEntry, ...] = ()
    tags: tuple[TagEntry, ...] = ()
    tag_moves: tuple[TagEntry, ...] = ()
    replies: tuple[StoredReply, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version's document as it was saved: `document` is the JSON text, byte for byte."""

    version_id: str
    flow_id: str
    document: bytes


class FlowStore(Protocol):
    """Flows by tenant. `replace` is a compare-and-set: it stores only over `expected_revision`.

    Raises RetryLater with code `flow_store_unavailable` when the database does not answer.
    """

    async def insert(self, tenant_id: str, flow: FlowRecord) -> bool: ...

    async def replace(self, tenant_id: str, flow: FlowRecord, expected_revision: int) -> bool: ...

    async def get(self, tenant_id: str, flow_id: str) -> FlowRecord | None: ...

    async def list(self, tenant_id: str, campaign_id: str | None) -> Sequence[FlowRecord]: ...


class VersionStore(Protocol):
    """Immutable version documents. `insert` is False, and changes nothing, for an id already there."""

    async def insert(self, tenant_id: str, version: StoredVersion) -> bool: ...

    async def get(self, tenant_id: str, version_id: str) -> StoredVersion | None: ...


# --- prompts, presets and default tools of an API version (F3, F26) ---------------------------


@dataclass(frozen=True, slots=True)
class SystemMcpServer:
    """An MCP server that every flow of an API version gets. `url` may hold `{baseUrl}`."""

    name: str
    url: str
    tools: tuple[str, ...]


class SystemPrompts(Protocol):
    """Files of the platform, read once at the start. Nothing here does I/O after that."""

    def pieces(self, api_version: str, model: str | None, language: str) -> Mapping[str, str]:
        """Named prompt pieces after the fallbacks of F26: model → default group, language → en-US."""
        ...

    def available_languages(self, api_version: str) -> tuple[str, ...]: ...

    def api_versions(self) -> tuple[str, ...]: ...

    def audio_presets(self) -> Mapping[str, Mapping[str, object]]:
        """Audio presets by id; `default` is always there (F3)."""
        ...

    def mcp_servers(self, api_version: str) -> tuple[SystemMcpServer, ...]: ...


# --- background work: the places where models plug in (F30, F31, F37) -------------------------


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """One message of a conversation as it is remembered."""

    message_id: str
    ts: datetime
    type: str
    src: str
    body: str
    contact_id: str
    task_name: str
    language: str


def is_user_turn(turn: DialogueTurn) -> bool:
    """What the user said or wrote: the only source of mined values."""
    return turn.src == "user" and turn.type == "message"


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """What a summary of an ended contact is made from. `language` is a BCP 47 tag."""

    api_version: str
    language: str
    channel: str
    turns: Sequence[DialogueTurn]
    tasks_passed: Sequence[str]
    end_reason: str | None
    variables: Sequence[tuple[str, str]]


class Summariser(Protocol):
    """Writes the `resume` of an ended contact (F20, F30)."""

    async def summarise(self, request: SummaryRequest) -> str: ...


@dataclass(frozen=True, slots=True)
class ConversationRef:
    tenant_id: str
    conversation_id: str


# --- outbound calls (F45) ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutboundReply:
    status: int
    body: bytes


class OutboundCaller(Protocol):
    """The one way out. Raises OutboundRefused or OutboundFailed, never a vendor's error."""

    async def post_json(self, url: str, payload: object, *, timeout_s: float) -> OutboundReply: ...


class OutboundSender(Protocol):
    """The same way out, for requests of any method. Raises OutboundRefused or OutboundFailed."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply: ...


class OutboundRefused(Exception):
    """The policy forbids the address."""


class OutboundFailed(Exception):
    """No usable answer: not reached, too slow, too large."""


# --- help for designers (F27) -----------------------------------------------------------------


class DiagramRenderer(Protocol):
    """Draws a graph in Graphviz's DOT language.

    Raises CallTheOperator `graphviz_missing` or `graphviz_failed`, CorrectTheInput `diagram_too_large`.
    """

    async def svg(self, source: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class DescriptionDraft:
    """A task's description as its designer wrote it. `language` is a BCP 47 tag, None for the text's own."""

    description: str
    task_name: str | None
    language: str | None


class TextRewriter(Protocol):
    """Rewrites a description into a rule that says when the task is to be entered.

    Raises CallTheOperator `model_not_configured` where there is no model, RetryLater where it is away.
    """

    async def entry_rule(self, draft: DescriptionDraft) -> str: ...
