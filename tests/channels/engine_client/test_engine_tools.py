"""A task's tools as the model sees them and as they are called (V2)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from channels.engine_client.mcp_tools import McpTool
from channels.engine_client.replies import AgentData, ConditionState, MemoryDump, ReachableTask
from channels.engine_client.tools import (
    META_IDS,
    META_MEMORY,
    CallContext,
    TaskTool,
    VariablesMissing,
    call_arguments,
    change_asked_for,
    change_task_spec,
    task_names,
    task_tools,
    with_missing,
)
from flow_engine.ports.models import ToolSpec

ENGINE_MCP = "http://127.0.0.1:8080/mcp"
AGENDA = "https://mcp.example.com/agenda"
IDS = {"tenantId": "default", "conversationId": "conv-1", "contactId": "call-1"}


def memory(**values: Any) -> MemoryDump:
    variables = [
        {"varId": name, "name": f"the {name}", "type": "custom", "value": value, "contactId": "call-1"}
        for name, value in values.items()
    ]
    return MemoryDump.model_validate(
        {"tenant": {"name": "Aurora"}, "vars": variables, "revision": 1, "memoryRevision": 2}
    )


def context(**values: Any) -> CallContext:
    return CallContext("default", "conv-1", "call-1", memory=memory(**values), key="key-1")


def data(*servers: dict[str, Any]) -> AgentData:
    return AgentData.model_validate(
        {
            **{"conversationId": "conv-1", "contactId": "call-1", "tenantId": "default", "revision": 1},
            **{"command": "/start", "taskId": "t", "taskName": "t", "taskType": "AIO", "prompt": "p"},
            **{"prefixHash": "h", "channel": "phone", "language": "it-IT", "mcpTools": list(servers)},
        }
    )


def server(*tools: dict[str, Any], name: str = "agenda", url: str = AGENDA) -> dict[str, Any]:
    return {"serverName": name, "url": url, "tools": list(tools)}


def selected(name: str, **parameters: tuple[str, str]) -> dict[str, Any]:
    assigned = [
        {"parameterName": parameter, "assignmentStrategy": strategy, "assignmentValue": value}
        for parameter, (strategy, value) in parameters.items()
    ]
    return {"toolName": name, "parameters": assigned}


def listed(name: str = "book", required: tuple[str, ...] = (), **properties: Any) -> McpTool:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return McpTool(name, f"What {name} does", schema)


def only(tool: McpTool, **parameters: tuple[str, str]) -> TaskTool:
    (bound,) = task_tools(
        data(server(selected(tool.name, **parameters))), {AGENDA: [tool]}, engine_mcp_url=ENGINE_MCP
    )
    return bound


class TestWhatTheModelSees:
    def test_it_sees_what_it_chooses_and_nothing_that_the_agent_fills_in(self) -> None:  # V2
        tool = listed(
            required=("what", "when", "limit", "conversationId"),
            what={"type": "string"},
            when={"type": "string", "description": "ISO 8601"},
            limit={"type": "integer"},
            note={"type": "string"},
            **{name: {"type": "string"} for name in (*IDS, "idempotencyKey")},
            memory={"type": "object"},
        )
        bound = only(tool, what=("variable", "visit"), when=("prompt", "The day"), limit=("fixed", "5"))
        parameters = {
            "type": "object",
            "properties": {
                "when": {"type": "string", "description": "The day\nISO 8601"},
                "note": {"type": "string"},
            },
            "required": ["when"],
        }
        assert bound.spec == ToolSpec("book", "What book does", parameters)

    def test_only_tools_that_are_selected_and_really_there_are_offered(self) -> None:
        servers = server(selected("book"), selected("gone")), server(selected("x"), url="https://away/")
        found = task_tools(
            data(*servers), {AGENDA: [listed("book"), listed("secret")]}, engine_mcp_url=ENGINE_MCP
        )
        assert [tool.name for tool in found] == ["book"]

    def test_of_the_engine_s_tools_the_model_is_given_the_one_that_writes(self) -> None:
        """Reached where the engine is, whatever address it gives to others."""
        names = ("change_task", "get_memory", "set_memory")
        engine = server(
            *map(selected, names),
            name="flow-engine",
            url="https://public.example/mcp",
        )
        offered = {ENGINE_MCP: [listed(name) for name in names]}
        (tool,) = task_tools(data(engine), offered, engine_mcp_url=ENGINE_MCP)
        assert (tool.name, tool.url) == ("set_memory", ENGINE_MCP)

    def test_a_name_that_is_taken_gets_its_server_s_before_it(self) -> None:
        other = "https://mcp.example.com/other"
        servers = (
            server(selected("find"), selected("end_call")),
            server(selected("find"), name="the other", url=other),
        )
        offered = {AGENDA: [listed("find"), listed("end_call")], other: [listed("find")]}
        found = task_tools(data(*servers), offered, engine_mcp_url=ENGINE_MCP)
        assert [tool.name for tool in found] == ["find", "agenda_end_call", "the_other_find"]
        assert [tool.listed.name for tool in found] == ["find", "end_call", "find"]

    @given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), max_size=12))
    def test_names_are_unique_and_such_as_models_accept(self, pairs: list[tuple[str, str]]) -> None:
        servers = [server(selected(tool), name=name, url=f"u{n}") for n, (name, tool) in enumerate(pairs)]
        offered = {f"u{n}": [listed(tool)] for n, (_, tool) in enumerate(pairs)}
        found = task_tools(data(*servers), offered, engine_mcp_url=ENGINE_MCP)
        names = [tool.name for tool in found]
        assert len(set(names)) == len(names) == sum(name != "flow-engine" for name, _ in pairs)
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)

    @pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": None, "required": "x"}])
    def test_a_poor_schema_still_makes_one_of_an_object(self, schema: dict[str, Any]) -> None:
        bound = only(McpTool("book", "", schema))
        Draft202012Validator.check_schema(dict(bound.parameters))
        assert (bound.parameters["type"], bound.parameters["properties"]) == ("object", {})


class TestCalling:
    def test_ids_memory_and_key_go_in_where_the_tool_declares_them(self) -> None:  # V2
        names = (*IDS, "memory", "idempotencyKey")
        tool = only(listed(**{name: {} for name in names}))
        arguments = call_arguments(tool, {"conversationId": "another's"}, context(visit="ECG"))
        assert [*call_arguments(tool, {}, context())] == [*context().injected()]
        assert {name: arguments[name] for name in IDS} == IDS
        assert arguments["idempotencyKey"] == "key-1"
        (variable,) = arguments["memory"]["vars"]  # type: ignore[index]
        assert (variable["varId"], variable["value"]) == ("visit", "ECG")
        assert arguments["memory"]["tenant"] == {"name": "Aurora"}  # type: ignore[index]

    def test_a_tool_that_declares_none_gets_none_and_may_read_the_meta(self) -> None:  # V2
        around = context(visit="ECG")
        assert call_arguments(only(listed(what={})), {"what": "x"}, around) == {"what": "x"}
        assert around.meta[META_IDS] == IDS
        assert around.meta[META_MEMORY] == around.injected()["memory"]

    @pytest.mark.parametrize(
        ("schema", "text", "value"),
        [
            ({"type": "string"}, "5", "5"),
            ({"type": "integer"}, "5", 5),
            ({"type": ["number", "null"]}, "2.5", 2.5),
            ({"type": "boolean"}, "true", True),
            ({"type": "array"}, '["a"]', ["a"]),
            ({"type": ["integer", "string"]}, "5", "5"),
            ({"type": "integer"}, "five", "five"),
            ({}, "5", "5"),
        ],
    )
    def test_a_fixed_value_is_read_as_the_parameter_wants_it(
        self, schema: dict[str, Any], text: str, value: object
    ) -> None:
        assert call_arguments(only(listed(p=schema), p=("fixed", text)), {}, context()) == {"p": value}

    @pytest.mark.parametrize(
        ("schema", "value", "sent"),
        [
            ({"type": "string"}, {"country": "IT", "type": "mobile", "number": "+39333"}, "+39333"),
            ({"type": "object"}, {"country": "IT", "type": "mobile", "number": "+39333"}, ...),
            ({"type": "string"}, {"id": 7}, '{"id":7}'),
            ({"type": "string"}, 10**24, "1" + "0" * 24),
            ({"type": "string"}, False, "false"),
            ({"type": "boolean"}, False, False),
            ({}, {"id": 7}, {"id": 7}),
        ],
    )
    def test_a_variable_is_sent_as_the_memory_has_it_or_as_text(
        self, schema: dict[str, Any], value: Any, sent: object
    ) -> None:
        tool = only(listed(p=schema), p=("variable", "v"))
        assert call_arguments(tool, {}, context(v=value)) == {"p": value if sent is ... else sent}

    def test_what_is_assigned_is_not_the_model_s_to_choose(self) -> None:
        tool = only(listed(a={}, b={}, c={}), a=("fixed", "1"), b=("variable", "v"), c=("variable", "none"))
        chosen = {"a": "9", "b": "9", "c": "9"}
        assert call_arguments(tool, chosen, context(v="V")) == {"a": "1", "b": "V"}

    def test_a_required_parameter_without_a_value_is_no_call(self) -> None:
        tool = only(listed(required=("a", "b"), a={}, b={}), a=("variable", "x"), b=("variable", "y"))
        with pytest.raises(VariablesMissing) as raised:
            call_arguments(tool, {}, context(x=None))
        assert raised.value.variables == ("x", "y")


def task(task_id: str, name: str, *required: str, missing: tuple[str, ...] = ()) -> ReachableTask:
    return ReachableTask.model_validate(
        {"taskId": task_id, "name": name, "type": "AIO", "description": f"Enter for {name}"}
        | {"requiredVariables": required, "missingVariables": missing}
    )


class TestChangeTask:
    def test_the_tasks_stand_in_the_schema_with_what_they_need_and_lack(self) -> None:  # V2
        spec: Any = change_task_spec(
            [task("1", "booking", "visit", "day", missing=("day",)), task("2", "goodbye")]
        )
        asked = spec.parameters["properties"]["task"]
        assert asked["enum"] == ["booking", "goodbye"]
        assert asked["description"].splitlines()[1:] == [
            "- booking (AIO): Enter for booking Requires: visit, day. Still missing: day.",
            "- goodbye (AIO): Enter for goodbye",
        ]

    def test_a_digression_offers_the_way_back(self) -> None:  # V2
        spec: Any = change_task_spec([task("2", "goodbye")], "booking")
        asked = spec.parameters["properties"]["task"]
        assert asked["enum"] == ["goodbye", "back"]
        assert asked["description"].splitlines()[-1].startswith("- back: return to 'booking'")
        assert change_task_spec([], "booking") is not None

    def test_a_condition_that_is_not_met_is_told_with_its_reason(self) -> None:  # V2
        closed = task("1", "loan").model_copy(
            update={"condition": ConditionState(met=False, reason="Only adults.")}
        )
        spec: Any = change_task_spec([closed])
        asked = spec.parameters["properties"]["task"]
        assert asked["description"].endswith("Not open yet: Only adults.")
        assert not closed.can_be_entered

    def test_the_model_may_say_why(self) -> None:  # journal: the model's reason
        spec: Any = change_task_spec([task("2", "goodbye")])
        assert spec.parameters["properties"]["reason"]["type"] == "string"
        assert spec.parameters["required"] == ["task"]
        assert change_asked_for({"task": "goodbye", "reason": " Done. "}) == ("goodbye", "Done.")
        assert change_asked_for({"task": "goodbye", "reason": "x" * 3_000}) == ("goodbye", "x" * 2_000)
        for reason in ({}, {"reason": ""}, {"reason": None}, {"reason": 3}):
            assert change_asked_for({"task": 1, **reason}) == ("", None)

    def test_without_a_task_there_is_no_tool(self) -> None:
        assert change_task_spec([]) is None

    def test_a_name_that_could_mean_two_gives_way_to_the_id(self) -> None:
        tasks = [task("1", "same"), task("2", "same"), task("3", "1"), task("4", "own"), task("own2", "own2")]
        assert task_names(tasks) == ["1", "2", "3", "own", "own2"]

    def test_what_is_missing_is_what_the_memory_lacks(self) -> None:
        tasks = with_missing([task("1", "a", "the x", "the y", "the z")], memory(x=0, y=None))
        assert tasks[0].missing_variables == ("the y", "the z")


class TestAnEngineThatKnowsMore:
    """Its words are texts to an agent of the release before (D1)."""

    def test_a_task_of_another_type_is_told_to_the_model_like_any(self) -> None:  # D1 of the structure
        task = {"taskId": "x", "name": "extra", "type": "EXT", "description": "Does more."}
        read = AgentData.model_validate(
            {**data().model_dump(by_alias=True), "taskType": "EXT", "reachableTasks": [task]}
        )
        assert read.task_type == "EXT"
        declared = change_task_spec(read.reachable_tasks)
        assert declared is not None
        assert "extra (EXT): Does more." in str(declared)

    def test_a_parameter_with_another_strategy_is_the_models(self) -> None:
        tool = only(listed(required=("day",), day={"type": "string"}), day=("looked_up", "x"))
        assert "day" in str(tool.parameters["properties"])
        assert call_arguments(tool, {"day": "monday"}, context()) == {"day": "monday"}


def test_a_tool_learns_the_campaign() -> None:  # F28
    tool = only(listed(campaignId={"type": "string"}, day={"type": "string"}))
    assert list(tool.parameters["properties"]) == ["day"]  # pyright: ignore[reportCallIssue, reportArgumentType]
    known = replace(context(), campaign_id="spring")
    assert call_arguments(tool, {}, known) == {"campaignId": "spring"}
    ids = known.meta[META_IDS]
    assert isinstance(ids, dict)
    assert ids["campaignId"] == "spring"
    assert call_arguments(tool, {}, context()) == {}
