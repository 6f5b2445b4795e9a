"""ConversationalFlowRunner: one step of one conversation, without I/O.

A runner is made from what was loaded, moved by one call, and asked what to commit. Nothing outside it
changes meanwhile: a step that loses its commit is simply done again on fresh state.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from pydantic.alias_generators import to_camel

from flow_engine.documents import ClosureConfig
from flow_engine.errors import CallTheOperator, LookElsewhere, ReloadAndDecide
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job, JobKind
from flow_engine.runtime import commands, events
from flow_engine.runtime.commands import NewContact, check_channel
from flow_engine.runtime.compiled import LONGEST_S, CompiledFlow, TaskPlan, render_task, scope_of
from flow_engine.runtime.events import ended_by
from flow_engine.runtime.memory import MemoryEntry, PreviousContact, merge
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.rules import TaskGuard, TaskRefusal, explain
from flow_engine.runtime.session import Contact, Session, TaskEntry
from flow_engine.runtime.statechart import StateConfiguration, UnknownStates
from flow_engine.runtime.storage import LoadedConversation, NewMemory
from flow_engine.task_types import ACTIVE, TASK_KINDS
from flow_engine.templates import TemplateScope
from flow_engine.vocabulary import ContactStatus, HumanOutcome

CONTACTS_KEPT = 200  # ended contacts remembered, so that one cannot come back to life


class ConversationalFlowRunner:
    """`session` is what a commit would store now, `outbox` the events that go with it.

    `new_memory` is set when the conversation starts anew; `memory` is the merged memory (F18).
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
        deadline = session.task.routing_deadline
        if deadline is not None and deadline <= now and runner.status == "routing":
            runner._apply_outcome("failed", "timeout")
        return runner

    @classmethod
    def start(
        cls,
        flow: CompiledFlow,
        conversation: ConversationRef,
        campaign_id: str,
        contact: NewContact,
        loaded: LoadedConversation,
        platform: Platform,
        now: datetime,
    ) -> ConversationalFlowRunner:
        """Begin a conversation; over an earlier one of the same id it begins anew (F28)."""
        before = loaded.session
        session = Session(
            conversation_id=conversation.conversation_id,
            tenant_id=conversation.tenant_id,
            campaign_id=campaign_id,
            flow_id=flow.flow_id,
            version_id=flow.version_id,
            content_hash=flow.content_hash,
            revision=loaded.revision + 1,
            configuration=flow.chart.start.configuration,
            contacts={} if before is None else before.contacts,
            active_contact_id=None if before is None else before.active_contact_id,
            language=flow.document.default_language,
            started_at=now,
            task=TaskEntry(
                task_id=flow.document.first_task, entered_at=now, global_prompt="", prompt="", descriptions={}
            ),
        )
        runner = cls(flow, session, loaded, platform, now)
        variables = {v.id: MemoryEntry.empty(v.type, contact.contact_id) for v in flow.variables}
        runner.new_memory = NewMemory(contact.tenant, variables)
        runner.memory, runner.tenant, runner.previous_contacts = variables, contact.tenant, ()
        runner._replace_contact(contact)
        runner._enter(flow.document.first_task)
        runner._start_routing()
        limit = runner.closure.conversation_time_limit
        if runner.multi_contact and limit is not None:
            runner.jobs.append(runner.due("expire", after_s=min(limit, LONGEST_S)))
        return runner

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
        """The conversation's time limit has passed: the next contact starts anew (F28)."""
        limit = self.closure.conversation_time_limit
        return (
            self.multi_contact
            and limit is not None
            and self.now >= self.session.started_at + timedelta(seconds=min(limit, LONGEST_S))
        )

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
        self._start_routing()

    def end_contact(self, reason: str | None, *, closes: bool, summary: str | None) -> None:
        """End the active contact; the conversation closes or waits for its next contact (F30)."""
        contact_id, contact = self.session.active_contact_id, self.session.active_contact
        if contact_id is None or contact is None:
            raise LookupError("no contact is active")
        chart, states = self.flow.chart, self.session.states
        self._set_states(chart.close(states) if closes else chart.pause(states))
        self._finish(contact_id, contact, "ended")
        self._update(active_contact_id=None)
        if summary is not None:
            self.remember(contact, summary)
        self.jobs.append(self.due("conclude", subject=contact_id))
        by, status = ended_by(reason), self.session.states.phase
        self._note("contact_ended", contact_id, by=by, reason=reason, status=status)
        if closes:
            self._note("conversation_closed", contact_id)

    def close_expired(self) -> None:
        """End a conversation between contacts whose time limit has passed."""
        self._set_states(self.flow.chart.close(self.session.states))
        self._note("conversation_closed", reason="time_limit")

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
        """Take up a language that the version supports; any other is left unused."""
        if language in self.flow.document.supported_languages and language != self.session.language:
            self._update(language=language)

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

    # --- the parts of a move ------------------------------------------------------------------

    def _has_come_true(self, outcome: HumanOutcome) -> bool:
        arcs = TASK_KINDS[self.task.type].events.get(outcome, ())
        return any(target == self.status for _, target in arcs)

    def _apply_outcome(self, outcome: HumanOutcome, reason: str | None) -> None:
        self._set_states(self.flow.chart.human(self.session.states, outcome))
        entry = self.session.task.model_copy(update={"human_reason": reason, "routing_deadline": None})
        self._update(task=entry)
        self._note("human_task", outcome=outcome, reason=reason)

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
            self.jobs.append(self.due("conclude", subject=earlier_id))
            self._note("contact_superseded", earlier_id, by=contact.contact_id)
        admitted = Contact(channel=contact.channel, status="active", started_at=self.now, data=contact.data)
        kept = dict(list(self.session.contacts.items())[-CONTACTS_KEPT:])
        kept.pop(contact.contact_id, None)
        self._update(contacts={**kept, contact.contact_id: admitted}, active_contact_id=contact.contact_id)
        self.set_language(contact.language)
        self._note("contact_started", channel=contact.channel)

    def _finish(self, contact_id: str, contact: Contact, status: ContactStatus) -> None:
        finished = contact.model_copy(update={"status": status, "ended_at": self.now})
        self._update(contacts={**self.session.contacts, contact_id: finished})

    def _enter(self, task_id: str) -> None:
        """Enter a task as the active contact; its texts stay until it is left (F23)."""
        entered, contact = self.session.entered, self.session.latest_contact
        contact_id, name = self.session.active_contact_id or "", self.flow.tasks[task_id].name
        passed = contact.model_copy(update={"tasks": (*contact.tasks, name)[-CONTACTS_KEPT:]})
        self._update(
            task=self.session.task.model_copy(
                update={"entered_at": self.now, "routing_deadline": None, "human_reason": None}
            ),
            entered={**entered, task_id: entered.get(task_id, 0) + 1},
            contacts={**self.session.contacts, contact_id: passed},
        )
        self._render(task_id)

    def _render(self, task_id: str) -> None:
        """Render every template of the task, with the task's own facts in scope."""
        self._update(task=self.session.task.model_copy(update={"task_id": task_id}))
        texts = render_task(self.flow, self.task, self.template_scope())
        self._update(task=self.session.task.model_copy(update=texts))

    def _start_routing(self) -> None:
        if self.status != "routing":
            return
        routing = self.task.document.routing_parameters
        timeout = 0.0 if routing is None else routing.timeout
        deadline = self.now + timedelta(seconds=min(timeout, LONGEST_S))
        entry = self.session.task.model_copy(update={"routing_deadline": deadline, "human_reason": None})
        self._update(task=entry)
        asked = {to_camel(kind): values for kind, values in self.task.transfer_tags}
        self._note("routing_requested", None, timeout=timeout, **asked)

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
