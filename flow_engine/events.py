"""What is told to reporting and the core CTI (F40): one shape for every message of a conversation.

A dialogue message has a text as its body; a system message has an object whose `subtype` is one of:

    contact_started      {channel}
    contact_ended        {by?, reason?, status}
    contact_superseded   {by}
    task_changed         {from, to}
    task_refused         {code, task}
    routing_requested    {skills?, optional_skills?, agents?, timeout}
    human_task           {outcome, reason?}
    version_migrated     {from, to}
    conversation_closed  {reason?}
    task_stalled         {task, turns}
    reason_of_contact    {name, why}
    result               {name, why}
    checkpoint_missed    {checkpointId, name}
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import orjson

from flow_engine.compiled import CompiledFlow
from flow_engine.documents import Checkpoint
from flow_engine.ports import DialogueTurn
from flow_engine.session import Session
from flow_engine.values import utc_text

Source = Literal["bot", "agent", "user"]


def task_status(flow: CompiledFlow, session: Session) -> str:
    """Who leads the task now: an AIS task that a human has taken over counts as HUM."""
    plan = flow.tasks[session.task.task_id]
    taken_over = plan.type == "AIS" and flow.chart.status(session.position) == "human"
    return "HUM" if taken_over else plan.type


def message_event(
    flow: CompiledFlow,
    session: Session,
    *,
    event_id: str,
    contact_id: str,
    ts: datetime,
    body: str | dict[str, object],
    type: Literal["tool", "system", "message"],
    src: Source = "bot",
    src_id: str | None = None,
    src_name: str | None = None,
) -> bytes:
    plan = flow.tasks[session.task.task_id]
    hidden = bool(plan.document.hide_transcription_to_human)
    return orjson.dumps(
        {
            "eventId": event_id,
            "campaignId": session.campaign_id,
            "conversationId": session.conversation_id,
            "contactId": contact_id,
            "ts": ts.isoformat().replace("+00:00", "Z"),
            "body": body,
            "type": type,
            "src": src,
            "srcId": src_id,
            "srcName": src_name,
            "taskName": plan.name,
            "taskType": plan.type,
            "taskStatus": task_status(flow, session),
            "meta": {"visible": False} if hidden else None,
        }
    )


def system_event(
    flow: CompiledFlow,
    session: Session,
    number: int | str,
    contact_id: str,
    ts: datetime,
    subtype: str,
    **details: object,
) -> bytes:
    """The id is stable: `number` counts the events of one revision, or is a name of its own."""
    body: dict[str, object] = {"subtype": subtype}
    body.update((key, value) for key, value in details.items() if value is not None)
    return message_event(
        flow,
        session,
        event_id=_event_id(session, number),
        contact_id=contact_id,
        ts=ts,
        body=body,
        type="system",
    )


def _event_id(session: Session, number: int | str) -> str:
    if isinstance(number, int):
        return f"{session.conversation_id}:{session.revision}:{number}"
    return f"{session.conversation_id}:{number}"


def checkpoint_event(
    flow: CompiledFlow, session: Session, checkpoint: Checkpoint, turn: DialogueTurn, ts: datetime
) -> bytes:
    """A checkpoint in its own shape; `serviceId` is the campaign, caller data come from the contact."""
    data = session.contacts[turn.contact_id].data
    return orjson.dumps(
        {
            "eventId": f"{session.conversation_id}:checkpoint:{checkpoint.id}:{turn.message_id}",
            "serviceId": session.campaign_id,
            "room": data.get("room"),
            "callerId": data.get("callerId"),
            "calleeId": data.get("calleeId"),
            "type": "checkpoint",
            "data": {
                "checkpointId": checkpoint.id,
                "name": checkpoint.name,
                "required": checkpoint.required,
                "conversationId": session.conversation_id,
                "contactId": turn.contact_id,
                "taskName": flow.tasks[session.task.task_id].name,
                "ts": utc_text(ts),
            },
        }
    )
