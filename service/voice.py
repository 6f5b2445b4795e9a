"""One voice agent put together: by `voice serve` for callers, by a test or `voice demo` for a trial.

    async with FakeRealtime(script) as model, trial_agent(Path("desk.json"), model.url) as agent:
        async with FakeTwilioCall(agent.line_url) as call:
            ...

A trial is what `voice serve` runs, with settings of its own: nothing of the environment counts but the key of
a flow engine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import typer
import uvloop
from picows import WSListener
from pydantic import SecretStr

from adapters.http_door import origin
from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.http_tools.body_builders import Builders, installed_builders
from channels.voice import bridge, deliveries, metrics, recording, replay, runner
from channels.voice.call.ports import OpenCall
from channels.voice.carriers.carrier import Carrier, SpeakAndDial
from channels.voice.carriers.sip.bridge import SipConnection
from channels.voice.carriers.sip.calls import SipCall, SipCalls
from channels.voice.config import call_handler, loader, models, review
from channels.voice.server.app import VoiceApp, voice_app
from channels.voice.server.call_server import CallServer, ChangingServer
from channels.voice.server.serving import serve_voice, server_of
from channels.voice.server.settings import VoiceSettings, variable_of
from flow_engine.errors import CallTheOperator, CorrectTheInput, Finding
from flow_engine.ports.outbound import OutboundSender, header_key
from service import late
from service.logs import configure_logging
from service.serving import announce, served_here
from service.settings import read_settings

if TYPE_CHECKING:
    from channels.voice.flow.opening import FlowCalls
    from service.memory_notices import RedisNotices

log: Any = structlog.get_logger("flow_engine.voice")


_WITHOUT_MODEL = frozenset({"failed", "model_lost", "model_unreachable"})
"""Ends of a call whose caller is left alone on the line."""


@dataclass(frozen=True, slots=True)
class VoiceDependencies:
    """What the calls of one agent are answered with. `sip_calls` is None where SIP is not set up; calls are
    recorded into `recordings`, where that is named. `clock` gives monotonic seconds."""

    settings: VoiceSettings
    config: models.VoiceConfig
    builders: Builders
    outbound: GuardedClient
    counting: metrics.Counting
    carrier: Carrier
    sip_calls: SipCalls | None
    recordings: Path | None = None
    clock: Callable[[], float] = time.monotonic


def open_call_of(
    config: models.VoiceConfig, outbound: OutboundSender, clock: Callable[[], datetime]
) -> OpenCall:
    """With a flow, its engine is asked by `outbound` as well, as in a replay. `clock` is aware and in UTC.
    Nothing is sent before the call."""
    if isinstance(config.session, models.FlowSession):
        # Loaded late: MCP's SDK takes a second, and only flows need it.
        flows = late.voice_flows.FlowCalls(
            config,
            config.session,
            api_key=None,
            allow=AllowList(),
            now=clock,
            transport=replay.OutboundTransport(outbound),
        )
        return flows.open_call(outbound)
    return call_handler.open_configured(config, outbound, clock=clock, builders=installed_builders(clock))


class VoiceAnswering:
    """Implements `CallServer` for one agent."""

    def __init__(self, parts: VoiceDependencies) -> None:
        self._parts = parts
        key = parts.settings.openai_api_key
        headers = {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}
        self._realtime = bridge.Realtime(parts.settings.realtime_url, headers)
        self._deliveries = deliveries.Deliveries(parts.outbound, parts.settings.voice_spool)
        session = parts.config.session
        self._notices = _notices(parts.settings) if isinstance(session, models.FlowSession) else None
        self._flow = (
            _flow_calls(parts, session, self._notices) if isinstance(session, models.FlowSession) else None
        )
        self._bridge = bridge.Bridge(
            self._plan, parts.carrier, transfer=parts.carrier.transfer, open_recorder=self._open_recorder
        )

    async def begin(self) -> None:
        """Before the first call. Go on with the requests that an earlier process of the agent could not
        deliver."""
        waiting = self._deliveries.resume()
        if waiting:
            log.info("deliveries_resumed", waiting=waiting)
        if self._flow is not None:
            await self._flow.prepare()

    def answer(self) -> WSListener:
        return self._bridge.line_socket()

    def lost(self, call_id: str) -> SpeakAndDial | None:
        config, end = self._parts.config, self._bridge.end_of(call_id)
        if end is not None and end.reason in _WITHOUT_MODEL:
            words = config.fallback.message or config.spoken_apology
            return SpeakAndDial(words, config.agent.language, config.fallback.number)
        if end is None or end.unspoken is None:
            return None
        return SpeakAndDial(end.unspoken, config.agent.language)

    async def answer_sip(self, call: SipCall) -> None:
        calls = self._parts.sip_calls
        if calls is None:
            raise CallTheOperator("sip_not_configured", "SIP calls need OPENAI_API_KEY to be set")
        recorder = self._open_recorder(call.call_id)
        line = SipConnection(call, calls, self._realtime, recorder)
        plan = replace(self._plan(recorder), connect=line.connect)
        line.runner = runner.CallRunner(plan, line, line.started, transfer=line.refer, line_plays=False)
        await self._bridge.kept(line.runner, recorder, line.ended)

    async def drained(self) -> None:
        await self._bridge.drained()
        await self._deliveries.settled()

    async def close(self) -> None:
        """The connections to others too."""
        await self._bridge.close()
        await self._deliveries.aclose()
        if self._flow is not None:
            await self._flow.aclose()
        if self._notices is not None:
            await self._notices.aclose()
        await self._parts.outbound.aclose()

    def _plan(self, recorder: recording.Recorder | None) -> runner.CallPlan:
        config = self._parts.config
        return runner.CallPlan(
            connect=lambda settings, side: bridge.connect_realtime(self._realtime, settings, side, recorder),
            open_call=self._open_call(recorder),
            apology_settings=config.settings(),
            clock=self._parts.clock,
            wall=_now,
            metrics=self._parts.counting,
            max_duration_s=config.max_duration_s,
            agent_id=config.agent.id,
        )

    def _open_call(self, recorder: recording.Recorder | None) -> OpenCall:
        parts = self._parts
        outbound: OutboundSender = parts.outbound
        record = None if recorder is None else recorder.write
        if record is not None:
            outbound = recording.RecordedOutbound(outbound, record)
        if self._flow is not None:
            return self._flow.open_call(outbound, self._deliveries, record)
        return call_handler.open_configured(
            parts.config,
            outbound,
            clock=_now,
            builders=parts.builders,
            deliveries=self._deliveries,
            approval=parts.settings.approval(),
        )

    def _open_recorder(self, stream_id: str) -> recording.Recorder | None:
        if self._parts.recordings is None:
            return None
        try:
            return recording.create_recording(self._parts.recordings, stream_id, self._parts.clock)
        except OSError as error:
            log.error("call_not_recorded", reason=error.strerror)
            return None


def _notices(settings: VoiceSettings) -> RedisNotices | None:
    """Loaded late: only flows whose engine is on Redis need its client."""
    url = settings.voice_redis_url
    if url is None:
        return None
    return late.memory_notices.RedisNotices(
        url.get_secret_value(), settings.voice_tenant, cluster=settings.voice_redis_cluster
    )


def _flow_calls(
    parts: VoiceDependencies, session: models.FlowSession, notices: RedisNotices | None
) -> FlowCalls:
    allow = AllowList.parse(parts.settings.outbound_allowed(session.engine_url))
    key = header_key(os.environ.get(session.api_key_env))
    # Loaded late: MCP's SDK takes a second, and only flows need it.
    return late.voice_flows.FlowCalls(
        parts.config,
        session,
        api_key=key,
        allow=allow,
        now=_now,
        approval=parts.settings.approval(),
        notices=notices,
    )


def _now() -> datetime:
    return datetime.now(UTC)


# --- one agent, assembled ---------------------------------------------------------------------------


def config_or_exit(
    config: Path,
    *,
    base_url: str | None = None,
    clock: Callable[[], datetime] = _now,
    audio_formats: Collection[str] | None = None,
) -> loader.Loaded:
    """A config whose mistakes are printed with their JSON pointers. Raises typer.Exit(2) for errors."""
    try:
        loaded = loader.load_config(
            config,
            builders=tuple(installed_builders(clock)),
            base_url=base_url,
            audio_formats=audio_formats,
        )
    except loader.ConfigRefused as refused:
        print_findings(config, "error", refused.problems)
        raise typer.Exit(2) from None
    print_findings(config, "warning", loaded.warnings)
    return loaded


def print_findings(config: Path, kind: str, findings: Iterable[Finding]) -> None:
    for finding in findings:
        typer.echo(f"{config}: {kind} at {finding.pointer or '/'}: {finding.message}", err=True)


@dataclass(frozen=True, slots=True)
class VoiceAgent:
    """An agent that takes calls once its app is served."""

    app: VoiceApp
    answering: ChangingServer


@asynccontextmanager
async def voice_agent(
    settings: VoiceSettings, load: Callable[[], loader.Loaded], recordings: Path | None = None
) -> AsyncGenerator[VoiceAgent]:
    """`load` reads the config, now and when it is to be reloaded. Raises ConfigRefused, CallTheOperator
    `recordings_unusable`, `requests_unusable`."""
    steering = GuardedClient(AllowList.parse(settings.outbound_allowed()))
    counting, carrier, key = metrics.Counting(), settings.open_carrier(steering), settings.openai_api_key
    sip_calls = SipCalls(steering, settings.realtime_url, key.get_secret_value()) if key is not None else None

    def answering(config: models.VoiceConfig) -> VoiceAnswering:
        outbound = GuardedClient(AllowList.parse(settings.outbound_allowed(config.base_url)))
        return VoiceAnswering(
            VoiceDependencies(
                settings=settings,
                config=config,
                builders=installed_builders(_now),
                outbound=outbound,
                counting=counting,
                carrier=carrier,
                sip_calls=sip_calls,
                recordings=recordings,
            )
        )

    async def reloaded() -> tuple[str, CallServer]:
        try:
            loaded = await asyncio.to_thread(load)
        except loader.ConfigRefused as refused:
            log.error("config_refused", problems=[problem.pointer for problem in refused.problems])
            raise CorrectTheInput("config_refused", str(refused), refused.problems) from refused
        return loaded.digest, answering(loaded.config)

    loaded = load()
    if recordings is not None:
        recording.open_directory(recordings)
    if settings.voice_spool is not None:
        recording.open_directory(settings.voice_spool, "requests")
    first = answering(loaded.config)
    await first.begin()
    changing = ChangingServer(loaded.digest, first, reloaded)
    app = voice_app(settings, carrier, changing, counting, sip_calls, changing=changing)
    try:
        yield VoiceAgent(app, changing)
    finally:
        await steering.aclose()


def _settings_or_all_errors(config: Path, base_url: str | None) -> VoiceSettings:
    """Where they are wrong, what is wrong with the config is printed too, but for its audio formats: which of
    them can be played depends on a setting. Raises CallTheOperator `settings_invalid`."""
    try:
        return read_settings(VoiceSettings, variable_of)
    except CallTheOperator:
        with suppress(typer.Exit):
            config_or_exit(config, base_url=base_url)
        raise


def serve_until_stopped(
    config: Path, host: str, port: int, *, base_url: str | None = None, recordings: Path | None = None
) -> None:
    """Returns after SIGINT or SIGTERM. Raises FlowEngineError when the set-up forbids to start, typer.Exit(2)
    for a config with errors. Port 0 is any free port. Prints its URL on standard error."""
    settings = _settings_or_all_errors(config, base_url)
    audio_formats = settings.carrier.codec.audio_formats
    loaded = config_or_exit(config, base_url=base_url, audio_formats=audio_formats)
    if not settings.has_model_key:
        typer.echo("warning: OPENAI_API_KEY is not set, so OpenAI will refuse every call", err=True)
    print_findings(config, "warning", review.retiring_models(loaded.config, _now().date()))
    lacking = settings.carrier.lacks_for_transfers(settings)
    # Calls that come by SIP to the model are transferred without the carrier.
    if lacking is not None and settings.openai_webhook_secret is None:
        print_findings(config, "warning", review.untransferred(loaded.config, lacking))
    configure_logging(settings.log_level)

    def load() -> loader.Loaded:
        names = tuple(installed_builders(_now))
        return loader.load_config(config, builders=names, base_url=base_url, audio_formats=audio_formats)

    def started(at: int) -> None:
        name = loaded.config.agent.name
        announce(f"Voice agent {name!r} on {origin(host, at)}. Ctrl-C stops it.")

    async def serve() -> None:
        async with voice_agent(settings, load, recordings) as agent:
            drain_s = settings.voice_drain_s
            await serve_voice(agent.app, agent.answering, host, port, drain_s=drain_s, started=started)

    uvloop.run(serve())


@dataclass(frozen=True, slots=True)
class TrialAgent:
    """`url` is that of its HTTP side, such as `/metrics`; `line_url` takes Media Streams. Each is a URL on
    loopback."""

    url: str
    line_url: str
    config: models.VoiceConfig
    warnings: tuple[Finding, ...]


@asynccontextmanager
async def trial_agent(
    config: Path | bytes, model_url: str, *, base_url: str | None = None, recordings: Path | None = None
) -> AsyncGenerator[TrialAgent]:
    """Serves until the block ends; calls that are left then are ended, with their lifecycle.

    `base_url` stands in for the config's own. Raises ConfigRefused.
    """
    loaded = loader.load_config(config, builders=tuple(installed_builders(_now)), base_url=base_url)
    defaults = {name: field.default for name, field in VoiceSettings.model_fields.items()}
    settings = VoiceSettings.model_validate(
        {**defaults, "realtime_url": model_url, "openai_api_key": SecretStr("trial")}
    )
    async with (
        voice_agent(settings, lambda: loaded, recordings) as agent,
        served_here(server_of(agent.app)) as address,
    ):
        try:
            yield TrialAgent(
                f"http://{address}", f"ws://{address}/media-stream", loaded.config, loaded.warnings
            )
        finally:
            await agent.answering.close()
