"""What a tool answers is written to the memory by the mapping that the flow selects it with."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from adapters.models.tools import MOST_RESULT_CHARS, Approval
from channels.engine_client.client import Contact, FlowChoice, NewContact
from channels.engine_client.fake_mcp import ScriptedMcp, ScriptedTool
from channels.engine_client.mcp_tools import McpTool
from channels.engine_client.toolbox import TaskTools, Toolbox
from flow_engine.json_paths import PathRefused, description_of, mapped_values, read_path
from flow_engine.ports.models import ToolCall
from flow_engine.values import JsonValue
from tests.api.harness import CALL, Scene, open_scene
from tests.channels.engine_client.engine_doubles import client_of
from tests.flow_engine.documents.samples import JsonObject, aio_task, minimal_version

pytestmark = pytest.mark.anyio

AGENDA = "https://mcp.example.com/agenda"
MAPPING = {"var_custom": "$.slot", "var_number": "$.price", "var_string": "$.where[0].name"}


def mapped(mapping: JsonObject = MAPPING, **ways: Any) -> JsonObject:
    """`ask`, whose tool `find` is mapped, and `answer`."""
    chosen = [
        {"mcpServerName": "agenda", "selectedTools": [{"toolName": "find", "resultMapping": mapping}]},
    ]
    servers = [{"name": "agenda", "url": AGENDA, "includedTools": [{"toolName": "find"}]}]
    tasks = [
        aio_task("ask", connectedTasks=["answer"], connectionConditions=ways, mcpToolSelection=chosen),
        aio_task("answer", prompt="Tell the price that was found.", connectedTasks=["ask"]),
    ]
    return minimal_version(tasks=tasks, firstTask="ask", mcpServers=servers)


async def found(scene: Scene, answer: JsonValue) -> tuple[Any, Any]:
    """What the model gets of the tool's answer, and the memory after it."""
    engine = client_of(scene)
    contact = Contact(CALL["conversationId"], CALL["contactId"])
    data = await engine.new_contact(NewContact(contact, FlowChoice(version_id="version-1"), "phone"))
    tool = ScriptedTool(McpTool("find", "Finds", {"type": "object"}), lambda arguments: answer)

    async def ran(tool: Any, answer: JsonValue) -> None:
        """Nothing follows here."""

    toolbox = Toolbox(engine, ScriptedMcp({AGENDA: (tool,)}), ran, Approval())
    tools: TaskTools = await toolbox.of_task(data)
    shown = await tools.registry.run(ToolCall("c1", "find", {}))
    memory = await engine.memory(contact.conversation_id)
    return shown, {v.var_id: v for v in memory.vars}


async def test_the_parts_of_an_answer_become_values_with_the_tools_name() -> None:
    answer: JsonValue = {
        "slot": {"id": 7, "at": {"h": 9}},
        "price": 12.5,
        "where": [{"name": "Lido"}],
        "x": 1,
    }
    async with open_scene(mapped()) as scene:
        shown, memory = await found(scene, answer)
        assert shown == answer
        assert memory["var_custom"].value == {"id": 7, "at": {"h": 9}}
        assert [(d.name, d.value) for d in memory["var_custom"].description_for_llm or ()] == [("id", "7")]
        assert (memory["var_number"].value, memory["var_string"].value) == (12.5, "Lido")
        assert {memory[each].updated_by for each in MAPPING} == {"find"}
        reply = (await scene.http.get("/v1/conversations/conv-1/journal")).json()
        assert [each["input"]["op"] for each in reply["entries"]][-1] == "memory"


async def test_an_answer_in_text_is_read_and_what_is_not_there_is_left_alone() -> None:
    async with open_scene(mapped()) as scene:
        _, memory = await found(scene, '{"price": 3, "slot": null}')
        assert (memory["var_number"].value, memory["var_custom"].value) == (3, None)
        _, memory = await found(scene, "no slots today")
        assert memory["var_number"].value == 3
        _, memory = await found(scene, {"error": "the agenda is closed"})
        assert memory["var_number"].value == 3


@pytest.mark.parametrize("as_text", [True, False])
async def test_all_of_a_long_answer_is_looked_into_and_its_beginning_is_the_model_s(as_text: bool) -> None:
    answer: JsonValue = {"notes": "x" * MOST_RESULT_CHARS, "price": 3}
    text = orjson.dumps(answer).decode()
    async with open_scene(mapped()) as scene:
        shown, memory = await found(scene, text if as_text else answer)
        told = f"{text[:MOST_RESULT_CHARS]}… (cut: the first 50,000 of {len(text):,} characters)"
        assert (shown, memory["var_number"].value) == (told, 3)


