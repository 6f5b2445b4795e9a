"""Run a voice agent in this process until it is stopped."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import typer
import uvloop
from pydantic import ValidationError

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.http_tools.body_builders import BuilderRegistry, installed_builders
from channels.voice.carriers.sip.calls import SipCalls
from channels.voice.carriers.twilio.calls import TwilioCalls
from channels.voice.config.loader import ConfigRefused, load_config
from channels.voice.config.models import VoiceConfig
from channels.voice.metrics import Counting
from channels.voice.server.app import voice_app
from channels.voice.server.serving import serve_voice
from channels.voice.server.settings import VoiceSettings, variable_of
from channels.voice.wires.realtime_urls import DEFAULT_URL
from flow_engine.errors import CallTheOperator, Finding
from service.logs import configure_logging
from service.voice_answering import Parts, VoiceAnswering


def serve_until_stopped(
    config: Path, host: str, port: int, *, base_url: str | None = None, recordings: Path | None = None
) -> int:
    """Returns the exit code: 0 after a signal, 2 for a config with errors, each of which has been printed.

    Raises FlowEngineError when the set-up forbids to start.
    """
    settings = voice_settings()
    builders = installed_builders(lambda: datetime.now(UTC))
    try:
        loaded = load_config(config, builders=tuple(builders), base_url=base_url)
    except ConfigRefused as refused:
        _print(config, "error", refused.problems)
        return 2
    _print(config, "warning", loaded.warnings)
    if settings.openai_api_key is None and settings.realtime_url == DEFAULT_URL:
        typer.echo("warning: OPENAI_API_KEY is not set, so OpenAI will refuse every call", err=True)
    configure_logging(settings.log_level)
    uvloop.run(_serve(settings, loaded.config, builders, host, port, recordings))
    return 0


def voice_settings() -> VoiceSettings:
    """Raises CallTheOperator `settings_invalid` with every setting that is wrong."""
    try:
        return VoiceSettings()
    except ValidationError as error:
        wrong = [f"{variable_of(str(e['loc'][0]))}: {e['msg']}" for e in error.errors(include_input=False)]
        raise CallTheOperator("settings_invalid", "; ".join(wrong)) from None


async def _serve(
    settings: VoiceSettings,
    config: VoiceConfig,
    builders: BuilderRegistry,
    host: str,
    port: int,
    recordings: Path | None,
) -> None:
    outbound = GuardedClient(AllowList.parse(settings.outbound_allowed(config.base_url)))
    counting = Counting()
    parts = Parts(
        settings,
        config,
        builders,
        outbound,
        counting,
        _twilio(settings, outbound),
        _sip(settings, outbound),
        recordings,
    )
    answering = VoiceAnswering(parts)
    app = voice_app(settings, answering, counting, parts.sip_calls)

    def started(at: int) -> None:
        typer.echo(f"Voice agent {config.agent.name!r} on http://{host}:{at}. Ctrl-C stops it.", err=True)

    try:
        await serve_voice(app, answering, host, port, drain_s=settings.voice_drain_s, started=started)
    finally:
        await outbound.aclose()


def _twilio(settings: VoiceSettings, outbound: GuardedClient) -> TwilioCalls | None:
    account, token = settings.twilio_account_sid, settings.twilio_auth_token
    if account is None or token is None:
        return None
    return TwilioCalls(outbound, account, token.get_secret_value(), base_url=settings.twilio_api_url)


def _sip(settings: VoiceSettings, outbound: GuardedClient) -> SipCalls | None:
    key = settings.openai_api_key
    return None if key is None else SipCalls(outbound, settings.realtime_url, key.get_secret_value())


def _print(config: Path, kind: str, findings: Iterable[Finding]) -> None:
    for finding in findings:
        typer.echo(f"{config}: {kind} at {finding.pointer or '/'}: {finding.message}", err=True)
