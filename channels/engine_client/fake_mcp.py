"""MCP servers that answer from a table, for tests of whatever calls tools."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from channels.engine_client.mcp_tools import McpFailed, McpTool
from flow_engine.values import JsonValue

Behaviour = Callable[[Mapping[str, object]], JsonValue]


@dataclass(frozen=True, slots=True)
class RecordedToolCall:
    url: str
    tool: str
    arguments: Mapping[str, object]
    meta: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ScriptedTool:
    """What the server lists, with a JSON Schema, and what it answers to arguments. `answer` may raise
    McpFailed."""

    listed: McpTool
    answer: Behaviour


class ScriptedMcp:
    """Implements `McpServers`. A URL that is not in the table is a server that cannot be reached.

    `calls` holds every call of a tool, oldest first; `is_closed` tells whether `aclose` was called.
    """

    def __init__(self, servers: Mapping[str, tuple[ScriptedTool, ...]]) -> None:
        self._servers = servers
        self.calls: list[RecordedToolCall] = []
        self.is_closed = False

    async def tools(self, url: str) -> tuple[McpTool, ...]:
        return tuple(tool.listed for tool in self._server(url))

    async def call(
        self, url: str, tool: str, arguments: Mapping[str, object], meta: Mapping[str, object]
    ) -> JsonValue:
        self.calls.append(RecordedToolCall(url, tool, arguments, meta))
        for scripted in self._server(url):
            if scripted.listed.name == tool:
                return scripted.answer(arguments)
        return {"error": f"Unknown tool: {tool}"}

    async def aclose(self) -> None:
        self.is_closed = True

    def _server(self, url: str) -> tuple[ScriptedTool, ...]:
        if url not in self._servers:
            raise McpFailed("All connection attempts failed")
        return self._servers[url]
