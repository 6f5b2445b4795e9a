"""MCP servers as an agent uses them: list their tools, call one (V2). The only module of the agents that
speaks MCP, by the official SDK.

Connections are opened when first needed and kept until the contact is over, because a server may keep state
in its session. The SDK ties a connection to the task that opened it, so each has a task of its own, and
whoever lists or calls talks through it. A server that fails fails alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

import httpcore2
import httpx2
import orjson
import structlog
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, RequestParamsMeta, TextContent
from pydantic import ValidationError
from pydantic_core import to_json

from adapters.models.bounded_http import BoundedTransport
from adapters.models.tools import MOST_RESULT_CHARS
from adapters.outbound.network import GuardedNetwork, Resolver, public_tls, resolve
from adapters.outbound.policy import AllowList, parse_target
from flow_engine.json_values import MOST_READ_VALUES
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused
from flow_engine.values import JsonValue

log: Any = structlog.get_logger("flow_engine.agents")

CONNECT_WITHIN_S: Final = 3.0
ANSWER_WITHIN_S: Final = 20.0
CLOSE_WITHIN_S: Final = 2.0
HTTP_GRACE_S: Final = 5.0
"""An answer that comes too late is given up, without giving up its connection at the same moment."""

IDLE_S: Final = 300.0
"""A connection that nobody talked through for so long is closed, and made again when it is needed."""

MOST_CONNECTIONS: Final = 8
MOST_PAGES: Final = 20
MOST_REASON_CHARS: Final = 1_000
"""Of what a server says of a failure."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool as its server lists it. `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, object]


class McpFailed(Exception):
    """The server is not reached, too slow, or broke the protocol. The message holds no address."""


class _SessionLost(McpFailed):
    """The server does not know the session any more, and has done nothing."""


class McpServers(Protocol):
    """The MCP servers of one contact, by URL. Everything raises McpFailed."""

    async def tools(self, url: str) -> tuple[McpTool, ...]: ...

    async def call(
        self, url: str, tool: str, arguments: Mapping[str, object], meta: Mapping[str, object]
    ) -> JsonValue:
        """What the tool says, for the model, as JSON holds it; `{"error": …}` when it says that it failed.
        Raises McpFailed."""
        ...

    async def aclose(self) -> None: ...


OpenMcp = Callable[[], McpServers]
"""A fresh one for each contact."""

# What the SDK lets through of a failed exchange, alone or in a group.
_FAILURES = (
    *(MCPError, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL),
    *(ValidationError, OSError, RuntimeError),
)

_SESSION_LOST = "Session terminated"
"""How the SDK tells of a status 404 to a request with a session, unless the answer has words of its own."""

_Said = TypeVar("_Said")


