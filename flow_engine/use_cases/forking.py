"""Forks: a new conversation that begins as another one was after one of its commits.

Making one is silent: it sends no event, leaves no job and calls nobody. It begins with everything of then,
messages included; the time that was left for a transfer is left again. From there on it goes its own way.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import orjson
from msgspec.structs import replace

from flow_engine.errors import CorrectTheInput, LookElsewhere, ReloadAndDecide, unknown_conversation
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.json_values import as_object
from flow_engine.ports.dialogue import ConversationList, ConversationRef, DialogueTurn, Fork
from flow_engine.runtime.events import erasure_event
from flow_engine.runtime.journal import (
    ConversationJournal,
    JournalEntry,
    begun_by,
    every_entry,
    states_of,
)
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.session import Session
from flow_engine.runtime.storage import Erasure, JournalInput, LoadedConversation, ReplyTemplate
from flow_engine.use_cases.history import History, fork_reply
from flow_engine.use_cases.migrations import judge, mapping_by_id, mining_on, on_version
from flow_engine.use_cases.transactor import Transactor
from flow_engine.use_cases.transitions import Transition
from flow_engine.use_cases.versions_in_use import VersionChoice


@dataclass(frozen=True, slots=True)
class ForkOrder:
    """After which entry; on which version, None for the same. `mapping` goes from tasks of the original's
    version to tasks of the other one, by id or name."""

    seq: int
    version_id: str | None
    mapping: Mapping[str, str]


class Forks:
    def __init__(
        self,
        history: History,
        transactor: Transactor,
        journal: ConversationJournal,
        index: ConversationList,
    ) -> None:
        self._history = history
        self._transactor = transactor
        self._journal = journal
        self._index = index

    async def fork(
        self,
        original: ConversationRef,
        order: ForkOrder,
        target: ConversationRef,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """The reply has status 201 and is `ConversationReply` as JSON. Raises LookElsewhere
        `conversation_unknown`, `entry_unknown`, `version_unknown`, ReloadAndDecide `conversation_exists`,
        `version_is_draft`, CorrectTheInput `fork_not_possible`, `body_invalid` for a mapping of unknown
        tasks, RetryLater."""
        began: set[datetime] = set()
        unused = ("an id that is not used",)

        async def decide(stored: LoadedConversation) -> Transition:
            if stored.session is not None:
                there = await self._transactor.resume(target, stored)
                message = f"there is a conversation {target.conversation_id!r} already"
                raise ReloadAndDecide("conversation_exists", message, state=there.facts(), accepted=unused)
            if await self._journal.newest(target):
                message = f"there is a conversation {target.conversation_id!r} in the archive"
                raise ReloadAndDecide("conversation_exists", message, accepted=unused)
            now = self._transactor.clock.now()
            entries = await self._history.entries_up_to(original, order.seq)
            began.add(entries[-1].at)
            state, tag = await self._state_for(original, entries, target, now)
            runner = await self._transactor.resume(target, state, now=now)
            if order.version_id is not None and order.version_id != runner.flow.version_id:
                runner, tag = await self._moved(runner, order.version_id, order.mapping), None
            else:
                mapping_by_id(order.mapping, runner.flow, runner.flow)  # for its names: nothing moves
            asked = {
                "conversationId": original.conversation_id,
                "seq": order.seq,
                "versionId": runner.flow.version_id,
                "tag": tag,
            }
            return Transition(
                runner,
                ReplyTemplate(fork_reply(runner, asked), status=201),
                JournalInput("fork", asked),
                forked_from=Fork(original.conversation_id, order.seq),
            )

        reply = await self._transactor.run(target, idempotency, decide)
        if not reply.replayed:
            await self._require_original(original, order.seq, target, began)
            self._transactor.observer.count("forks")
        return reply

    async def _require_original(
        self, original: ConversationRef, seq: int, target: ConversationRef, began: Collection[datetime]
    ) -> None:
        """An erasure finds every fork that was committed before it; one that was committed after it finds its
        entry gone, of a moment in `began`, and goes too. Raises LookElsewhere `conversation_unknown`."""
        entries = await self._journal.up_to(original, seq)
        newest = entries or await self._journal.newest(original)
        if (entries and entries[-1].at in began) or (newest and newest[-1].seq > seq):  # it has made room
            return
        now = self._transactor.clock.now()
        await self._transactor.memory.erase(target, Erasure(erasure_event(target, now), b"", now))
        raise unknown_conversation(original.conversation_id)

    async def _state_for(
        self,
        original: ConversationRef,
        entries: Sequence[JournalEntry],
        target: ConversationRef,
        now: datetime,
    ) -> tuple[LoadedConversation, str | None]:
        """What was stored after an entry, as another conversation's, with its messages; in no split, whose
        outcomes are of conversations that people had. Beside it the tag by which it had begun."""
        _, then = states_of(entries)
        session = cast("Session", then.session)  # every commit leaves one
        passed = now - entries[-1].at
        task, deadline, approval = session.task, session.task.routing_deadline, session.approval
        if deadline is not None:
            task = task.model_copy(update={"routing_deadline": deadline + passed})
        if approval is not None and approval.status == "waiting":
            approval = approval.model_copy(update={"until": approval.until + passed})
        own = session.model_copy(
            update={"conversation_id": target.conversation_id, "task": task, "approval": approval}
        )
        head = (await self._index.one(original)).head
        tag = head.tag if head is not None and head.started_at == session.started_at else None
        # The messages up to the entry, as far as entries of them are kept.
        told: list[DialogueTurn] = []
        language = ""
        async for entry in self._that_led_to(original, entries[-1].seq):
            before = language
            if entry.base is not None and entry.base.session is not None:
                before = entry.base.session.language
            language = str(as_object(entry.delta.get("session", {})).get("language", before))
            tag, _ = begun_by(entry) or (tag, None)
            if "tenant" in entry.delta:  # started anew
                told.clear()
            if entry.input["op"] == "handle-utterance":
                told.append(_turn(entry, language))
        contacts = own.own_contacts
        # What is unread comes to be read with the next turn: no job does it, so nobody may wait for one.
        unread = {"failed_turn": then.last_user_turn}
        state = replace(
            then,
            session=own,
            mining=then.mining.model_copy(update={"rollout": None, "rollback_told": None, **unread}),
            mining_revision=max(1, then.mining_revision),  # at 0 there is none to be stored
            turns=tuple(turn for turn in told if turn.contact_id in contacts),
        )
        return state, tag

    async def _that_led_to(self, conversation: ConversationRef, seq: int) -> AsyncGenerator[JournalEntry]:
        """The entries up to that one, ascending, after those of what the conversation was forked from."""
        ways, until = list[tuple[ConversationRef, int]](), None
        while first := await self._journal.after(conversation, 0, at_most=1):
            began = first[0]
            if until is not None and began.at > until:  # another one of that id, begun since
                break
            ways.append((conversation, seq))
            if began.input["op"] != "fork":
                break
            asked, until = cast("Mapping[str, Any]", began.input), began.at
            conversation, seq = ConversationRef(conversation.tenant_id, asked["conversationId"]), asked["seq"]
        for each, last in reversed(ways):
            async for entry in every_entry(self._journal, each):
                if entry.seq > last:
                    break
                yield entry

    async def _moved(
        self, runner: ConversationalFlowRunner, version_id: str, mapping: Mapping[str, str]
    ) -> ConversationalFlowRunner:
        """On another version of the flow, by the rules of a migration. Raises as `fork`."""
        state, old, versions = runner.loaded, runner.flow, self._transactor.versions
        new = (await versions.to_start(runner.session.tenant_id, VersionChoice(version_id))).version.flow
        if new.flow_id != old.flow_id:
            raise LookElsewhere(
                "version_unknown",
                f"{version_id!r} is no version of flow {old.flow_id!r}, as the original's is",
            )
        tasks = mapping_by_id(mapping, old, new)
        verdict = judge(runner, new, tasks)
        if verdict.to_task is None:
            known = ", ".join(repr(task.name) for task in new.tasks.values())
            message = f"{verdict.reason}; version {version_id!r} has the tasks: {known}"
            raise CorrectTheInput.breach("fork_not_possible", message, at="/mapping")
        runner.migrate_to(new, verdict.to_task.id, tasks)
        moved = replace(on_version(state, runner), mining=mining_on(state, old, runner.flow))
        return ConversationalFlowRunner.resume(
            runner.flow, runner.session, moved, runner.platform, runner.now
        )


def _turn(entry: JournalEntry, language: str) -> DialogueTurn:
    """The message that an entry took. Times are in UTC."""
    asked: Mapping[str, Any] = entry.input
    body = asked["body"]
    return DialogueTurn(
        message_id=asked["messageId"],
        ts=datetime.fromisoformat(asked["ts"]),
        type=asked["type"],
        src=asked["src"],
        body=body if isinstance(body, str) else orjson.dumps(body).decode(),
        contact_id=asked["contactId"],
        task_name=str(entry.outcome["task"]),
        language=language,
    )
