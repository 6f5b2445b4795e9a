"""Events for reporting and the core CTI (F40): one shape for every message of a conversation.

The body of a dialogue message (`type` message or tool) is its text. The body of a system message is an
object whose `subtype` is one of:

    contact_started      {channel}
    contact_ended        {by?, reason?, status}          by: user | bot | agent, see `ended_by`
    contact_superseded   {by}                            by: the contact id that came instead
    conversation_closed  {reason?}                       reason: time_limit
    handler_failed       {reason}                        of the closure handler, see docs/events.md
    task_changed         {from, to, by?}                 by: back, or advance where nobody asked for it
    task_refused         {code, task}
    task_stalled         {task, turns}
    value_conflict       {varId, name, value, updatedBy, other, otherBy, precedence}
    routing_requested    {skills?, optionalSkills?, agents?, timeout}
    human_task           {outcome, reason?, approvalId?, text?, draft?, timeout?}  see docs/events.md
    version_migrated     {from, to}
    rollout_rolled_back  {flowId, tag, versionId, metric}
    reason_of_contact    {name, why}
    result               {name, why}
    scorecard            {name, score, criteria, why}    criteria: scores by name, of those that were judged
    checkpoint_missed    {checkpointId, name, judged?}   judged: false where there was nobody to judge
    reported             {text}                          a system message that an agent sent itself as text

The body of a system message that an agent sent as an object is that object. An erased conversation leaves
one event of subtype `conversation_erased`, with nothing else of it but its id.

A checkpoint has a shape of its own. docs/events.md shows an example of each.

Every event has an `eventId` of ASCII characters, unique over all tenants. It is made with the commit that
stores the event and travels with it, so that the same event always comes under the same id:
`tenant:conversation:start of the conversation in ms:what`, ids percent-encoded, or a digest of that. The
start is part of it because a conversation that starts anew may see its revisions and message ids again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Literal
from urllib.parse import quote

import msgspec
import orjson

from flow_engine.documents import Checkpoint
from flow_engine.ports.dialogue import ConversationRef, DialogueTurn, encoded_id
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.runtime.mining_state import ReachedCheckpoint
from flow_engine.runtime.session import Session
from flow_engine.values import utc_text
from flow_engine.vocabulary import Source

EventKind = Literal["message", "checkpoint"]


def kind_of(event: bytes) -> EventKind:
    """Which of the two shapes an event has that this module made. `event` is a JSON text; raises ValueError
    for anything else."""
    return "checkpoint" if "serviceId" in orjson.loads(event) else "message"


class Sender(msgspec.Struct, frozen=True):
    """Who a message comes from. `id` and `name` are the agent's to choose."""

    src: Source
    id: str | None = None
    name: str | None = None


ENGINE = Sender("bot")
EVENT_ID_CHARS = 1_024


def task_status(flow: CompiledFlow, session: Session) -> str:
    """Who leads the task now: an AIS task that a human has taken over counts as HUM."""
    plan = flow.tasks[session.task.task_id]
    status = session.status
    return plan.type if status is None else plan.kind.hands_over.get(status, plan.type)


def transcription_suspended(flow: CompiledFlow, session: Session) -> bool:
    """No dialogue is sent: a human is connected in a task with `suspendTranscription`.

    Nor between contacts, when the last one ended in such a task: what still comes then is from before.
    """
    suspends = flow.tasks[session.task.task_id].document.suspend_transcription
    return suspends and session.status in ("connected", None)


def dialogue_event(
    flow: CompiledFlow,
    session: Session,
    turn: DialogueTurn,
    sender: Sender,
    details: Mapping[str, object] | None = None,
) -> bytes | None:
    """A message as an agent reported it, under the task that is active now; None while suspended.

    `details` is the body of a system message that came as an object. A JSON text in UTF-8.
    """
    if transcription_suspended(flow, session):
        return None
    body: str | dict[str, object] = turn.body
    if turn.type == "system":
        body = {"subtype": "reported", "text": turn.body} if details is None else dict(details)
    return _message(
        flow,
        session,
        sender,
        name=f"message:{turn.name}",
        contact_id=turn.contact_id,
        ts=turn.ts,
        body=body,
        type=turn.type,
    )


_UNREAD = b'{"unread":'


@dataclass(frozen=True, slots=True)
class Unread:
    """The mark of a message's event that does not leave before the message was read. `message` is the name
    that the message is known by, `at` when it was taken (UTC)."""

    message: str
    at: datetime


def marked_unread(event: bytes, message: str, at: datetime) -> bytes:
    """The event with that mark, for the outbox alone. A JSON text in UTF-8, `at` in UTC."""
    mark = orjson.dumps({"message": message, "at": at})
    return b"%b%b,%b" % (_UNREAD, mark, event[1:])


def mark_of(event: bytes) -> Unread | None:
    """None for an event that has none. A JSON text in UTF-8."""
    if not event.startswith(_UNREAD):
        return None
    mark = orjson.loads(event)["unread"]
    return Unread(mark["message"], datetime.fromisoformat(mark["at"]))


def without_mark(event: bytes, hidden_as: str | None) -> bytes:
    """The event as everybody gets it; a mask in place of its body where one is given. JSON in UTF-8."""
    whole: dict[str, object] = orjson.loads(event)
    whole.pop("unread", None)
    return orjson.dumps(whole if hidden_as is None else {**whole, "body": hidden_as})


