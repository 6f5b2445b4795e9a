"""What a step commits: what a runner's moves change, their entry in the journal, and how much it may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar, cast

import msgspec

from flow_engine.errors import CorrectTheInput
from flow_engine.idempotency import IdempotencyKey
from flow_engine.json_values import rough_size
from flow_engine.ports.dialogue import ENGINE, DialogueTurn, Fork
from flow_engine.ports.jobs import DueJob
from flow_engine.ports.telemetry import Observer
from flow_engine.runtime import storage
from flow_engine.runtime.agent_data import told_of_advance
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.mining_state import MiningState
from flow_engine.runtime.privacy import masked_event
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.session import Contact

FORMER_BYTES = 4 * 1024
"""What a conversation that was started anew takes beside its messages until it is concluded."""

ARCHIVE_AFTER_S = 2.0
"""After the last commit: what is heard and concluded at the end makes one archiving of several."""
_NULL_SIZE = 2
"""What `rough_size` counts for no value."""
_TEXT_REST = 2
"""What `rough_size` counts for a text beside its characters."""

_Result = TypeVar("_Result")


class Transition(msgspec.Struct, frozen=True):
    """A runner after its moves, and what else goes into the commit.

    `asked` is what its entry in the journal tells of it.
    `guards_memory`: the decision was taken on the memory, so the commit must not pass over a write to
    it. `turn`: a message to remember once; `late`: one to know again only; `on_seen` answers when it was
    remembered before.
    `forked_from`: a new conversation begins with the runner's state; nothing of it is told outside.
    """

    runner: ConversationalFlowRunner
    reply: storage.ReplyTemplate
    asked: storage.JournalInput
    guards_memory: bool = False
    set_tools: Mapping[str, MemoryEntry] | None = None
    added_variables: Mapping[str, MemoryEntry] | None = None
    turn: DialogueTurn | None = None
    late: DialogueTurn | None = None
    on_seen: storage.ReplyTemplate | None = None
    events: tuple[bytes, ...] = ()
    jobs: tuple[DueJob, ...] = ()
    set_mined: Mapping[str, MemoryEntry] | None = None
    mining: MiningState | None = None
    rewrite_previous_contacts: bool = False
    forget_former: str | None = None
    forked_from: Fork | None = None


@dataclass(frozen=True, slots=True)
class Decision(Generic[_Result]):
    """What background work has decided, and what is to be committed for it; None: nothing is to do."""

    result: _Result
    transition: Transition | None = None


def check_size(transition: Transition) -> None:
    """What would be stored, roughly: sizes of texts, not of their encoding."""
    runner = transition.runner
    if not (transition.set_tools or runner.changed):
        return
    if runner.loaded.session is None and transition.forked_from is None:
        return  # one that begins has caller data and texts, each with a bound far below
    most = storage.MAX_STATE_BYTES - storage.MAX_TURN_BYTES
    if _at_most(transition) <= most:
        return
    entries = {**runner.memory, **(transition.set_tools or {})}
    task, former = runner.session.task, runner.loaded.former
    size = sum(
        rough_size(part)
        for part in (
            *(contact.data for contact in runner.session.contacts.values()),
            *(entry.value for entry in entries.values()),
            *(contact.resume for contact in runner.previous_contacts),
            *(task.global_prompt, task.prompt, task.descriptions),
            runner.tenant,
        )
    ) + sum(other.turn_bytes + FORMER_BYTES for other in former)
    if size > most:
        message = f"a conversation holds at most {most} bytes of caller data, variables and texts"
        raise CorrectTheInput.breach("conversation_too_large", message)


def _at_most(transition: Transition) -> int | float:
    """A bound of the size that is had without a look at what was stored before: looking at every text takes
    longer than a step. Its rough size is at most twice its bytes, and that of a list at most its JSON's."""
    runner, loaded = transition.runner, transition.runner.loaded
    before = loaded.session
    if before is not None and not loaded.stored_bytes:
        return inf
    texts = 0
    parts: list[object] = [entry.value for entry in (transition.set_tools or {}).values()]
    if runner.session is not before:
        contacts: Mapping[str, Contact] = {} if before is None else before.contacts
        for contact_id, contact in runner.session.contacts.items():
            if contact_id not in contacts or contact.data is not contacts[contact_id].data:
                parts.append(contact.data)
        task = runner.session.task
        if before is None or task is not before.task:
            texts += len(task.global_prompt) + len(task.prompt) + 2 * _TEXT_REST
            parts.append(task.descriptions)
    if runner.tenant is not loaded.tenant:
        parts.append(runner.tenant)
    if runner.memory is not loaded.merged:
        parts.append([entry.value for entry in runner.memory.values() if entry.value is not None])
        texts += _NULL_SIZE * len(runner.memory)
    if runner.previous_contacts is not loaded.previous_contacts:
        parts += [contact.resume for contact in runner.previous_contacts]
    former = sum([other.turn_bytes + FORMER_BYTES for other in loaded.former])
    return 2 * loaded.stored_bytes + former + texts + len(msgspec.json.encode(parts))


