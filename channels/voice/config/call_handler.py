"""What a config has one call do: checks, session, bookkeeping, greeting and tools (V2-V5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from channels.http_tools.body_builders import BuilderRegistry
from channels.http_tools.tools import ToolExecutor
from channels.voice.call.ports import (
    CallControls,
    Caller,
    CallHandler,
    Ending,
    OpenCallHandler,
    Refused,
    SessionSettings,
    Turn,
)
from channels.voice.config.call_lifecycle import CallLifecycle
from channels.voice.config.models import ConfigUrlSession, InlineSession, VoiceConfig
from channels.voice.config.sessions import Session, SessionFailed, fetched_session, inline_session
from channels.voice.config.voices import VOICES
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue

OPEN_WITHIN_S: Final = 25.0
"""Checks and session together: nobody listens to silence any longer."""

MOST_SILENCES: Final = 3
ASK_WHETHER_THERE: Final = (
    "The caller has not said anything for a while. Ask in a few words whether they are still there."
)
NOT_PUT_THROUGH: Final = (
    "The call could not be put through. Tell the caller so with an apology, and offer what else you can do."
)
SAY_GOODBYE: Final = (
    "The caller still does not say anything, and the call ends now. Say goodbye in one short sentence."
)


@dataclass(frozen=True, slots=True)
class Business:
    """What all calls of one config have in common. `clock` gives aware moments."""

    config: VoiceConfig
    session: ConfigUrlSession | InlineSession
    outbound: OutboundSender
    builders: BuilderRegistry
    clock: Callable[[], datetime]


def open_configured(
    config: VoiceConfig,
    outbound: OutboundSender,
    *,
    clock: Callable[[], datetime],
    builders: BuilderRegistry,
) -> OpenCallHandler:
    """Handlers for a config whose session is `config_url` or `inline`. Raises ValueError for a flow."""
    if not isinstance(config.session, ConfigUrlSession | InlineSession):
        raise ValueError(f"a session of mode {config.session.mode!r} is not in the config")
    business = Business(config, config.session, outbound, builders, clock)

    def opened(caller: Caller, controls: CallControls) -> CallHandler:
        return ConfiguredCallHandler(business, caller, controls)

    return opened


class ConfiguredCallHandler:
    """Implements `CallHandler` for one call."""

    def __init__(self, business: Business, caller: Caller, controls: CallControls) -> None:
        config = business.config
        self._business = business
        self._config = config
        self._controls = controls
        self._lifecycle = books = CallLifecycle(config, business.outbound, business.clock, caller)
        self._log = books.log
        self._context = books.context
        self._tools = ToolExecutor(config.tools, books.http, business.builders)
        self._silences = 0

    async def open(self) -> SessionSettings | Refused:
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                refusal = await self._lifecycle.refusal()
                if refusal is not None:
                    return refusal
                session = await self._session()
        except SessionFailed as failure:
            self._log.error("session_failed", reason=str(failure))
            return Refused(self._config.spoken_apology)
        except TimeoutError:
            self._log.error("session_failed", reason=f"no session within {OPEN_WITHIN_S:g} s")
            return Refused(self._config.spoken_apology)
        self._context.session = session.document
        self._context.ctx.update(session.ctx)
        return self._settings(session)

    async def started(self) -> str | None:
        await self._lifecycle.began()
        return self._greeting()

    async def run_tool(self, name: str, arguments: str) -> JsonValue:
        return await self._tools.run(name, arguments, self._context, self._controls)

    async def said(self, turn: Turn) -> None:
        if turn.role == "user":
            self._silences = 0
        self._lifecycle.said(turn)

    async def silent(self) -> None:
        """Ask whether the caller is there; say goodbye when that was asked twice without an answer."""
        self._silences += 1
        if self._silences < MOST_SILENCES:
            self._controls.instruct(ASK_WHETHER_THERE)
            return
        self._log.info("caller_silent", times=self._silences)
        self._controls.instruct(SAY_GOODBYE)
        self._controls.hang_up()

    async def not_transferred(self, target: str) -> None:
        self._controls.instruct(NOT_PUT_THROUGH)

    async def ended(self, ending: Ending) -> None:
        await self._lifecycle.ended(ending)

    # Inside ----------------------------------------------------------------------------------------

    async def _session(self) -> Session:
        session = self._business.session
        if isinstance(session, InlineSession):
            return inline_session(session, self._lifecycle.scope())
        return await fetched_session(session, self._lifecycle.http, self._lifecycle.scope())

    def _settings(self, session: Session) -> SessionSettings:
        settings = self._config.settings(session.instructions)
        lacking = sorted({str(tool["name"]) for tool in session.tools} - self._config.tools.keys())
        if lacking:
            self._log.warning("tools_without_handler", tools=lacking)
        voice = session.voice
        if voice is not None and voice not in VOICES:
            self._log.warning("voice_unknown", voice=voice, used=settings.voice, known=list(VOICES))
            voice = None
        return replace(settings, tools=session.tools, voice=voice or settings.voice)

    def _greeting(self) -> str | None:
        greeting = self._config.greeting
        if greeting is None:
            return None
        scope = self._lifecycle.scope()
        field = greeting.condition_field
        is_known = field is not None and scope.lookup(field) is not None
        template = greeting.known_customer if is_known else None
        return (template or greeting.unknown_customer).render_text(scope) or None
