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
from flow_engine.runtime.human_part import HumanReport
from flow_engine.runtime.journal import JournalEntry
from flow_engine.runtime.memory import MemoryWrite, ValueDescription
from flow_engine.runtime.platform import Platform
from flow_engine.use_cases.conversations import NO_ANSWER, NOT_HEARD, Conversations
from flow_engine.use_cases.dialogue import DialogueService, Utterance
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor
from flow_engine.use_cases.versions_in_use import VersionChoice, Versions


class MemoryInHand:
    """What every `ConversationMemory` over the state of one conversation has, where nothing is stored: it is
    read as it is, and not erased. Never raises."""

    __slots__ = ()
    state: storage.LoadedConversation

    async def load(
        self,
        conversation: ConversationRef,
        *,
        idempotency: IdempotencyKey | None = None,
        with_turns: bool = False,
    ) -> storage.LoadedConversation:
        return self.state

    def held(self, conversation: ConversationRef) -> storage.LoadedConversation | None:
        return None

    def may_be_new(self, conversation: ConversationRef) -> bool:
        return False

    async def erase(self, conversation: ConversationRef, erasure: storage.Erasure) -> bool:
        return False

    async def finish_erasure(
        self, conversation: ConversationRef, now: datetime, elsewhere: storage.RemoveElsewhere
    ) -> None:
        return


@dataclass(slots=True)
class World(MemoryInHand):
    """What a step meets where nothing is stored and nobody is asked: its clock, the state before it and after
    it, and in `heard` what others answered then, as an outcome of the journal tells it. Implements `Clock`,
    `ConversationMemory`, `Summariser` and `OutboundSender`.

    `memory_revision` is what a reply tells; None: as this world counts them. `at` is in UTC.
    """

    at: datetime
    state: storage.LoadedConversation
    heard: Mapping[str, object]
    memory_revision: int | None = None

    def now(self) -> datetime:
        return self.at

    async def commit(self, conversation: ConversationRef, changes: storage.Changes) -> storage.Outcome:
        self.state = self.state.after(changes)
        revision = self.state.memory_revision if self.memory_revision is None else self.memory_revision
        return storage.Committed(changes.reply.body(revision), changes.reply.status, definition_present=True)

    async def summarise(self, request: SummaryRequest) -> str:
        return str(self.heard.get("summary") or "")

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
        answered = self.heard.get("handler")
        if answered == "refused":
            raise OutboundRefused
        if isinstance(answered, int):
            return OutboundReply(answered, b"")
        if answered == "unreachable":
            error = str(self.heard.get("handlerError") or "")
            raise OutboundFailed(error.removeprefix(NOT_HEARD + NO_ANSWER))
        return OutboundReply(200, b"true" if self.heard.get("closes") is True else b"false")


async def replied(
    transactor: Transactor,
    conversation: ConversationRef,
    entry: JournalEntry,
    before: storage.LoadedConversation,
) -> bytes | None:
    """The reply of the request that made the commit, byte for byte. None where no request made it, or where
    this release makes another reply of it. Raises CallTheOperator `definition_lost`, RetryLater."""
    world = World(entry.at, before, entry.outcome, entry.memory_revision)
    body = await Rerun.within(world, transactor.versions, transactor.platform).ask(conversation, entry.input)
    return as_sent(entry, body)


def as_sent(entry: JournalEntry, body: bytes | None) -> bytes | None:
    """A reply that was made once more, None where another one was sent, by the checksum in the entry."""
    return body if entry.reply_crc32 is None or body is None or crc32(body) == entry.reply_crc32 else None


@dataclass(frozen=True, slots=True)
class Rerun:
    """The agents' use cases within a world of their own."""

    transactor: Transactor
    conversations: Conversations
    dialogue: DialogueService

    @classmethod
    def within(cls, world: World, versions: Versions, platform: Platform) -> Rerun:
        dependencies = ConversationDependencies(world, versions, platform, world, world, world)
        again = Transactor(dependencies)
        return cls(again, Conversations(again, dependencies), DialogueService(again, dependencies))

    async def ask(self, conversation: ConversationRef, request: Mapping[str, Any]) -> bytes | None:
        """The reply to the request that a journal's `input` tells of, JSON; None where it was no request.
        Raises what the use cases raise."""
        conversations, dialogue = self.conversations, self.dialogue
        match request["op"]:
            case "handle-new-contact":
                contact = NewContact(
                    request["contactId"],
                    request["channel"],
                    request["tenant"],
                    request["contact"],
                    request["language"],
                )
                choice = VersionChoice(version_id=request["conversationalFlowVersionId"])
                reply = await conversations.new_contact(conversation, contact, choice)
            case "change-task":
                reply = await conversations.change_task(conversation, request["contactId"], request["task"])
            case "memory":
                reply = await dialogue.put_memory(conversation, [_write(each) for each in request["writes"]])
            case "handle-utterance":
                takes = request.get("takesCommand", True)
                reply = await dialogue.utterance(conversation, _utterance(request), takes_command=takes)
            case "handle-end-contact":
                reply = await conversations.end_contact(conversation, request["contactId"], request["reason"])
            case "handle-human-task":
                report = HumanReport(
                    request["outcome"], request["reason"], request.get("text"), request.get("approvalId")
                )
                reply = await conversations.human_task(conversation, request["contactId"], report)
            case "prompt" | "advance":
                return (await dialogue.prompt(conversation, memory_format=request.get("format"))).body
            case _:
                return None
        return reply.body


def _write(request: Mapping[str, Any]) -> MemoryWrite:
    described = cast("Sequence[object] | None", request["descriptionForLLM"])
    parts = None if described is None else [as_object(each) for each in described]
    return MemoryWrite(
        request["varId"],
        request["value"],
        request["contactId"],
        request["updatedBy"],
        None if parts is None else tuple(ValueDescription(str(p["name"]), str(p["value"])) for p in parts),
    )


def _utterance(request: Mapping[str, Any]) -> Utterance:
    return Utterance(
        contact_id=request["contactId"],
        message_id=request["messageId"],
        ts=datetime.fromisoformat(request["ts"]),
        type=request["type"],
        src=request["src"],
        body=request["body"],
        src_id=request["srcId"],
        src_name=request["srcName"],
        language=request["language"],
    )
