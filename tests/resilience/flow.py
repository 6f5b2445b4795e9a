"""The flow that the clients work on: every task leads to every other, and each client has variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from flow_engine.documents import DocumentLimits
from flow_engine.idempotency import FinalReply
from flow_engine.ports.clock import SystemClock
from flow_engine.ports.flow_store import FlowRecord
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.submissions import Submissions
from service.settings import Settings
from service.stores import new_id, open_flow_database
from system_prompts.loader import load_system_prompts
from tests.flow_engine.documents.samples import aio_task, minimal_version

TENANT = "default"
FLOW_ID = "hot"
VERSION_ID = "hot-v1"
FIRST_TASK = "red"
TASKS = (FIRST_TASK, "green", "blue")
WRITERS = 4  # clients of one conversation, each with a pair of variables of its own

_CLOSURE = {
    "multiContact": True,
    "conversationTimeLimit": 3600,
    "customHandler": "https://hooks.example.com/closure",
}


def count_of(writer: int) -> str:
    return f"count_{writer}"


def twin_of(writer: int) -> str:
    """Always written in one batch with `count_of`, with the same value."""
    return f"twin_{writer}"


def document() -> dict[str, Any]:
    names = [name(writer) for writer in range(WRITERS) for name in (count_of, twin_of)]
    return minimal_version(
        _id=VERSION_ID,
        conversationalFlowId=FLOW_ID,
        closureConfig=_CLOSURE,
        variables=[{"_id": name, "name": name, "type": "number", "prompt": "a number"} for name in names],
        tasks=[aio_task(task, closureConfig=_CLOSURE, connectedTasks=list(TASKS)) for task in TASKS],
        firstTask=FIRST_TASK,
    )


async def publish(data_dir: Path) -> None:
    """Save the flow into the SQLite database that the processes will share."""
    database = open_flow_database(Settings(data_dir=data_dir))
    await database.connection.open()
    clock = SystemClock()
    flow_service = FlowService(
        flows=database.flows, versions=database.versions, clock=clock, new_id=lambda: FLOW_ID
    )
    await flow_service.create_flow(
        TENANT, name="Hot", campaign_id="load", schema_version="1.0.0", updated_by="t", respond=_no_reply
    )
    submission = Submissions(load_system_prompts(), DocumentLimits(), new_id).check(
        orjson.dumps(document()), flow_id=FLOW_ID, created_by="t", now=clock.now()
    )
    await flow_service.save_version(
        TENANT,
        FLOW_ID,
        document=submission.document,
        entry=submission.entry,
        parent_version_id=None,
        tag=None,
        respond=_no_reply,
    )
    await database.connection.close()


def _no_reply(flow: FlowRecord) -> FinalReply:
    return FinalReply(200, b"")
