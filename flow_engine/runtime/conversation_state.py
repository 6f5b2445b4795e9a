"""Where a conversation stands, as a step asks it: everything is read here, nothing is moved."""

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from operator import is_

from msgspec import structs

from flow_engine.conditions.evaluation import Facts
from flow_engine.documents import Checkpoint, ClosureConfig
from flow_engine.errors import LookElsewhere, ReloadAndDecide
from flow_engine.json_values import as_object
from flow_engine.masking import SHORTEST, Secrets
from flow_engine.ports.dialogue import ConversationHead, ConversationRef, DialogueTurn, Fork
from flow_engine.ports.jobs import DueJob, Job, JobKind
from flow_engine.runtime.beginnings import Beginning
from flow_engine.runtime.compiled import LONGEST_S, CompiledFlow, TaskPlan
from flow_engine.runtime.memory import Conflict, MemoryEntry, PreviousContact, conflicts_of, settled
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.privacy import (
    masked_event,
    masked_memory,
    masked_turns,
    values_known,
    values_stored,
)
from flow_engine.runtime.rendered import scope_of
from flow_engine.runtime.rules import TaskGuard, TaskRefusal, channel_available
from flow_engine.runtime.session import Contact, Session
from flow_engine.runtime.storage import FormerConversation, LoadedConversation, NewMemory
from flow_engine.runtime.times import tenant_zone
from flow_engine.task_types import ACTIVE, BETWEEN_CONTACTS, CLOSED
from flow_engine.templates import TemplateScope
from flow_engine.vocabulary import BACK, Phase

LATE_UTTERANCES_S = 60.0
"""How long after its end a contact's messages are still taken when its conversation is over: recognisers of
speech deliver late."""


