"""What operators see of conversations: which there are, what is known of one, and every step of it."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from itertools import takewhile
from typing import Any

import orjson
from typing_extensions import TypedDict

from flow_engine.documents import normalise_name
from flow_engine.errors import CorrectTheInput, LookElsewhere, unknown_conversation
from flow_engine.ports.dialogue import (
    ConversationHead,
    ConversationList,
    ConversationRef,
    Fork,
    ListedConversation,
)
from flow_engine.runtime.agent_data import compose_prompt
from flow_engine.runtime.journal import (
    ENTRIES_AT_MOST,
    ConversationJournal,
    JournalEntry,
    begun_by,
    every_entry,
    folded,
    states_of,
    versions_of,
)
from flow_engine.runtime.memory_dump import known_variables, memory_variables
from flow_engine.runtime.privacy import Veil, masked_reply, values_stored
from flow_engine.runtime.replies import JsonObject, KnownVariable, MemoryVariable
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.storage import LoadedConversation
from flow_engine.use_cases.rebuilding import as_sent, replied
from flow_engine.use_cases.transactor import Transactor
from flow_engine.use_cases.versions_in_use import Versions
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


class ConversationReply(ConversationRow):
    """`contactId` is the active contact's, else the latest one's."""

    revision: int
    memoryRevision: int
    language: str
    contactId: str
    vars: Sequence[KnownVariable]


class JournalRow(TypedDict):
    """A commit: `input` has `op` and what was asked for, `delta` what was changed of what is stored. `at` is
    in UTC."""

    seq: int
    revision: int
    memoryRevision: int
    at: str
    by: str
    input: JsonObject
    outcome: JsonObject
    delta: JsonObject
    rationale: str | None


class JournalPage(TypedDict):
    """`next` is where to go on with `after`, null at the end."""

    entries: Sequence[JournalRow]
    next: int | None


class StateThen(TypedDict):
    """`task` is a task's name, `taskStatus` of the human part, null elsewhere."""

    taskId: str
    task: str
    taskStatus: str | None
    status: Phase
    channel: str
    language: str
    contactId: str
    vars: Sequence[MemoryVariable]


class MomentReply(TypedDict):
    """A conversation as a commit left it. `prompt` is what a model read then; `reply` the text that the
    request got, with masks where tools were handed sensitive values, null where no request made the commit,
    or where this release makes another one of it. Hashes are SHA-256 of the UTF-8 bytes as they were sent, in
    hexadecimal digits; `prefixHash` is the prompt's own. `at` is in UTC."""

    seq: int
    revision: int
    memoryRevision: int
    at: str
    state: StateThen
    prompt: str
    promptSha256: str
    prefixHash: str
    reply: str | None
    replySha256: str | None


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
            (self.flow_id, (head.flow_id,)),
            (self.version_id, (head.version_id,)),
            (self.tag, (head.tag,)),
            (self.status, (head.status,)),
            (self.channel, (head.channel,)),
        )
        return (  # lists are by the start, so that nothing after the first before `since` is looked at
            all(value is None or value in accepted for value, accepted in wanted)
            and (self.task is None or self.task == head.task_id or _is_called(head.task, self.task))
            and (self.until is None or head.started_at <= self.until)
            and (self.q is None or any(id.startswith(self.q) for id in (conversation_id, *head.contacts)))
        )


_normalised = lru_cache(maxsize=64)(normalise_name)  # what is wanted may be long, and is asked of each


def _is_called(name: str, wanted: str) -> bool:
    return name == wanted or _normalised(name) == _normalised(wanted)


