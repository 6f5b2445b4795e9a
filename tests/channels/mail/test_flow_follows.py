"""A run of a mail in a conversation that goes on by itself."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.models.tools import Approval
from channels.engine_client.fake_mcp import ScriptedMcp, ScriptedTool
from channels.engine_client.mcp_tools import McpTool
from channels.engine_client.toolbox import Toolbox
from channels.mail.config import FlowChoice
from channels.mail.flow import EngineContact, FlowRun
from tests.api.harness import SettableClock, open_scene
from tests.channels.engine_client.engine_doubles import client_of
from tests.channels.engine_client.test_mapped_results import AGENDA, mapped

pytestmark = pytest.mark.anyio


async def test_the_answer_of_a_tool_that_led_on_brings_the_other_tasks_prompt() -> None:
    document = mapped(answer={"when": "vars.var_number > 1", "advance": "auto"})
    document |= {"channels": ["mail"], "mandatoryChannels": []}
    async with open_scene(document) as scene:
        declared = FlowChoice.model_validate({"engine_url": "http://engine", "version": "version-1"})
        engine = client_of(scene)
        contact = EngineContact(engine, declared, FlowRun("run-1", "mail-1", {}), SettableClock())
        tool = ScriptedTool(McpTool("find", "Finds", {"type": "object"}), lambda arguments: {"price": 7})
        contact.toolbox = Toolbox(engine, ScriptedMcp({AGENDA: (tool,)}), contact.tool_ran, Approval())
        task = await contact.enter("What does it cost?")
        assert "Tell the price" not in task.prompt
        find = next(each for each in task.tools if each.spec.name == "find")
        answer: Any = await find.run({})
        assert (answer["answer"], answer["task"]) == ({"price": 7}, "answer")
        assert "Tell the price that was found." in answer["prompt"]
        assert await find.run({}) == {"price": 7}  # told once
