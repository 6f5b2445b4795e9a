"""The MCP server at `/mcp`, called by the official SDK's own client."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import pytest
import uvicorn
from fakeredis import FakeServer
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.auth import LOCAL
from api.endpoints import Call
from api.gateway import Metrics
from api.mcp_endpoint import PATH
from api.mcp_server import McpServer
from api.mcp_tools import ConversationTools, Tool, ToolCall, ToolReply
from service.settings import Settings
from service.wiring import build_service
from system_prompts.loader import load_system_prompts
from tests.api.harness import BASE_URL, CALL, Scene, clinic, keyring_of, needs, open_scene
from tests.flow_engine.documents.samples import aio_task, minimal_version
from tests.flow_engine.runtime.table_readers import parse_markdown

pytestmark = pytest.mark.anyio

DOCUMENT = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text(encoding="utf-8")
KEYS = {
    "keys": [
        {"key": "agent-a", "tenant": "a", "scopes": ["agent"]},
        {"key": "agent-b", "tenant": "b", "scopes": ["agent"]},
        {"key": "tools-a", "tenant": "a", "scopes": ["tools"]},
        {"key": "designer-a", "tenant": "a", "scopes": ["designer"]},
        {"key": "admin-a", "tenant": "a", "scopes": ["admin"]},
        {"key": "operator-a", "tenant": "a", "scopes": ["operator"]},
    ]
}
KEYRING = keyring_of(json.dumps(KEYS).encode())
WHAT_THE_VISIT_NEEDS = [
    {"varId": "var_string", "value": "knee"},
    {"varId": "a boolean", "value": False},
]
MODES = ("auto", "legacy")
CONVERSATION_TOOLS = ["change_task", "get_memory", "set_memory"]


@asynccontextmanager
async def connected(
    app: Any, *, mode: str = "auto", key: str | None = None, url: str = BASE_URL + PATH
) -> AsyncIterator[Client]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx2.ASGITransport(app=app)
    async with (
        httpx2.AsyncClient(transport=transport, headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


def listening_socket() -> socket.socket:
    """On a free loopback port."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    return listening


