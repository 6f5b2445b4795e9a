"""What a config has one call do: checks, session, bookkeeping, greeting and tools (V2-V5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import structlog

from agents.declarative.body_builders import BuilderRegistry
from agents.declarative.http_calls import HttpCaller
from agents.declarative.scope import Scope
from agents.declarative.tools import CallContext, ToolExecutor
from agents.voice.config.checks import blocking
from agents.voice.config.lifecycle import keep_books, outcome_of
from agents.voice.config.models import ConfigUrlSession, InlineSession, PreCallCheck, VoiceConfig
from agents.voice.config.sessions import Session, SessionFailed, fetched_session, inline_session
from agents.voice.config.transcripts import as_entry, summary, utc_milliseconds
from agents.voice.config.voices import VOICES
from agents.voice.config.wording import wording
from agents.voice.ports import (
    CallControls,
    Caller,
    Ending,
    OpenPlaybook,
    Playbook,
    Refused,
    SessionSettings,
    Turn,
)
from flow_engine.ports import OutboundSender
from flow_engine.values import JsonValue
from llm.tools import Approval

_log: Any = structlog.get_logger("flow_engine.voice")

OPEN_WITHIN_S: Final = 25.0
"""Checks and session together: nobody listens to silence any longer."""

MOST_SILENCES: Final = 3
ASK_WHETHER_THERE: Final = (
    "The caller has not said anything for a while. Ask in a few words whether they are still there."
)
SAY_GOODBYE: Final = (
    "The caller still does not say anything, and the call ends now. Say goodbye in one short sentence."
)


@dataclass(frozen=True, slots=True)
class Business:
    """What all calls of one config have in common. `clock` gives aware moments; `approval` is the operator's
    policy on tools, and without one every tool of the config may run."""

    config: VoiceConfig
    session: ConfigUrlSession | InlineSession
    outbound: OutboundSender
    builders: BuilderRegistry
    clock: Callable[[], datetime]
    approval: Approval | None = None


def open_configured(
    config: VoiceConfig,
    outbound: OutboundSender,
    *,
    clock: Callable[[], datetime],
    builders: BuilderRegistry,
    approval: Approval | None = None,
) -> OpenPlaybook:
    """Playbooks for a config whose session is `config_url` or `inline`. Raises ValueError for a flow."""
    if not isinstance(config.session, ConfigUrlSession | InlineSession):
        raise ValueError(f"a session of mode {config.session.mode!r} is not in the config")
    business = Business(config, config.session, outbound, builders, clock, approval)

    def opened(caller: Caller, controls: CallControls) -> Playbook:
        return ConfiguredPlaybook(business, caller, controls)

    return opened


class ConfiguredPlaybook:
    """Implements `Playbook` for one call."""

    def __init__(self, business: Business, caller: Caller, controls: CallControls) -> None:
        config = business.config
        self._business = business
        self._config = config
        self._caller = caller
        self._controls = controls
        self._log = _log.bind(agent_id=config.agent.id, call_id=caller.call_id)
        self._http = HttpCaller(business.outbound, {"agent_id": config.agent.id, "call_id": caller.call_id})
        self._tools = ToolExecutor(config.tools, self._http, business.builders, business.approval)
        self._turns: list[Turn] = []
        self._duration_s: float | None = None
        self._silences = 0
        self._context = CallContext(
            ctx=_first_context(config, caller),
            agent={**config.agent.model_dump()},
            root={"base_url": config.base_url},
            specials=self._specials,
        )

    async def open(self) -> SessionSettings | Refused:
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                check = await blocking(self._config.pre_call_checks, self._http, self._scope(), self._log)
                if check is not None:
                    return self._refused(check)
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
        stored = await keep_books(
            "on_start", self._config.lifecycle.on_start, self._http, self._scope(), self._log
        )
        self._context.ctx.update(stored)
        return self._greeting()

    async def run_tool(self, name: str, arguments: str) -> JsonValue:
        return await self._tools.run(name, arguments, self._context, self._controls)

    async def said(self, turn: Turn) -> None:
        if turn.role == "user":
            self._silences = 0
        self._remember([*self._turns, turn])

    async def silent(self) -> None:
        """Ask whether the caller is there; say goodbye when that was asked twice without an answer."""
        self._silences += 1
        if self._silences < MOST_SILENCES:
            self._controls.instruct(ASK_WHETHER_THERE)
            return
        self._log.info("caller_silent", times=self._silences)
        self._controls.instruct(SAY_GOODBYE)
        self._controls.hang_up()

    async def ended(self, ending: Ending) -> None:
        if not ending.started:
            return
        self._remember(list(ending.transcript))
        self._duration_s = ending.duration_s
        lifecycle = self._config.lifecycle
        outcome = outcome_of(lifecycle.outcome_rules, self._context.ctx)
        self._log.info(
            "call_outcome", outcome=outcome, flags=self._flags(), duration_ms=round(ending.duration_s * 1000)
        )
        for event, call in (("on_no_action", lifecycle.on_no_action), ("on_end", lifecycle.on_end)):
            scope = self._context.scope(outcome=outcome)
            self._context.ctx.update(await keep_books(event, call, self._http, scope, self._log))

    # Inside ----------------------------------------------------------------------------------------

    def _refused(self, check: PreCallCheck) -> Refused:
        text = check.message.render_text(self._scope()) if check.message else ""
        return Refused(text or None)

    async def _session(self) -> Session:
        session = self._business.session
        if isinstance(session, InlineSession):
            return inline_session(session, self._scope())
        return await fetched_session(session, self._http, self._scope())

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
        scope = self._scope()
        field = greeting.condition_field
        is_known = field is not None and scope.lookup(field) is not None
        template = greeting.known_customer if is_known else None
        return (template or greeting.unknown_customer).render_text(scope) or None

    def _remember(self, turns: list[Turn]) -> None:
        self._turns = turns
        self._context.ctx["transcript"] = [as_entry(turn) for turn in turns]
        self._context.ctx["had_conversation"] = bool(turns)

    def _scope(self) -> Scope:
        return self._context.scope()

    def _specials(self) -> Mapping[str, JsonValue]:
        now = self._business.clock()
        duration_s = self._duration_s
        if duration_s is None:
            duration_s = (now - self._caller.started_at).total_seconds()
        return {
            "now_iso": utc_milliseconds(now),
            "caller_phone": self._caller.phone,
            "call_duration_sec": round(duration_s),
            "transcript": [as_entry(turn) for turn in self._turns],
            "transcript_summary": summary(self._turns, wording(self._config.agent.language)),
        }

    def _flags(self) -> list[str]:
        """The flags of the config that are set, for the log: their names tell nothing of the caller."""
        named = {rule.flag for rule in self._config.lifecycle.outcome_rules if rule.flag is not None}
        named.update(flag for tool in self._config.tools.values() for flag in tool.on_success_flags)
        return sorted(flag for flag in named if self._context.ctx.get(flag))


def _first_context(config: VoiceConfig, caller: Caller) -> dict[str, JsonValue]:
    """What the engine itself keeps in `ctx` (V11). `call_id` and `customer_id` are the business's to fill."""
    return {
        "caller_phone": caller.phone,
        "agent_id": config.agent.id,
        "call_start": utc_milliseconds(caller.started_at),
        "call_id": None,
        "customer_id": None,
        "had_conversation": False,
        "transcript": [],
        "should_hangup": False,
    }
