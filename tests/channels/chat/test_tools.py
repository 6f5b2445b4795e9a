"""Tools of agents: by decorator, declared as HTTP calls, confirmed by the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from adapters.models.loop import MAX_ITERATIONS
from adapters.models.scripted import CallsTools, Says, Step
from adapters.models.tools import MOST_RESULT_CHARS
from channels.chat import tool
from channels.chat.answer import MOST_SHOWN
from channels.chat.tools import McpSource, load_tools
from channels.engine_client.fake_mcp import ScriptedMcp, ScriptedTool
from channels.engine_client.mcp_tools import McpTool
from flow_engine.errors import CallTheOperator
from flow_engine.ports.models import ToolCall
from tests.channels.chat import toolbelt
from tests.channels.chat.harness import Client, running_chat
from tests.channels.engine_client.test_mcp_connections import agenda, running

pytestmark = pytest.mark.anyio

BELT = "tests.channels.chat.toolbelt"
ROW: dict[str, Any] = {
    "name": "clerk",
    "description": "Adds numbers and pays amounts.",
    "tools": ["add", "pay", "wipe", "breaks", "sleeps", "reads", "rejects"],
}


@pytest.fixture(autouse=True)
def no_calls_before() -> None:
    toolbelt.CALLS.clear()


def calls(name: str, /, **arguments: Any) -> CallsTools:
    return CallsTools([ToolCall("call-1", name, arguments)])


def actions(client: Client, message_id: str = "m-1") -> list[tuple[str, str]]:
    return [(f["content"]["tool"], f["content"]["status"]) for f in client.of(message_id, "action")]


async def answered(tmp_path: Path, step: Step, decision: str | None = None, **chat_settings: Any) -> Any:
    """Actions, what the tool's message told the model, and the final frame."""
    async with running_chat(tmp_path, [step, Says("Done.")], tool_modules=BELT, **chat_settings) as chat:
        await chat.add(ROW)
        async with chat.client() as client:
            await client.send(type="message", id="m-1", content="add numbers and pays")
            if decision is not None:
                waiting = await client.until(lambda f: f["type"] == "action")
                call = waiting["content"]["call"]
                await client.send(type="confirm", call=call, decision=decision)
            final = await client.final("m-1")
            told = [m.content for m in chat.model.requests[-1].messages if m.role == "tool"]
            run = (await chat.runs(client.session))[0]
            return actions(client), told, final["state"], run


async def test_a_function_is_a_tool_with_the_schema_of_its_types(tmp_path: Path) -> None:  # C11
    acted, told, state, run = await answered(tmp_path, calls("add", a=2, b=3))
    assert acted == [("add", "started"), ("add", "finished")]
    assert (told, state, toolbelt.CALLS) == (["5"], "done", [("add", (2, 3))])
    line = run["tool_calls_log"][0]
    assert line == {"tool": "add", "arguments": {"a": 2, "b": 3}, "result": 5, "iteration": 1}


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (calls("add", a="two"), "is not of type 'integer'"),
        (calls("add"), "'a' is a required property"),
        (calls("delete_everything"), "delete_everything"),
        (calls("breaks"), "out of paper"),
        (calls("wipe"), "forbids"),
        (calls("sleeps"), "0.05"),
    ],
)
async def test_what_goes_wrong_with_a_tool_is_told_to_the_model(
    tmp_path: Path, step: Step, words: str
) -> None:  # C11
    acted, told, state, _ = await answered(tmp_path, step)
    assert words in told[0]
    assert (state, toolbelt.CALLS) == ("done", [])
    assert "finished" not in [status for _, status in acted]


async def test_what_is_shown_of_a_long_result_is_shortened_and_the_model_gets_all(
    tmp_path: Path,
) -> None:  # C13
    async with running_chat(tmp_path, [calls("reads"), Says("Read.")], tool_modules=BELT) as chat:
        await chat.add(ROW)
        async with chat.client() as client:
            await client.say("m-1", "add numbers and pays")
            shown = client.of("m-1", "action")[-1]["content"]["result"]
            told = next(m.content for m in chat.model.requests[-1].messages if m.role == "tool")
            assert (shown[-1], len(shown), told.count("x")) == ("…", MOST_SHOWN + 1, 20_000)


