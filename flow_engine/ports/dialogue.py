"""A conversation's dialogue as it is remembered, the port to its summary (F20, F30), and the index of all."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import quote

from msgspec import Struct

from flow_engine.vocabulary import Channel, Phase

IDS_KEPT = 8_192


@lru_cache(maxsize=IDS_KEPT)
def encoded_id(part: str) -> str:
    """Percent-encoded UTF-8, so that no id can forge a separator. Kept: a step needs those of its
    conversation many times."""
    return part if _SAFE(part) else quote(part, safe="")


_SAFE = re.compile(r"[A-Za-z0-9_.~-]*").fullmatch


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """One message of a conversation as it is remembered. `ts` is aware and in UTC, `language` a BCP 47 tag,
    `body` a text (JSON where an agent sent an object)."""

    message_id: str
    ts: datetime
    type: str
    src: str
    body: str
    contact_id: str
    task_name: str
    language: str

    @property
    def name(self) -> str:
        return message_name(self.contact_id, self.message_id)


def message_name(contact_id: str, message_id: str) -> str:
    """Unique in the conversation: agents may count their messages anew for each contact. Both ids
    percent-encoded in UTF-8, joined by a slash."""
    return f"{quote(contact_id, safe='')}/{quote(message_id, safe='')}"


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
    """Writes the `resume` of an ended contact (F20, F30). Some lines of text in the request's language."""

    async def summarise(self, request: SummaryRequest) -> str: ...


ENGINE = "engine"
"""Who acts where no request does."""


class ConversationRef(NamedTuple):
    """Whose conversation, and which. A tuple, since every request finds several things by it."""

    tenant_id: str
    conversation_id: str

    @property
    def by(self) -> str:
        """Who acts on it, for its journal."""
        return ENGINE


class ActedOn(ConversationRef):
    """A conversation in somebody's hands: `by` is the name of a key. It is the same conversation, whoever
    acts."""

    _by: str

    def __new__(cls, tenant_id: str, conversation_id: str, by: str) -> ActedOn:
        self = tuple.__new__(cls, (tenant_id, conversation_id))
        self._by = by
        return self

    @property
    def by(self) -> str:
        return self._by


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a conversation was forked from: another one, as it was after its entry `seq`."""

    conversation_id: str
    seq: int


class ConversationHead(Struct, frozen=True):
    """What a list tells of a conversation. `task` is the name of a task, `contacts` are ids. Of the start:
    `tag` is the one that chose the version. Times are in UTC."""

    flow_id: str
    version_id: str
    task_id: str
    task: str
    status: Phase
    channel: Channel
    started_at: datetime
    contacts: tuple[str, ...]
    tag: str | None = None
    forked_from: Fork | None = None


@dataclass(frozen=True, slots=True)
class ListedConversation:
    """A conversation of the index. `head` is None and `seq` 0 where nothing is stored of it any more.
    `updated_at` is in UTC."""

    conversation_id: str
    head: ConversationHead | None
    seq: int
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class ListedPart:
    """`full`: the index has no room for all conversations, so the oldest have left it."""

    conversations: Sequence[ListedConversation]
    full: bool


class ConversationList(Protocol):
    """A tenant's newest conversations, by their start. Raises RetryLater `memory_unavailable` when the store
    does not answer."""

    async def newest(
        self, tenant_id: str, *, until_ms: int | None, after: str | None, at_most: int
    ) -> ListedPart:
        """Those that started until then (ms since 1970), the newest first; from behind the one with the id
        `after` where it is listed still."""
        ...

    async def one(self, conversation: ConversationRef) -> ListedConversation: ...

    async def forget(self, tenant_id: str, conversation_ids: Sequence[str]) -> None: ...


class ConversationIndex(Protocol):
    """Finds conversations by the version that they run on. Each id comes once, in no order. Raises RetryLater
    `memory_unavailable` when the store does not answer."""

    def on_version(self, tenant_id: str, version_id: str) -> AsyncIterator[str]: ...
