"""The MCP tools of one contact: found for each task, checked, and run with what the agent injects (V2)."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Final

import structlog
from cachetools import TLRUCache

from adapters.models.tools import Approval, Tool, ToolRegistry, shortened
from channels.engine_client import client, mcp_tools, replies
from channels.engine_client.tools import (
    CallContext,
    TaskTool,
    VariablesMissing,
    call_arguments,
    is_offered,
    server_url,
    task_tools,
)
from flow_engine.json_paths import mapped_values
from flow_engine.values import JsonValue

log: Any = structlog.get_logger("flow_engine.agents")

KEPT_S: Final = 60.0
"""How long a server that has got another tool may go unnoticed."""

AWAY_S: Final = 10.0
"""How long a server that could not be reached is not asked again."""

MOST_SERVERS: Final = 256

Ran = Callable[[TaskTool, JsonValue], Awaitable[None]]


class ToolListCache:
    """What MCP servers offer, remembered from one contact to the next, for all contacts of the process.

    Every task begins with the tools of its servers, and somebody waits for its first words: asking a server
    takes a few round trips, and one that is away takes the whole time that is allowed for it. `kept_s` and
    `away_s` are seconds, `clock` gives monotonic ones.
    """

    def __init__(
        self, *, kept_s: float = KEPT_S, away_s: float = AWAY_S, clock: Callable[[], float] = monotonic
    ) -> None:
        def until(url: str, tools: tuple[mcp_tools.McpTool, ...] | None, now: float) -> float:
            return now + (away_s if tools is None else kept_s)

        self._by_url: TLRUCache[str, tuple[mcp_tools.McpTool, ...] | None] = TLRUCache(
            MOST_SERVERS, until, clock
        )

    def known(self, url: str) -> tuple[mcp_tools.McpTool, ...] | None:
        """None where the server at the URL has to be asked; nothing for one that failed a moment ago."""
        return (self._by_url[url] or ()) if url in self._by_url else None

    def listed(self, url: str, tools: tuple[mcp_tools.McpTool, ...]) -> None:
        self._by_url[url] = tools

    def away(self, url: str) -> None:
        self._by_url[url] = None


@dataclass(frozen=True, slots=True)
class TaskTools:
    """What one task offers. Calls go through the registry, which refuses arguments that do not fit the JSON
    Schema, and asks its policy."""

    tools: tuple[TaskTool, ...]
    registry: ToolRegistry


class Toolbox:
    """`ran` is awaited after every call of a tool with its answer, before the model gets that: memory may
    have been written. A server is asked for what it offers when `tool_lists` do not know that."""

    def __init__(
        self,
        engine: client.EngineClient,
        servers: mcp_tools.McpServers,
        ran: Ran,
        approval: Approval | None = None,
        tool_lists: ToolListCache | None = None,
    ) -> None:
        self._engine = engine
        self._servers = servers
        self._ran = ran
        self._approval = approval
        self._engine_mcp_url = engine.mcp_url
        self._tool_lists = tool_lists or ToolListCache(kept_s=inf, away_s=0)

    async def of_task(self, data: replies.AgentData) -> TaskTools:
        """Tools of a server that cannot be reached, or whose JSON Schema is invalid, are left out and
        logged."""
        needed = [
            server for server in data.mcp_tools if any(is_offered(server, tool) for tool in server.tools)
        ]
        listed = dict(await asyncio.gather(*map(self._list, needed)))
        registry = ToolRegistry(self._approval)
        found = task_tools(data, listed, engine_mcp_url=self._engine_mcp_url)
        return TaskTools(tuple(tool for tool in found if self._registers(registry, tool, data)), registry)

    async def aclose(self) -> None:
        await self._servers.aclose()

    async def _write(
        self, tool: TaskTool, answer: JsonValue, contact: client.Contact, custom: Set[str]
    ) -> None:
        """Store what the tool's mapping finds in its answer. A value that its variable cannot hold is left
        out and logged, like all of them where the engine does not answer."""
        values = mapped_values(tool.result_mapping, answer)
        for _ in range(2):
            if not values:
                return
            try:
                await self._engine.put_memory(contact, tool.listed.name, values, custom)
                return
            except replies.RequestRefused as refused:
                wrong = {finding.pointer.split("/")[1] for finding in refused.findings if finding.pointer}
                unfit = [var_id for n, var_id in enumerate(values) if str(n) in wrong] or list(values)
                log.warning("tool_result_not_stored", tool=tool.name, variables=unfit, code=refused.code)
                values = {var_id: value for var_id, value in values.items() if var_id not in unfit}
            except replies.EngineError as failure:
                log.warning("tool_result_not_stored", tool=tool.name, reason=type(failure).__name__)
                return

    async def _list(self, server: replies.ServerTools) -> tuple[str, tuple[mcp_tools.McpTool, ...]]:
        """The server's URL and what it offers."""
        url = server_url(server, self._engine_mcp_url)
        known = self._tool_lists.known(url)
        if known is not None:
            return url, known
        try:
            tools = await self._servers.tools(url)
        except mcp_tools.McpFailed as failure:
            log.warning("mcp_tools_left_out", server=server.server_name, reason=str(failure))
            self._tool_lists.away(url)
            return url, ()
        self._tool_lists.listed(url, tools)
        return url, tools

    def _registers(self, registry: ToolRegistry, tool: TaskTool, data: replies.AgentData) -> bool:
        async def run(chosen: Mapping[str, JsonValue]) -> object:
            try:
                memory = await self._engine.memory(data.conversation_id)
                ids = (data.tenant_id, data.conversation_id, data.contact_id)
                context = CallContext(
                    *ids, memory=memory, key=secrets.token_urlsafe(), campaign_id=data.campaign_id
                )
                arguments = call_arguments(tool, chosen, context)
                answer = await self._servers.call(tool.url, tool.listed.name, arguments, context.meta)
            except VariablesMissing as missing:
                return {"error": str(missing), "missing": list(missing.variables)}
            except (replies.EngineError, mcp_tools.McpFailed) as failure:
                # What a server says of a failure may repeat what it was given.
                log.warning("tool_failed", tool=tool.name, reason=type(failure.__cause__ or failure).__name__)
                return {"error": f"the tool cannot be used at the moment: {failure}"}
            if tool.result_mapping:
                contact = client.Contact(data.conversation_id, data.contact_id)
                custom = {variable.var_id for variable in memory.vars if variable.type == "custom"}
                await self._write(tool, answer, contact, custom)
            answer = shortened(answer)
            await self._ran(tool, answer)
            return answer

        try:
            registry.register(Tool(tool.spec, run))
        except ValueError as error:
            log.warning("mcp_tools_left_out", tool=tool.listed.name, reason=str(error))
            return False
        return True
