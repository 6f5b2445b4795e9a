"""From an agent's config with `session.mode: flow` to the handlers of its calls."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from adapters.models.tools import Approval
from adapters.outbound.policy import AllowList
from channels.engine_client.client import EngineClient, FlowChoice, engine_http
from channels.engine_client.mcp_tools import McpConnections
from channels.engine_client.toolbox import ToolListCache
from channels.voice.call.ports import AnsweredCall, Caller, CallLifecycle, CallSeat, NoLifecycle, OpenCall
from channels.voice.config.lifecycle import ConfigLifecycle
from channels.voice.config.models import FlowSession, Lifecycle, VoiceConfig
from channels.voice.deliveries import Deliveries
from channels.voice.flow.call_handler import FlowCallHandler
from channels.voice.flow.start import FlowStart
from flow_engine.ports.outbound import OutboundSender


class FlowCalls:
    """Answers all calls of an agent, over shared connections to the engine. `allow` lets the flow's MCP
    servers be elsewhere than at public addresses; `approval` is the operator's policy on their tools, and
    without one every tool of a task may run."""

    def __init__(
        self,
        config: VoiceConfig,
        session: FlowSession,
        *,
        api_key: str | None,
        allow: AllowList,
        now: Callable[[], datetime],
        approval: Approval | None = None,
    ) -> None:
        self._config = config
        self._start = flow_start(config, session)
        self._base = config.settings()
        self._http = engine_http(session.engine_url, api_key)
        self._engine = EngineClient(self._http)
        self._allow = allow
        self._trusted = {self._engine.mcp_url: {"Authorization": f"Bearer {api_key}"} if api_key else {}}
        self._mcp_timeout_s = session.mcp_timeout_s
        self._now = now
        self._approval = approval
        self._tool_lists = ToolListCache()

    def open_call(self, outbound: OutboundSender, deliveries: Deliveries | None = None) -> OpenCall:
        """Calls whose checks and bookkeeping, where the config has any, go out by `outbound`."""
        config = self._config
        has_lifecycle = bool(config.pre_call_checks) or config.lifecycle != Lifecycle()

        def opened(caller: Caller, seat: CallSeat) -> AnsweredCall:
            lifecycle: CallLifecycle = NoLifecycle()
            if has_lifecycle:
                lifecycle = ConfigLifecycle(config, outbound, self._now, caller, deliveries)
            return AnsweredCall(self.handler(caller, seat), lifecycle)

        return opened

    def handler(self, caller: Caller, seat: CallSeat) -> FlowCallHandler:
        servers = McpConnections(self._allow, self._trusted, answer_within_s=self._mcp_timeout_s)
        return FlowCallHandler(
            self._start,
            self._base,
            caller,
            seat,
            engine=self._engine,
            servers=servers,
            now=self._now,
            approval=self._approval,
            tool_lists=self._tool_lists,
        )

    async def aclose(self) -> None:
        """After the last call."""
        await self._http.aclose()


def flow_start(config: VoiceConfig, session: FlowSession) -> FlowStart:
    return FlowStart(
        FlowChoice(session.version, session.flow_id, session.tag),
        apology=config.spoken_apology,
        agent_id=config.agent.id,
        agent_name=config.agent.name,
        tenant=session.tenant,
        transfers=session.transfers,
        transfer_to=session.transfer_to,
    )
