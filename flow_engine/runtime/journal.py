"""The journal of a conversation: what each commit was asked for, what came of it, and what it changed.

1. Every commit adds one entry in the same script; `seq` counts them from 1 without gaps.
2. An entry holds what its commit changed and no more. A base, which is the whole state before an entry,
   stands before the first one that is kept and then again and again: any state is a base and the entries
   after it, folded.
3. A commit that was not journaled, by an earlier release say, makes the next entry start with a base.
4. Replies are not stored: they follow from the state before, the input and the time, by the same step. A
   checksum of what was sent proves it.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, cast

import orjson
from msgspec import Struct
from msgspec.structs import astuple, replace

from flow_engine.json_values import as_object
from flow_engine.ports.dialogue import ConversationRef, Fork, is_user_turn
from flow_engine.ports.flow_store import ArchivedPart
from flow_engine.runtime.memory import (
    MemoryEntry,
    decode_entry,
    decode_previous_contact,
    encode_entry,
    encode_previous_contact,
)
from flow_engine.runtime.mining_state import decode_mining, encode_mining
from flow_engine.runtime.session import Contact, Hidden, Session, TaskEntry, decode_session, encode_session
from flow_engine.runtime.storage import Changes, LoadedConversation

ENTRIES_AT_MOST = 1_000
"""Of one page."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One commit. `input`, `outcome` and `delta` are JSON, `at` is in UTC. `reply_crc32` is
    None where the reply has the memory revision in it or nobody got one. `base` is the whole state
    before the entry where one is kept, None elsewhere."""

    seq: int
    revision: int
    memory_revision: int
    at: datetime
    by: str
    input: Mapping[str, object]
    outcome: Mapping[str, object]
    delta: Mapping[str, object]
    rationale: str | None = None
    reply_crc32: int | None = None
    base: LoadedConversation | None = None


class ConversationJournal(Protocol):
    """Raises RetryLater `memory_unavailable` when the store does not answer, CallTheOperator
    `journal_unreadable` for an entry that does not fit its format."""

    async def after(self, conversation: ConversationRef, seq: int, *, at_most: int) -> Sequence[JournalEntry]:
        """The entries after `seq`, ascending. Those that made room for newer ones are left out."""
        ...

    async def next(
        self, conversation: ConversationRef, seq: int, *, at_most: int, within_s: float
    ) -> Sequence[JournalEntry]:
        """As `after`, as soon as there is an entry; empty after `within_s` seconds, at most 1."""
        ...

    async def newest(self, conversation: ConversationRef) -> Sequence[JournalEntry]:
        """As `up_to`, of the newest entry."""
        ...

    async def up_to(self, conversation: ConversationRef, seq: int) -> Sequence[JournalEntry]:
        """The entry `seq` and those before it down to one with a base, or to the first, ascending. Empty
        where the entry is not kept."""
        ...


async def every_entry(
    journal: ConversationJournal, conversation: ConversationRef, after: int = 0
) -> AsyncGenerator[JournalEntry]:
    """All that are kept after that `seq`, ascending. Raises as the journal."""
    while page := await journal.after(conversation, after, at_most=ENTRIES_AT_MOST):
        for entry in page:
            yield entry
        after = page[-1].seq


class ReleasingJournal(ConversationJournal, Protocol):
    """One that need not keep what an archive has."""

    async def packed(self, conversation: ConversationRef) -> Sequence[ArchivedPart]:
        """All that is kept, in parts that begin with a base or the first entry."""
        ...

    def unpacked(self, part: ArchivedPart) -> Sequence[JournalEntry]: ...

    async def release(self, conversation: ConversationRef, seq: int, *, kept: timedelta) -> bool:
        """Lets go of all entries; the next one stands beside a base. Not, and False, where there are newer
        ones than `seq`, or where the conversation is stored for longer than the archive keeps them, `kept`
        from now."""
        ...

    async def released(self, conversation: ConversationRef) -> int | None:
        """Up to which entry an archive alone has them, 0 for none; None where the conversation is not
        stored."""
        ...


# --- what a commit changes --------------------------------------------------------------------


def session_delta(before: Session | None, after: Session) -> Mapping[str, object]:
    """The properties of the stored session that another session has otherwise; all of them where there was
    none. Values that orjson takes. Contacts and counts are told one by one, with `null` for what is gone."""
    if before is None:
        return orjson.loads(encode_session(after))
    delta: dict[str, object] = {}
    if after.revision != before.revision:
        delta["revision"] = after.revision
    if after.configuration != before.configuration:
        delta["configuration"] = after.configuration
    if after.contacts is not before.contacts and (contacts := _contacts(before.contacts, after.contacts)):
        delta["contacts"] = contacts
    if after.task is not before.task and (task := _task_changes(before.task, after.task)):
        delta["task"] = task
    if after.entered is not before.entered and (entered := _by_key(before.entered, after.entered)):
        delta["entered"] = entered
    if after.refused is not before.refused and (refused := _by_key(before.refused, after.refused)):
        delta["refused"] = refused
    if _seldom(after) == _seldom(before):
        return delta
    delta |= {name: value for name, value in _changes(before, after).items() if name in _SELDOM}
    if after.approval is not None and "approval" in delta:
        delta["approval"] = _whole(after.approval)
    return {name: delta[name] for name in Session.__struct_encode_fields__ if name in delta}


def _seldom(of: Session) -> tuple[object, ...]:
    """All that a change of task leaves as it is, a new deadline that is equal included."""
    return (
        of.format,
        of.conversation_id,
        of.tenant_id,
        of.campaign_id,
        of.flow_id,
        of.version_id,
        of.content_hash,
        of.history,
        of.active_contact_id,
        of.language,
        of.started_at,
        of.deadline,
        of.pending_command,
        of.digressions,
        of.approval,
        of.hidden,
    )


_SELDOM = {*Session.__struct_encode_fields__} - {
    *("revision", "configuration", "contacts", "task", "entered", "refused")
}


def _whole(new: Struct) -> dict[str, object]:
    """By the names that it is stored under."""
    return dict(zip(new.__struct_encode_fields__, astuple(new), strict=True))


def _task_changes(old: TaskEntry, new: TaskEntry) -> dict[str, object]:
    """As `_changes`, in a third of its time."""
    changed: dict[str, object] = {}
    if new.task_id != old.task_id:
        changed["taskId"] = new.task_id
    if new.entered_at != old.entered_at:
        changed["enteredAt"] = new.entered_at
    if new.global_prompt != old.global_prompt:
        changed["globalPrompt"] = new.global_prompt
    if new.prompt != old.prompt:
        changed["prompt"] = new.prompt
    if new.descriptions is not old.descriptions and new.descriptions != old.descriptions:
        changed["descriptions"] = new.descriptions
    if new.routing_deadline != old.routing_deadline:
        changed["routingDeadline"] = new.routing_deadline
    if new.human_reason != old.human_reason:
        changed["humanReason"] = new.human_reason
    return changed


def _contact_changes(old: Contact, new: Contact) -> dict[str, object]:
    """As `_changes`, in a third of its time."""
    changed: dict[str, object] = {}
    if new.channel != old.channel:
        changed["channel"] = new.channel
    if new.status != old.status:
        changed["status"] = new.status
    if new.started_at is not old.started_at and new.started_at != old.started_at:
        changed["startedAt"] = new.started_at
    if new.ended_at != old.ended_at:
        changed["endedAt"] = new.ended_at
    if new.data is not old.data and new.data != old.data:
        changed["data"] = new.data
    if new.tasks is not old.tasks and new.tasks != old.tasks:
        changed["tasks"] = new.tasks
    return changed


def _changes(old: Struct, new: Struct) -> dict[str, object]:
    """By the names that they are stored under."""
    changed: dict[str, object] = {}
    parts = zip(new.__struct_encode_fields__, astuple(new), astuple(old), strict=True)
    for name, value, other in parts:
        if value is not other and value != other:
            changed[name] = value
    return changed


def _by_key(old: Mapping[str, int], new: Mapping[str, int]) -> dict[str, int | None]:
    changed: dict[str, int | None] = {}
    for key, count in new.items():
        if old.get(key) != count:
            changed[key] = count
    if len(new) < len(old) + len(changed):
        changed.update((key, None) for key in old if key not in new)
    return changed


def _contacts(old: Mapping[str, Contact], new: Mapping[str, Contact]) -> dict[str, object]:
    changed: dict[str, object] = {}
    for id, contact in new.items():
        other = old.get(id)
        if other is None:
            changed[id] = _whole(contact)
        elif contact is not other and (part := _contact_changes(other, contact)):
            changed[id] = part
    if not old.keys() <= new.keys():
        changed.update((id, None) for id in old if id not in new)
    return changed


def entry_of(changes: Changes, seq: int, memory_revision: int) -> JournalEntry | None:
    """The entry that a commit makes, where no store writes one; None for a commit that is not journaled.
    `memory_revision` is the one after it."""
    note, delta, turn = changes.journal, dict[str, object](), changes.turn
    if note is None:
        return None
    if changes.new_memory is not None and changes.session is not None:
        delta = {"session": session_delta(None, changes.session), "tenant": changes.new_memory.tenant}
        delta["variables"] = _stored(changes.new_memory.variables)
    elif changes.session is not None:
        delta["session"] = session_delta(note.before, changes.session)
    written = {"added": changes.added_variables, "tools": changes.set_tools, "mined": changes.set_mined}
    delta |= {name: _stored(entries) for name, entries in written.items() if entries}
    if changes.mining is not None:
        delta["mining"] = orjson.Fragment(encode_mining(changes.mining))
    if changes.previous_contacts or changes.rewrite_previous_contacts:
        contacts = map(encode_previous_contact, changes.previous_contacts)
        delta["previousContacts"] = [*map(orjson.Fragment, contacts)]
        delta["rewritten"] = changes.rewrite_previous_contacts
    if turn is not None and is_user_turn(turn):
        delta["lastUserTurn"] = turn.name
    told = {"input": {"op": note.asked.op, **note.asked.fields}, "outcome": note.outcome, "delta": delta}
    plain: Mapping[str, Any] = orjson.loads(orjson.dumps(told, option=orjson.OPT_UTC_Z))
    return JournalEntry(
        seq=seq,
        revision=changes.expected_revision if changes.session is None else changes.session.revision,
        memory_revision=memory_revision,
        at=changes.now,
        by=note.by,
        rationale=note.asked.rationale,
        **plain,
    )


def _stored(entries: Mapping[str, MemoryEntry]) -> Mapping[str, object]:
    return {id: orjson.Fragment(encode_entry(entry)) for id, entry in entries.items()}


# --- states from entries ----------------------------------------------------------------------


def states_of(entries: Sequence[JournalEntry]) -> tuple[LoadedConversation, LoadedConversation]:
    """The states before and after the last of these entries, as `ConversationJournal.up_to` gives them.

    Raises IndexError for none, CallTheOperator where what is stored does not fit its format.
    """
    before = after = entries[0].base or LoadedConversation()
    whole = max((number for number, entry in enumerate(entries) if entry.base is not None), default=0)
    for entry in entries[whole:]:  # what stands before the last base is in it
        before = entry.base or after
        after = folded(before, entry)
    return before, after


def session_after(entries: Sequence[JournalEntry]) -> Session | None:
    """The session of the state after the last of these entries, for a fraction of the work of `states_of`.

    Raises CallTheOperator where what is stored does not fit its format."""
    stored: dict[str, Any] | None = None
    for entry in entries:
        if entry.base is not None and entry.base.session is not None:
            stored = orjson.loads(encode_session(entry.base.session))
        if "session" in entry.delta:
            change = orjson.loads(orjson.dumps(entry.delta["session"]))  # a copy, to be written into
            stored = change if stored is None or "tenant" in entry.delta else _changed(stored, change)
    return None if stored is None else decode_session(orjson.dumps(stored))


def begun_by(entry: JournalEntry) -> tuple[str | None, Fork | None] | None:
    """By which tag, and as what fork, the entry's commit began a conversation; None where it goes on with
    one."""
    asked: Mapping[str, Any] = entry.input
    if asked["op"] == "fork":
        return asked["tag"], Fork(asked["conversationId"], asked["seq"])
    return (asked.get("tag"), None) if "tenant" in entry.delta else None


def versions_of(entry: JournalEntry) -> Iterator[tuple[int, str, str, Hidden]]:
    """Where an entry tells which version the conversation is on: from which entry on, the version's id and
    content hash, and what is hidden beside its own from there on."""
    if entry.base is not None and entry.base.session is not None:
        before = entry.base.session
        yield entry.seq - 1, before.version_id, before.content_hash, before.hidden
    changed: Mapping[str, Any] = as_object(entry.delta.get("session"))
    if "contentHash" in changed:
        hidden = {id: (said[0], said[1]) for id, said in changed.get("hidden", {}).items()}
        yield entry.seq, str(changed.get("versionId", "")), str(changed["contentHash"]), hidden


def folded(before: LoadedConversation, entry: JournalEntry) -> LoadedConversation:
    """What the entry's commit made of that state. Raises as `states_of`."""
    delta = entry.delta
    anew = "tenant" in delta
    state = LoadedConversation(tenant=as_object(delta["tenant"])) if anew else before
    fresh, added = (_entries(delta.get(name)) for name in ("variables", "added"))
    set_tools, set_mined = _entries(delta.get("tools")), _entries(delta.get("mined"))
    changed_session, mining = delta.get("session"), delta.get("mining")
    contacts = tuple(
        decode_previous_contact(orjson.dumps(each))
        for each in cast("list[object]", delta.get("previousContacts") or [])
    )
    return replace(
        state,
        session=before.session
        if changed_session is None
        else _merged(None if anew else before.session, as_object(changed_session)),
        memory_revision=entry.memory_revision,
        memory_updated_at=entry.at if set_tools or set_mined else state.memory_updated_at,
        mined={**added, **state.mined, **fresh, **set_mined},
        tools={**added, **state.tools, **fresh, **set_tools},
        previous_contacts=contacts
        if delta.get("rewritten") is True
        else (*state.previous_contacts, *contacts),
        last_user_turn=cast("str | None", delta.get("lastUserTurn", state.last_user_turn)),
        mining=state.mining if mining is None else decode_mining(orjson.dumps(mining)),
        mining_revision=state.mining_revision + (mining is not None),
        turns=(),
        former=(),
        replay=None,
        state=b"",
    )


def _merged(before: Session | None, delta: Mapping[str, object]) -> Session:
    if before is None:
        return decode_session(orjson.dumps(delta))
    return decode_session(orjson.dumps(_changed(orjson.loads(encode_session(before)), delta)))


def _changed(stored: dict[str, Any], delta: Mapping[str, object]) -> dict[str, Any]:
    """A stored session with what `session_delta` tells, which is written into it."""
    for name, change in delta.items():
        if name in ("contacts", "entered", "refused"):
            for id, part in as_object(change).items():
                if part is None:
                    stored[name].pop(id, None)
                elif name == "contacts":
                    stored[name][id] = {**stored[name].get(id, {}), **as_object(part)}
                else:
                    stored[name][id] = part
        elif name == "task":
            stored[name] = {**stored[name], **as_object(change)}
        else:
            stored[name] = change
    return stored


def _entries(stored: object) -> dict[str, MemoryEntry]:
    return {id: decode_entry(orjson.dumps(entry)) for id, entry in as_object(stored).items()}