def base_of(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


@asynccontextmanager
async def served(app: FastAPI, listening: socket.socket) -> AsyncIterator[None]:
    """A real server on that socket."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listening]))
        try:
            with anyio.fail_after(20):
                while not server.started:
                    await anyio.sleep(0.01)
            yield
        finally:
            server.should_exit = True


async def call(client: Client, tool: str, **arguments: Any) -> CallToolResult:
    given = {**CALL, **arguments}
    return await client.call_tool(tool, {name: value for name, value in given.items() if value is not ...})


async def reply(client: Client, tool: str, **arguments: Any) -> Any:
    result = await call(client, tool, **arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def problem(client: Client, tool: str, **arguments: Any) -> Any:
    """The problem document of a call that is an error of the tool."""
    result = await call(client, tool, **arguments)
    assert result.is_error
    assert result.structured_content is None
    return json.loads(text_of(result))


def text_of(result: CallToolResult) -> str:
    [content] = result.content
    assert content.type == "text"
    return content.text


async def post_raw(
    http: httpx.AsyncClient, message: object, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    own = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    content = message if isinstance(message, str) else json.dumps(message)
    return await http.post(PATH, content=content, headers={**own, **(headers or {})})


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


# --- what is offered --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_the_tools_are_those_that_every_flow_is_told_of(mode: str) -> None:  # F26, F35
    [declared] = load_system_prompts().mcp_servers("v1")
    async with open_scene(clinic()) as scene, connected(scene.app, mode=mode) as client:
        offered = await client.list_tools()
        started = await scene.started()
        names = [tool.name for tool in offered.tools]
        assert names[: len(declared.tools)] == sorted(declared.tools)
        assert not {*names[len(declared.tools) :]} & {*declared.tools}
        assert declared.url.replace("{baseUrl}", BASE_URL) in started["mcpServers"]
        assert declared.url.replace("{baseUrl}", "") == PATH


async def test_every_tool_says_precisely_what_it_takes_and_gives() -> None:  # F35
    async with open_scene() as scene, connected(scene.app) as client:
        for tool in (await client.list_tools()).tools:
            assert tool.description
            assert tool.output_schema is not None
            for schema in (tool.input_schema, tool.output_schema):
                Draft202012Validator.check_schema(schema)
                assert schema["type"] == "object"
                assert "$ref" not in json.dumps(schema)
            assert tool.input_schema["additionalProperties"] is False
            if tool.name in CONVERSATION_TOOLS:
                assert {"conversationId", "contactId"} <= set(tool.input_schema["required"])
            for name, described in tool.input_schema["properties"].items():
                assert described.get("description"), name


async def test_the_server_stands_outside_the_openapi_document() -> None:  # F35
    async with open_scene() as scene:
        assert not [path for path in scene.app.openapi()["paths"] if "mcp" in path]


async def test_nothing_is_streamed_and_no_session_is_kept() -> None:  # F35
    async with open_scene() as scene:
        for method in ("GET", "DELETE"):
            refused = await scene.http.request(method, PATH, headers={"accept": "text/event-stream"})
            assert refused.status_code == 405
            assert refused.headers["allow"] == "POST"
        answered = await post_raw(scene.http, PING)
        assert answered.status_code == 200
        assert "mcp-session-id" not in answered.headers
        assert answered.headers["content-type"] == "application/json"


# --- the tools --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_a_change_of_task_gives_what_http_gives_and_the_prompt_as_text(mode: str) -> None:
    """F29, F35"""
    async with open_scene(clinic()) as scene, connected(scene.app, mode=mode) as client:
        await scene.started()
        await scene.started(conversationId="by-http")
        result = await call(client, "change_task", task="operator")
        changed: Any = result.structured_content
        by_http = await scene.changed("operator", conversationId="by-http")
        own = {"conversationId": "conv-1", "prompt": changed["prompt"]}
        assert changed == {**by_http, **own}
        assert changed["result"] is True
        assert text_of(result).startswith(changed["command"])
        assert text_of(result).endswith(changed["prompt"])
        assert (await scene.prompt())["revision"] == changed["revision"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_refused_change_is_a_result_and_no_error(mode: str) -> None:  # F12, F29, F35
    async with open_scene(clinic()) as scene, connected(scene.app, mode=mode) as client:
        await scene.started()
        result = await call(client, "change_task", task="visita perche")
        refused: Any = result.structured_content
        assert not result.is_error
        assert (refused["result"], refused["code"]) == (False, "missing_variables")
        assert [missing["varId"] for missing in refused["missing"]] == ["var_string", "var_boolean"]
        assert refused["reason"] in text_of(result)
        assert "operator, supervised" in text_of(result)
        assert (await scene.prompt())["revision"] == refused["revision"]


async def test_the_text_of_a_refusal_names_only_tasks_that_nothing_keeps_shut() -> None:  # F12, F35
    shut = {"when": "vars.var_number > 1", "reason": "Ask first."}
    tasks = [
        aio_task("who", connectedTasks=["book", "shut", "open"], connectionConditions={"shut": shut}),
        aio_task("book", transitionParameters=needs("var_number"), connectedTasks=["who"]),
        *(aio_task(name, connectedTasks=["who"]) for name in ("shut", "open")),
    ]
    document = minimal_version(tasks=tasks, firstTask="who")
    async with open_scene(document) as scene, connected(scene.app) as client:
        await scene.started()
        assert text_of(await call(client, "change_task", task="shut")).endswith("Can be entered now: open")


async def test_the_text_of_a_refusal_that_led_on_names_the_task_that_is_entered() -> None:  # F12, F35
    way = {"open": {"when": "refusals('book') >= 1", "advance": "auto"}}
    tasks = [
        aio_task("who", connectedTasks=["book", "open"], connectionConditions=way),
        aio_task("book", transitionParameters=needs("var_number"), connectedTasks=["who"]),
        aio_task("open", connectedTasks=["who"]),
    ]
    document = minimal_version(tasks=tasks, firstTask="who")
    async with open_scene(document) as scene, connected(scene.app) as client:
        await scene.started()
        text = text_of(await call(client, "change_task", task="book"))
        assert text.startswith("/start_task open AIO\n")
        assert "the task is now 'open'" in text
        assert "still 'who'" not in text


async def test_the_text_of_a_write_that_led_on_names_the_task_that_is_entered() -> None:  # F32, F35
    way = {"open": {"when": "has(vars.var_number)", "advance": "auto"}}
    tasks = [
        aio_task("who", connectedTasks=["open"], connectionConditions=way),
        aio_task("open", connectedTasks=["who"]),
    ]
    document = minimal_version(tasks=tasks, firstTask="who")
    async with open_scene(document) as scene, connected(scene.app) as client:
        await scene.started()
        entries = [{"varId": "var_number", "value": 3}]
        text = text_of(await call(client, "set_memory", updatedBy="desk", entries=entries))
        assert text.endswith("The conversation went on by itself: the task is now 'open'.")
        again = text_of(await call(client, "set_memory", updatedBy="desk", entries=entries))
        assert again == "Stored 1 value(s); the memory is at revision 2."


@pytest.mark.parametrize("mode", MODES)
async def test_what_is_written_is_read_back_and_opens_its_task(mode: str) -> None:  # F19, F32, F35
    described = [{"name": "Doctor", "value": "Dr. | Rossi"}]
    appointment = {"varId": "appointment", "value": {"id": [1, None]}, "descriptionForLLM": described}
    async with open_scene(clinic()) as scene, connected(scene.app, mode=mode) as client:
        await scene.started(tenant={"city": "Rome"})
        written = await reply(
            client, "set_memory", updatedBy="findVisit", entries=[*WHAT_THE_VISIT_NEEDS, appointment]
        )
        assert written == {"revision": 1, "memoryRevision": 1}
        result = await call(client, "get_memory", tenantId="default")
        assert result.structured_content == (await scene.http.get("/v1/memory/conv-1")).json()
        tenant = {"campaignId": "campaign-1", "city": "Rome"}
        assert result.structured_content["tenant"] == tenant  # type: ignore[index]
        table, unset = text_of(result).split("\n\n")
        assert parse_markdown(table) == [
            ("a string", "", "knee"),
            ("a boolean", "", "false"),
            ("appointment", "Doctor", "Dr. | Rossi"),
        ]
        assert unset == "Without a value: a number (number), a date (date), a phone (phone), size (enum)"
        assert (await reply(client, "change_task", task="visit"))["result"] is True


async def test_null_takes_a_value_back() -> None:  # F19
    async with open_scene(clinic()) as scene, connected(scene.app) as client:
        await scene.started()
        for value in ("knee", None):
            entries = [{"varId": "var_string", "value": value}]
            await reply(client, "set_memory", updatedBy="findVisit", entries=entries)
        known = {entry["varId"]: entry for entry in (await reply(client, "get_memory"))["vars"]}
        assert known["var_string"]["value"] is None


# --- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_a_wrong_batch_tells_every_finding_where_it_is_in_the_arguments(mode: str) -> None:  # F19, F35
    entries = [
        {"varId": "var_string", "value": "knee"},
        {"varId": "nobody", "value": 1},
        {"varId": "var_number", "value": "many"},
        {"varId": "var_custom", "value": {"id": 1}},
        {"varId": "var_string", "value": "hip"},
    ]
    async with open_scene(clinic()) as scene, connected(scene.app, mode=mode) as client:
        await scene.started()
        told = await problem(client, "set_memory", contactId="call-9", updatedBy="convMiner", entries=entries)
        assert (told["status"], told["code"]) == (422, "memory_invalid")
        assert sorted((found["pointer"], found["code"]) for found in told["errors"]) == [
            ("/contactId", "contact_unknown"),
            ("/entries/1/varId", "variable_unknown"),
            ("/entries/2/value", "number_expected"),
            ("/entries/3/descriptionForLLM", "description_required"),
            ("/entries/4/varId", "variable_twice"),
            ("/updatedBy", "updated_by_reserved"),
        ]
        empty = await problem(client, "set_memory", updatedBy="findVisit", entries=[])
        assert [found["pointer"] for found in empty["errors"]] == ["/entries"]
        assert (await reply(client, "get_memory"))["memoryRevision"] == 0


async def test_arguments_are_checked_whole() -> None:  # F35
    wrong = {
        "updatedBy": 1,
        "entries": [{"varId": "", "valu": 1}],
        "conversationId": ...,
        "tenant": "default",
    }
    async with open_scene() as scene, connected(scene.app) as client:
        told = await problem(client, "set_memory", **wrong)
        assert told["code"] == "arguments_invalid"
        assert {found["pointer"] for found in told["errors"]} == {
            "/conversationId",
            "/updatedBy",
            "/entries/0/varId",
            "/entries/0/value",
            "/entries/0/valu",
            "/tenant",
        }


async def test_a_breach_of_the_shape_hides_none_of_the_other_entries() -> None:  # F19, F35
    entries = [
        {"varId": "var_number", "value": "four"},
        {"varId": "nowhere"},
        {"varId": "nowhere", "value": 1},
    ]
    async with open_scene(clinic()) as scene, connected(scene.app) as client:
        await scene.started()
        told = await problem(client, "set_memory", updatedBy="findVisit", entries=entries)
        assert told["code"] == "arguments_invalid"
        assert [found["pointer"] for found in told["errors"]] == [
            *("/entries/1/value", "/entries/0/value", "/entries/2/varId")
        ]
        for wrong in (5, {"a": 1}, [5], None):
            refused = await problem(client, "set_memory", updatedBy="findVisit", entries=wrong)
            assert refused["code"] == "arguments_invalid"
        assert (await reply(client, "get_memory"))["memoryRevision"] == 0


async def test_what_the_state_forbids_comes_with_the_state() -> None:  # F29, F35
    async with open_scene(clinic()) as scene, connected(scene.app) as client:
        await scene.started()
        other = await problem(client, "change_task", task="operator", contactId="call-9")
        assert (await scene.change("operator", contactId="call-9")).json() == other
        await scene.end()
        ended = await problem(client, "change_task", task="operator")
        assert ended["status"] == 409
        assert ended["state"]
        assert (await scene.change("operator")).json() == ended


async def test_a_store_that_is_away_is_told_as_such() -> None:  # F35, F44
    redis = FakeServer()
    async with open_scene(clinic(), server=redis) as scene, connected(scene.app) as client:
        await scene.started()
        redis.connected = False
        assert (await problem(client, "get_memory"))["status"] == 503
        redis.connected = True
        assert (await reply(client, "get_memory"))["memoryRevision"] == 0


@pytest.mark.parametrize("mode", MODES)
async def test_an_unknown_tool_is_an_error_of_the_protocol_that_names_the_tools(mode: str) -> None:  # F35
    async with open_scene() as scene, connected(scene.app, mode=mode) as client:
        with pytest.raises(MCPError, match="change_task, get_memory, set_memory"):
            await client.call_tool("forget_all", CALL)


class BrokenTools(ConversationTools):
    """Tools with a bug."""

    def __init__(self) -> None:
        pass

    def tools(self) -> tuple[Tool, ...]:
        return tuple(replace(tool, handler=self.fail) for tool in super().tools())

    async def fail(self, call: ToolCall) -> ToolReply:
        raise RuntimeError("password of the database")


@pytest.mark.parametrize("mode", MODES)
async def test_a_bug_tells_nothing_of_itself(mode: str) -> None:  # F35, F46
    broken = McpServer(BrokenTools().tools(), Metrics(), version="1")

    async def route(request: Request) -> Response:
        return await broken.handle(Call(request.scope, request.receive, LOCAL, await request.body()))

    async with connected(Starlette(routes=[Route(PATH, route, methods=["POST"])]), mode=mode) as client:
        told = await problem(client, "get_memory")
    assert (told["status"], told["code"]) == (500, "internal_error")
    assert "password" not in json.dumps(told)


@pytest.mark.parametrize("protocol", [None, "2026-07-28"])
@pytest.mark.parametrize(
    ("value", "codes"),
    [
        ("NaN", {"number_not_finite"}),
        ("1e999", {"number_not_finite"}),
        ("1" * 30, {"number_too_large"}),
        ('"\\ud800"', {"json_invalid"}),
        ('{"\\ud800": 1}', {"json_invalid"}),
        ("[9007199254740993.0]", {"number_inexact"}),
        ("1e-400", {"number_inexact"}),
        ("[" * 100 + "]" * 100, {"json_too_deep"}),
        ("[" * 900 + "]" * 900, {"json_invalid"}),
        ("[" * 9000 + "]" * 9000, set[str]()),
    ],
)
async def test_values_that_no_json_should_hold_are_refused(
    protocol: str | None, value: str, codes: set[str]
) -> None:  # F21, F35
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    described = [{"name": "a", "value": "b"}]
    given = {"varId": "var_custom", "descriptionForLLM": described, "value": "HERE"}
    arguments = {**CALL, "updatedBy": "findVisit", "entries": [given]}
    params = {"name": "set_memory", "arguments": arguments, "_meta": meta}
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = {"mcp-method": "tools/call", "mcp-name": "set_memory"}
    if protocol is not None:
        headers["mcp-protocol-version"] = protocol
    async with open_scene(clinic()) as scene:
        await scene.started()
        answered = await post_raw(scene.http, message.replace('"HERE"', value), headers)
        if answered.status_code == 400:  # the envelope itself could not be read
            assert answered.json()["error"]["code"] == -32700
        else:
            result = answered.json()["result"]
            assert result["isError"] is True
            assert {found["code"] for found in json.loads(result["content"][0]["text"])["errors"]} == codes
        assert (await scene.http.get("/v1/memory/conv-1")).json()["memoryRevision"] == 0


# --- who may ----------------------------------------------------------------------------------------


async def test_the_wrong_key_no_key_and_the_wrong_scope_are_refused_before_the_protocol() -> None:  # F43
    async with open_scene(authenticator=KEYRING) as scene:
        for key, status, code in (
            (None, 401, "key_missing"),
            ("guessed", 401, "key_unknown"),
            ("operator-a", 403, "scope_missing"),
        ):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            refused = await post_raw(scene.http, PING, headers)
            assert (refused.status_code, refused.json()["code"]) == (status, code)
            assert ("www-authenticate" in refused.headers) is (status == 401)
            with pytest.raises(ExceptionGroup) as raised:
                async with connected(scene.app, key=key):
                    pass
            assert raised.group_contains(MCPError)


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("agent-a", CONVERSATION_TOOLS),
        ("tools-a", CONVERSATION_TOOLS[1:]),
        ("admin-a", CONVERSATION_TOOLS),
    ],
)
async def test_a_key_is_offered_the_tools_that_it_may_call(key: str, names: list[str]) -> None:  # F43
    async with open_scene(authenticator=KEYRING) as scene, connected(scene.app, key=key) as client:
        offered = {tool.name for tool in (await client.list_tools()).tools}
        assert offered & {*CONVERSATION_TOOLS} == {*names}
        for name in CONVERSATION_TOOLS:
            refused = (await problem(client, name))["code"] == "scope_missing"
            assert refused is (name not in names)


async def test_another_tenants_conversation_looks_like_one_that_never_was() -> None:  # F43
    async with open_scene(authenticator=KEYRING) as scene:
        await publish_for_tenant_a(scene)
        arguments: dict[str, dict[str, Any]] = {
            "change_task": {"task": "operator"},
            "get_memory": {},
            "set_memory": {"updatedBy": "findVisit", "entries": WHAT_THE_VISIT_NEEDS},
        }
        async with connected(scene.app, key="agent-a") as own, connected(scene.app, key="agent-b") as other:
            for name, given in arguments.items():
                unknown = await problem(own, name, **given, conversationId="conv-9")
                assert (unknown["status"], unknown["code"]) == (404, "conversation_unknown")
                as_unknown = json.loads(json.dumps(unknown).replace("conv-9", "conv-1"))
                assert await problem(other, name, **given) == as_unknown
                assert await problem(other, name, **given, tenantId="a") == as_unknown
                assert await problem(own, name, **given, tenantId="b") == as_unknown
                assert not (await call(own, name, **given, tenantId="a")).is_error


async def publish_for_tenant_a(scene: Scene) -> None:
    for key, path, body in (
        ("designer-a", "/v1/flows", {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}),
        ("designer-a", "/v1/flows/{id}/versions", clinic(conversationalFlowId=...)),
        (
            "agent-a",
            "/v1/handle-new-contact",
            {**CALL, "conversationalFlowVersionId": "version-1", "channel": "phone"},
        ),
    ):
        flows = (await scene.http.get("/v1/flows", headers={"authorization": "Bearer designer-a"})).json()
        own = {name: value for name, value in body.items() if value is not ...}
        done = await scene.post(
            path.replace("{id}", flows[0]["id"] if flows else ""), own, authorization=f"Bearer {key}"
        )
        assert done.is_success, done.text


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example:8080"}, "host_not_local"),
        ({"origin": "http://evil.example"}, "origin_not_local"),
        ({"origin": "http://localhost.evil.example:8080"}, "origin_not_local"),
        ({"origin": "null"}, "origin_not_local"),
    ],
)
async def test_without_keys_no_web_page_of_elsewhere_gets_through(headers: dict[str, str], code: str) -> None:
    """F43: neither by a name that it lets point here, nor by calling across origins; on any route."""
    async with open_scene() as scene:
        for answered in (
            await post_raw(scene.http, PING, headers),
            await scene.http.get("/v1/flows", headers=headers),
        ):
            assert (answered.status_code, answered.json()["code"]) == (403, code)


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]"])
async def test_pages_of_this_machine_get_through(origin: str) -> None:  # F43
    async with open_scene() as scene:
        assert (await post_raw(scene.http, PING, {"origin": origin})).status_code == 200


async def test_a_page_cannot_call_without_asking_the_browser_first() -> None:  # F43
    """A form or a script may send plain text across origins unasked, but no JSON."""
    async with open_scene() as scene:
        assert (await post_raw(scene.http, PING, {"content-type": "text/plain"})).status_code == 400


@pytest.mark.parametrize(
    ("message", "named"),
    [({}, None), ("7", None), ({**PING, "method": 7}, 1), ({**PING, "jsonrpc": "1.0"}, 1)],
)
async def test_json_that_is_no_message_is_an_error_of_the_protocol_that_tells_what_would_be(
    message: object, named: int | None
) -> None:  # F35, F36
    async with open_scene() as scene:
        refused = await post_raw(scene.http, message)
        error = {
            "code": -32600,
            "message": "accepted is one JSON-RPC 2.0 message: a request, a notification or a response",
        }
        assert (refused.status_code, refused.json()) == (400, {"jsonrpc": "2.0", "id": named, "error": error})


async def test_another_content_type_is_told_the_one_that_is_accepted() -> None:  # F35, F36
    async with open_scene() as scene:
        refused = await post_raw(scene.http, PING, {"content-type": "application/x-www-form-urlencoded"})
        assert refused.json()["error"]["message"] == "accepted is the Content-Type application/json"


async def test_a_request_is_bounded() -> None:  # F35
    async with open_scene() as scene:
        refused = await post_raw(scene.http, {**PING, "params": {"_meta": {"x": "x" * 1_300_000}}})
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")


# --- repetition, contention, replicas ---------------------------------------------------------------


async def test_a_repeated_call_with_its_key_takes_effect_once() -> None:  # F15, F35
    given = {"updatedBy": "findVisit", "idempotencyKey": "k-1"}
    async with open_scene(clinic()) as scene, connected(scene.app) as client:
        await scene.started()
        first = await reply(client, "set_memory", **given, entries=WHAT_THE_VISIT_NEEDS)
        assert await reply(client, "set_memory", **given, entries=WHAT_THE_VISIT_NEEDS) == first
        assert (await reply(client, "get_memory"))["memoryRevision"] == 1
        reused = await problem(client, "set_memory", **given, entries=WHAT_THE_VISIT_NEEDS[:1])
        assert (reused["status"], reused["code"]) == (422, "idempotency_key_reused")
        assert "key 'k-1' was sent" in reused["detail"]
        other_tool = await problem(client, "change_task", task="visit", idempotencyKey="k-1")
        assert other_tool["code"] == "idempotency_key_reused"

        moved = await reply(client, "change_task", task="visit", idempotencyKey="k-2")
        assert await reply(client, "change_task", task="visit", idempotencyKey="k-2") == moved
        again = await reply(client, "change_task", task="visit")
        assert (again["result"], again["code"]) == (False, "already_in_task")


async def test_keys_of_tools_and_of_http_requests_never_meet() -> None:  # F15, F35
    async with open_scene(clinic()) as scene, connected(scene.app) as client:
        await scene.started()
        moved = await reply(client, "change_task", task="operator", idempotencyKey="k-1")
        back = await scene.post(
            "/v1/change-task", {**CALL, "task": "reception"}, **{"idempotency-key": "k-1"}
        )
        assert back.status_code == 200
        assert "idempotency-replayed" not in back.headers
        assert back.json()["revision"] == moved["revision"] + 1


async def test_concurrent_calls_lose_nothing() -> None:  # F15, F19, F35
    calls = 24
    async with open_scene(clinic()) as scene, connected(scene.app) as client:
        await scene.started()
        async with asyncio.TaskGroup() as tasks:
            for number in range(calls):
                entries = [{"varId": ("var_string", "var_number")[number % 2], "value": number}]
                if number % 2 == 0:
                    entries[0]["value"] = str(number)
                tasks.create_task(reply(client, "set_memory", updatedBy="t", entries=entries))
            changing = tasks.create_task(reply(client, "change_task", task="operator"))
        assert changing.result()["result"] is True
        known = await reply(client, "get_memory")
        assert known["memoryRevision"] == calls
        assert known["revision"] == 2


@pytest.mark.parametrize("mode", MODES)
async def test_any_replica_answers_any_request(mode: str) -> None:  # F35, F42
    redis = FakeServer()
    async with open_scene(clinic(), server=redis) as scene, open_scene(server=redis) as twin:
        await scene.started()
        replicas = [scene.app, twin.app]

        async def in_turn(scope: Any, receive: Any, send: Any) -> None:
            replicas.reverse()
            await replicas[0](scope, receive, send)

        async with connected(in_turn, mode=mode) as client:
            for revision in range(1, 5):
                entries = [{"varId": "var_number", "value": revision}]
                written = await reply(client, "set_memory", updatedBy="t", entries=entries)
                assert written["memoryRevision"] == revision


async def test_calls_are_counted_by_route_and_problems_by_code() -> None:  # F36
    async with open_scene() as scene, connected(scene.app, mode="legacy") as client:
        await problem(client, "get_memory")
        counted = (await scene.http.get("/metrics")).text
        assert 'requests_total{method="POST",route="/mcp",status="200"}' in counted
        assert 'problems_total{code="conversation_unknown"} 1.0' in counted


def test_a_service_has_the_sdk_only_once_it_speaks_it() -> None:  # F35
    """It is a fifth of what a process takes to start."""
    program = "import sys, service.running; print({'mcp', 'mcp_types', 'api.mcp_server'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- a real server ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_a_real_server_on_loopback_answers_many_clients_at_once(mode: str) -> None:  # F35
    written = {"var_string": "knee", "var_number": 2.5, "var_boolean": True, "var_enum": "M"}
    listening = listening_socket()
    base = base_of(listening)
    async with open_scene(clinic()) as scene, served(scene.app, listening):
        await scene.started()

        async def write(variable: str, value: object) -> None:
            async with Client(base + PATH, mode=mode) as client:
                entries = [{"varId": variable, "value": value}]
                await reply(client, "set_memory", updatedBy="t", entries=entries)

        async with asyncio.TaskGroup() as tasks:
            for variable, value in written.items():
                tasks.create_task(write(variable, value))
        async with Client(base + PATH, mode=mode) as client:
            known = await reply(client, "get_memory")
    assert known["memoryRevision"] == len(written)
    assert written.items() <= {entry["varId"]: entry["value"] for entry in known["vars"]}.items()


async def test_the_documents_example_runs_as_it_is_written(tmp_path: Path) -> None:  # F35
    example, _ = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    listening = listening_socket()
    port = listening.getsockname()[1]
    service = build_service(Settings(data_dir=tmp_path), host="127.0.0.1", port=port)
    async with service.opened(), served(service.app, listening):
        program = example.replace(BASE_URL, base_of(listening))
        done = await anyio.run_process([sys.executable, "-W", "error", "-c", program], check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == [
        "tools: ['change_task', 'get_memory', 'set_memory']",
        "moved: True",
        "told the model: /start_task informazioni AIO",
        "error: True memory_invalid /entries/0/varId",
    ]


def test_the_documents_settings_for_desktop_clients_name_this_server() -> None:  # F35
    settings, by_command = re.findall(r"^```json\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    server = json.loads(settings)["mcpServers"]["flow-engine"]
    assert server["url"] == BASE_URL + PATH
    started = json.loads(by_command)["mcpServers"]["flow-engine"]
    assert (started["command"], started["args"]) == ("flow-engine", ["mcp"])