def to_changes(
    transition: Transition,
    idempotency: IdempotencyKey | None,
    expected_state: bytes = b"",
    *,
    by: str = ENGINE,
) -> storage.Changes:
    runner = transition.runner
    loaded = runner.loaded
    anew = runner.new_memory is not None or transition.rewrite_previous_contacts
    known = 0 if anew else len(loaded.previous_contacts)
    forked = transition.forked_from is not None
    events = () if forked else (*runner.outbox, *transition.events)
    secrets = runner.secrets(transition.set_tools, transition.set_mined) if events else None
    if secrets is not None:
        events = tuple(masked_event(event, secrets) for event in events)
    jobs = [] if forked else [*runner.jobs, *transition.jobs]
    if events:
        jobs.append(runner.due("relay"))
    if runner.session.closed and not forked:
        jobs.append(runner.due("archive", after_s=ARCHIVE_AFTER_S))
    return storage.Changes(
        expected_revision=0 if forked else loaded.revision,
        expected_memory_revision=loaded.memory_revision if transition.guards_memory else None,
        expected_state=expected_state,
        lifetime_s=runner.flow.lifetime_s,
        reply=transition.reply,
        now=runner.now,
        content_hash=runner.flow.content_hash,
        session=runner.session if runner.changed or forked else None,
        new_memory=runner.new_memory,
        set_tools=transition.set_tools or {},
        set_mined=transition.set_mined or {},
        mining=transition.mining,
        expected_mining_revision=None if transition.mining is None else loaded.mining_revision,
        rewrite_previous_contacts=transition.rewrite_previous_contacts,
        added_variables=transition.added_variables or {},
        previous_contacts=runner.previous_contacts[known:],
        turn=transition.turn,
        late=transition.late,
        former=runner.former,
        forget_former=transition.forget_former,
        on_seen=transition.on_seen,
        events=events,
        jobs=tuple(jobs),
        idempotency=idempotency,
        journal=_noted(runner, transition, by),
        forked=msgspec.structs.replace(loaded, session=runner.session) if forked else None,
        composed=None if runner.new_memory is None else loaded.composed,
    )


def _noted(runner: ConversationalFlowRunner, transition: Transition, by: str) -> storage.JournalNote:
    asked, fork = transition.asked, transition.forked_from
    outcome: dict[str, object] = {"result": True, "task": runner.task.name}
    if runner.has_task_validation_error():
        outcome.update(result=False, code=runner.get_task_validation_error().code)
    elif runner.text_refusal is not None:
        outcome.update(result=False, code=runner.text_refusal.code)
    if asked.heard:
        outcome.update(asked.heard)
    if runner.advanced is not None:
        outcome.update(told_of_advance(runner))
    if runner.contradicted:
        outcome["conflicts"] = runner.contradicted
    before = None if runner.new_memory is not None or fork is not None else runner.loaded.session
    head = None
    after = runner.session
    if (  # a list tells something else of the conversation
        before is None
        or before.configuration is not after.configuration
        or before.version_id != after.version_id
        or before.active_contact_id != after.active_contact_id
    ):
        head = runner.head(cast("str | None", asked.fields.get("tag")), fork)
    return storage.JournalNote(by, asked, outcome, before, head)


def count_moves(runner: ConversationalFlowRunner, observer: Observer) -> None:
    """Changes of task by their outcome, contacts by their channel and how they ended."""
    if not runner.changed:
        return
    before, after = runner.loaded.session, runner.session
    if runner.has_task_validation_error():
        observer.count("task_changes", outcome=runner.get_task_validation_error().code)
    elif before is None or runner.new_memory is not None or before.version_id != after.version_id:
        pass  # one that begins, or moves to another version, changes no task
    elif before.entered != after.entered:
        observer.count("task_changes", outcome="accepted")
    active_before = None if before is None else before.active_contact_id
    if active_before is not None and active_before != after.active_contact_id:
        ended = after.contacts[active_before]
        observer.count("contacts_ended", channel=ended.channel, how=ended.status)
    started = after.active_contact
    if started is not None and (active_before != after.active_contact_id or runner.new_memory is not None):
        observer.count("contacts_started", channel=started.channel)
