"""MCP servers over real sockets, by the SDK's own server and the engine's (V2, F35, F45)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.parse import urlsplit

import anyio
import orjson
import pytest
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel, WithJsonSchema
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.outbound.policy import AllowList
from channels.engine_client import mcp_tools
from channels.engine_client.fake_mcp import ScriptedMcp, ScriptedTool
from channels.engine_client.mcp_tools import McpConnections, McpFailed, McpServers, McpTool
from tests.api.harness import clinic, open_scene
from tests.api.test_mcp_server import KEYRING, base_of, listening_socket, served

pytestmark = pytest.mark.anyio

LOOPBACK = AllowList.parse("127.0.0.1")


class Words(BaseModel):
    """Does not fit the schema that it declares, which takes a backtracking matcher long to find out."""

    text: Annotated[str, WithJsonSchema({"type": "string", "pattern": "^(a+)+$"})]


def agenda() -> MCPServer:
    server = MCPServer("agenda", log_level="CRITICAL")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @server.tool()
    def told(ctx: Context[Any, Any]) -> str:
        meta = ctx.request_context.meta or {}
        return json.dumps({key: value for key, value in dict(meta).items() if key.startswith("flow-engine/")})

    @server.tool()
    def words() -> Words:
        return Words(text="a" * 26 + "!")

    @server.tool()
    async def slow() -> str:
        await anyio.sleep(60)
        return "late"

    return server


class ForgetfulServer:
    """Speaks MCP of 2025, in sessions, and knows none of them any more once they are cleared."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.called: list[str] = []
        self.result: dict[str, Any] = {"content": [{"type": "text", "text": "done"}]}

    def streamable_http_app(self) -> Starlette:
        return Starlette(routes=[Route("/mcp", self.answer, methods=["POST", "DELETE"])])

    async def answer(self, request: Request) -> Response:
        session = request.headers.get("mcp-session-id", "")
        message: Any = await request.json() if request.method == "POST" else {}
        if message.get("method") == "initialize":
            session = f"session {len(self.called)}"
            self.sessions.add(session)
            info = {"capabilities": {"tools": {}}, "serverInfo": {"name": "forgetful", "version": "1"}}
            result: dict[str, Any] = {"protocolVersion": "2025-06-18", **info}
        elif session not in self.sessions:
            error = {"code": -32001, "message": "Session not found"}
            told = {"jsonrpc": "2.0", "id": message.get("id"), "error": error}
            return JSONResponse(told, 404 if session else 400)
        elif message.get("method") == "tools/call":
            self.called.append(session)
            result = self.result
        else:
            return Response(status_code=202)
        reply = {"jsonrpc": "2.0", "id": message["id"], "error" if "code" in result else "result": result}
        written = json.dumps(reply)  # which writes NaN, too
        return Response(written, headers={"mcp-session-id": session}, media_type="application/json")


class Loading:
    """Answers nothing before it is loaded."""

    def __init__(self) -> None:
        self.asked, self.loaded = asyncio.Event(), asyncio.Event()

    def streamable_http_app(self) -> ASGIApp:
        app = agenda().streamable_http_app()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                self.asked.set()
                await self.loaded.wait()
            await app(scope, receive, send)

        return answer


@asynccontextmanager
async def running(server: MCPServer | ForgetfulServer | Loading) -> AsyncIterator[tuple[str, uvicorn.Server]]:
    listening = listening_socket()
    app = server.streamable_http_app()
    config = uvicorn.Config(app, ws="none", log_config=None, timeout_graceful_shutdown=1)
    uvicorn_server = uvicorn.Server(config)
    serving = asyncio.create_task(uvicorn_server.serve(sockets=[listening]))
    with anyio.fail_after(20):
        while not uvicorn_server.started:
            await anyio.sleep(0.01)
    try:
        yield f"{base_of(listening)}/mcp", uvicorn_server
    finally:
        uvicorn_server.should_exit = True
        await serving


@asynccontextmanager
async def connections(allow: AllowList = LOOPBACK, **options: Any) -> AsyncIterator[McpConnections]:
    """Fails when anything is left running after they have been closed."""
    before = asyncio.all_tasks()
    opened = McpConnections(allow, options.pop("trusted", {}), **options)
    try:
        yield opened
    finally:
        await opened.aclose()
        left = {task for task in asyncio.all_tasks() - before if "mcp_tools" in repr(task.get_coro())}
        assert not left