class History:
    """Every method answers for one tenant: another's conversation looks exactly like an unknown one. Raises
    RetryLater while a store is away."""

    def __init__(self, transactor: Transactor, journal: ConversationJournal, index: ConversationList) -> None:
        self._transactor = transactor
        self._journal = journal
        self._index = index

    async def conversations(
        self,
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
            listed = await self._index.newest(
                tenant_id, until_ms=until_ms, after=after, at_most=EXAMINED_AT_ONCE
            )
            part = listed.conversations
            gone = [each.conversation_id for each in part if each.head is None]
            if gone:
                await self._index.forget(tenant_id, gone)
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
                    rows.append(_row(each, each.head))
                after, until_ms = each.conversation_id, _in_ms(each.head.started_at)
            examined += len(part)
            if len(part) < EXAMINED_AT_ONCE:
                return ConversationPage(conversations=rows, nextCursor=None, cut=listed.full)
        return ConversationPage(conversations=rows, nextCursor=_cursor(after, until_ms), cut=True)

    async def conversation(self, conversation: ConversationRef, *, reveal: bool) -> ConversationReply:
        """Sensitive values are masked unless `reveal`. Raises LookElsewhere `conversation_unknown`."""
        loaded, archived = await self.state(conversation)
        runner = await self._transactor.resume(conversation, loaded, now=archived.at if archived else None)
        listed = await self._index.one(conversation)
        if archived is not None:
            # The tag that chose the version, and where it was forked from, as far as the journal tells.
            tag, fork = None, None
            async for entry in every_entry(self._journal, conversation):
                tag, fork = begun_by(entry) or (tag, fork)
            listed = ListedConversation(
                conversation.conversation_id, runner.head(tag, fork), archived.seq, archived.at
            )
        return conversation_reply(runner, listed, reveal=reveal)

    async def state(self, conversation: ConversationRef) -> tuple[LoadedConversation, JournalEntry | None]:
        """What is stored, or what was when the archive got its journal, with the last entry of that. Raises
        LookElsewhere `conversation_unknown`."""
        loaded = await self._transactor.memory.load(conversation)
        if loaded.session is not None:
            return loaded, None
        entries = await self._journal.newest(conversation)
        if not entries:
            raise unknown_conversation(conversation.conversation_id)
        return states_of(entries)[1], entries[-1]

    async def journal(
        self, conversation: ConversationRef, after: int, *, limit: int, reveal: bool
    ) -> JournalPage:
        """Sensitive values are masked unless `reveal`. Raises LookElsewhere `conversation_unknown`."""
        entries = await self._journal.after(conversation, after, at_most=min(limit + 1, ENTRIES_AT_MOST))
        if not entries:
            await self.state(conversation)
        page = entries[:limit]
        rest = len(entries) > len(page)
        veil = None if reveal else await self.veil(conversation)
        return JournalPage(entries=self.rows(page, veil), next=page[-1].seq if rest else None)

    def rows(
        self, entries: Sequence[JournalEntry], veil: Veil | None, read_within: timedelta = timedelta()
    ) -> Sequence[JournalRow]:
        """Entries of a conversation as they are told through its `veil`: the first of them, up to a message
        younger than `read_within` in which sensitive values are still to be looked for."""
        if veil is None:
            return [journal_row(entry) for entry in entries]
        since = self._transactor.clock.now() - read_within
        told = takewhile(lambda entry: entry.at <= since or not veil.waits(entry), entries)
        return [journal_row(veil.masked(entry)) for entry in told]

    async def veil(self, conversation: ConversationRef, known: Veil | None = None) -> Veil | None:
        """One that knows every sensitive value of the journal; None where there is nothing to mask. It is the
        `known` one, which takes up what has come since, while that is of the same version. Raises as
        `journal`."""
        loaded, _ = await self.state(conversation)
        flow = (await self._transactor.resume(conversation, loaded)).flow
        if not flow.sensitive and await self._is_whole(conversation, loaded):
            return None
        veil = known if known and known.flow is flow else Veil(flow, values_stored(flow, loaded))
        async for entry in every_entry(self._journal, conversation, veil.learned):
            await learn(veil, entry, self._transactor.versions, conversation.tenant_id)
        return veil

    async def _is_whole(self, conversation: ConversationRef, loaded: LoadedConversation) -> bool:
        """Whether the journal begins with this very conversation, on the version that it is on now: neither
        with one before it under its id, nor on a version that it has moved from."""
        first = await self._journal.after(conversation, 0, at_most=1)
        began = folded(first[0].base or LoadedConversation(), first[0]).session if first else None
        now = loaded.session
        return began is None or (
            now is not None and (began.started_at, began.content_hash) == (now.started_at, now.content_hash)
        )

    async def at(self, conversation: ConversationRef, seq: int, *, reveal: bool) -> MomentReply:
        """Sensitive values are masked unless `reveal`, in the reply too. Raises LookElsewhere
        `conversation_unknown`, `entry_unknown`; CallTheOperator `definition_lost`."""
        entries = await self.entries_up_to(conversation, seq)
        entry, (before, after) = entries[-1], states_of(entries)
        runner = await self._transactor.resume(conversation, after, now=entry.at)
        prompt = compose_prompt(runner)
        if entry.input["op"] == "fork":
            reply = as_sent(entry, fork_reply(runner, entry.input))
        else:
            reply = await replied(self._transactor, conversation, entry, before)
        session = runner.session
        if reply is not None and not reveal:
            shown = masked_reply(reply, runner.flow, await self.veil(conversation))
        else:
            shown = reply
        return MomentReply(
            seq=entry.seq,
            revision=entry.revision,
            memoryRevision=entry.memory_revision,
            at=utc_text(entry.at),
            state=StateThen(
                taskId=runner.task.id,
                task=runner.task.name,
                taskStatus=runner.status,
                status=session.states.phase,
                channel=session.latest_contact.channel,
                language=session.language,
                contactId=session.latest_contact_id,
                vars=memory_variables(runner, reveal=reveal),
            ),
            prompt=prompt.text,
            promptSha256=sha256(prompt.text.encode()).hexdigest(),
            prefixHash=prompt.prefix_hash,
            reply=None if shown is None else shown.decode(),
            replySha256=None if reply is None else sha256(reply).hexdigest(),
        )

    async def entries_up_to(self, conversation: ConversationRef, seq: int) -> Sequence[JournalEntry]:
        """The entries that a state is folded from. Raises LookElsewhere as `at`."""
        entries = await self._journal.up_to(conversation, seq)
        if entries and (entries[0].seq == 1 or entries[0].base is not None):
            return entries
        await self.state(conversation)
        raise LookElsewhere("entry_unknown", f"there is no entry {seq} in the journal, or not any more")


async def learn(veil: Veil, entry: JournalEntry, versions: Versions, tenant_id: str) -> None:
    """Have it take up an entry, with the version that the entry ran on. Raises CallTheOperator
    `definition_lost`."""
    for since, version_id, content_hash, hidden in versions_of(entry):
        flow = (await versions.pinned(tenant_id, version_id, content_hash)).flow
        veil.ran_on(since, flow.hiding(hidden))
    veil.learn(entry)


def conversation_reply(
    runner: ConversationalFlowRunner, listed: ListedConversation, *, reveal: bool
) -> ConversationReply:
    """What is known of a conversation; `listed` is what a list tells of it."""
    loaded, session = runner.loaded, runner.loaded.session or runner.session
    return ConversationReply(
        **_row(listed, listed.head or runner.head(None)),
        revision=session.revision,
        memoryRevision=loaded.memory_revision,
        language=session.language,
        contactId=session.latest_contact_id,
        vars=known_variables(runner, reveal=reveal),
    )


def fork_reply(runner: ConversationalFlowRunner, asked: Mapping[str, Any]) -> bytes:
    """What a fork answers, from its state and the input of its entry. `ConversationReply` as JSON, masked."""
    head = runner.head(asked["tag"], Fork(asked["conversationId"], asked["seq"]))
    conversation_id = runner.session.conversation_id
    listed = ListedConversation(conversation_id, head, 1, runner.now)
    return orjson.dumps(conversation_reply(runner, listed, reveal=False))


def journal_row(entry: JournalEntry) -> JournalRow:
    return JournalRow(
        seq=entry.seq,
        revision=entry.revision,
        memoryRevision=entry.memory_revision,
        at=utc_text(entry.at),
        by=entry.by,
        input=entry.input,
        outcome=entry.outcome,
        delta=entry.delta,
        rationale=entry.rationale,
    )


def _row(listed: ListedConversation, head: ConversationHead) -> ConversationRow:
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
