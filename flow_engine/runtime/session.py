"""What is remembered of a conversation besides its variables: the snapshot of F14.

The stored form is JSON with its own format number: an older one is read, a newer one is refused, so
that replicas of two releases can run side by side without one destroying what the other wrote.
"""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

import msgspec

from flow_engine.errors import CallTheOperator
from flow_engine.runtime.statechart import StateConfiguration, status_in
from flow_engine.task_types import CLOSED
from flow_engine.vocabulary import ApprovalStatus, Channel, ContactStatus, SensitiveKind, VariableType

SNAPSHOT_FORMAT = 5
MOST_DIGRESSIONS = 8
"""Tasks to go back to, one within the other; what lies deeper is forgotten."""
Hidden = Mapping[str, tuple[VariableType, bool | SensitiveKind]]
"""Variables by id, with what an earlier version of the conversation said of each."""


class _Stored(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Checked when it is read, and not again: what a step makes of it has the types that pyright has seen."""

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same with these fields changed. Its parts are immutable, and shared."""
        return msgspec.structs.replace(self, **update)


class Contact(_Stored, frozen=True, kw_only=True):
    """One contact of the conversation. `data` is the caller data that the agent sent (F28). Times are in UTC,
    `data` is JSON."""

    channel: Channel
    status: ContactStatus
    started_at: datetime
    ended_at: datetime | None = None
    data: Mapping[str, object] = {}
    tasks: tuple[str, ...] = ()


class TaskEntry(_Stored, frozen=True, kw_only=True):
    """The task that is entered, with every template of it as it was rendered then (F23). Times are in UTC."""

    task_id: str
    entered_at: datetime
    global_prompt: str
    prompt: str
    descriptions: Mapping[str, str]
    routing_deadline: datetime | None = None
    human_reason: str | None = None


class Approval(_Stored, frozen=True, kw_only=True):
    """A text that was put before a person. `id` is the revision that it came with; `draft` is what the AI
    wrote, `text` what holds now. Undecided after `until`, it is not sent. Times are in UTC."""

    id: int
    task_id: str
    status: ApprovalStatus
    text: str
    draft: str
    asked_at: datetime
    until: datetime
    reason: str | None = None
    decided_at: datetime | None = None


class Session(_Stored, frozen=True, kw_only=True):
    """A conversation between two requests. Immutable: a step makes a new one.

    `revision` counts the commits of the snapshot; `entered` and `refused` count by task id how often
    a task was entered and a change to it refused, the latter under "" for names that no task has. `deadline`
    is when the conversation's time is over (UTC), None for never; `pending_command` is what the agent has yet
    to be told. `digressions` are the tasks to go back to, the nearest last. `approval` is the text of the
    active contact that was the last to wait for a person. `hidden` are the variables that stay sensitive
    since a version was left in which they were.
    """

    format: int = SNAPSHOT_FORMAT
    conversation_id: str
    tenant_id: str
    campaign_id: str
    flow_id: str
    version_id: str
    content_hash: str
    revision: int
    configuration: tuple[str, ...]
    history: tuple[str, ...] = ()
    contacts: Mapping[str, Contact]
    active_contact_id: str | None
    language: str
    started_at: datetime
    task: TaskEntry
    entered: Mapping[str, int] = {}
    refused: Mapping[str, int] = {}
    deadline: datetime | None = None
    pending_command: str | None = None
    digressions: tuple[str, ...] = ()
    approval: Approval | None = None
    hidden: Hidden = {}

    @property
    def states(self) -> StateConfiguration:
        return StateConfiguration(self.configuration, self.history)

    @property
    def status(self) -> str | None:
        """As that of its states."""
        return status_in(self.configuration)

    @property
    def active_contact(self) -> Contact | None:
        return None if self.active_contact_id is None else self.contacts[self.active_contact_id]

    @property
    def latest_contact_id(self) -> str:
        """Of the active contact, else of the one that started last."""
        if self.active_contact_id is not None:
            return self.active_contact_id
        return max(self.contacts, key=lambda id: self.contacts[id].started_at)

    @property
    def latest_contact(self) -> Contact:
        active = self.active_contact_id  # asked for often, and nearly always there
        return self.contacts[self.latest_contact_id if active is None else active]

    @property
    def own_contacts(self) -> Mapping[str, Contact]:
        """Without those of conversations that were started anew under the same id."""
        return {id: contact for id, contact in self.contacts.items() if contact.started_at >= self.started_at}

    @property
    def closed(self) -> bool:
        return self.configuration[0] == CLOSED

    def by_other_ids(self, tasks: Mapping[str, str]) -> Mapping[str, object]:
        """The changes by which all that it remembers by task, but the present one, is under other ids. Counts
        of tasks that are one now are added up. Only digressions need tasks that are there."""
        approval = self.approval
        if approval is not None:
            own = tasks.get(approval.task_id, approval.task_id)
            approval = approval.model_copy(update={"task_id": own})
        return {
            "entered": _added_up(self.entered, tasks),
            "refused": _added_up(self.refused, tasks),
            "digressions": tuple(tasks[task] for task in self.digressions if task in tasks),
            "approval": approval,
        }


def _added_up(counts: Mapping[str, int], tasks: Mapping[str, str]) -> Mapping[str, int]:
    summed = Counter[str]()
    for task_id, count in counts.items():
        summed[tasks.get(task_id, task_id)] += count
    return dict(summed)


class _FormatOnly(msgspec.Struct):
    format: int


_FORMATS = [b'{"format":%d,' % number for number in range(SNAPSHOT_FORMAT + 1)]
_EARLIER = {*_FORMATS[1:SNAPSHOT_FORMAT]}
_HEAD = len(_FORMATS[1])
_UNUSED_IN_1 = b',"deadline":null,"pendingCommand":null'
_UNUSED_IN_2 = b',"digressions":[]'
_UNUSED_IN_3 = b',"approval":null'
_UNUSED_IN_4 = b',"hidden":{}}'
_PLACE = re.compile(r"`\$\.?(?P<place>[^`]*)`\Z")
_FIELD = re.compile(r"(?:required|unknown) field `(?P<field>[^`]*)`")


def encode_session(session: Session) -> bytes:
    """In the oldest format that has all that is used: the release before reads it during an update. A JSON
    text in UTF-8."""
    stored = msgspec.json.encode(session)
    if session.hidden:
        return stored
    oldest, unused = 4, _UNUSED_IN_4
    if session.approval is None:
        oldest, unused = 3, _UNUSED_IN_3 + unused
        if not session.digressions:
            oldest, unused = 2, _UNUSED_IN_2 + unused
            if session.deadline is None and session.pending_command is None:
                oldest, unused = 1, _UNUSED_IN_1 + unused
    return _FORMATS[oldest] + stored[_HEAD : -len(unused)] + b"}"


def decode_session(stored: bytes) -> Session:
    """Raises CallTheOperator with `snapshot_too_new` or `snapshot_unreadable`. `stored` is a JSON text."""
    if stored[:_HEAD] in _EARLIER:
        stored = _FORMATS[SNAPSHOT_FORMAT] + stored[_HEAD:]
    try:
        session = _read_session(stored)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        try:
            found = msgspec.json.decode(stored, type=_FormatOnly).format
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found = None
        if found is not None and found > SNAPSHOT_FORMAT:
            raise _too_new(found) from error
        # Its text may quote a stored value: only the place is told.
        place, field = _PLACE.search(str(error)), _FIELD.search(str(error))
        parts = [*(place["place"].split(".") if place else ()), *(field.groups() if field else ())]
        raise CallTheOperator(
            "snapshot_unreadable", f"the stored snapshot does not fit its format at: {'/'.join(parts)}"
        ) from error
    if session.format > SNAPSHOT_FORMAT:
        raise _too_new(session.format)
    if not session.contacts or session.active_contact_id not in (None, *session.contacts):
        raise CallTheOperator("snapshot_unreadable", "the stored snapshot lacks its own active contact")
    return (
        session
        if session.format == SNAPSHOT_FORMAT
        else session.model_copy(update={"format": SNAPSHOT_FORMAT})
    )


_read_session = msgspec.json.Decoder(Session).decode


def _too_new(found: int) -> CallTheOperator:
    return CallTheOperator(
        "snapshot_too_new",
        f"the snapshot has format {found}, this release reads up to {SNAPSHOT_FORMAT}: update it",
    )
