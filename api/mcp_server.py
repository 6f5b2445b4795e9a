"""The MCP server: tools for conversations and for designers, by the official SDK (F35).

Only this module knows the SDK. A request passes the same way in as every other one (key, scope, bounded
body, log, metrics) and is then handed to the SDK whole. No session is kept between requests, so that any
replica answers any of them, and each is answered with one JSON document: nothing here streams, hence there
is no GET.
"""

import json
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import anyio
import mcp_types
import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import Tool as AdvertisedTool
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from api.auth import ANYONE, Principal, header, require
from api.endpoints import JSON, Call, json_response
from api.gateway import Metrics
from api.mcp_tools import Tool, ToolCall
from api.problems import bugs_answered, error_response, internal_error
from flow_engine.errors import CallTheOperator, CorrectTheInput, Finding, FlowEngineError
from flow_engine.exact_numbers import read_exactly
from flow_engine.json_values import as_object

_PRINCIPAL, _SENT = "flow_engine.principal", "flow_engine.sent"
_ONE_MESSAGE = "accepted is one JSON-RPC 2.0 message: a request, a notification or a response"
_PARTS = {"method", "result", "error"}
_REQUEST_ID = TypeAdapter[int | str](mcp_types.RequestId)
_INSTRUCTIONS = (
    "change_task, get_memory and set_memory hold one conversation by a flow of tasks. Each call names "
    "the conversation and the contact. Read the memory before asking for what may be known, store what tools "
    "find, and change the task when the dialogue moves on. The other tools design flows: read a version by "
    "its outline, save drafts, correct what validate_version finds at its JSON pointers, play flow tests, "
    "then publish under a tag."
)

log: Any = structlog.get_logger("flow_engine.mcp")

_Context = ServerRequestContext[Any, Request]