class ConversationState:
    """`session` is what a commit would store now, `task` the one that it is in, `outbox` the events and
    `jobs` the work that go with it.

    `new_memory` is set when the conversation starts anew, and `former` what is left of the one before;
    `memory` is the merged memory (F18). `left_task` is the task that a contact was taken out of because its
    channel lacks it. `advanced` are the names of the tasks between which it went on by itself. `contradicted`
    are ids of variables of which this step has told a conflict. `whole`: no text was cut by a bound. `now` is
    aware and in UTC.

    `begins`: by what a beginning is kept that others may share, and `begun_like` the one that was shared,
    each beside the session that it is of.
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
        self.revision_before = loaded.revision
        self.task = flow.tasks[session.task.task_id]
        self.platform = platform
        self.now = now
        self.memory: Mapping[str, MemoryEntry] = memory_of(flow, loaded)
        self.tenant = loaded.tenant
        self.previous_contacts: tuple[PreviousContact, ...] = loaded.previous_contacts
        self.new_memory: NewMemory | None = None
        self.outbox: list[bytes] = []
        self.jobs: list[DueJob] = []
        self.former: FormerConversation | None = None
        self.left_task: TaskPlan | None = None
        self.advanced: tuple[str, str] | None = None
        self.contradicted: list[str] = []
        self.whole = True
        self.begins: tuple[Session, Hashable] | None = None
        self.begun_like: tuple[Session, Beginning] | None = None
        self._refusal: TaskRefusal | None = None
        self._secrets: tuple[tuple[object, ...], Secrets] | None = None

    @property
    def status(self) -> str | None:
        return self.session.status

    @property
    def held(self) -> bool:
        """A text waits for a person's decision: the task is not left until then."""
        holds = self.task.kind.holds
        return bool(holds) and self.status in holds

    @property
    def is_read_first(self) -> bool:
        """A person decides on what the AI says now. What is spoken cannot be held back."""
        return bool(self.task.kind.holds) and self.session.latest_contact.channel != "phone"

    @property
    def changed(self) -> bool:
        return self.session.revision != self.revision_before

    @property
    def closure(self) -> ClosureConfig:
        """The active task's closure configuration: every task has one, and it overrides the flow's."""
        return self.task.document.closure_config

    @property
    def expired(self) -> bool:
        """The conversation's time is over: it closes with its contact, the next one starts anew (F28)."""
        return self.session.deadline is not None and self.now >= self.session.deadline

    @property
    def closes_with_contact(self) -> bool:
        """A single contact closes, and one that outlasts the time limit."""
        return not self.closure.multi_contact or self.expired

    def phase_after(self, contact_id: str) -> Phase:
        """What the conversation was when a contact ended, whatever has come since."""
        own = self.session.own_contacts
        if contact_id not in own:
            return CLOSED
        if own[contact_id].status != "ended":
            return self.session.states.phase
        is_last = contact_id == self.session.latest_contact_id
        return self.session.states.phase if is_last else BETWEEN_CONTACTS

    @property
    def shown_memory(self) -> Mapping[str, MemoryEntry]:
        """The merged memory as prompts show it: with a mask in place of every sensitive value."""
        return masked_memory(self.flow, self.memory) if self.flow.sensitive else self.memory

    @property
    def conflicts(self) -> Mapping[str, Conflict]:
        """Where the user contradicts a tool, by variable id, as it is stored."""
        contested = self.flow.contested
        if not contested or self.new_memory is not None:
            return {}
        return conflicts_of(self.loaded.mined, self.loaded.tools, contested)

    def secrets(self, *written: Mapping[str, MemoryEntry] | None, shortest: int = SHORTEST) -> Secrets | None:
        """The sensitive values that texts of this conversation may quote, those of entries that are about to
        be stored among them; None for a flow without any. `shortest` is in characters of a value."""
        if not self.flow.sensitive:
            return None
        memories = (self.memory, *(entries for entries in written if entries))
        made_of = (self.flow, *memories, shortest)
        kept = self._secrets
        if kept is None or len(kept[0]) != len(made_of) or not all(map(is_, kept[0], made_of)):
            known = chain(values_stored(self.flow, self.loaded), values_known(self.flow, *memories))
            kept = self._secrets = made_of, Secrets(known, shortest=shortest)
        return kept[1]

    def masked_outbox(self) -> list[bytes]:
        """What was told until now, without a sensitive value of this version: another one may follow."""
        secrets = self.secrets()
        return [event if secrets is None else masked_event(event, secrets) for event in self.outbox]

    @property
    def guard(self) -> TaskGuard:
        facts = self.condition_facts if self.flow.conditions else None
        channel = self.session.latest_contact.channel
        return TaskGuard(self.flow, self.memory, channel, self.task, facts, self.held)

    @property
    def guard_before(self) -> TaskGuard | None:
        """The guard of the present task by what was known before this step, at the time (UTC) of its entry.
        None where nothing was known: at the start of a conversation."""
        session = self.loaded.session
        if session is None or self.new_memory is not None:
            return None
        since = session.task.entered_at if session.task.task_id == self.task.id else self.now
        memory = memory_of(self.flow, self.loaded)
        facts = facts_of(session, memory, self.loaded.tenant, since) if self.flow.conditions else None
        held = session.status in self.task.kind.holds
        return TaskGuard(self.flow, memory, session.latest_contact.channel, self.task, facts, held)

    @property
    def condition_facts(self) -> Facts:
        """What conditions read, as it is now."""
        return facts_of(self.session, self.memory, self.tenant, self.now)

    @property
    def suggested(self) -> tuple[TaskPlan, ...]:
        """The tasks that the model is told to go on with: those that can be entered and whose connection
        advances, or that have been left aside for too long. In the order of the document."""
        mining, task = self.loaded.mining, self.task
        stalled = mining.stalled if self.new_memory is None and mining.task_id == task.id else ()
        if not (task.advances or stalled) or self.session.states.phase != ACTIVE:
            return ()
        wanted, guard = {*(target for target, _ in task.advances), *stalled}, self.guard
        return tuple(self.flow.tasks[t] for t in task.connected if t in wanted and guard.allows(t))

    @property
    def entered_from(self) -> TaskPlan | None:
        """The task that the present digression was entered from. None outside of one, and in a version that
        has a task named `back`."""
        found = self.session.digressions[-1:] if self.task.document.returns else ()
        return self.flow.tasks.get(found[0]) if found and BACK not in self.flow.names else None

    @property
    def returns_to(self) -> TaskPlan | None:
        """Where a change to `back` goes. None where there is nothing, the channel is not its own, or the task
        is not left now."""
        plan = self.entered_from if self.session.digressions else None
        if plan is None or self.held or not channel_available(plan, self.session.latest_contact.channel):
            return None
        return plan

    def holds(self, when: str | None) -> bool:
        """Whether a condition of the document is true now; what has none always applies."""
        return when is None or self.flow.conditions[when].truth(self.condition_facts) is True

    def applies(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is judged now: by its own condition, else by that of the version's."""
        if not self.flow.conditions or checkpoint.when is not None:
            return self.holds(checkpoint.when)
        return all(self.holds(c.when) for c in self.flow.document.checkpoints if c.id == checkpoint.id)

    def shown_to_templates(self) -> tuple[Session, Mapping[str, MemoryEntry], Mapping[str, object]]:
        """Session, memory and tenant as templates see them: with masks, also in what the data of the contact
        and the tenant quote."""
        session, tenant, secrets = self.session, self.tenant, self.secrets()
        if secrets is not None:
            contact, tenant = session.latest_contact, as_object(secrets.json(tenant))
            contact = structs.replace(contact, data=as_object(secrets.json(contact.data)))
            session = structs.replace(session, contacts={"": contact}, active_contact_id="")
        return session, self.shown_memory, tenant

    def template_scope(self) -> TemplateScope:
        return scope_of(self.flow, self.task, *self.shown_to_templates())

    def remembered(self, contact: Contact) -> str | None:
        """The summary that was written of an ended contact, if one was. None where none was written."""
        found = (p.resume for p in self.previous_contacts if p.date == contact.started_at)
        return next(found, None)

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
        shown = structs.replace(self.loaded, turns=tuple(self.shown_turns(self.loaded.turns)))
        return FormerConversation.of(self.session, shown)

    def shown_turns(self, turns: Sequence[DialogueTurn]) -> Sequence[DialogueTurn]:
        """Messages of the conversation, which is loaded with its messages, as everybody may see them."""
        secrets = self.secrets()
        return turns if secrets is None else masked_turns(self.flow, self.loaded, turns, secrets)

    def due(self, kind: JobKind, *, subject: str = "", after_s: float = 0.0) -> DueJob:
        """A job of this conversation, due `after_s` seconds from now."""
        conversation = ConversationRef(self.session.tenant_id, self.session.conversation_id)
        return DueJob(Job(kind, conversation, subject), self.now + timedelta(seconds=after_s))

    def due_at(self, kind: JobKind, moment: datetime) -> DueJob:
        return self.due(kind, after_s=max(0.0, (moment - self.now).total_seconds()))

    @property
    def task_deadline(self) -> datetime | None:
        """By the task that the conversation is in, counted from its start (UTC); None: as it is."""
        closure = self.closure
        limit = closure.conversation_time_limit
        if not closure.multi_contact or limit is None:
            return None
        return self.session.started_at + timedelta(seconds=min(max(limit, 0.0), LONGEST_S))

    @property
    def looks_for_somebody(self) -> bool:
        """A human is looked for: always in a transfer, in a supervision when its task says whom it wants."""
        task = self.task
        names_somebody = task.kind.transfers or bool(task.transfer_tags)
        return task.kind.routed and names_somebody and self.status == task.kind.sub_states[0]

    # --- what a request needs ---------------------------------------------------------------------

    def require_contact(self, contact_id: str) -> Contact:
        """Raises LookElsewhere `contact_unknown`."""
        contact = self.session.contacts.get(contact_id)
        if contact is None:
            raise LookElsewhere("contact_unknown", f"contact {contact_id!r} is not of this conversation")
        return contact

    def require_active(self, contact_id: str) -> Contact:
        """Raises ReloadAndDecide `contact_not_active` for any other contact, one that this conversation never
        had included, or `conversation_closed`."""
        contact = self.session.contacts.get(contact_id)
        if contact is None or contact_id != self.session.active_contact_id:
            self.require_open()
            known = "unknown here" if contact is None else contact.status
            active = self.session.active_contact_id
            raise ReloadAndDecide(
                "contact_not_active",
                f"contact {contact_id!r} is {known}",
                state=self.facts(),
                accepted=("a new contact" if active is None else f"the active contact, {active!r}",),
            )
        return contact

    def require_listening(self, contact_id: str) -> None:
        """Messages of a contact are taken while the conversation is open, and `LATE_UTTERANCES_S` after.

        Raises LookElsewhere `contact_unknown`, ReloadAndDecide `contact_ended` or `conversation_closed`. In
        seconds.
        """
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
        """Raises ReloadAndDecide `conversation_closed`."""
        if self.session.closed:
            raise ReloadAndDecide(
                "conversation_closed",
                "the conversation is closed",
                state=self.facts(),
                accepted=("a new contact, which starts it anew",),
            )

    def head(self, tag: str | None, forked_from: Fork | None = None) -> ConversationHead:
        """What a list tells of the conversation; `tag` and `forked_from` are told at its start only."""
        session, task = self.session, self.task
        return ConversationHead(
            session.flow_id,
            session.version_id,
            task.id,
            task.name,
            session.states.phase,
            session.latest_contact.channel,
            session.started_at,
            tuple(session.own_contacts),
            tag,
            forked_from,
        )

    def facts(self) -> dict[str, object]:
        """The current state, as every conflict tells it. JSON values."""
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
        """Raises LookupError when the last change was not refused."""
        if self._refusal is None:
            raise LookupError("the last change of task was not refused")
        return self._refusal

    def has_task_validation_error(self) -> bool:
        return self._refusal is not None


def memory_of(flow: CompiledFlow, loaded: LoadedConversation) -> Mapping[str, MemoryEntry]:
    """The merged memory of what is stored, by variable id, by the precedence of the flow's variables."""
    merged = loaded.merged
    return settled(merged, loaded.mined, loaded.tools, flow.contested) if flow.contested else merged


def facts_of(
    session: Session, memory: Mapping[str, MemoryEntry], tenant: Mapping[str, object], now: datetime
) -> Facts:
    """What conditions read of a conversation. `now` is aware, `tenant` JSON."""
    contact = session.latest_contact
    return Facts(
        memory=memory,
        tenant=tenant,
        contact=contact.data,
        channel=contact.channel,
        language=session.language,
        now=now,
        zone=tenant_zone(tenant),
        entries=session.entered,
        refusals=session.refused,
    )
