"""The agents' use cases on contacts and tasks (F28–F30, F34)."""

from dataclasses import dataclass, replace
from functools import partial

import orjson

from flow_engine.errors import CorrectTheInput, Finding, ReloadAndDecide
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.json_values import json_bytes
from flow_engine.ports.dialogue import ConversationRef, SummaryRequest
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, UnusableAnswer, post_json
from flow_engine.runtime import commands
from flow_engine.runtime.agent_data import agent_data_of, get_refusal, get_text_refusal
from flow_engine.runtime.commands import NewContact
from flow_engine.runtime.events import task_status
from flow_engine.runtime.human_part import HumanReport, text_fault
from flow_engine.runtime.mining_state import MiningState
from flow_engine.runtime.replies import ContactEndReply
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.session import Contact
from flow_engine.runtime.storage import (
    JournalInput,
    LoadedConversation,
    ReplyTemplate,
    turns_of_contact,
)
from flow_engine.runtime.tables import value_text
from flow_engine.use_cases.splits import subject_of
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor
from flow_engine.use_cases.transitions import Transition
from flow_engine.use_cases.versions_in_use import VersionChoice
from flow_engine.vocabulary import DECISIONS

CLOSURE_HANDLER_TIMEOUT_S = 5.0
NOT_HEARD = "the closure handler was not heard: "
NO_ANSWER = "no usable answer: "
MAX_CALLER_DATA_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ClosureVerdict:
    """Whether the end of a contact closes the conversation. `error` is for people: why nobody could say."""

    closes: bool
    reason: str = ""
    error: str | None = None
    status: int | None = None


class _TurnsNeeded(Exception):
    """The end of a contact is summed up: what was said has to be read with the conversation."""


def check_caller_data(contact: NewContact) -> None:
    """Raises CorrectTheInput `caller_data_too_large`. In bytes of JSON."""
    sizes = {"/contact": json_bytes(contact.data), "/tenant": json_bytes(contact.tenant)}
    size = sum(sizes.values())
    if size > MAX_CALLER_DATA_BYTES:
        message = f"'contact' and 'tenant' have {size} bytes of JSON; accepted are {MAX_CALLER_DATA_BYTES}"
        larger = max(sizes, key=sizes.__getitem__)
        raise CorrectTheInput.breach("caller_data_too_large", message, at=larger)