def test_an_integer_beyond_64_bits_keeps_its_digits_as_text() -> None:
    text = f'{{"order": {10**22 + 1}, "digits": "{10**22 + 1}"}}'
    assert mapped_values({"v": "$.order", "w": "$.digits"}, text) == dict.fromkeys("vw", str(10**22 + 1))


async def test_an_answer_that_is_nested_too_deeply_gives_no_values_and_is_the_model_s() -> None:
    async with open_scene(mapped()) as scene:
        answer = f'{{"price": 3, "slot": {"[" * 300}{"]" * 300}}}'
        shown, memory = await found(scene, answer)
        assert (shown, memory["var_number"].value) == (answer, None)


async def test_a_value_that_does_not_fit_is_left_out_and_the_others_are_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with open_scene(mapped()) as scene:
        _, memory = await found(scene, {"price": "cheap", "slot": "S-1", "where": [{"name": "Lido"}]})
        assert memory["var_number"].value is None
        assert (memory["var_custom"].value, memory["var_string"].value) == ("S-1", "Lido")
        assert "tool_result_not_stored" in capsys.readouterr().out


async def test_what_a_tool_has_found_leads_on_and_the_agent_is_told() -> None:
    way = {"when": "vars.var_number > 1", "advance": "auto"}
    async with open_scene(mapped(answer=way)) as scene:
        await found(scene, {"price": 5})
        prompt = await scene.prompt()
        assert prompt["command"] == "/start_task answer AIO"
        assert "Tell the price that was found." in prompt["prompt"]


async def test_the_mapping_travels_with_the_tool_and_only_there() -> None:
    async with open_scene(mapped()) as scene:
        data = await scene.started()
        servers = {server["serverName"]: server["tools"] for server in data["mcpTools"]}
        assert servers["agenda"][0]["resultMapping"] == MAPPING
        assert all("resultMapping" not in tool for tool in servers["flow-engine"])


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$.a.b", 1),
        ("$.list[1].n", 2),
        ("$..n", 1),
        ("$.list[?@.n > 1].name", "two"),
        ("$", {"a": {"b": 1}, "list": [{"n": 1, "name": "one"}, {"n": 2, "name": "two"}], "no": False}),
        ("$.no", False),
        ("$.gone", None),
    ],
)
def test_a_path_gives_the_first_value_that_it_finds(path: str, value: JsonValue) -> None:
    result: JsonValue = {
        "a": {"b": 1},
        "list": [{"n": 1, "name": "one"}, {"n": 2, "name": "two"}],
        "no": False,
    }
    assert mapped_values({"v": path}, result).get("v") == value


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a.b",
        "$.a[",
        "$..a..b",
        "$[?match(@.a, 'x')]",
        "$." + "a" * 1_000,
        "$" + "[0]" * 41,
        "$[9e999]",
        "$[*,*][*,*][*,*][*,*]",
        "$[?count($..a) == 2]",
        "$[?@.a == 1 && $[*]]",
    ],
)
def test_a_path_that_could_take_long_or_says_nothing_is_refused(path: str) -> None:
    with pytest.raises(PathRefused, match=r"accepted|cannot"):
        read_path(path)
    assert mapped_values({"v": path}, {"a": 1}) == {}


def test_a_custom_value_is_described_by_its_plain_parts() -> None:
    assert description_of({"a": 1, "b": [2], "c": None}) == [
        {"name": "a", "value": "1"},
        {"name": "c", "value": "null"},
    ]
    assert description_of([1, 2]) == [{"name": "value", "value": "[1,2]"}]
    assert description_of("x") == [{"name": "value", "value": "x"}]
    assert len(description_of({str(n): n for n in range(50)})) == 20


# --- documents ------------------------------------------------------------------------------------


async def test_a_save_refuses_paths_that_cannot_be_read_and_unknown_variables() -> None:
    async with open_scene() as scene:
        flow = {"name": "f", "campaignId": "c", "updatedBy": "ada"}
        flow_id = (await scene.post("/v1/flows", flow)).json()["id"]
        place = "/tasks/0/mcpToolSelection/0/selectedTools/0"
        for mapping, errors in (
            ({"var_string": "$.a["}, [(f"{place}/resultMapping/var_string", "result_path_invalid")]),
            ({"gone": "$.a"}, [(f"{place}/resultMapping/gone", "unknown_variable")]),
            ({"var_string": 1}, [(f"{place}/resultMapping/var_string", "wrong_type")]),
        ):
            body = {**mapped(mapping), "conversationalFlowId": flow_id}
            reply = await scene.post(f"/v1/flows/{flow_id}/versions", body)
            assert (reply.status_code, [(e["pointer"], e["code"]) for e in reply.json()["errors"]]) == (
                422,
                errors,
            )
