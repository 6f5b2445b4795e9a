"""ConversationalFlowRunner: one step of one conversation, without I/O.

A runner is made from what was loaded, moved by one call, and asked what to commit. Nothing outside it
changes meanwhile: a step that loses its commit is simply done again on fresh state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta

from pydantic.alias_generators import to_camel

from flow_engine.documents import ClosureConfig
from flow_engine.errors import CallTheOperator, CorrectTheInput, Finding, LookElsewhere, ReloadAndDecide
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job, JobKind
from flow_engine.runtime import commands, events
from flow_engine.runtime.agent_data import agent_data_of
from flow_engine.runtime.commands import NewContact, check_channel
from flow_engine.runtime.compiled import (
    LONGEST_S,
    CompiledFlow,
    TaskPlan,
    compile_flow,
    render_task,
    scope_of,
)
from flow_engine.runtime.events import ended_by
from flow_engine.runtime.memory import MemoryEntry, PreviousContact, merge
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.replies import AgentData
from flow_engine.runtime.rules import TaskGuard, TaskRefusal, channel_available, explain
from flow_engine.runtime.session import Contact, Session, TaskEntry
from flow_engine.runtime.statechart import StateConfiguration, UnknownStates
from flow_engine.runtime.storage import FormerConversation, LoadedConversation, NewMemory
from flow_engine.task_types import ACTIVE, BETWEEN_CONTACTS, CLOSED, TASK_KINDS
from flow_engine.templates import TemplateScope
from flow_engine.vocabulary import ContactStatus, HumanOutcome, Phase

CONTACTS_KEPT = 200  # ended contacts remembered, so that one cannot come back to life
CONCLUDE_AFTER_S = 1.0  # the last words are read first
LATE_UTTERANCES_S = 60.0
"""How long after its end a contact's messages are still taken when its conversation is over: recognisers of
speech deliver late."""


class ConversationalFlowRunner:
    """`session` is what a commit would store now, `outbox` the events that go with it.

    `new_memory` is set when the conversation starts anew, and `former` what is left of the one before;
    `memory` is the merged memory (F18). `left_task` is the task that a contact was taken out of because its
    channel lacks it.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        session: Session,
        loaded: LoadedConversation,
        platform: Platform,
        now: datetime,
    ) -> None:
        self.flow = flow
        self.session = session
        self.loaded = loaded
        self.platform = platform
        self.now = now
        self.memory: Mapping[str, MemoryEntry] = merge(loaded.mined, loaded.tools)
        self.tenant = loaded.tenant
        self.previous_contacts: tuple[PreviousContact, ...] = loaded.previous_contacts
        self.new_memory: NewMemory | None = None
        self.outbox: list[bytes] = []
        self.jobs: list[DueJob] = []
        self.former: FormerConversation | None = None
        self.left_task: TaskPlan | None = None
        self._refusal: TaskRefusal | None = None

    @classmethod
    def resume(
        cls,
        flow: CompiledFlow,
        session: Session,
        loaded: LoadedConversation,
        platform: Platform,
        now: datetime,
    ) -> ConversationalFlowRunner:
        """Take up a stored conversation. A routing that ran out of time has failed by now (F34).

        In an AIS task that is told, and the AI goes on.

        Raises CallTheOperator `snapshot_unusable` for a snapshot that does not fit its version: it is
        never reset in silence (F13).
        """
        try:
            flow.chart.check(session.states)
            if flow.chart.current_task(session.states) != session.task.task_id:
                raise UnknownStates(f"the texts of task {session.task.task_id!r} are not of its states")
        except UnknownStates as error:
            raise CallTheOperator("snapshot_unusable", f"version {flow.version_id!r}: {error}") from error
        runner = cls(flow, session, loaded, platform, now)
        if session.deadline is None:  # stored by a release that did not write it down
            runner.session = session.model_copy(update={"deadline": runner._deadline()})
        deadline = session.task.routing_deadline
        if deadline is not None and deadline <= now and runner._looks_for_somebody():
            runner._time_out_routing()
        return runner

    @classmethod
    def start(  # noqa: PLR0917
        cls,
        flow: CompiledFlow,
        conversation: ConversationRef,
        campaign_id: str,
        contact: NewContact,
        loaded: LoadedConversation,
        platform: Platform,
        now: datetime,
        before: ConversationalFlowRunner | None = None,
    ) -> ConversationalFlowRunner:
        """Begin a conversation; `before` is an earlier one of the same id, which ends by this (F28).

        Raises CorrectTheInput `channel_not_supported`.
        """
        check_channel(flow, contact.channel)
        if before is not None:
            before.end_for(contact.contact_id)
        session = Session(
            conversation_id=conversation.conversation_id,
            tenant_id=conversation.tenant_id,
            campaign_id=campaign_id,
            flow_id=flow.flow_id,
            version_id=flow.version_id,
            content_hash=flow.content_hash,
            revision=loaded.revision + 1,
            configuration=flow.chart.start.configuration,
            contacts={} if before is None else before.session.contacts,
            active_contact_id=None,
            language=flow.document.default_language,
            started_at=now if before is None else before.after_all_contacts(now),
            task=TaskEntry(
                task_id=flow.document.first_task, entered_at=now, global_prompt="", prompt="", descriptions={}
            ),
        )
        runner = cls(flow, session, loaded, platform, now)
        variables = {v.id: MemoryEntry.empty(v.type, contact.contact_id) for v in flow.variables}
        tenant = {"campaignId": campaign_id, **contact.tenant}
        runner.new_memory = NewMemory(tenant, variables)
        if before is not None:
            runner.outbox = list(before.outbox)
            runner.former = before.unconcluded()
            if runner.former is not None:
                runner.jobs.append(runner.due("conclude", after_s=CONCLUDE_AFTER_S))
        runner.memory, runner.tenant, runner.previous_contacts = variables, tenant, ()
        runner._replace_contact(contact)
        runner._enter_first(contact.channel)
        return runner

    def _enter_first(self, channel: str) -> None:
        """Enter the first task, or the nearest one that has the contact's channel (F28)."""
        wanted = self.flow.document.first_task
        first = self._nearest_with(channel, wanted)
        if first.id != wanted:
            self._set_states(self.flow.chart.placed(first.id))
        self._enter(first.id)
        if first.id != wanted:
            self._left(self.flow.tasks[wanted])
        self._start_routing()

    # --- where it stands ----------------------------------------------------------------------

    @property
    def task(self) -> TaskPlan:
        return self.flow.tasks[self.session.task.task_id]

    @property
    def status(self) -> str | None:
        return self.flow.chart.status(self.session.states)

    @property
    def changed(self) -> bool:
        return self.session.revision != self.loaded.revision

    @property
    def closure(self) -> ClosureConfig:
        """The active task's closure configuration: every task has one, and it overrides the flow's."""
        return self.task.document.closure_config

    @property
    def multi_contact(self) -> bool:
        return self.closure.multi_contact

    @property
    def expired(self) -> bool:
        """The conversation's time is over: it closes with its contact, the next one starts anew (F28)."""
        return self.session.deadline is not None and self.now >= self.session.deadline

    def phase_after(self, contact_id: str) -> Phase:
        """What the conversation was when a contact ended, whatever has come since."""
        own = self.session.own_contacts
        if contact_id not in own:
            return CLOSED
        if own[contact_id].status != "ended":
            return self.session.states.phase
        last = max(own, key=lambda id: own[id].started_at)
        return self.session.states.phase if contact_id == last else BETWEEN_CONTACTS

    @property
    def guard(self) -> TaskGuard:
        return TaskGuard(self.flow, self.memory, self.session.latest_contact.channel)

    def require_contact(self, contact_id: str) -> Contact:
        contact = self.session.contacts.get(contact_id)
        if contact is None:
            raise LookElsewhere("contact_unknown", f"contact {contact_id!r} is not of this conversation")
        return contact

    def require_active(self, contact_id: str) -> Contact:
        """Raises ReloadAndDecide for any other contact, one that this conversation never had included."""
        contact = self.session.contacts.get(contact_id)
        if contact is None or contact_id != self.session.active_contact_id:
            self.require_open()
            known = "unknown here" if contact is None else contact.status
            raise ReloadAndDecide(
                "contact_not_active", f"contact {contact_id!r} is {known}", state=self.facts()
            )
        return contact

    def require_listening(self, contact_id: str) -> None:
        """Messages of a contact are taken while the conversation is open, and for some time after."""
        contact = self.require_contact(contact_id)
        former = contact_id not in self.session.own_contacts
        if not former and not self.session.closed:
            return
        if contact.ended_at is None or (self.now - contact.ended_at).total_seconds() > LATE_UTTERANCES_S:
            self.require_open()
            raise ReloadAndDecide(
                "contact_ended", f"contact {contact_id!r} is over ({contact.status})", state=self.facts()
            )

    def require_open(self) -> None:
        if self.session.closed:
            raise ReloadAndDecide(
                "conversation_closed",
                "the conversation is closed",
                state=self.facts(),
                accepted=("a new contact, which starts it anew",),
            )

    def facts(self) -> dict[str, object]:
        """The current state, as every conflict tells it."""
        return {
            "revision": self.session.revision,
            "phase": self.session.states.phase,
            "activeContactId": self.session.active_contact_id,
            "taskName": self.task.name,
            "taskStatus": self.status,
        }

    # --- refusals, by the names of the class diagram ------------------------------------------

    def set_task_validation_error(self, refusal: TaskRefusal) -> None:
        self._refusal = refusal

    def get_task_validation_error(self) -> TaskRefusal:
        if self._refusal is None:
            raise LookupError("the last change of task was not refused")
        return self._refusal

    def has_task_validation_error(self) -> bool:
        return self._refusal is not None

    # --- by the names of the class diagram --------------------------------------------------------

    @staticmethod
    def compile(raw: object, content_hash: str) -> CompiledFlow:
        """Raises ReloadAndDecide `version_is_draft`, and CorrectTheInput `document_invalid`."""
        return compile_flow(raw, content_hash)

    def get_agent_data(self, contact_id: str, command: str | None) -> AgentData:
        """Everything an agent needs to go on, after whatever the runner has done."""
        return agent_data_of(self, contact_id, command)

    def take_command(self) -> str | None:
        """The command that the agent has yet to be told; it is told once."""
        command = self.session.pending_command
        if command is not None:
            self._update(pending_command=None)
        return command

    # --- moves --------------------------------------------------------------------------------

    def change_task(self, asked: str) -> bool:
        """Move to the task named; on False `get_task_validation_error` tells why not (F11)."""
        guard, left, target = self.guard, self.task, self.flow.task_named(asked)
        before = self.session.states
        after = before if target is None else self.flow.chart.enter(before, target.id, guard)
        if target is None or after == before:
            self._refuse(asked, guard)
            return False
        self._update(configuration=after.configuration, history=after.history)
        self._enter(target.id)
        self._note("task_changed", **{"from": left.name, "to": target.name})
        self._start_routing()
        return True

    def resume_contact(self, contact: NewContact) -> None:
        """Another contact goes on with the conversation: memory and task are kept (F28)."""
        states = self.session.states
        if states.phase == ACTIVE:
            states = self.flow.chart.pause(states)
        self._set_states(self.flow.chart.resume(states))
        self._replace_contact(contact)
        nearest, current = self._nearest_with(contact.channel, self.task.id), self.task
        if nearest.id == current.id:
            self._pass(current.name)
        else:
            self._set_states(self.flow.chart.placed(nearest.id))
            self._enter(nearest.id)
            self._left(current)
        self._start_routing()

    def end_for(self, contact_id: str) -> None:
        """End for good, because a contact starts the conversation anew under its id."""
        earlier_id, earlier = self.session.active_contact_id, self.session.active_contact
        if earlier_id is not None and earlier is not None:
            self._finish(earlier_id, earlier, "superseded")
            self._update(active_contact_id=None)
            self._note("contact_superseded", earlier_id, by=contact_id)
        if not self.session.closed:
            self._close(earlier_id)

    def after_all_contacts(self, now: datetime) -> datetime:
        """A start by which what comes can be told from what was, also within one ms."""
        latest = max(contact.started_at for contact in self.session.contacts.values())
        return max(now, latest + timedelta(milliseconds=1))

    def unconcluded(self) -> FormerConversation | None:
        """What is still to be concluded of a conversation that has ended, None where all is told (F39)."""
        mining = self.loaded.mining
        all_concluded = self.session.own_contacts.keys() <= mining.conclusions.keys()
        no_checkpoints = not any(point.required for point in self.flow.document.checkpoints)
        if all_concluded and (mining.missed_reported or no_checkpoints):
            return None
        return FormerConversation.of(self.session, self.loaded)

    def end_contact(self, reason: str | None, *, closes: bool, summary: str | None) -> None:
        """End the active contact; the conversation closes or waits for its next contact (F30)."""
        contact_id, contact = self.session.active_contact_id, self.session.active_contact
        if contact_id is None or contact is None:
            raise LookupError("no contact is active")
        if not closes:
            self._set_states(self.flow.chart.pause(self.session.states))
        self._finish(contact_id, contact, "ended")
        self._update(active_contact_id=None)
        if summary is not None:
            self.remember(contact, summary)
        self.jobs.append(self.due("conclude", subject=contact_id, after_s=CONCLUDE_AFTER_S))
        status = CLOSED if closes else self.session.states.phase
        self._note("contact_ended", contact_id, by=ended_by(reason), reason=reason, status=status)
        if closes:
            self._close(contact_id)
        elif self.session.deadline is not None:
            self.jobs.append(self._due_at("expire", self.session.deadline))

    def close_expired(self) -> None:
        """End a conversation between contacts whose time limit has passed."""
        own = self.session.own_contacts
        latest = max(own, key=lambda id: own[id].started_at)
        self._close(latest)
        self.jobs.append(self.due("conclude", subject=latest))

    def note_handler_failure(self, contact_id: str, reason: str) -> None:
        """Tell that the closure handler was asked and gave no usable answer."""
        self._note("handler_failed", contact_id, reason=reason)

    def apply_human_outcome(self, outcome: HumanOutcome, reason: str | None) -> str | None:
        """Drive a HUM or AIS task (F34) and return the model's command, None where there is none.

        An outcome that has come true already is no error: its sender repeats it.
        Raises ReloadAndDecide `outcome_not_possible`, with the outcomes that are.
        """
        accepted = self.flow.chart.accepted_outcomes(self.session.states)
        if outcome in accepted:
            self._apply_outcome(outcome, reason)
        elif not self._has_come_true(outcome):
            raise ReloadAndDecide(
                "outcome_not_possible",
                f"{outcome!r} does not follow in task {self.task.name!r} ({self.task.type}, {self.status})",
                state=self.facts(),
                accepted=accepted,
            )
        if outcome == "completed":
            return commands.HUMAN_COMPLETED
        if outcome == "failed":
            return commands.human_failed(self.session.task.human_reason or "unknown")
        return None

    def migrate_to(self, flow: CompiledFlow, task_id: str) -> None:
        """Go on in a task of another version, of the same type and in the same part of it."""
        old_task, old_version = self.session.task.task_id, self.session.version_id
        states = flow.chart.moved(self.session.states, old_task, task_id)
        self.flow = flow
        self._set_states(states)
        self._update(version_id=flow.version_id, content_hash=flow.content_hash)
        self._render(task_id)
        self._note("version_migrated", **{"from": old_version, "to": flow.version_id})

    def set_language(self, language: str | None) -> None:
        """Take up a language that the version supports; any other is left unused. `it` means `it-IT`."""
        spoken = supported_language(self.flow, language)
        if spoken is not None and spoken != self.session.language:
            self._update(language=spoken)

    def remember(self, contact: Contact, summary: str) -> None:
        """Add an ended contact to what later contacts are told (F20)."""
        remembered = PreviousContact(date=contact.started_at, channel=contact.channel, resume=summary)
        self.previous_contacts = (*self.previous_contacts, remembered)

    def remembered(self, contact: Contact) -> str | None:
        """The summary that was written of an ended contact, if one was."""
        found = (p.resume for p in self.previous_contacts if p.date == contact.started_at)
        return next(found, None)

    def due(self, kind: JobKind, *, subject: str = "", after_s: float = 0.0) -> DueJob:
        conversation = ConversationRef(self.session.tenant_id, self.session.conversation_id)
        return DueJob(Job(kind, conversation, subject), self.now + timedelta(seconds=after_s))

    def _due_at(self, kind: JobKind, moment: datetime) -> DueJob:
        return self.due(kind, after_s=max(0.0, (moment - self.now).total_seconds()))

    # --- the parts of a move ------------------------------------------------------------------

    def _has_come_true(self, outcome: HumanOutcome) -> bool:
        arcs = TASK_KINDS[self.task.type].events.get(outcome, ())
        return any(target == self.status for _, target in arcs)

    def _apply_outcome(self, outcome: HumanOutcome, reason: str | None) -> None:
        self._set_states(self.flow.chart.human(self.session.states, outcome))
        entry = self.session.task.model_copy(update={"human_reason": reason, "routing_deadline": None})
        self._update(task=entry)
        self._note("human_task", outcome=outcome, reason=reason)

    def _looks_for_somebody(self) -> bool:
        kind = TASK_KINDS[self.task.type]
        return kind.routed and self.status == kind.sub_states[0] and self._asks_for_somebody()

    def _asks_for_somebody(self) -> bool:
        """A transfer always does, a supervision when the task says who is to supervise."""
        return TASK_KINDS[self.task.type].transfers or bool(self.task.transfer_tags)

    def _time_out_routing(self) -> None:
        if "failed" in self.flow.chart.accepted_outcomes(self.session.states):
            self._apply_outcome("failed", "timeout")
            self._update(pending_command=commands.human_failed("timeout"))
        else:
            self._update(task=self.session.task.model_copy(update={"routing_deadline": None}))
            self._note("human_task", outcome="failed", reason="timeout")

    def _close(self, contact_id: str | None) -> None:
        reason = "time_limit" if self.expired else None
        self._set_states(self.flow.chart.close(self.session.states))
        own = self.session.own_contacts
        about = contact_id or max(own, key=lambda id: own[id].started_at, default=None)
        self._note("conversation_closed", about, reason=reason)

    def _nearest_with(self, channel: str, task_id: str) -> TaskPlan:
        """The task itself if it is there on the channel, else the nearest that is, else any.

        Raises CorrectTheInput `channel_not_supported` when no task of the version has the channel.
        """
        ways = deque([task_id])
        seen = dict.fromkeys(ways)
        while ways:
            plan = self.flow.tasks[ways.popleft()]
            if channel_available(plan, channel):
                return plan
            ahead = [target for target in plan.connected if target not in seen]
            seen |= dict.fromkeys(ahead)
            ways.extend(ahead)
        for plan in self.flow.tasks.values():
            if channel_available(plan, channel):
                return plan
        message = f"no task of version {self.flow.version_id!r} is available on {channel!r}"
        raise CorrectTheInput(
            "channel_not_supported", message, [Finding("/channel", "channel_not_supported", message)]
        )

    def _left(self, task: TaskPlan) -> None:
        self.left_task = task
        self._note("task_changed", **{"from": task.name, "to": self.task.name})

    def _refuse(self, asked: str, guard: TaskGuard) -> None:
        refusal = explain(self.flow, self.task, asked, guard)
        if refusal is None:
            raise AssertionError(f"the chart of {self.flow.version_id!r} refused what its rules allow")
        self.set_task_validation_error(refusal)
        target = self.flow.task_named(asked)
        if target is not None:  # names that no task has would grow the snapshot without bound
            counts = self.session.refused
            self._update(refused={**counts, target.id: counts.get(target.id, 0) + 1})
        else:
            self._update()
        self._note("task_refused", code=refusal.code, task=asked[:200])

    def _replace_contact(self, contact: NewContact) -> None:
        """Make `contact` the active one; one that still was is superseded and summed up."""
        check_channel(self.flow, contact.channel)
        earlier_id, earlier = self.session.active_contact_id, self.session.active_contact
        if earlier_id is not None and earlier is not None and earlier_id != contact.contact_id:
            self._finish(earlier_id, earlier, "superseded")
            self.jobs.append(self.due("conclude", subject=earlier_id, after_s=CONCLUDE_AFTER_S))
            self._note("contact_superseded", earlier_id, by=contact.contact_id)
        started_at = max(self.now, self.session.started_at)
        admitted = Contact(channel=contact.channel, status="active", started_at=started_at, data=contact.data)
        kept = dict(list(self.session.contacts.items())[-CONTACTS_KEPT:])
        kept.pop(contact.contact_id, None)
        self._update(
            contacts={**kept, contact.contact_id: admitted},
            active_contact_id=contact.contact_id,
            pending_command=None,
        )
        self.set_language(contact.language)
        self._note("contact_started", channel=contact.channel)

    def _finish(self, contact_id: str, contact: Contact, status: ContactStatus) -> None:
        finished = contact.model_copy(update={"status": status, "ended_at": self.now})
        self._update(contacts={**self.session.contacts, contact_id: finished})

    def _enter(self, task_id: str) -> None:
        """Enter a task as the active contact; its texts stay until it is left (F23)."""
        entered = self.session.entered
        self._pass(self.flow.tasks[task_id].name)
        self._update(
            task=self.session.task.model_copy(
                update={"entered_at": self.now, "routing_deadline": None, "human_reason": None}
            ),
            entered={**entered, task_id: entered.get(task_id, 0) + 1},
        )
        self._render(task_id)
        deadline = self._deadline()
        if deadline is not None:
            self._update(deadline=deadline)
            self.jobs.append(self._due_at("expire", deadline))

    def _deadline(self) -> datetime | None:
        """By the task that the conversation is in, counted from its start; None: as it is."""
        limit = self.closure.conversation_time_limit
        if not self.multi_contact or limit is None:
            return None
        return self.session.started_at + timedelta(seconds=min(max(limit, 0.0), LONGEST_S))

    def _pass(self, task_name: str) -> None:
        """Remember that the active contact was in the task."""
        contact_id, contact = self.session.active_contact_id, self.session.active_contact
        if contact_id is not None and contact is not None:
            passed = contact.model_copy(update={"tasks": (*contact.tasks, task_name)[-CONTACTS_KEPT:]})
            self._update(contacts={**self.session.contacts, contact_id: passed})

    def _render(self, task_id: str) -> None:
        """Render every template of the task, with the task's own facts in scope."""
        self._update(task=self.session.task.model_copy(update={"task_id": task_id}))
        texts = render_task(self.flow, self.task, self.template_scope())
        self._update(task=self.session.task.model_copy(update=texts))

    def _start_routing(self) -> None:
        if not self._looks_for_somebody():
            return
        routing = self.task.document.routing_parameters
        timeout = 0.0 if routing is None else routing.timeout
        deadline = self.now + timedelta(seconds=min(max(timeout, 0.0), LONGEST_S))
        entry = self.session.task.model_copy(update={"routing_deadline": deadline, "human_reason": None})
        self._update(task=entry)
        asked = {to_camel(kind): values for kind, values in self.task.transfer_tags}
        self._note("routing_requested", None, timeout=timeout, **asked)
        self.jobs.append(self._due_at("routing", deadline))

    def template_scope(self) -> TemplateScope:
        return scope_of(self.flow, self.session, self.memory, self.tenant)

    def _set_states(self, states: StateConfiguration) -> None:
        self._update(configuration=states.configuration, history=states.history)

    def _update(self, **changes: object) -> None:
        """Every step makes one revision, however many parts it has."""
        self.session = self.session.model_copy(update={"revision": self.loaded.revision + 1, **changes})

    def _note(self, subtype: str, contact_id: str | None = None, **details: object) -> None:
        about = contact_id or self.session.active_contact_id or ""
        self.outbox.append(
            events.system_event(
                self.flow, self.session, len(self.outbox), about, self.now, subtype, **details
            )
        )


def supported_language(flow: CompiledFlow, language: str | None) -> str | None:
    """The supported language that a BCP 47 tag means: that very one, else the first of
    the language where the tag names no region."""
    supported, wanted = flow.document.supported_languages, (language or "").replace("_", "-").casefold()
    primary = wanted.partition("-")[0]
    exact = [tag for tag in supported if tag.casefold() == wanted]
    alike = [tag for tag in supported if wanted == primary == tag.casefold().partition("-")[0]]
    return next(iter((*exact, *alike)), None) if primary else None
