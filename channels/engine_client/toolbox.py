"""The MCP tools of one contact: found for each task, checked, and run with what the agent injects (V2)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import structlog

from adapters.models.tools import Approval, Tool, ToolRegistry
from channels.engine_client.client import EngineClient
from channels.engine_client.errors import EngineError
from channels.engine_client.listings import Listings
from channels.engine_client.mcp_tools import McpFailed, McpServers, McpTool
from channels.engine_client.replies import AgentData, ServerTools
from channels.engine_client.tools import (
    CallContext,
    TaskTool,
    VariablesMissing,
    call_arguments,
    is_offered,
    server_url,
    task_tools,
)
from flow_engine.ports.models import ToolSpec
from flow_engine.values import JsonValue

log: Any = structlog.get_logger("flow_engine.agents")

Ran = Callable[[TaskTool, JsonValue], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TaskTools:
    """What one task offers. Calls go through the registry, which checks them and asks its policy."""

    tools: tuple[TaskTool, ...]
    registry: ToolRegistry


class Toolbox:
    """`ran` is awaited after every call of a tool with its answer, before the model gets that: memory may
    have been written. A server is asked for what it offers when `listings` do not know that."""

    def __init__(
        self,
        engine: EngineClient,
        servers: McpServers,
        ran: Ran,
        approval: Approval | None = None,
        listings: Listings | None = None,
    ) -> None:
        self._engine = engine
        self._servers = servers
        self._ran = ran
        self._approval = approval
        self._engine_mcp_url = engine.mcp_url
        self._listings = listings or Listings(kept_s=inf, away_s=0)

    async def of_task(self, data: AgentData) -> TaskTools:
        """Tools of a server that cannot be reached, or whose schema is none, are left out."""
        needed = [server for server in data.mcp_tools if _needs_listing(server)]
        listed = dict(await asyncio.gather(*map(self._list, needed)))
        registry = ToolRegistry(self._approval)
        found = task_tools(data, listed, engine_mcp_url=self._engine_mcp_url)
        return TaskTools(tuple(tool for tool in found if self._registers(registry, tool, data)), registry)

    async def aclose(self) -> None:
        await self._servers.aclose()

    async def _list(self, server: ServerTools) -> tuple[str, tuple[McpTool, ...]]:
        """The server's URL and what it offers."""
        url = server_url(server, self._engine_mcp_url)
        known = self._listings.known(url)
        if known is not None:
            return url, known
        try:
            tools = await self._servers.tools(url)
        except McpFailed as failure:
            log.warning("mcp_tools_left_out", server=server.server_name, reason=str(failure))
            self._listings.away(url)
            return url, ()
        self._listings.listed(url, tools)
        return url, tools

    def _registers(self, registry: ToolRegistry, tool: TaskTool, data: AgentData) -> bool:
        async def run(chosen: Mapping[str, JsonValue]) -> object:
            return await self._run(tool, data, chosen)

        spec = ToolSpec(tool.name, tool.listed.description, tool.parameters)
        try:
            registry.register(Tool(spec, run))
        except ValueError as error:
            log.warning("mcp_tools_left_out", tool=tool.listed.name, reason=str(error))
            return False
        return True

    async def _run(self, tool: TaskTool, data: AgentData, chosen: Mapping[str, JsonValue]) -> JsonValue:
        try:
            memory = await self._engine.memory(data.conversation_id)
            ids = (data.tenant_id, data.conversation_id, data.contact_id)
            context = CallContext(*ids, memory=memory, key=secrets.token_urlsafe())
            arguments = call_arguments(tool, chosen, context)
            answer = await self._servers.call(tool.url, tool.listed.name, arguments, context.meta)
        except VariablesMissing as missing:
            return {"error": str(missing), "missing": list(missing.variables)}
        except (EngineError, McpFailed) as failure:
            # What a server says of a failure may repeat what it was given.
            log.warning("tool_failed", tool=tool.name, reason=type(failure.__cause__ or failure).__name__)
            return {"error": f"the tool cannot be used at the moment: {failure}"}
        await self._ran(tool, answer)
        return answer


def _needs_listing(server: ServerTools) -> bool:
    return any(is_offered(server, tool) for tool in server.tools)