class McpServer:
    def __init__(self, tools: Sequence[Tool], metrics: Metrics, *, version: str) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._metrics = metrics
        self._local = ANYONE
        self._server: Server[Any] = Server(
            "flow-engine",
            version=version,
            title="Flow Engine",
            instructions=_INSTRUCTIONS,
            get_tool_input_schema=self.input_schema,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
        )

    async def handle(self, call: Call) -> Response:
        """One JSON-RPC message in, one out. The manager keeps nothing, so each message has its own."""
        if call.body.lstrip()[:1] == b"[":  # the SDK would read a long list item by item before it refuses it
            return _refused("accepted is one JSON-RPC message, not a list of them")
        if not header(call.scope["headers"], b"content-type", "").lower().startswith(JSON):
            return _refused(f"accepted is the Content-Type {JSON}")
        if refusal := _no_message(call.body):
            return refusal
        manager = StreamableHTTPSessionManager(self._server, json_response=True, stateless=True)
        scope = {**call.scope, _PRINCIPAL: call.principal, _SENT: call.body}
        reply, unread = _Reply(), [call.body]

        async def receive() -> Message:
            """The body that was read already; after it, whatever the connection says."""
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await call.receive()

        async with manager.run():
            await manager.handle_request(scope, receive, reply.send)
        response = reply.response()
        return _in_our_words(call.body) or response if response.status_code == 400 else response

    @cached_property
    def _advertised(self) -> Mapping[str, AdvertisedTool]:
        """Made when somebody asks: schemas take longer than all the rest of a start."""
        return {name: _advertised(tool) for name, tool in self._tools.items()}

    async def serve_standard_streams(self, principal: Principal) -> None:
        """MCP over standard input and output, a JSON-RPC message a line in UTF-8, for that principal, until
        the input ends."""
        self._local = principal
        async with stdio_server() as (incoming, outgoing), anyio.create_task_group() as group:
            valid, messages = anyio.create_memory_object_stream[SessionMessage | Exception]()

            async def answer_the_others() -> None:
                """The SDK passes by what it cannot read; its caller would wait for ever."""
                async with valid:
                    async for item in incoming:
                        if not isinstance(item, Exception):
                            await valid.send(item)
                        elif refusal := _refusal(item):
                            log.warning("message_refused", code=refusal.error.code)
                            await outgoing.send(SessionMessage(refusal))

            group.start_soon(answer_the_others)
            await self._server.run(messages, outgoing, self._server.create_initialization_options())

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """JSON Schema of a tool's arguments; None for a tool that is unknown."""
        tool = self._advertised.get(name)
        return None if tool is None else tool.input_schema

    def _principal(self, ctx: _Context) -> Principal:
        """Who passed the way in, or who speaks over the standard streams."""
        return self._local if ctx.request is None else ctx.request.scope[_PRINCIPAL]

    async def list_tools(
        self, ctx: _Context, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        """The tools that the caller's key may call: what a model is offered should work. Their schemas are
        JSON Schema."""
        principal = self._principal(ctx)
        offered = [name for name, tool in self._tools.items() if any(map(principal.may, tool.scopes))]
        return mcp_types.ListToolsResult(tools=[self._advertised[name] for name in offered])

    async def call_tool(
        self, ctx: _Context, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        """What the use cases refuse is a result of the tool, which a model can read and act upon. The
        result's text is JSON of the problem document for an error."""
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(mcp_types.INVALID_PARAMS, f"Unknown tool; there are {', '.join(self._tools)}")
        started, code = time.perf_counter(), ""

        async def called() -> mcp_types.CallToolResult:
            nonlocal code
            try:
                principal = self._principal(ctx)
                require(principal, tool.scopes)
                call = ToolCall(tool.name, principal, _as_json(params.arguments or {}), _exact(ctx))
                reply = await tool.handler(call)
            except FlowEngineError as error:
                code = error.code
                self._metrics.problem(code)
                if isinstance(error, CallTheOperator):
                    log.error("operator_needed", tool=tool.name, code=code, detail=error.detail)
                return _problem(error_response(error))
            return mcp_types.CallToolResult(
                content=[mcp_types.TextContent(text=reply.text)], structured_content=reply.data
            )

        def bug(error: Exception) -> mcp_types.CallToolResult:
            nonlocal code
            code = "internal_error"
            log.error("bug", tool=tool.name, exc_info=error)
            return _problem(internal_error())

        result = await bugs_answered(called(), bug)
        ms = round((time.perf_counter() - started) * 1000, 2)
        log.info("tool_call", tool=tool.name, code=code or None, ms=ms)
        return result


def _refusal(unread: Exception) -> mcp_types.JSONRPCError | None:
    """The answer to a line that is no message, under its id where it has one; None for an empty line."""
    code, whole = mcp_types.PARSE_ERROR, None
    if isinstance(unread, ValidationError):
        errors = unread.errors(include_url=False)
        tops = (each["input"] for each in errors if len(each["loc"]) - (each["type"] == "missing") < 2)
        code, whole = mcp_types.INVALID_REQUEST, next(tops, None)
        if errors[0]["type"] == "json_invalid":
            line = str(whole)
            if not line.strip():
                return None
            try:
                whole = json.loads(line)  # reads text that is not valid Unicode, too
            except (ValueError, RecursionError):
                code = mcp_types.PARSE_ERROR
    error = mcp_types.ErrorData(code=code, message=_ONE_MESSAGE)
    return mcp_types.JSONRPCError(jsonrpc="2.0", id=_id_of(whole), error=error)


def _id_of(message: object) -> int | str | None:
    """Of JSON that may be anything; None where it has none that may be repeated."""
    try:
        return _REQUEST_ID.validate_json(json.dumps(as_object(message).get("id")))
    except ValidationError:
        return None


def _no_message(body: bytes) -> Response | None:
    """The refusal of JSON without anything of a message; None for what may be one. The SDK would compare it,
    however large, with each kind of message, and describe how it differs."""
    try:
        sent: object = from_json(body)
    except ValueError:  # no JSON, which the SDK tells
        return None
    return None if _PARTS & as_object(sent).keys() else _refused(_ONE_MESSAGE, _id_of(sent))


def _in_our_words(body: bytes) -> Response | None:
    """The refusal of JSON that is no message; None for a message. The SDK's own repeats what was sent."""
    try:
        mcp_types.jsonrpc_message_adapter.validate_python(from_json(body), by_name=False)
    except ValidationError as unread:
        refusal = _refusal(unread)
        return refusal and _refused(refusal.error.message, refusal.id)
    except ValueError:  # no JSON, which the SDK tells
        pass
    return None


def _refused(message: str, named: int | str | None = None) -> Response:
    error = {"code": mcp_types.INVALID_REQUEST, "message": message}
    return json_response({"jsonrpc": "2.0", "id": named, "error": error}, 400)


def _as_json(arguments: Mapping[str, Any]) -> bytes:
    """The arguments for the one parser that all bodies go through, which refuses NaN and the like itself."""
    try:
        return to_json(arguments, inf_nan_mode="constants")
    except ValueError:
        message = "accepted is JSON whose text is valid Unicode, at most 64 levels deep"
        raise CorrectTheInput("arguments_invalid", message, [Finding("", "json_invalid", message)]) from None


def _exact(ctx: _Context) -> object | None:
    """The arguments where a number of them may be inexact: the SDK has made floats of all."""
    message = None if ctx.request is None else read_exactly(ctx.request.scope[_SENT])
    return None if message is None else as_object(as_object(message)["params"]).get("arguments")


def _problem(document: Response) -> mcp_types.CallToolResult:
    """An error as the problem document that HTTP would answer with.

    It is no structured content: that has to fit the tool's output schema, of errors too.
    """
    return mcp_types.CallToolResult(
        content=[mcp_types.TextContent(text=bytes(document.body).decode())], is_error=True
    )


class _Reply:
    """Takes what the SDK sends and hands it on as a response, for its status to be logged and counted."""

    def __init__(self) -> None:
        self._status = 500
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = int(message["status"])
            self._headers = list(message.get("headers", ()))
        else:
            self._parts.append(message.get("body", b""))

    def response(self) -> Response:
        response = Response(b"".join(self._parts), self._status)
        response.raw_headers = self._headers
        return response


# --- tools as they are advertised -------------------------------------------------------------------


def _advertised(tool: Tool) -> AdvertisedTool:
    reply = _plain(TypeAdapter[Any](tool.reply).json_schema(mode="serialization"))
    return AdvertisedTool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=_plain(tool.arguments.json_schema()),
        output_schema={"type": "object", **reply},  # clients before 2026 look for the type at the root
        annotations=mcp_types.ToolAnnotations(
            read_only_hint=tool.reads_only,
            destructive_hint=tool.replaces,
            idempotent_hint=tool.repeatable or tool.reads_only,
            open_world_hint=False,
        ),
    )


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without references and generated titles, for models whose function calls know neither."""
    definitions = schema.get("$defs", {})

    def plain(part: Any) -> Any:
        match part:
            case {"$ref": str(reference)}:
                return plain(definitions[reference.rpartition("/")[2]])
            case dict():
                keywords = cast("dict[str, Any]", part)
                return {
                    # What stands under `properties` are names, of which one may be `title`.
                    key: {name: plain(own) for name, own in value.items()}
                    if key == "properties"
                    else plain(value)
                    for key, value in keywords.items()
                    if key not in ("$defs", "title")
                }
            case list():
                return [plain(item) for item in cast("list[Any]", part)]
            case _:
                return part

    return plain(schema)
