"""From an agent's config with `session.mode: flow` to the handlers of its calls."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial

import httpx2

from adapters.models.tools import Approval
from adapters.outbound.policy import AllowList
from channels.engine_client.client import EngineClient, FlowChoice, engine_http
from channels.engine_client.mcp_tools import McpConnections, McpFailed, McpServers, McpTool
from channels.engine_client.toolbox import ToolListCache
from channels.voice.call.ports import AnsweredCall, Caller, CallLifecycle, CallSeat, NoLifecycle, OpenCall
from channels.voice.config.lifecycle import ConfigLifecycle
from channels.voice.config.models import FlowSession, Lifecycle, VoiceConfig
from channels.voice.deliveries import Deliveries
from channels.voice.flow import call_handler, engine_sync, task_context
from channels.voice.recording import RecordedTransport, Side
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue

PREPARED_WITHIN_S = 20.0


class FlowCalls:
    """Answers all calls of an agent, over shared connections to the engine. `allow` lets the flow's MCP
    servers be elsewhere than at public addresses; `approval` is the operator's policy on their tools, and
    without one every tool of a task may run. With `transport`, as in a replay, the engine is reached by that
    alone, and MCP servers are away."""

    def __init__(
        self,
        config: VoiceConfig,
        session: FlowSession,
        *,
        api_key: str | None,
        allow: AllowList,
        now: Callable[[], datetime],
        approval: Approval | None = None,
        notices: engine_sync.MemoryNotices | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._config = config
        self._start = flow_start(config, session)
        self._base = config.settings()
        self._connect = partial(engine_http, session.engine_url, api_key)
        self._http = self._connect(transport)
        self._has_servers = transport is None
        self._engine = EngineClient(self._http)
        self._allow = allow
        self._trusted = {self._engine.mcp_url: {"Authorization": f"Bearer {api_key}"} if api_key else {}}
        self._mcp_timeout_s = session.mcp_timeout_s
        self._now = now
        self._approval = approval
        self._notices = notices
        self._tool_lists = ToolListCache()

    async def prepare(self) -> None:
        """Have the engine list its tools, within some seconds: what it loads for its first message would keep
        the first caller waiting. Never raises: of an engine that is away they are asked for in each call."""
        servers = McpConnections(self._allow, self._trusted, answer_within_s=PREPARED_WITHIN_S)
        with suppress(McpFailed):
            self._tool_lists.listed(self._engine.mcp_url, await servers.tools(self._engine.mcp_url))
        await servers.aclose()

    def open_call(
        self,
        outbound: OutboundSender,
        deliveries: Deliveries | None = None,
        record: Callable[[Side, bool, JsonValue], None] | None = None,
    ) -> OpenCall:
        """Calls whose checks and bookkeeping, where the config has any, go out by `outbound`. `record` is
        given the requests to the engine and their answers."""
        engine = self._engine
        if record is not None:
            engine = EngineClient(self._connect(RecordedTransport(self._http, record)))
        config = self._config
        has_lifecycle = bool(config.pre_call_checks) or config.lifecycle != Lifecycle()

        def opened(caller: Caller, seat: CallSeat) -> AnsweredCall:
            lifecycle: CallLifecycle = NoLifecycle()
            if has_lifecycle:
                lifecycle = ConfigLifecycle(config, outbound, self._now, caller, deliveries)
            return AnsweredCall(self.handler(caller, seat, engine), lifecycle)

        return opened

    def handler(
        self, caller: Caller, seat: CallSeat, engine: EngineClient | None = None
    ) -> call_handler.FlowCallHandler:
        servers: McpServers = NoServers()
        if self._has_servers:
            servers = McpConnections(self._allow, self._trusted, answer_within_s=self._mcp_timeout_s)
        return call_handler.FlowCallHandler(
            self._start,
            self._base,
            caller,
            seat,
            engine=engine or self._engine,
            servers=servers,
            now=self._now,
            approval=self._approval,
            tool_lists=self._tool_lists,
            notices=self._notices,
        )

    async def aclose(self) -> None:
        """After the last call."""
        await self._http.aclose()


class NoServers:
    """Implements `McpServers` where there are none to be reached."""

    async def tools(self, url: str) -> tuple[McpTool, ...]:
        raise McpFailed("there are no MCP servers in a replay")

    async def call(
        self, url: str, tool: str, arguments: Mapping[str, object], meta: Mapping[str, object]
    ) -> JsonValue:
        raise McpFailed("there are no MCP servers in a replay")

    async def aclose(self) -> None: ...


def flow_start(config: VoiceConfig, session: FlowSession) -> task_context.FlowStart:
    return task_context.FlowStart(
        FlowChoice(session.version, session.flow_id, session.tag),
        apology=config.spoken_apology,
        agent_id=config.agent.id,
        agent_name=config.agent.name,
        tenant=session.tenant,
        transfers=session.transfers,
        transfer_to=session.transfer_to,
    )
