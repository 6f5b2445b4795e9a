"""Put together what answers the calls of one voice agent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from picows import WSListener

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.http_tools.body_builders import BuilderRegistry
from channels.voice.bridge import Bridge, Realtime, Tap, Transfer, connect_realtime
from channels.voice.call.events import StreamStarted
from channels.voice.call.ports import EndReason, OpenPlaybook
from channels.voice.call.state import Counts
from channels.voice.carriers.rest import LineControlFailed
from channels.voice.carriers.sip.bridge import SipConnection
from channels.voice.carriers.sip.calls import SipCall, SipCalls
from channels.voice.carriers.twilio.calls import TwilioCalls
from channels.voice.config.flow_books import with_books
from channels.voice.config.models import FlowSession, VoiceConfig
from channels.voice.config.playbook import open_configured
from channels.voice.metrics import Counting
from channels.voice.recording import RecordedOutbound, Recorder, create_recording
from channels.voice.runner import CallPlan, CallRunner
from channels.voice.server.call_server import LineRequest
from channels.voice.server.settings import VoiceSettings
from channels.voice.wires.realtime_urls import connect_headers
from flow_engine.errors import CallTheOperator, CorrectTheInput
from flow_engine.ports.outbound import OutboundSender

if TYPE_CHECKING:
    from channels.voice.flow.opening import FlowCalls

log: Any = structlog.get_logger("flow_engine.voice")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the calls of one agent are answered with. The carriers' control is None where it is not set up;
    calls are recorded into `recordings`, where that is given."""

    settings: VoiceSettings
    config: VoiceConfig
    builders: BuilderRegistry
    outbound: GuardedClient
    counting: Counting
    twilio_calls: TwilioCalls | None
    sip_calls: SipCalls | None
    recordings: Path | None = None


def open_playbook_of(
    config: VoiceConfig, builders: BuilderRegistry, outbound: OutboundSender, clock: Callable[[], datetime]
) -> OpenPlaybook:
    """For a config that says everything itself. Raises CallTheOperator `flow_needed` for another one."""
    if isinstance(config.session, FlowSession):
        raise CallTheOperator("flow_needed", "this config's session comes from a flow engine")
    return open_configured(config, outbound, clock=clock, builders=builders)


class VoiceAnswering:
    """Implements `CallServer` for one agent."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        key = parts.settings.openai_api_key
        headers = {} if key is None else connect_headers(key.get_secret_value())
        self._realtime = Realtime(parts.settings.realtime_url, headers)
        self._watching = _Watching(parts.counting)
        session = parts.config.session
        self._flow = _flow_calls(parts, session) if isinstance(session, FlowSession) else None
        self._bridge = Bridge(self._plan, transfers=self._transfer, open_tap=self._open_tap)

    def answer(self, request: LineRequest) -> WSListener:
        return self._bridge.line_socket()

    async def answer_sip(self, call: SipCall) -> None:
        calls = self._parts.sip_calls
        if calls is None:
            raise CallTheOperator("sip_not_configured", "SIP calls need OPENAI_API_KEY to be set")
        tap = self._open_tap(call.call_id)
        line = SipConnection(call, calls, self._realtime, tap)
        plan = replace(self._plan(tap), connect=line.connect)
        line.runner = CallRunner(plan, line, line.started, transfer=line.move, line_plays=False)
        await self._bridge.kept(line.runner, tap, line.ended)

    async def close(self) -> None:
        await self._bridge.close()
        if self._flow is not None:
            await self._flow.aclose()

    def _plan(self, tap: Tap | None) -> CallPlan:
        config = self._parts.config
        return CallPlan(
            connect=lambda settings, side: connect_realtime(self._realtime, settings, side, tap),
            open_playbook=self._open_playbook(tap),
            apology_settings=config.settings(),
            clock=time.monotonic,
            wall=_now,
            watching=self._watching,
            max_duration_s=config.max_duration_s,
            agent_id=config.agent.id,
        )

    def _open_playbook(self, tap: Tap | None) -> OpenPlaybook:
        parts = self._parts
        outbound: OutboundSender = parts.outbound
        if isinstance(tap, Recorder):
            outbound = RecordedOutbound(outbound, tap.write)
        if self._flow is not None:
            return with_books(self._flow, parts.config, outbound, _now)
        return open_playbook_of(parts.config, parts.builders, outbound, _now)

    def _transfer(self, started: StreamStarted) -> Transfer | None:
        calls, call_sid = self._parts.twilio_calls, started.call_sid
        if calls is None or call_sid is None:
            return None

        async def transfer(target: str) -> bool:
            try:
                await calls.redirect(call_sid, target)
            except (LineControlFailed, CorrectTheInput) as failed:
                log.error("call_not_transferred", reason=str(failed))
                return False
            return True

        return transfer

    def _open_tap(self, stream_id: str) -> Tap | None:
        if self._parts.recordings is None:
            return None
        try:
            return create_recording(self._parts.recordings, stream_id, time.monotonic)
        except OSError as error:
            log.error("call_not_recorded", reason=error.strerror)
            return None


class _Watching:
    """Implements the runner's `Watching` on metrics."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    def call_began(self) -> None:
        self._counting.call_started()

    def call_ended(self, reason: EndReason, duration_s: float, counts: Counts) -> None:
        counting = self._counting
        counting.call_ended(reason)
        counting.barged_in(counts.interruptions)
        counting.frames_dropped("line", counts.late_audio)
        counting.frames_dropped("model", counts.unheard)
        counting.tool_called("answered", counts.tools_answered)
        counting.tool_called("failed", counts.tools_failed)
        counting.tool_called("stopped", counts.tools_stopped)

    def model_renewed(self) -> None:
        self._counting.model_reconnected()


def _flow_calls(parts: Parts, session: FlowSession) -> FlowCalls:
    allow = AllowList.parse(parts.settings.outbound_allowed(session.engine_url))
    key = os.environ.get(session.api_key_env) or None
    # MCP's SDK takes a second to load, and only flows need it.
    opening = import_module("channels.voice.flow.opening")
    return opening.FlowCalls(parts.config, session, api_key=key, allow=allow, now=_now)


def _now() -> datetime:
    return datetime.now(UTC)