def system_event(
    flow: CompiledFlow,
    session: Session,
    number: int | str,
    contact_id: str,
    ts: datetime,
    subtype: str,
    **details: object,
) -> bytes:
    """`number` counts the events of one revision, or is a name that the conversation has once. A JSON text in
    UTF-8; details of None are left out. `ts` is aware."""
    body: dict[str, object] = {"subtype": subtype}
    for key, value in details.items():
        if value is not None:
            body[key] = value
    name = f"{session.revision}:{number}" if isinstance(number, int) else quote(number, safe=":")
    return _message(flow, session, ENGINE, name=name, contact_id=contact_id, ts=ts, body=body, type="system")


def _message(
    flow: CompiledFlow,
    session: Session,
    sender: Sender,
    *,
    name: str,
    contact_id: str,
    ts: datetime,
    body: str | dict[str, object],
    type: str,
) -> bytes:
    plan = flow.tasks[session.task.task_id]
    # Only what people said is hidden from them: an operator still sees that the caller hung up.
    hidden = type != "system" and plan.document.hide_transcription_to_human
    return orjson.dumps(
        {
            "eventId": _id_of(session, session.started_at, name),
            "campaignId": session.campaign_id,
            "conversationId": session.conversation_id,
            "contactId": contact_id,
            "ts": ts if ts.tzinfo is UTC else ts.astimezone(UTC),
            "body": body,
            "type": type,
            "src": sender.src,
            "srcId": sender.id,
            "srcName": sender.name,
            "taskName": plan.name,
            "taskType": plan.type,
            "taskStatus": task_status(flow, session),
            "meta": {"visible": False} if hidden else None,
        },
        option=orjson.OPT_UTC_Z,
    )


def erasure_event(conversation: ConversationRef, ts: datetime) -> bytes:
    """The last event of a conversation, which tells its id and nothing else. A JSON text in UTF-8. `ts` is
    aware."""
    return orjson.dumps(
        {
            "eventId": _id_of(conversation, ts, "erased"),
            "conversationId": conversation.conversation_id,
            "ts": utc_text(ts),
            "body": {"subtype": "conversation_erased"},
            "type": "system",
            "src": ENGINE.src,
        }
    )


def _id_of(conversation: ConversationRef | Session, since: datetime, name: str) -> str:
    """`name` is ASCII already and unique among what began then. What is too long for a header is a digest."""
    owner = f"{encoded_id(conversation.tenant_id)}:{encoded_id(conversation.conversation_id)}"
    whole = f"{owner}:{int(since.timestamp() * 1000)}:{name}"
    return whole if len(whole) <= EVENT_ID_CHARS else sha256(whole.encode()).hexdigest()


def checkpoint_event(
    flow: CompiledFlow, session: Session, checkpoint: Checkpoint, reached: ReachedCheckpoint, contact_id: str
) -> bytes:
    """A checkpoint in its own shape; `serviceId` is the campaign, caller data come from the contact. A JSON
    text in UTF-8. Raises KeyError for a contact that the session lacks."""
    data = session.contacts[contact_id].data
    declared = (checkpoint.model_extra or {}).get("type")
    name = f"checkpoint:{encoded_id(checkpoint.id)}:{encoded_id(reached.message_id)}"
    return orjson.dumps(
        {
            "eventId": _id_of(session, session.started_at, name),
            "serviceId": session.campaign_id,
            "room": data.get("room"),
            "callerId": data.get("callerId"),
            "calleeId": data.get("calleeId"),
            "type": declared if isinstance(declared, str) and declared.strip() else "checkpoint",
            "data": {
                "checkpointId": checkpoint.id,
                "name": checkpoint.name,
                "required": checkpoint.required,
                "conversationId": session.conversation_id,
                "contactId": contact_id,
                "taskName": flow.tasks[session.task.task_id].name,
                "reason": reached.reason,
                "ts": utc_text(reached.at),
            },
        }
    )


Party = Literal["user", "bot", "agent"]

_WORDS: tuple[tuple[Party, tuple[str, ...]], ...] = (
    ("user", ("user", "caller", "customer", "client", "patient", "guest", "visitor")),
    ("bot", ("bot", "assistant", "ai")),
    ("agent", ("agent", "operator", "human")),
)
_PARTIES: Mapping[str, Party] = {word: party for party, words in _WORDS for word in words}
_ENDING = frozenset(
    {"hangup", "hang", "hung", "up", "off", "end", "ends", "ended", "close", "closes", "closed", "finished"}
    | {
        "leave",
        "leaves",
        "left",
        "gone",
        "disconnect",
        "disconnects",
        "disconnected",
        "quit",
        "bye",
        "goodbye",
    }
)
_EMPTY = frozenset(("by", "the", "has", "have", "was", "call", "contact", "chat", "conversation"))
_WORD = re.compile(r"[^\W\d_]+")
_INNER_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def ended_by(reason: str | None) -> Party | None:
    words = [word.lower() for word in _WORD.findall(_INNER_CAPITAL.sub(" ", reason or ""))]
    parties: set[Party] = {_PARTIES[word] for word in words if word in _PARTIES}
    others = (word for word in words if word not in _PARTIES)
    if len(parties) == 1 and all(word in _ENDING or word in _EMPTY for word in others):
        return parties.pop()
    return None