class Conversations:
    """Every method answers for one tenant: another's conversation looks exactly like an unknown one. Replies
    are JSON texts as bytes. Raises LookElsewhere `conversation_unknown`, RetryLater, ReloadAndDecide
    `revision_conflict`."""

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
        """Start a conversation, or go on with it, by the rules of F28. The reply is `AgentData` as JSON.
        Raises CorrectTheInput `caller_data_too_large`, `channel_not_supported`, ReloadAndDecide
        `contact_ended`."""
        check_caller_data(contact)

        async def decide(loaded: LoadedConversation) -> Transition:
            heard = dict[str, object]()
            mining = None
            before = None if loaded.session is None else await self._transactor.resume(conversation, loaded)
            if before is not None and await self._goes_on(before, contact, heard):
                runner, command = before, commands.RESUME
            else:
                subject = subject_of(contact.data, conversation.conversation_id)
                versions = self._transactor.versions
                startable = await versions.to_start(conversation.tenant_id, choice, subject)
                if startable.rollout is not None:
                    mining = MiningState(rollout=startable.rollout)
                command = commands.START
                runner = ConversationalFlowRunner.start(
                    *(startable.version.flow, conversation, startable.campaign_id, contact, loaded),
                    *(self._transactor.platform, self._transactor.clock.now(), before),
                )
            data = runner.get_agent_data(contact.contact_id, command)
            if runner.advanced is not None:  # the reply tells all of it
                runner.take_command()
            asked = JournalInput(
                "handle-new-contact",
                {
                    "contactId": contact.contact_id,
                    "channel": contact.channel,
                    "tenant": contact.tenant,
                    "contact": contact.data,
                    "language": contact.language,
                    "conversationalFlowVersionId": runner.flow.version_id,
                    "tag": choice.tag,
                },
                heard=heard,
            )
            return Transition(runner, ReplyTemplate(data), asked, guards_memory=True, mining=mining)

        return await self._transactor.run(conversation, idempotency, decide, with_turns=True, begins=True)

    async def _goes_on(
        self, runner: ConversationalFlowRunner, contact: NewContact, heard: dict[str, object]
    ) -> bool:
        """Put the contact into the stored conversation; False, and nothing done, where it starts anew. The
        summary of the one before goes into `heard`.

        Raises ReloadAndDecide `contact_ended`.
        """
        known = runner.session.contacts.get(contact.contact_id)
        if known is not None and known.status != "active":
            raise ReloadAndDecide(
                "contact_ended",
                f"contact {contact.contact_id!r} is over ({known.status})",
                state=runner.facts(),
                accepted=("a new contact id",),
            )
        if runner.session.closed:
            return False
        if known is not None:
            return True
        if runner.closes_with_contact:
            return False
        earlier_id, earlier = runner.session.active_contact_id, runner.session.active_contact
        if earlier_id is not None and earlier is not None:
            heard["summary"] = summary = await self._summary(runner, earlier_id, earlier, None)
            runner.remember(earlier, summary)
        runner.resume_contact(contact)
        return True

    async def change_task(
        self,
        conversation: ConversationRef,
        contact_id: str,
        task: str,
        idempotency: IdempotencyKey | None = None,
        *,
        reason: str | None = None,
    ) -> FinalReply:
        """Move to a task, or say why not: both are replies (F29). `reason` is the model's, for the journal.
        As JSON. Raises ReloadAndDecide
        `contact_not_active`, `conversation_closed`."""

        async def decide(loaded: LoadedConversation) -> Transition:
            runner = await self._transactor.resume(conversation, loaded)
            runner.require_active(contact_id)
            if runner.change_task(task):
                command = runner.take_command() or commands.start_task(runner.task)
                body = agent_data_of(runner, contact_id, command, result=True)
            else:
                body = get_refusal(runner, runner.take_command())
            asked = JournalInput("change-task", {"contactId": contact_id, "task": task}, reason)
            return Transition(runner, ReplyTemplate(body), asked, guards_memory=True)

        return await self._transactor.run(conversation, idempotency, decide)

    async def human_task(
        self,
        conversation: ConversationRef,
        contact_id: str,
        report: HumanReport,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Take note of what became of a transfer, a supervision or a text that waits (F34). The reply is
        `AgentData` as JSON, `HumanTaskRefused` for a text or a decision that is not taken. Raises
        ReloadAndDecide `outcome_not_possible`, CorrectTheInput `body_invalid` for a text that cannot stand
        beside its outcome."""
        fault = text_fault(report.outcome, report.text)
        if fault is not None:
            raise CorrectTheInput("body_invalid", fault, [Finding("/text", "invalid_value", fault)])

        async def decide(loaded: LoadedConversation) -> Transition:
            runner = await self._transactor.resume(conversation, loaded)
            runner.require_active(contact_id)
            heard = report.without_cards() if runner.flow.masks_cards else report
            command = runner.apply_human_outcome(heard)
            if runner.text_refusal is not None:
                body = get_text_refusal(runner)
            else:  # a decision is a person's report; the agent is told by its own next reply
                told = None if heard.outcome in DECISIONS else runner.take_command()
                body = runner.get_agent_data(contact_id, told or command)
            asked = JournalInput("handle-human-task", {"contactId": contact_id, **heard.fields})
            mining, led_by = loaded.mining, task_status(runner.flow, runner.session)
            counts = mining.rollout is not None and not mining.taken_over and led_by != runner.task.type
            noted = mining.model_copy(update={"taken_over": True}) if counts else None
            guards = runner.flow.moves_by_itself
            return Transition(runner, ReplyTemplate(body), asked, guards_memory=guards, mining=noted)

        return await self._transactor.run(conversation, idempotency, decide)

    async def end_contact(
        self,
        conversation: ConversationRef,
        contact_id: str,
        reason: str | None,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """End a contact (F30). For one that is over already: the same answer, and no change. The closure
        handler has 5 seconds; a failure of it is in the reply, `ContactEndReply` as JSON."""
        verdicts: dict[str, ClosureVerdict] = {}

        async def decide(loaded: LoadedConversation, *, with_turns: bool) -> Transition:
            runner = await self._transactor.resume(conversation, loaded)
            contact = runner.require_contact(contact_id)
            summary = runner.remembered(contact)
            error, closes, handler = None, False, None
            active = contact_id == runner.session.active_contact_id
            if active:
                if not (with_turns or runner.closes_with_contact):
                    raise _TurnsNeeded
                task_id = runner.task.id
                if task_id not in verdicts:  # asked once, however often the commit is tried
                    verdicts[task_id] = await self._closes(runner, contact_id, reason)
                verdict = verdicts[task_id]
                closes, error = verdict.closes, verdict.error
                handler = verdict.status or verdict.reason or None
                if not closes:
                    summary = await self._summary(runner, contact_id, contact, reason)
                runner.end_contact(reason, closes=closes, summary=summary)
                if error is not None:
                    runner.note_handler_failure(contact_id, verdict.reason)
            reply = ContactEndReply(
                conversationId=conversation.conversation_id,
                contactId=contact_id,
                status=runner.phase_after(contact_id),
                revision=runner.session.revision,
                summary=summary,
                handlerError=error,
                command=runner.take_command() if active else None,
            )
            heard = {"summary": summary, "closes": closes, "handlerError": error, "handler": handler}
            fields = {"contactId": contact_id, "reason": reason}
            asked = JournalInput("handle-end-contact", fields, heard=heard)
            return Transition(runner, ReplyTemplate(orjson.dumps(reply)), asked)

        run = self._transactor.run
        try:  # most ends close, and then nobody reads what was said
            return await run(conversation, idempotency, partial(decide, with_turns=False))
        except _TurnsNeeded:
            return await run(conversation, idempotency, partial(decide, with_turns=True), with_turns=True)

    async def _closes(
        self, runner: ConversationalFlowRunner, contact_id: str, reason: str | None
    ) -> ClosureVerdict:
        """Over several contacts the handler is asked, whose failure does not close."""
        if runner.closes_with_contact:
            return ClosureVerdict(True)
        closure = runner.closure
        if closure.custom_handler is None:
            return ClosureVerdict(False)
        session = runner.session
        payload = {
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
                self._outbound, closure.custom_handler, payload, timeout_s=CLOSURE_HANDLER_TIMEOUT_S
            )
        except OutboundRefused:
            return self._failed("refused", "the outbound policy of this service forbids its address")
        except OutboundFailed as trouble:
            if isinstance(trouble, UnusableAnswer) and not 200 <= trouble.status < 300:
                return self._no_success(trouble.status)
            return self._failed("unreachable", f"{NO_ANSWER}{trouble}")
        if not 200 <= answer.status < 300:
            return self._no_success(answer.status)
        return ClosureVerdict(answer.body.strip() == b"true")

    def _no_success(self, status: int) -> ClosureVerdict:
        return replace(self._failed("status", f"it answered with status {status}"), status=status)

    def _failed(self, reason: str, message: str) -> ClosureVerdict:
        observer = self._transactor.observer
        observer.count("handler_failures", reason=reason)
        observer.warn("handler_failed", reason=reason)
        return ClosureVerdict(False, reason, f"{NOT_HEARD}{message}")

    async def _summary(
        self, runner: ConversationalFlowRunner, contact_id: str, contact: Contact, reason: str | None
    ) -> str:
        version, memory, secrets = runner.flow.document, runner.shown_memory, runner.secrets()
        known = [
            (spec.name, value_text(spec.type, memory[spec.id].value))
            for spec in runner.flow.variables
            if spec.type != "custom" and spec.id in memory and memory[spec.id].has_value
        ]
        request = SummaryRequest(
            api_version=version.api_version,
            language=runner.platform.language(version),
            channel=contact.channel,
            turns=runner.shown_turns(turns_of_contact(runner.loaded.turns, contact_id)),
            tasks_passed=contact.tasks,
            end_reason=secrets.text(reason) if secrets is not None and reason is not None else reason,
            variables=known,
        )
        return await self._summariser.summarise(request)
