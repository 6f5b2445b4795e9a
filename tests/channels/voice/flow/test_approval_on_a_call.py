"""A task with approval on the phone: what cannot be read before it is heard is not said."""

from __future__ import annotations

from typing import Any

import pytest

from channels.voice.flow.task_context import NOT_SPOKEN
from tests.api.harness import entry
from tests.channels.voice.flow.flow_call import AGENDA, CALL_ID, FlowCall, eventually, flow_call, scripted
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version

pytestmark = pytest.mark.anyio

SECRET = "We refund at most 20 €."
PLAIN = NOT_SPOKEN.partition("{")[0]


def desk(first: str = "reception", **reception: Any) -> JsonObject:
    """reception → answers (AIS with approval, with a tool) → reception."""
    named = {"toolName": "refund", "uiToolDescription": "Pays money back"}
    servers = [{"name": "shop", "url": AGENDA, "includedTools": [named]}]
    selected = {"mcpServerName": "shop", "selectedTools": [{"toolName": "refund", "toolParameters": []}]}
    answers = {
        "type": "AIS",
        "approval": True,
        "prompt": SECRET,
        "connectedTasks": ["reception"],
        "mcpToolSelection": [selected],
    }
    tasks = [aio_task(connectedTasks=["answers"], **reception), hum_task("answers", **answers)]
    return minimal_version(tasks=tasks, mcpServers=servers, firstTask=first)


def is_silent(call: FlowCall) -> bool:
    """The model has neither the task's prompt nor its tools."""
    assert SECRET not in call.settings.instructions
    return call.settings.instructions.startswith(PLAIN) and set(call.tools()) <= {"change_task", "end_call"}


async def test_the_model_gets_neither_prompt_nor_tools_and_may_go_on_elsewhere() -> None:  # V2
    refund = scripted("refund", lambda arguments: {"paid": True})
    async with flow_call(desk(), {AGENDA: (refund,)}) as call:
        before = (await call.opened()).instructions
        assert (await call.tool("change_task", task="answers"))["result"] is True
        assert is_silent(call)
        assert "error" in await call.tool("refund")
        await call.heard("Will you refund me?")
        await call.scene.written(entry("var_string", "x", contactId=CALL_ID), conversation=CALL_ID)
        await call.heard("Please!")  # the prompt says something new
        assert is_silent(call)
        assert (await call.tool("change_task", task="reception"))["result"] is True
        assert call.settings.instructions.splitlines()[0] == before.splitlines()[0]


async def test_a_call_that_begins_in_such_a_task_is_told_the_same() -> None:  # V2
    async with flow_call(desk(first="answers")) as call:
        await call.opened()
        assert is_silent(call)
        events = [each["outcome"] for each in await call.system_events() if each["subtype"] == "human_task"]
        assert events == [], "nothing waits for a person"


async def test_so_is_one_that_the_conversation_leads_there_by_itself() -> None:  # V2
    leads_on = {"answers": {"when": "vars.var_string == 'refund'", "advance": "auto"}}
    async with flow_call(desk(connectionConditions=leads_on)) as call:
        await call.opened()
        assert not is_silent(call)
        await call.scene.written(entry("var_string", "refund", contactId=CALL_ID), conversation=CALL_ID)
        await call.heard("Will you refund me?")
        await eventually(lambda: call.settings.instructions.startswith(PLAIN))
        assert is_silent(call)
