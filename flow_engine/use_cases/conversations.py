"""The agents' use cases on contacts and tasks (F28–F30, F34)."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from flow_engine.errors import ReloadAndDecide
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.ports.dialogue import ConversationRef, SummaryRequest
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, post_json
from flow_engine.runtime import commands
from flow_engine.runtime.agent_data import get_agent_data, get_refusal
from flow_engine.runtime.commands import NewContact
from flow_engine.runtime.replies import ContactEndReply
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.session import Contact
from flow_engine.runtime.storage import LoadedConversation, ReplyTemplate, turns_of_contact
from flow_engine.runtime.tables import value_text
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor, Transition
from flow_engine.vocabulary import HumanOutcome

CLOSURE_HANDLER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """Which version a new conversation runs on: by id, or by flow and tag."""

    version_id: str | None = None
    flow_id: str | None = None
    tag: str | None = None


class Conversations:
    """Every method answers for one tenant: another's conversation looks exactly like an unknown one."""

    def __init__(self, transactor: Transactor, dependencies: ConversationDependencies) -> None:
        self._transactor = transactor
        self._summariser = dependencies.summariser
        self._outbound = dependencies.outbound

    async def new_contact(
        self,
        conversation: ConversationRef,
        contact: NewContact,
        choice: VersionChoice,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Start a conversation, or go on with it, by the rules of F28."""

        async def decide(loaded: LoadedConversation) -> Transition:
            runner = await self._going_on(conversation, contact, loaded)
            command = commands.RESUME
            if runner is None:
                runner, command = await self._starting(conversation, contact, choice, loaded), commands.START
            data = get_agent_data(runner, contact.contact_id, command)
            return Transition(runner, ReplyTemplate(orjson.dumps(data)), guards_memory=True)

        return await self._transactor.run(conversation, idempotency, decide, with_turns=True)

    async def _going_on(
        self, conversation: ConversationRef, contact: NewContact, loaded: LoadedConversation
    ) -> ConversationalFlowRunner | None:
        """The stored conversation with this contact in it; None when it has to start anew."""
        if loaded.session is None:
            return None
        runner = await self._transactor.resume(conversation, loaded)
        known = runner.session.contacts.get(contact.contact_id)
        if known is not None and known.status != "active":
            raise ReloadAndDecide(
                "contact_ended",
                f"contact {contact.contact_id!r} is over ({known.status})",
                state=runner.facts(),
                accepted=("a new contact id",),
            )
        if runner.session.closed or runner.expired:
            return None
        if known is not None:
            return runner
        if not runner.multi_contact:
            return None
        earlier_id, earlier = runner.session.active_contact_id, runner.session.active_contact
        if earlier_id is not None and earlier is not None:
            runner.remember(earlier, await self._summary(runner, earlier_id, earlier, None))
        runner.resume_contact(contact)
        return runner

    async def _starting(
        self,
        conversation: ConversationRef,
        contact: NewContact,
        choice: VersionChoice,
        loaded: LoadedConversation,
    ) -> ConversationalFlowRunner:
        startable = await self._transactor.versions.to_start(
            conversation.tenant_id, choice.version_id, choice.flow_id, choice.tag
        )
        return ConversationalFlowRunner.start(
            startable.version.flow,
            conversation,
            startable.campaign_id,
            contact,
            loaded,
            self._transactor.platform,
            self._transactor.clock.now(),
        )

    async def change_task(
        self,
        conversation: ConversationRef,
        contact_id: str,
        task: str,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Move to a task, or say why not: both are replies (F29)."""

        async def decide(loaded: LoadedConversation) -> Transition:
            runner = await self._transactor.resume(conversation, loaded)
            runner.require_active(contact_id)
            if runner.change_task(task):
                command = commands.start_task(runner.task)
                body = orjson.dumps({"result": True, **get_agent_data(runner, contact_id, command)})
            else:
                body = orjson.dumps(get_refusal(runner))
            return Transition(runner, ReplyTemplate(body), guards_memory=True)

        return await self._transactor.run(conversation, idempotency, decide)

    async def human_task(
        self,
        conversation: ConversationRef,
        contact_id: str,
        outcome: HumanOutcome,
        reason: str | None,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Take note of what became of a transfer or of a supervision (F34)."""

        async def decide(loaded: LoadedConversation) -> Transition:
            runner = await self._transactor.resume(conversation, loaded)
            runner.require_active(contact_id)
            command = runner.apply_human_outcome(outcome, reason)
            return Transition(
                runner, ReplyTemplate(orjson.dumps(get_agent_data(runner, contact_id, command)))
            )

        return await self._transactor.run(conversation, idempotency, decide)

    async def end_contact(
        self,
        conversation: ConversationRef,
        contact_id: str,
        reason: str | None,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """End a contact (F30). For one that is over already: the same answer, and no change."""
        verdicts: dict[str, bool] = {}

        async def decide(loaded: LoadedConversation) -> Transition:
            runner = await self._transactor.resume(conversation, loaded)
            contact = runner.require_contact(contact_id)
            summary = runner.remembered(contact)
            if contact_id == runner.session.active_contact_id:
                task_id = runner.task.id
                if task_id not in verdicts:  # asked once, however often the commit is tried
                    verdicts[task_id] = await self._closes(runner, contact_id, reason)
                if not verdicts[task_id]:
                    summary = await self._summary(runner, contact_id, contact, reason)
                runner.end_contact(reason, closes=verdicts[task_id], summary=summary)
            reply = ContactEndReply(
                conversationId=conversation.conversation_id,
                contactId=contact_id,
                status=runner.session.states.phase,
                revision=runner.session.revision,
                summary=summary,
            )
            return Transition(runner, ReplyTemplate(orjson.dumps(reply)))

        return await self._transactor.run(conversation, idempotency, decide, with_turns=True)

    async def _closes(self, runner: ConversationalFlowRunner, contact_id: str, reason: str | None) -> bool:
        """A single contact closes; over several the handler is asked, whose failure does not close."""
        closure = runner.closure
        if not closure.multi_contact:
            return True
        if closure.custom_handler is None:
            return False
        session = runner.session
        question = {
            "tenantId": session.tenant_id,
            "conversationId": session.conversation_id,
            "contactId": contact_id,
            "channel": session.latest_contact.channel,
            "taskId": runner.task.id,
            "taskName": runner.task.name,
            "reason": reason,
        }
        try:
            answer = await post_json(
                self._outbound, closure.custom_handler, question, timeout_s=CLOSURE_HANDLER_TIMEOUT_S
            )
        except (OutboundRefused, OutboundFailed):
            return False
        return 200 <= answer.status < 300 and answer.body.strip() == b"true"

    async def _summary(
        self, runner: ConversationalFlowRunner, contact_id: str, contact: Contact, reason: str | None
    ) -> str:
        version, memory = runner.flow.document, runner.memory
        known = [
            (spec.name, value_text(spec.type, memory[spec.id].value))
            for spec in runner.flow.variables
            if spec.type != "custom" and spec.id in memory and memory[spec.id].has_value
        ]
        request = SummaryRequest(
            api_version=version.api_version,
            language=runner.platform.language(version),
            channel=contact.channel,
            turns=turns_of_contact(runner.loaded.turns, contact_id),
            tasks_passed=contact.tasks,
            end_reason=reason,
            variables=known,
        )
        return await self._summariser.summarise(request)
