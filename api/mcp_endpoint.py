"""The way in to the MCP server, at `/mcp` and over the standard streams.

Its SDK is loaded with the first message: it takes a fifth of a process's memory and of its start, and most
processes of a service never hear a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import TypeAdapter
from starlette.responses import Response

from api.auth import Principal
from api.endpoints import Call, Endpoint
from api.gateway import Metrics
from api.mcp_tools import Tool

if TYPE_CHECKING:
    from api.mcp_server import McpServer

PATH = "/mcp"


class McpEndpoint:
    def __init__(self, tools: Sequence[Tool], metrics: Metrics, *, version: str) -> None:
        self._tools = tools
        self._metrics = metrics
        self._version = version
        self._server: McpServer | None = None

    def row(self) -> Endpoint:
        """A row of the usual form, but for the OpenAPI document, which has nothing to say about MCP."""
        return Endpoint(
            f"POST {PATH}",
            self._handle,
            "The Model Context Protocol",
            object,
            audience="tools",
            scopes=tuple(dict.fromkeys(scope for tool in self._tools for scope in tool.scopes)),
            parameters=None,
            body=TypeAdapter(object),
        )

    async def serve_standard_streams(self, principal: Principal) -> None:
        """JSON-RPC messages, one a line in UTF-8, for that principal, until the input ends."""
        await self._made().serve_standard_streams(principal)

    async def _handle(self, call: Call) -> Response:
        server = self._server or await asyncio.to_thread(self._made)
        return await server.handle(call)

    def _made(self) -> McpServer:
        # The one place where the MCP server is imported, and with it the SDK.
        from api.mcp_server import McpServer  # noqa: PLC0415

        if self._server is None:
            self._server = McpServer(self._tools, self._metrics, version=self._version)
        return self._server