@pytest.mark.parametrize("name", ["reads", "rejects"])
async def test_a_result_without_end_is_cut_for_the_model_which_is_told_so(
    tmp_path: Path, name: str
) -> None:  # C11
    _, (told,), _, run = await answered(tmp_path, calls(name, length=2_000_000))
    assert told.count("x") == MOST_RESULT_CHARS
    assert "(cut: the first 50,000 of 2,000,000 characters)" in told
    assert len(orjson.dumps(run["tool_calls_log"])) < MOST_RESULT_CHARS + 1_000


async def test_an_agent_that_never_comes_to_an_end_is_stopped_and_says_so(tmp_path: Path) -> None:  # C13
    async with running_chat(tmp_path, lambda request: calls("add", a=1), tool_modules=BELT) as chat:
        await chat.add(ROW)
        async with chat.client() as client:
            final = await client.say("m-1", "add numbers")
            (run,) = await chat.runs(client.session)
            assert (final["state"], run["status"], run["iterations"]) == (
                "refused",
                "max_iterations",
                MAX_ITERATIONS,
            )
            assert client.of("m-1", "error")[0]["content"]["code"] == "max_iterations"
            assert len(toolbelt.CALLS) == MAX_ITERATIONS == len(run["tool_calls_log"])


async def test_a_call_that_is_to_be_confirmed_waits_for_a_yes(tmp_path: Path) -> None:  # C11
    acted, told, _, _ = await answered(tmp_path, calls("pay", amount=3.5), "yes")
    assert acted == [("pay", "waiting"), ("pay", "started"), ("pay", "finished")]
    assert orjson.loads(told[0]) == {"paid": 3.5, "currency": "EUR"}


async def test_a_no_is_told_to_the_model_and_nothing_runs(tmp_path: Path) -> None:  # C11
    acted, told, state, _ = await answered(tmp_path, calls("pay", amount=3.5), "no")
    assert acted == [("pay", "waiting"), ("pay", "rejected")]
    assert orjson.loads(told[0])["error"] == "USER_REJECTED"
    assert (state, toolbelt.CALLS) == ("done", [])


async def test_nobody_there_is_a_no_after_a_while(tmp_path: Path) -> None:  # C11
    acted, _, state, _ = await answered(tmp_path, calls("pay", amount=1), chat_confirm_s=0.1)
    assert acted == [("pay", "waiting"), ("pay", "rejected")]
    assert (state, toolbelt.CALLS) == ("done", [])


async def test_the_operators_rules_can_only_be_stricter(tmp_path: Path) -> None:  # C11
    acted, told, _, _ = await answered(tmp_path, calls("add", a=1), chat_tool_rules="forbid:ad*,allow:*")
    assert "forbids" in told[0]
    assert ("add", "started") not in acted


async def test_an_agent_has_only_what_its_row_lists(tmp_path: Path) -> None:  # C11
    async with running_chat(tmp_path, [calls("pay", amount=1), Says("No.")], tool_modules=BELT) as chat:
        await chat.add({**ROW, "tools": ["add"]})
        async with chat.client() as client:
            await client.say("m-1", "add numbers")
            assert {spec.name for spec in chat.model.requests[0].tools} == {"add", "ask_user", "refuse"}
            assert toolbelt.CALLS == []
        unknown = await chat.http.patch("/v1/ai-agents/clerk", json={"tools": ["nothing"]})
        assert unknown.json()["errors"][0]["pointer"] == "/tools/0"


async def test_a_declared_http_tool_is_listed_and_called(tmp_path: Path) -> None:  # C11
    row = {
        "name": "finder",
        "description": "Finds things.",
        "http_tools": {
            "find": {
                "url": "http://127.0.0.1:{port}/v1/ai-agents/{{{{args.name}}}}",
                "description": "Finds an agent.",
                "parameters": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                },
                "on_success": {"return": {"role": "$.role"}},
            }
        },
    }
    script = [calls("find", name="orchestrator"), Says("Found.")]
    settings = {"outbound_allow": "127.0.0.1"}
    async with running_chat(tmp_path, script, settings=settings) as chat:
        url = row["http_tools"]["find"]["url"].format(port=chat.port)  # type: ignore[index]
        row["http_tools"]["find"]["url"] = url  # type: ignore[index]
        await chat.add(row)
        async with chat.client() as client:
            assert (await client.say("m-1", "finds things"))["state"] == "done"
            assert actions(client) == [("find", "started"), ("find", "finished")]
            told = [m.content for m in chat.model.requests[-1].messages if m.role == "tool"]
            assert "direct the messages" in told[0]


