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
    conversation_closed  {}
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import orjson

from flow_engine.compiled import CompiledFlow
from flow_engine.session import Session

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
    number: int,
    contact_id: str,
    ts: datetime,
    subtype: str,
    **details: object,
) -> bytes:
    """`number` counts the events of one commit: with the revision it makes the id stable."""
    body: dict[str, object] = {"subtype": subtype}
    body.update((key, value) for key, value in details.items() if value is not None)
    return message_event(
        flow,
        session,
        event_id=f"{session.conversation_id}:{session.revision}:{number}",
        contact_id=contact_id,
        ts=ts,
        body=body,
        type="system",
    )
