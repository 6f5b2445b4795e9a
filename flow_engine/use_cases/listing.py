"""Lists of conversations: which are on one, page by page, and what it tells of each."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import orjson
from typing_extensions import TypedDict

from flow_engine.documents import normalise_name
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.dialogue import ConversationHead, ConversationList, ListedConversation
from flow_engine.values import utc_text
from flow_engine.vocabulary import Channel, Phase

EXAMINED_AT_MOST = 2_000
"""Conversations looked at for one page; a list that needs more says that it was cut."""
EXAMINED_AT_ONCE = 200


class ForkReply(TypedDict):
    conversationId: str
    seq: int


class ConversationRow(TypedDict):
    """`task` is a task's name, `tag` the one that chose the version, `seq` the number of the last commit.
    Times are in UTC."""

    conversationId: str
    flowId: str
    versionId: str
    tag: str | None
    task: str
    status: Phase
    channel: Channel
    startedAt: str
    updatedAt: str | None
    seq: int
    forkedFrom: ForkReply | None


class ConversationPage(TypedDict):
    """`cut`: there may be more of them, which were not looked at; `nextCursor` goes on there where one is
    given."""

    conversations: Sequence[ConversationRow]
    nextCursor: str | None
    cut: bool


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """None: any. `task` is an id or a name, however that is spelt (F4), `q` how the id of the conversation or
    of a contact begins. The start lies between `since` and `until`, in UTC."""

    flow_id: str | None = None
    version_id: str | None = None
    tag: str | None = None
    task: str | None = None
    status: str | None = None
    channel: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    q: str | None = None

    def takes(self, conversation_id: str, head: ConversationHead) -> bool:
        wanted = (
            (self.flow_id, head.flow_id),
            (self.version_id, head.version_id),
            (self.tag, head.tag),
            (self.status, head.status),
            (self.channel, head.channel),
        )
        return (  # lists are by the start, so that nothing after the first before `since` is looked at
            all(value is None or value == told for value, told in wanted)
            and (self.task is None or self.task == head.task_id or _is_called(head.task, self.task))
            and (self.until is None or head.started_at <= self.until)
            and (self.q is None or any(id.startswith(self.q) for id in (conversation_id, *head.contacts)))
        )


_normalised = lru_cache(maxsize=64)(normalise_name)  # what is wanted may be long, and is asked of each


def _is_called(name: str, wanted: str) -> bool:
    return name == wanted or _normalised(name) == _normalised(wanted)


async def list_conversations(
    index: ConversationList,
    tenant_id: str,
    wanted: ConversationFilter,
    *,
    limit: int,
    cursor: str | None = None,
    examined_at_most: int | None = None,
) -> ConversationPage:
    """The newest first, by their start. Raises CorrectTheInput `cursor_invalid`."""
    after, until_ms = decode_cursor(cursor)
    if wanted.until is not None:
        until_ms = min(until_ms or _in_ms(wanted.until), _in_ms(wanted.until))
    rows: list[ConversationRow] = []
    examined = 0
    while examined < (examined_at_most or EXAMINED_AT_MOST):
        listed = await index.newest(tenant_id, until_ms=until_ms, after=after, at_most=EXAMINED_AT_ONCE)
        part = listed.conversations
        gone = [each.conversation_id for each in part if each.head is None]
        if gone:
            await index.forget(tenant_id, gone)
        for each in part:
            if each.head is None:
                continue
            if wanted.since is not None and each.head.started_at < wanted.since:
                return ConversationPage(conversations=rows, nextCursor=None, cut=False)
            if wanted.takes(each.conversation_id, each.head):
                if len(rows) == limit:
                    return ConversationPage(
                        conversations=rows, nextCursor=_cursor(after, until_ms), cut=False
                    )
                rows.append(conversation_row(each, each.head))
            after, until_ms = each.conversation_id, _in_ms(each.head.started_at)
        examined += len(part)
        if len(part) < EXAMINED_AT_ONCE:
            return ConversationPage(conversations=rows, nextCursor=None, cut=listed.full)
    return ConversationPage(conversations=rows, nextCursor=_cursor(after, until_ms), cut=True)


def conversation_row(listed: ListedConversation, head: ConversationHead) -> ConversationRow:
    fork = head.forked_from
    return ConversationRow(
        conversationId=listed.conversation_id,
        flowId=head.flow_id,
        versionId=head.version_id,
        tag=head.tag,
        task=head.task,
        status=head.status,
        channel=head.channel,
        startedAt=utc_text(head.started_at),
        updatedAt=None if listed.updated_at is None else utc_text(listed.updated_at),
        seq=listed.seq,
        forkedFrom=None if fork is None else ForkReply(conversationId=fork.conversation_id, seq=fork.seq),
    )


def _in_ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _cursor(after: str | None, until_ms: int | None) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([after, until_ms])).decode()


def decode_cursor(cursor: str | None) -> tuple[str | None, int | None]:
    """Raises CorrectTheInput `cursor_invalid`."""
    if cursor is None:
        return None, None
    try:
        match orjson.loads(base64.urlsafe_b64decode(cursor.encode())):
            case [str() | None as after, int() | None as until_ms] if not isinstance(until_ms, bool):
                return after, until_ms
            case _:
                raise ValueError("another content")
    except (ValueError, binascii.Error):
        message = "a cursor is the 'nextCursor' of an earlier page"
        raise CorrectTheInput.breach("cursor_invalid", message) from None
