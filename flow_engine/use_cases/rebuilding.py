"""A commit made once more from the journal: the same step, on the state before it, with its time for the
clock.

Nothing is stored and nobody is asked: what others answered then is in the entry. So the reply comes out as it
was sent, as long as this release makes the same of the same; the checksum in the entry tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from zlib import crc32

from flow_engine.idempotency import IdempotencyKey
from flow_engine.json_values import as_object
from flow_engine.ports.dialogue import ConversationRef, SummaryRequest
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply
from flow_engine.runtime import storage
from flow_engine.runtime.commands import NewContact
from flow_engine.runtime.journal import JournalEntry
from flow_engine.runtime.memory import MemoryWrite, ValueDescription
from flow_engine.use_cases.conversations import Conversations, VersionChoice
from flow_engine.use_cases.dialogue import DialogueService, Utterance
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor


@dataclass(frozen=True, slots=True)
class _Then:
    """The world of one entry: its clock, its state before, its memory revision, what others answered.
    Implements `Clock`, `ConversationMemory`, `Summariser` and `OutboundSender`."""

    entry: JournalEntry
    before: storage.LoadedConversation

    def now(self) -> datetime:
        return self.entry.at

    async def load(
        self,
        conversation: ConversationRef,
        *,
        idempotency: IdempotencyKey | None = None,
        with_turns: bool = False,
    ) -> storage.LoadedConversation:
        return self.before

    def held(self, conversation: ConversationRef) -> storage.LoadedConversation | None:
        return None

    async def commit(self, conversation: ConversationRef, changes: storage.Changes) -> storage.Outcome:
        body = changes.reply.body(self.entry.memory_revision)
        return storage.Committed(body, changes.reply.status, definition_present=True)

    async def erase(self, conversation: ConversationRef, erasure: storage.Erasure) -> bool:
        return False

    async def summarise(self, request: SummaryRequest) -> str:
        return str(self.entry.outcome.get("summary") or "")

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply:
        """The verdict of the closure handler, or what kept it from one."""
        answered = self.entry.outcome.get("handler")
        if answered == "refused":
            raise OutboundRefused
        if isinstance(answered, int):
            return OutboundReply(answered, b"")
        if answered == "unreachable":
            raise OutboundFailed
        return OutboundReply(200, b"true" if self.entry.outcome.get("closes") is True else b"false")


async def replied(
    transactor: Transactor,
    conversation: ConversationRef,
    entry: JournalEntry,
    before: storage.LoadedConversation,
) -> bytes | None:
    """The reply of the request that made the commit, byte for byte. None where no request made it, or where
    this release makes another reply of it. Raises CallTheOperator `definition_lost`, RetryLater."""
    then = _Then(entry, before)
    dependencies = ConversationDependencies(
        memory=then,
        versions=transactor.versions,
        platform=transactor.platform,
        clock=then,
        summariser=then,
        outbound=then,
    )
    again = Transactor(dependencies)
    body = await _asked_again(
        Conversations(again, dependencies), DialogueService(again, dependencies), conversation, entry.input
    )
    return body if entry.reply_crc32 is None or body is None or crc32(body) == entry.reply_crc32 else None


async def _asked_again(
    conversations: Conversations,
    dialogue: DialogueService,
    conversation: ConversationRef,
    asked: Mapping[str, Any],
) -> bytes | None:
    match asked["op"]:
        case "handle-new-contact":
            contact = NewContact(
                asked["contactId"], asked["channel"], asked["tenant"], asked["contact"], asked["language"]
            )
            choice = VersionChoice(version_id=asked["conversationalFlowVersionId"])
            reply = await conversations.new_contact(conversation, contact, choice)
        case "change-task":
            reply = await conversations.change_task(conversation, asked["contactId"], asked["task"])
        case "memory":
            reply = await dialogue.put_memory(conversation, [_write(each) for each in asked["writes"]])
        case "handle-utterance":
            reply = await dialogue.utterance(conversation, _utterance(asked))
        case "handle-end-contact":
            reply = await conversations.end_contact(conversation, asked["contactId"], asked["reason"])
        case "handle-human-task":
            reply = await conversations.human_task(
                conversation, asked["contactId"], asked["outcome"], asked["reason"]
            )
        case "prompt":
            return (await dialogue.prompt(conversation, memory_format=asked.get("format"))).body
        case _:
            return None
    return reply.body


def _write(asked: Mapping[str, Any]) -> MemoryWrite:
    described = cast("Sequence[object] | None", asked["descriptionForLLM"])
    parts = None if described is None else [as_object(each) for each in described]
    return MemoryWrite(
        asked["varId"],
        asked["value"],
        asked["contactId"],
        asked["updatedBy"],
        None if parts is None else tuple(ValueDescription(str(p["name"]), str(p["value"])) for p in parts),
    )


def _utterance(asked: Mapping[str, Any]) -> Utterance:
    return Utterance(
        contact_id=asked["contactId"],
        message_id=asked["messageId"],
        ts=datetime.fromisoformat(asked["ts"]),
        type=asked["type"],
        src=asked["src"],
        body=asked["body"],
        src_id=asked["srcId"],
        src_name=asked["srcName"],
        language=asked["language"],
    )