class GuardedTransport(BoundedTransport):
    """For addresses that designers chose (F45): connects by the rules of `adapters/outbound/policy.py`, and
    raises ConnectError for what they forbid. No proxies of the environment, bounded answers: what is packed
    has no bound, and is not read. Raises ReadError for it."""

    most_values = MOST_READ_VALUES

    def __init__(self, allow: AllowList, resolver: Resolver = resolve) -> None:
        super().__init__(verify=public_tls(trust_env=False), trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=public_tls(trust_env=False),
            max_connections=MOST_CONNECTIONS,
            network_backend=GuardedNetwork(allow, resolver),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            request.url = request.url.copy_with(host=parse_target(str(request.url)).host)
            request.headers["Accept-Encoding"] = "identity"
            response = await super().handle_async_request(request)
        except (OutboundRefused, OutboundFailed) as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        if response.headers.get("Content-Encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.ReadError("a packed answer", request=request)
        return response


class McpConnections:
    """Implements `McpServers` over streamable HTTP; an answer is waited for `answer_within_s` seconds, and a
    list `connect_within_s`. `allow` lets servers beside public addresses be reached. `trusted` holds the
    headers by URL of the operator's own servers, such as the engine's with its key; nothing else gets a
    header. Their lists are waited for as answers are: what loads with the first message takes its time on a
    busy machine. Everything raises McpFailed."""

    def __init__(
        self,
        allow: AllowList,
        trusted: Mapping[str, Mapping[str, str]],
        *,
        connect_within_s: float = CONNECT_WITHIN_S,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self._allow = allow
        self._trusted = trusted
        self._connect_within_s = connect_within_s
        self._answer_within_s = answer_within_s
        self._connections: dict[str, _Connection] = {}

    async def tools(self, url: str) -> tuple[McpTool, ...]:
        within_s = self._answer_within_s if url in self._trusted else self._connect_within_s
        return await self._talk(url, _listed, within_s)

    async def call(
        self, url: str, tool: str, arguments: Mapping[str, object], meta: Mapping[str, object]
    ) -> JsonValue:
        async def called(client: Client) -> JsonValue:
            result = await client.call_tool(tool, dict(arguments), meta=cast("RequestParamsMeta", dict(meta)))
            return model_answer(result)

        return await self._talk(url, called, self._answer_within_s)

    async def aclose(self) -> None:
        """Close every connection, within `CLOSE_WITHIN_S` seconds. Never raises for a server that does not
        let go."""
        connections = list(self._connections.values())
        self._connections.clear()
        await asyncio.gather(*(connection.aclose() for connection in connections))

    async def _talk(self, url: str, exchange: Callable[[Client], Awaitable[_Said]], within_s: float) -> _Said:
        """In a new session where the server, restarted perhaps, does not know the one that there was."""
        try:
            return await self._connection(url).talk(exchange, within_s)
        except _SessionLost:
            return await self._connection(url).talk(exchange, within_s)

    def _connection(self, url: str) -> _Connection:
        """The one that there is, unless it has broken."""
        known = self._connections.get(url)
        if known is None or known.is_over:
            try:
                host = parse_target(url).host
            except OutboundRefused as refused:
                raise McpFailed(str(refused)) from refused
            headers, timeout_s = self._trusted.get(url), self._answer_within_s + HTTP_GRACE_S
            http = httpx2.AsyncClient(
                transport=GuardedTransport(self._allow)
                if headers is None
                else BoundedTransport(verify=public_tls(trust_env=False), trust_env=False),
                headers=headers or {},
                trust_env=False,
                follow_redirects=False,
                timeout=httpx2.Timeout(timeout_s, connect=min(CONNECT_WITHIN_S, timeout_s)),
                event_hooks={"response": [_without_own_words]},
            )
            known = self._connections[url] = _Connection(url, host, http)
        return known


class _Connection:
    """One server. The connection is made by a task of its own, which also takes it down."""

    def __init__(self, url: str, host: str, http: httpx2.AsyncClient) -> None:
        self._url = url
        self._host = host
        self._http = http
        self._failure = "the connection was closed"
        self._is_lost = False
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._exchanges = 0
        self._talking = 0
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._held())

    @property
    def is_over(self) -> bool:
        return self._task.done() or self._closed.done() or self._is_lost

    async def talk(self, exchange: Callable[[Client], Awaitable[_Said]], within_s: float) -> _Said:
        """What `exchange` returns. Ends with the connection, should that break meanwhile."""
        self._exchanges += 1
        self._talking += 1
        exchanging = asyncio.create_task(self._exchanged(exchange))
        try:
            async with asyncio.timeout(within_s):
                await asyncio.wait({exchanging, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if exchanging.done():
                return exchanging.result()
        except TimeoutError:
            raise McpFailed(f"no answer within {within_s:g} s") from None
        except _FAILURES as failure:
            told = _told(failure)
            self._is_lost = self._is_lost or told == _SESSION_LOST
            raise (_SessionLost if told == _SESSION_LOST else McpFailed)(told) from failure
        finally:
            self._talking -= 1
            if self._is_lost and not self._talking and not self._closed.done():
                self._closed.set_result(None)
            exchanging.cancel()
            await asyncio.gather(exchanging, return_exceptions=True)
        raise McpFailed(self._failure)

    async def aclose(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        is_connected = self._client.done()
        _, unfinished = await asyncio.wait({self._task}, timeout=CLOSE_WITHIN_S if is_connected else 0)
        if unfinished:
            self._task.cancel()
            await asyncio.wait(unfinished)

    async def _exchanged(self, exchange: Callable[[Client], Awaitable[_Said]]) -> _Said:
        return await exchange(await asyncio.shield(self._client))

    async def _held(self) -> None:
        """The connection from its making to its end; failures are logged, and end what is being said."""
        try:
            async with (
                self._http,
                Client(streamable_http_client(self._url, http_client=self._http)) as client,
            ):
                client.session.validate_tool_result = _unvalidated
                self._client.set_result(client)
                # Until it is closed, or has been idle for long.
                seen = -1
                while not self._closed.done() and (self._talking or seen != self._exchanges):
                    seen = self._exchanges
                    await asyncio.wait({self._closed}, timeout=IDLE_S)
        except* _FAILURES as failures:
            self._failure = _told(_first(failures))
            log.warning("mcp_server_failed", host=self._host, reason=self._failure)


async def _without_own_words(response: httpx2.Response) -> None:
    """Has every server's 404 to a request with a session told by the SDK as `_SESSION_LOST`."""
    if response.status_code == 404 and "mcp-session-id" in response.request.headers:
        response.headers.pop("Content-Type", None)


async def _unvalidated(name: str, result: CallToolResult) -> None:
    """Instead of the SDK's check against the server's own output schema, whose cost the server chooses: what
    a tool answers is data for the model, whatever its shape."""


async def _listed(client: Client) -> tuple[McpTool, ...]:
    """All tools, page by page."""
    tools: list[McpTool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [McpTool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(tools)


def model_answer(result: CallToolResult) -> JsonValue:
    """The text is what a server means for the model; without one, its structured content, JSON whose numbers
    have 64 bits. A result that is an error is `{"error": …}`."""
    texts = [part.text for part in result.content if isinstance(part, TextContent)]
    text = "\n".join(texts)
    if result.is_error:
        return {"error": text[:MOST_RESULT_CHARS] or "the tool failed without saying why"}
    if not texts and result.structured_content is not None:
        return cast("JsonValue", orjson.loads(to_json(result.structured_content, inf_nan_mode="null")))
    return text


def _first(failure: BaseException) -> BaseException:
    """A failure itself, or the first of a group that holds failures and groups."""
    if isinstance(failure, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[BaseException]", failure).exceptions[0])
    return failure


def _told(failure: BaseException) -> str:
    """A reason without paths: what a server says, or why it is not reached, else the kind of failure."""
    if isinstance(failure, MCPError):
        return failure.message[:MOST_REASON_CHARS]
    return str(failure) if isinstance(failure, httpx2.ConnectError) else type(failure).__name__