def test_a_parameter_without_a_schema_is_refused_where_it_is_written() -> None:  # C11
    with pytest.raises(TypeError, match="given by name"):

        @tool
        def takes_all(*things: int) -> None: ...


def test_a_module_that_cannot_be_loaded_is_the_operators() -> None:  # C11
    with pytest.raises(CallTheOperator, match="tools_not_loaded"):
        load_tools(["no.such.module"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nowhere()", "NameError: name 'nowhere' is not defined"),
        ("raise RuntimeError('no key')", "RuntimeError: no key"),
        (
            "from channels.chat import tool\n@tool(name='refuse')\ndef x() -> None: ...",
            "every agent has a function 'refuse'",
        ),
    ],
)
def test_a_module_that_fails_or_takes_a_name_of_every_agent_is_the_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:  # C11
    name = f"belt_of_{len(text)}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CallTheOperator) as refusal:
        load_tools([name])
    assert refusal.value.code == "tools_not_loaded"
    assert refusal.value.detail == f"FLOW_ENGINE_TOOL_MODULES: {name!r}: {words}"


async def test_a_tool_that_the_row_declares_comes_before_a_function_of_its_name(
    tmp_path: Path,
) -> None:  # C11
    declared = {"add": {"url": "http://127.0.0.1:9/", "description": "Adds elsewhere."}}
    async with running_chat(tmp_path, tool_modules=BELT) as chat:
        await chat.add({**ROW, "tools": ["add", "pay"], "http_tools": declared})
        async with chat.client() as client:
            assert (await client.say("m-1", "add numbers"))["state"] == "done"
            offered = {spec.name: spec.description for spec in chat.model.requests[0].tools}
            assert (set(offered), offered["add"]) == ({"add", "pay", "ask_user", "refuse"}, "Adds elsewhere.")


async def test_a_servers_tool_that_cannot_stand_beside_the_rest_is_left_out(tmp_path: Path) -> None:  # C11
    row = {"name": "adder", "description": "Adds numbers.", "tools": ["agenda/add"]}
    declared = {"agenda_add": {"url": "http://127.0.0.1:9/", "description": "Adds elsewhere."}}
    async with running(agenda()) as (url, _):
        settings = {"outbound_allow": "127.0.0.1"}
        servers = f"agenda={url}"
        async with running_chat(tmp_path, settings=settings, chat_mcp_servers=servers) as chat:
            await chat.add({**row, "http_tools": declared})
            async with chat.client() as client:
                assert (await client.say("m-1", "adds numbers"))["state"] == "done"
                offered = {spec.name: spec.description for spec in chat.model.requests[0].tools}
                assert offered["agenda_add"] == "Adds elsewhere."


async def test_a_servers_tool_has_a_name_that_models_take() -> None:  # C11
    listed = McpTool("get.weather/now", "Weather.", {"type": "object"})
    servers = ScriptedMcp({"http://w/mcp": (ScriptedTool(listed, lambda _: "sunny"),)})
    offered = await McpSource({"météo": "http://w/mcp"}, servers).tool("météo/get.weather/now")
    assert offered is not None
    assert (offered.spec.name, await offered.run({})) == ("m_t_o_get_weather_now", "sunny")
    assert servers.calls[0].tool == "get.weather/now"


async def test_a_tool_of_an_mcp_server_is_listed_by_server_and_name(tmp_path: Path) -> None:  # C11
    row = {"name": "adder", "description": "Adds numbers.", "tools": ["agenda/add", "agenda/gone"]}
    script = [calls("agenda_add", a=2, b=3), Says("Five.")]
    async with running(agenda()) as (url, _):
        settings = {"outbound_allow": "127.0.0.1"}
        servers = f"agenda={url}"
        async with running_chat(tmp_path, script, settings=settings, chat_mcp_servers=servers) as chat:
            await chat.add(row)
            unknown = await chat.http.patch("/v1/ai-agents/adder", json={"tools": ["nowhere/add"]})
            assert unknown.json()["errors"][0]["pointer"] == "/tools/0"
            async with chat.client() as client:
                assert (await client.say("m-1", "adds numbers"))["state"] == "done"
                assert actions(client) == [("agenda_add", "started"), ("agenda_add", "finished")]
            asked = chat.model.requests
            assert {spec.name for spec in asked[0].tools} == {"agenda_add", "ask_user", "refuse"}
            assert "5" in next(m.content for m in asked[-1].messages if m.role == "tool")