class Cable:
    """Carries bytes to a server until it is cut; after that it carries new connections again."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []
        self.url = ""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, inner_writer]
        await asyncio.gather(_copied(reader, inner_writer), _copied(inner_reader, writer))

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(65_536):
            writer.write(chunk)
    writer.close()


@asynccontextmanager
async def cable_to(url: str) -> AsyncIterator[Cable]:
    cable = Cable(urlsplit(url).port or 80)
    server = await asyncio.start_server(cable.carry, "127.0.0.1", 0)
    cable.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    yield cable
    cable.cut()
    server.close()


async def failure_of(servers: McpServers, url: str, tool: str = "add") -> str:
    with pytest.raises(McpFailed) as raised:
        await servers.call(url, tool, {}, {})
    return str(raised.value)


class TestExchanges:
    async def test_tools_are_listed_and_called_over_one_connection(self) -> None:
        async with running(agenda()) as (url, _), connections() as servers:
            tools = {tool.name: tool for tool in await servers.tools(url)}
            assert tools["add"].description == "Adds."
            assert tools["add"].parameters["required"] == ["a", "b"]
            assert await servers.call(url, "add", {"a": 1, "b": 2}, {}) == "3"
            assert await servers.call(url, "add", {"a": 1, "b": 3}, {}) == "4"

    async def test_meta_arrives_with_the_call(self) -> None:  # V2
        async with running(agenda()) as (url, _), connections() as servers:
            told = await servers.call(url, "told", {}, {"flow-engine/conversation": {"contactId": "c"}})
        assert json.loads(str(told)) == {"flow-engine/conversation": {"contactId": "c"}}

    async def test_a_tool_that_fails_says_so_to_the_model(self) -> None:
        async with running(agenda()) as (url, _), connections() as servers:
            answer: Any = await servers.call(url, "add", {"a": "one"}, {})
            unknown: Any = await servers.call(url, "nothing", {}, {})
        assert "valid integer" in answer["error"]
        assert "nothing" in unknown["error"]

    async def test_an_answer_is_not_held_against_the_servers_own_output_schema(self) -> None:  # V2
        async with running(agenda()) as (url, _), connections() as servers:
            answer = await servers.call(url, "words", {}, {})
        assert json.loads(str(answer)) == {"text": "a" * 26 + "!"}

    @pytest.mark.parametrize(
        ("content", "answer"),
        [
            ({"wei": 10**21, "one": 1}, {"wei": 1e21, "one": 1}),
            ({"price": float("nan")}, {"price": None}),
            ({"long": "x" * 60_000}, {"long": "x" * 60_000}),
        ],
    )
    async def test_structured_content_alone_is_json_for_the_model(
        self, content: dict[str, Any], answer: object
    ) -> None:  # V2
        async with running(server := ForgetfulServer()) as (url, _), connections() as servers:
            server.result = {"content": [], "structuredContent": content}
            told = await servers.call(url, "book", {}, {})
        assert (told, orjson.loads(orjson.dumps(told))) == (answer, answer)

    async def test_of_a_long_failure_the_model_is_told_the_beginning(self) -> None:
        async with running(server := ForgetfulServer()) as (url, _), connections() as servers:
            server.result = {"code": -32603, "message": "x" * 2_000_000}
            assert await failure_of(servers, url, "book") == "x" * 1_000

    async def test_a_slow_tool_is_given_up_and_the_connection_kept(self) -> None:
        async with running(agenda()) as (url, _), connections(answer_within_s=0.5) as servers:
            assert await servers.call(url, "add", {"a": 1, "b": 2}, {}) == "3"
            assert await failure_of(servers, url, "slow") == "no answer within 0.5 s"
            assert await servers.call(url, "add", {"a": 1, "b": 2}, {}) == "3"

    async def test_a_call_that_is_cancelled_leaves_nothing_behind(self) -> None:
        async with running(agenda()) as (url, _), connections() as servers:
            await servers.tools(url)
            calling = asyncio.create_task(servers.call(url, "slow", {}, {}))
            await asyncio.sleep(0.1)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling

    async def test_an_idle_connection_is_closed_and_made_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mcp_tools, "IDLE_S", 0.05)
        async with running(agenda()) as (url, _), connections() as servers:
            assert await servers.call(url, "add", {"a": 1, "b": 2}, {}) == "3"
            await asyncio.sleep(0.4)
            assert await servers.call(url, "add", {"a": 1, "b": 2}, {}) == "3"


class TestFailures:
    async def test_a_server_that_goes_away_ends_the_call_and_may_come_back(self) -> None:
        async with running(agenda()) as (url, _), cable_to(url) as cable, connections() as servers:
            await servers.tools(cable.url)
            calling = asyncio.create_task(failure_of(servers, cable.url, "slow"))
            await asyncio.sleep(0.2)
            cable.cut()
            with anyio.fail_after(10):
                assert await calling
            assert await servers.call(cable.url, "add", {"a": 1, "b": 2}, {}) == "3"

    async def test_a_server_that_was_restarted_is_called_in_a_new_session(self) -> None:  # V2
        async with running(server := ForgetfulServer()) as (url, _), connections() as servers:
            assert await servers.call(url, "book", {}, {}) == "done"
            server.sessions.clear()
            told = await asyncio.gather(*(servers.call(url, "book", {}, {}) for _ in range(2)))
            assert told == ["done", "done"]
        assert server.called == ["session 0", "session 1", "session 1"]

    async def test_a_server_that_says_nothing_is_given_up(self) -> None:
        writers: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/mcp"
        async with connections(connect_within_s=0.3) as servers:
            with pytest.raises(McpFailed, match=r"no answer within 0\.3 s"):
                await servers.tools(url)
        for writer in writers:
            writer.transport.abort()
        silent.close()

    async def test_an_operators_own_server_may_still_be_loading(self) -> None:  # V2
        loading = Loading()
        async with (
            running(loading) as (url, _),
            connections(trusted={url: {}}, connect_within_s=0.1) as own,
            connections(connect_within_s=0.1) as others,
        ):
            listed = asyncio.create_task(own.tools(url))
            await loading.asked.wait()
            with pytest.raises(McpFailed, match=r"no answer within 0\.1 s"):
                await others.tools(url)
            loading.loaded.set()
            assert [tool.name for tool in await listed] == ["add", "told", "words", "slow"]

    async def test_nobody_there(self) -> None:
        closed = listening_socket()
        url = f"{base_of(closed)}/mcp"
        closed.close()
        async with connections() as servers:
            assert "cannot be reached" in await failure_of(servers, url)
            with pytest.raises(McpFailed):
                await servers.tools(url)

    async def test_addresses_inside_are_not_reached_unless_they_are_allowed(self) -> None:  # F45
        async with running(agenda()) as (url, _), connections(AllowList()) as servers:
            assert "leads to a loopback address" in await failure_of(servers, url)
            localhost = url.replace("127.0.0.1", "LOCALHOST.")
            assert "leads to a loopback address" in await failure_of(servers, localhost)

    @pytest.mark.parametrize(
        "url", ["ftp://mcp.example.com/", "http://user:pw@mcp.example.com/", "http://127.1/", "http://[::1/"]
    )
    async def test_an_address_with_two_readings_is_refused(self, url: str) -> None:  # F45
        async with connections() as servers:
            assert await failure_of(servers, url)

    async def test_a_page_that_speaks_no_mcp(self) -> None:
        async with (
            open_scene(clinic()) as scene,
            served(scene.app, listening := listening_socket()),
            connections() as servers,
        ):
            assert await failure_of(servers, f"{base_of(listening)}/docs")


class TestTheEngineItself:
    async def test_its_server_is_trusted_and_given_the_key(self) -> None:  # F35, F43
        async with (
            open_scene(authenticator=KEYRING) as scene,
            served(scene.app, listening := listening_socket()),
        ):
            url = f"{base_of(listening)}/mcp"
            trusted = {url: {"Authorization": "Bearer agent-a"}}
            async with connections(AllowList(), trusted=trusted) as servers:
                tools = await servers.tools(url)
                answer: Any = await servers.call(
                    url, "get_memory", {"conversationId": "nobody's", "contactId": "c"}, {}
                )
        assert {tool.name for tool in tools} == {"change_task", "get_memory", "set_memory"}
        assert json.loads(answer["error"])["code"] == "conversation_unknown"


class TestTheDouble:
    async def test_it_answers_from_its_table_and_writes_down(self) -> None:
        tool = ScriptedTool(
            McpTool("find", "", {"type": "object"}), lambda arguments: {"got": dict(arguments)}
        )  # type: ignore[dict-item]
        servers: McpServers = ScriptedMcp({"https://a/": (tool,)})
        assert [tool.name for tool in await servers.tools("https://a/")] == ["find"]
        assert await servers.call("https://a/", "find", {"q": 1}, {"m": 2}) == {"got": {"q": 1}}
        assert await servers.call("https://a/", "other", {}, {}) == {"error": "Unknown tool: other"}
        assert await failure_of(servers, "https://b/")
