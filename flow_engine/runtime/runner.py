"""ConversationalFlowRunner: one step of one conversation, without I/O.

A runner is made from what was loaded, moved by one call, and asked what to commit. Nothing outside it
changes meanwhile: a step that loses its commit is simply done again on fresh state.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import structs

from flow_engine.documents import normalise_name
from flow_engine.errors import CallTheOperator
from flow_engine.masking import shown
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime import commands, events
from flow_engine.runtime.agent_data import agent_data_of
from flow_engine.runtime.commands import NewContact, check_channel
from flow_engine.runtime.compiled import CompiledFlow, TaskPlan, compile_flow
from flow_engine.runtime.events import ended_by
from flow_engine.runtime.human_part import HumanPart
from flow_engine.runtime.memory import (
    Conflict,
    MemoryEntry,
    PreviousContact,
    conflicts_of,
    empty_entries,
    merge,
    settled,
)
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.rules import channel_available, explain, nearest_task, next_by_itself
from flow_engine.runtime.session import MOST_DIGRESSIONS, Contact, Session, TaskEntry
from flow_engine.runtime.statechart import StateConfiguration, UnknownStates
from flow_engine.runtime.storage import LoadedConversation, NewMemory
from flow_engine.task_types import ACTIVE, CLOSED
from flow_engine.vocabulary import BACK, ContactStatus, Decision

CONTACTS_KEPT = 200  # ended contacts remembered, so that one cannot come back to life
CONCLUDE_AFTER_S = 1.0  # the last words are read first


class ConversationalFlowRunner(HumanPart):
    """A conversation that can be moved: each method is one step or a part of one."""

    @classmethod
    def resume(
        cls,
        flow: CompiledFlow,
        session: Session,
        loaded: LoadedConversation,
        platform: Platform,
        now: datetime,
    ) -> ConversationalFlowRunner:
        """Take up a stored conversation. A routing that ran out of time has failed by now (F34), and a text
        that nobody has decided is not sent. In an AIS task that is told, and the AI goes on.

        Raises CallTheOperator `snapshot_unusable` for a snapshot that does not fit its version: it is
        never reset in silence (F13).
        """
        fits = loaded.composed.fits
        if fits is None or fits[0] is not session or fits[1] is not flow:
            _check_fit(flow, session)
        runner = cls(flow, session, loaded, platform, now)
        if session.deadline is None and (limit := runner.task_deadline) is not None:
            # Stored by a release that did not write it down.
            runner.session = session.model_copy(update={"deadline": limit})
        runner.run_out()
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
        """Begin a conversation; `before` is an earlier one of the same id, which ends by this (F28). Raises
        CorrectTheInput `channel_not_supported`."""
        check_channel(flow, contact.channel)
        tenant = {"campaignId": campaign_id, **contact.tenant}
        key = None
        if before is None and loaded.session is None:
            key = platform.begins_as(flow, campaign_id, contact, tenant)
        alike = None if key is None else platform.beginnings.get(key)
        if before is not None:
            before.end_for(contact.contact_id)
        if alike is None:
            session = _new_session(flow, conversation, campaign_id, loaded, now, before)
        else:
            session = alike.session_of(conversation, contact, now)
        runner = cls(flow, session, loaded, platform, now)
        variables = empty_entries(flow.variables, contact.contact_id)
        runner.new_memory = NewMemory(tenant, variables)
        runner.memory, runner.tenant, runner.previous_contacts = variables, tenant, ()
        if alike is None:
            runner._begin(contact, before)
        else:  # what conversations that begin like this share is not worked out again
            runner._note("contact_started", channel=contact.channel)
            if session.deadline is not None:
                runner.jobs.append(runner.due_at("expire", session.deadline))
            runner.begun_like = session, alike
        if key is not None and alike is None and len(runner.outbox) == 1:  # nothing but that it began
            runner.begins = runner.session, key
        runner._compose(variables)
        return runner

    def _begin(self, contact: NewContact, before: ConversationalFlowRunner | None) -> None:
        if before is not None:
            self.outbox = before.masked_outbox()
            self.former = before.unconcluded()
            if self.former is not None:
                self.jobs.append(self.due("conclude", after_s=CONCLUDE_AFTER_S))
        self._replace_contact(contact)
        first_task = self.flow.document.first_task
        if not self._put_elsewhere(first_task, contact.channel):
            self._enter(first_task)
        self._start_routing()
        self.advance(anew=True)

    def _compose(self, variables: Mapping[str, MemoryEntry]) -> None:
        """What the next step would find out again, of one that begins with these variables."""
        composed = self.loaded.composed
        composed.fits = self.session, self.flow
        composed.merged = variables, variables, variables

    def _put_elsewhere(self, task_id: str, channel: str) -> bool:
        """Out of a task that the contact's channel lacks, into the nearest one that has it (F28); False, and
        nothing done, where the channel has it."""
        left = self.flow.tasks[task_id]
        if channel_available(left, channel):
            return False
        nearest = nearest_task(self.flow, task_id, channel)
        self._set_states(self.flow.chart.placed(nearest.id))
        self._enter(nearest.id)
        self.left_task = left
        self._note("task_changed", **{"from": left.name, "to": self.task.name})
        return True

    # --- by the names of the class diagram --------------------------------------------------------

    @staticmethod
    def compile(raw: object, content_hash: str) -> CompiledFlow:
        """Raises ReloadAndDecide `version_is_draft`, and CorrectTheInput `document_invalid`."""
        return compile_flow(raw, content_hash)

    def get_agent_data(self, contact_id: str, command: str | None) -> bytes:
        """Everything an agent needs to go on, after whatever the runner has done: `AgentData` as JSON."""
        return agent_data_of(self, contact_id, command)

    def take_command(self) -> str | None:
        """The command that the agent has yet to be told; it is told once."""
        command = self.session.pending_command
        if command is not None:
            self._update(pending_command=None)
        return command

    # --- steps --------------------------------------------------------------------------------

    def change_task(self, name: str) -> bool:
        """Move to the task of that id or name; on False `get_task_validation_error` says why not (F11). The
        name has at most 512 characters."""
        if name not in self.flow.names and normalise_name(name) == BACK:
            name = BACK  # known in any case, as the names of tasks are
        if name == BACK and (origin := self.returns_to) is not None:  # out of a digression
            self._move(origin, self.flow.chart.placed(origin.id), by=BACK)
            self.advance(anew=True)
            return True
        guard, left, target = self.guard, self.task, self.flow.task_named(name)
        before = self.session.states
        after = before if target is None else self.flow.chart.enter(before, target.id, guard)
        if target is None or after == before:
            refusal = explain(self.flow, left, name, guard, self.entered_from)
            if refusal is None:
                raise AssertionError(f"the chart of {self.flow.version_id!r} refused what its rules allow")
            self.set_task_validation_error(refusal)
            counts = self.session.refused
            asked_for = "" if target is None else target.id  # all names that no task has are one
            counts = {**counts, asked_for: counts.get(asked_for, 0) + 1}
            self._update(refused=counts)
            self._note("task_refused", code=refusal.code, task=name[:200])
            self.advance()
            return False
        self._move(target, after)
        self.advance()
        return True

    def take_values(self, mined: Mapping[str, MemoryEntry], tools: Mapping[str, MemoryEntry]) -> None:
        """Values that this step stores, by variable id: what they contradict is told, and what they open may
        lead on."""
        contested = self.flow.contested
        if not contested and not self.flow.moves_by_itself:
            return
        heard, written = {**self.loaded.mined, **mined}, {**self.loaded.tools, **tools}
        if contested:
            self._tell_conflicts(conflicts_of(heard, written, contested))
        if self.flow.moves_by_itself:
            self.memory = settled(merge(heard, written), heard, written, contested)
            self.advance()

    def _tell_conflicts(self, conflicts: Mapping[str, Conflict]) -> None:
        """Those that were not there before, or came out otherwise."""
        before = self.conflicts
        for var_id, conflict in conflicts.items():
            known, counts, other = before.get(var_id), conflict.counts, conflict.other
            same = known is not None and (known.counts.value, known.other.value) == (
                counts.value,
                other.value,
            )
            if same:
                continue
            spec = self.flow.contested[var_id]
            hide = self.flow.sensitive.get(var_id)
            latest = max(counts, other, key=lambda entry: entry.updated_at or self.now)
            self.contradicted.append(var_id)
            self.outbox.append(
                events.system_event(
                    self.flow,
                    self.session,
                    # Every write of such a flow knows which revision of the memory it makes.
                    f"conflict:{self.loaded.memory_revision + 1}:{var_id}",
                    latest.contact_id,
                    self.now,
                    "value_conflict",
                    varId=var_id,
                    name=spec.name,
                    value=shown(hide, counts.value),
                    updatedBy=counts.updated_by,
                    other=shown(hide, other.value),
                    otherBy=other.updated_by,
                    precedence=spec.precedence,
                )
            )

    def advance(self, *, anew: bool = False) -> None:
        """Take the connections that came to hold in this step and that nobody has to ask for, by rule 7 of
        `rules.py`. `anew`: what held already counts too. The command for the agent waits to be taken."""
        if not self.flow.moves_by_itself or self.session.states.phase != ACTIVE:
            return
        left, passed = self.task, {self.task.id}
        before = None if anew else self.guard_before
        while (target := next_by_itself(self.guard, before, passed)) is not None:
            reached = self.flow.chart.enter(self.session.states, target.id, self.guard)
            self._move(target, reached, by="advance")
            passed.add(target.id)
            before = None
        if left.id != self.task.id:
            self.advanced = (left.name, self.task.name)
            self._update(pending_command=self.session.pending_command or commands.start_task(self.task))

    def _decide(self, decision: Decision, reason: str | None, text: str | None) -> None:
        """What came to hold while the text waited leads on now."""
        super()._decide(decision, reason, text)
        self.advance()

    def resume_contact(self, contact: NewContact) -> None:
        """Another contact goes on with the conversation: memory and task are kept (F28). Raises
        CorrectTheInput `channel_not_supported`."""
        states = self.session.states
        if states.phase == ACTIVE:
            states = self.flow.chart.pause(states)
        self._set_states(self.flow.chart.resume(states))
        self._replace_contact(contact)
        if not self._put_elsewhere(self.task.id, contact.channel):
            self._update(contacts=self._passed(self.task.name))
        self._start_routing()
        self.advance(anew=True)

    def end_for(self, contact_id: str) -> None:
        """End for good, because a contact starts the conversation anew under its id."""
        earlier_id, earlier = self.session.active_contact_id, self.session.active_contact
        if earlier_id is not None and earlier is not None:
            self._finish(earlier_id, earlier, "superseded")
            self._update(active_contact_id=None)
            self._note("contact_superseded", earlier_id, by=contact_id)
        if not self.session.closed:
            self._close(earlier_id)

    def end_contact(self, reason: str | None, *, closes: bool, summary: str | None) -> None:
        """End the active contact; the conversation closes or waits for its next contact (F30). `reason` has
        at most 2,000 characters. Raises LookupError when no contact is active."""
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
            self.jobs.append(self.due_at("expire", self.session.deadline))

    def close_expired(self) -> None:
        """End a conversation between contacts whose time limit has passed."""
        latest = self.session.latest_contact_id
        self._close(latest)
        self.jobs.append(self.due("conclude", subject=latest))

    def note_handler_failure(self, contact_id: str, reason: str) -> None:
        """Tell that the closure handler was asked and gave no usable answer."""
        self._note("handler_failed", contact_id, reason=reason)

    def migrate_to(self, flow: CompiledFlow, task_id: str, mapping: Mapping[str, str]) -> None:
        """Go on in a task of another version, of the same type and in the same part of it; in its default
        language where it lacks the one that is spoken. What is remembered by task goes along; `mapping` tells
        of other tasks, by id. What was sensitive stays so. Raises UnknownStates for a task in which it cannot
        stand."""
        hidden = self.flow.left_for(flow)
        flow = flow.hiding(hidden)
        old_task, old_version = self.session.task.task_id, self.session.version_id
        states = flow.chart.moved(self.session.states, old_task, task_id)
        remembered = self.session.by_other_ids({**flow.counterparts(self.flow, mapping), old_task: task_id})
        self.outbox = self.masked_outbox()
        self.flow = flow
        self._set_states(states)
        spoken = flow.supported_language(self.session.language)
        self._update(language=spoken or flow.document.default_language)  # which the texts may name
        self._update(
            version_id=flow.version_id,
            content_hash=flow.content_hash,
            hidden=hidden,
            task=self._rendered(task_id, {}),
            **remembered,
        )
        self.task = flow.tasks[task_id]
        if (self.session.pending_command or "").startswith(commands.START_TASK):  # by its name of before
            self._update(pending_command=commands.start_task(self.task))
        self._set_deadline()
        self._note("version_migrated", **{"from": old_version, "to": flow.version_id})

    def set_language(self, language: str | None) -> None:
        """Take up a language that the version supports; any other is left unused. `it` means `it-IT`, and so
        does `it-CH` where there is no other Italian. BCP 47."""
        spoken = self.flow.supported_language(language, self.session.language)
        if spoken is not None and spoken != self.session.language:
            self._update(language=spoken)

    def remember(self, contact: Contact, summary: str) -> None:
        """Add an ended contact to what later contacts are told (F20)."""
        remembered = PreviousContact(date=contact.started_at, channel=contact.channel, resume=summary)
        self.previous_contacts = (*self.previous_contacts, remembered)

    # --- the parts of a step ------------------------------------------------------------------

    def _move(self, target: TaskPlan, reached: StateConfiguration, by: str | None = None) -> None:
        """Out of the task and into another one, where the chart has let it; `by` is what asked for it but a
        change of task by name."""
        left, pending = self.task, self.session.digressions
        if by == BACK:
            pending = pending[:-1]
        else:
            pending = (*pending, left.id)[-MOST_DIGRESSIONS:] if target.document.returns else ()
        self._enter(
            target.id, configuration=reached.configuration, history=reached.history, digressions=pending
        )
        self._note("task_changed", **{"from": left.name, "to": target.name, "by": by})
        self._start_routing()

    def _close(self, contact_id: str | None) -> None:
        reason = "time_limit" if self.expired else None
        self._set_states(self.flow.chart.close(self.session.states))
        self._note("conversation_closed", contact_id or self.session.latest_contact_id, reason=reason)

    def _replace_contact(self, contact: NewContact) -> None:
        """Make `contact` the active one; one that still was is superseded and summed up."""
        check_channel(self.flow, contact.channel)
        earlier_id, earlier = self.session.active_contact_id, self.session.active_contact
        if earlier_id is not None and earlier is not None and earlier_id != contact.contact_id:
            self._finish(earlier_id, earlier, "superseded")
            self.jobs.append(self.due("conclude", subject=earlier_id, after_s=CONCLUDE_AFTER_S))
            self._note("contact_superseded", earlier_id, by=contact.contact_id)
        started_at = max(self.now, self.session.started_at)
        if any(each.started_at > self.now for each in self.session.own_contacts.values()):
            started_at = self.after_all_contacts(self.now)  # the clock of another machine is ahead
        admitted = Contact(channel=contact.channel, status="active", started_at=started_at, data=contact.data)
        kept = dict(list(self.session.contacts.items())[-CONTACTS_KEPT:])
        kept.pop(contact.contact_id, None)
        self._update(
            contacts={**kept, contact.contact_id: admitted},
            active_contact_id=contact.contact_id,
            pending_command=None,
            approval=None,
        )
        self.set_language(contact.language)
        self._note("contact_started", channel=contact.channel)

    def _finish(self, contact_id: str, contact: Contact, status: ContactStatus) -> None:
        self._withdraw(f"contact_{status}", contact_id)
        finished = contact.model_copy(update={"status": status, "ended_at": self.now})
        self._update(contacts={**self.session.contacts, contact_id: finished})

    def _enter(self, task_id: str, **states: object) -> None:
        """Enter a task as the active contact; its texts stay until it is left (F23). `states` are those that
        the chart reached."""
        entered, task = self.session.entered, self.flow.tasks[task_id]
        entry = {"entered_at": self.now, "routing_deadline": None, "human_reason": None}
        self._update(
            **states,
            contacts=self._passed(task.name),
            task=self._rendered(task_id, entry),
            entered={**entered, task_id: entered.get(task_id, 0) + 1},
        )
        self.task = task
        if (self.session.pending_command or "").startswith(commands.START_TASK):  # of the task that is left
            self._update(pending_command=None)
        self._set_deadline()

    def _set_deadline(self) -> None:
        """By the task; one without a limit leaves the deadline as it is."""
        deadline = self.task_deadline
        if deadline is not None:
            self._update(deadline=deadline)
            self.jobs.append(self.due_at("expire", deadline))

    def _passed(self, task_name: str) -> Mapping[str, Contact]:
        """The contacts, of which the active one was in the task now."""
        contact_id, contact = self.session.active_contact_id, self.session.active_contact
        if contact_id is None or contact is None:
            return self.session.contacts
        passed = structs.replace(contact, tasks=(*contact.tasks, task_name)[-CONTACTS_KEPT:])
        return {**self.session.contacts, contact_id: passed}

    def _rendered(self, task_id: str, entry: Mapping[str, object]) -> TaskEntry:
        """The entry of a task with every template of it, the task's own facts in scope."""
        task = self.flow.tasks[task_id]
        texts, whole = self.platform.texts.of(self.flow, task, *self.shown_to_templates())
        self.whole = self.whole and whole
        return structs.replace(self.session.task, task_id=task_id, **entry, **texts)


def _new_session(
    flow: CompiledFlow,
    conversation: ConversationRef,
    campaign_id: str,
    loaded: LoadedConversation,
    now: datetime,
    before: ConversationalFlowRunner | None,
) -> Session:
    """In the first task, which is not entered yet; `before` is the earlier conversation of the same id."""
    first_task = flow.document.first_task
    return Session(
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
        task=TaskEntry(task_id=first_task, entered_at=now, global_prompt="", prompt="", descriptions={}),
    )


def _check_fit(flow: CompiledFlow, session: Session) -> None:
    """Raises CallTheOperator `snapshot_unusable`."""
    try:
        if flow.chart.task_of(session.states) != session.task.task_id:
            raise UnknownStates(f"the texts of task {session.task.task_id!r} are not of its states")
    except UnknownStates as error:
        raise CallTheOperator("snapshot_unusable", f"version {flow.version_id!r}: {error}") from error
