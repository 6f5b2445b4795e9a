"""What operators see of a conversation: what is known of it, and every step of it."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from itertools import takewhile
from typing import Any

import orjson
from typing_extensions import TypedDict

from flow_engine.errors import LookElsewhere, unknown_conversation
from flow_engine.ports.dialogue import (
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
from flow_engine.use_cases.listing import ConversationRow, conversation_row
from flow_engine.use_cases.rebuilding import as_sent, replied
from flow_engine.use_cases.transactor import Transactor
from flow_engine.use_cases.versions_in_use import Versions
from flow_engine.values import utc_text
from flow_engine.vocabulary import Phase


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


class History:
    """Every method answers for one tenant: another's conversation looks exactly like an unknown one. Raises
    RetryLater while a store is away."""

    def __init__(self, transactor: Transactor, journal: ConversationJournal, index: ConversationList) -> None:
        self._transactor = transactor
        self._journal = journal
        self._index = index

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
        **conversation_row(listed, listed.head or runner.head(None)),
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
