"""A conversation's dialogue as it is remembered, the port to its summary (F20, F30), and the index of all."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import quote

IDS_KEPT = 8_192


@lru_cache(maxsize=IDS_KEPT)
def encoded_id(part: str) -> str:
    """Percent-encoded UTF-8, so that no id can forge a separator. Kept: a step needs those of its
    conversation many times."""
    return quote(part, safe="")


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
        """Unique in the conversation: agents may count their messages anew for each contact. Both ids
        percent-encoded in UTF-8, joined by a slash."""
        return f"{encoded_id(self.contact_id)}/{quote(self.message_id, safe='')}"


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


class ConversationRef(NamedTuple):
    """Whose conversation, and which. A tuple, since every request finds several things by it."""

    tenant_id: str
    conversation_id: str


class ConversationIndex(Protocol):
    """Finds conversations by the version that they run on. Each id comes once, in no order. Raises RetryLater
    `memory_unavailable` when the store does not answer."""

    def on_version(self, tenant_id: str, version_id: str) -> AsyncIterator[str]: ...
