"""How a config answers one call: its session, its greeting and its tools (V2, V4, V6)."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from adapters.models.tools import Approval
from channels.http_tools import body_builders, documents, http_calls
from channels.http_tools.scope import Scope
from channels.http_tools.tools import ToolExecutor
from channels.voice.call import ports
from channels.voice.config.declarations import Declaration, NotDeclarations, declarations
from channels.voice.config.lifecycle import ConfigLifecycle
from channels.voice.config.models import ConfigUrlSession, InlineSession, ResponseMapping, VoiceConfig
from channels.voice.config.vocabulary import VOICES, is_known, read_voice
from channels.voice.deliveries import Deliveries
from flow_engine.ports.models import ToolCall
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue

SESSION_WITHIN_S = 20.0
"""Nobody listens to silence any longer."""

MOST_SILENCES = 3
ASK_WHETHER_THERE = (
    "The caller has not said anything for a while. Ask in a few words whether they are still there."
)
NOT_PUT_THROUGH = (
    "The call could not be put through. Tell the caller so with an apology, and offer what else you can do."
)
SAY_GOODBYE = (
    "The caller still does not say anything, and the call ends now. Say goodbye in one short sentence."
)


@dataclass(frozen=True, slots=True)
class Business:
    """What all calls of one config have in common."""

    config: VoiceConfig
    session: ConfigUrlSession | InlineSession
    outbound: OutboundSender
    builders: body_builders.Builders
    approval: Approval


def open_configured(
    config: VoiceConfig,
    outbound: OutboundSender,
    *,
    clock: Callable[[], datetime],
    builders: body_builders.Builders,
    deliveries: Deliveries | None = None,
    approval: Approval | None = None,
) -> ports.OpenCall:
    """For a config whose session is `config_url` or `inline`. `approval` is the operator's policy on tools.
    Raises ValueError for a flow."""
    if not isinstance(config.session, ConfigUrlSession | InlineSession):
        raise ValueError(f"a session of mode {config.session.mode!r} is not in the config")
    business = Business(config, config.session, outbound, builders, approval or Approval())

    def opened(caller: ports.Caller, seat: ports.CallSeat) -> ports.AnsweredCall:
        lifecycle = ConfigLifecycle(config, outbound, clock, caller, deliveries)
        return ports.AnsweredCall(ConfiguredCallHandler(business, lifecycle, seat), lifecycle)

    return opened


class ConfiguredCallHandler:
    """Implements `CallHandler` for one call. `lifecycle` is the same call's, whose context its templates
    share."""

    def __init__(self, business: Business, lifecycle: ConfigLifecycle, controls: ports.CallControls) -> None:
        self._config = business.config
        self._session = business.session
        self._controls = controls
        self._lifecycle = lifecycle
        self._log = lifecycle.log
        self._context = lifecycle.context
        self._tools = ToolExecutor(business.config.tools, lifecycle.http, business.builders)
        self._approval = business.approval
        self._silences = 0
        self._before_transfer: dict[str, JsonValue] = {}
        """What the flags of the transfer under way were before it."""

    async def open(self) -> ports.SessionSettings | ports.Refused:
        scope = self._context.scope()
        try:
            if isinstance(self._session, InlineSession):
                session = inline_session(self._session, scope)
            else:
                async with asyncio.timeout(SESSION_WITHIN_S):
                    session = await fetched_session(self._session, self._lifecycle.http, scope)
        except SessionFailed as failure:
            self._log.error("session_failed", reason=str(failure))
            return ports.Refused(self._config.spoken_apology)
        except TimeoutError:
            self._log.error("session_failed", reason=f"no session within {SESSION_WITHIN_S:g} s")
            return ports.Refused(self._config.spoken_apology)
        self._context.session = session.document
        self._context.ctx.update(session.ctx)
        self._log.debug("template_rendered", instructions=session.instructions)
        settings = self._config.settings(session.instructions)
        lacking = sorted({str(tool["name"]) for tool in session.tools} - self._config.tools.keys())
        if lacking:
            self._log.warning("tools_without_handler", tools=lacking)
        voice = session.voice
        if voice is not None and not is_known(voice):
            self._log.warning("voice_unknown", voice=voice, used=settings.voice, known=list(VOICES))
            voice = None
        return replace(settings, tools=session.tools, voice=voice or settings.voice)

    async def started(self) -> str | None:
        greeting = self._config.greeting
        if greeting is None:
            return None
        scope = self._context.scope()
        field = greeting.condition_field
        is_known = field is not None and scope.lookup(field) is not None
        template = greeting.known_customer if is_known else None
        said = (template or greeting.unknown_customer).render_text(scope)
        self._log.debug("template_rendered", greeting=said)
        return said or None

    async def run_tool(self, name: str, arguments: str) -> JsonValue:
        tool, ctx = self._config.tools.get(name), self._context.ctx
        refusal = None if tool is None else await self._approval.refusal(ToolCall(name, name, {}))
        if refusal is not None:
            self._log.info("tool_call", tool=name, outcome="refused", duration_ms=0)
            return refusal
        before = {flag: ctx.get(flag) for flag in tool.on_success_flags} if tool is not None else {}
        answer = await self._tools.run(name, arguments, self._context, self._controls)
        if isinstance(tool, documents.BuiltinTool) and tool.target is not None and answer == {"status": "ok"}:
            self._before_transfer = before
        return answer

    async def notice(self, notice: ports.HandlerNotice) -> None:
        match notice:
            case ports.Turn():
                self._silences = 0 if notice.role == "user" else self._silences
            case ports.KeysPressed():
                self._silences = 0
            case ports.CallerSilent():
                # Ask whether the caller is there; say goodbye when that was asked twice without an answer.
                self._silences += 1
                if self._silences < MOST_SILENCES:
                    self._controls.instruct(ASK_WHETHER_THERE)
                    return
                self._log.info("caller_silent", times=self._silences)
                self._controls.instruct(SAY_GOODBYE)
                self._controls.hang_up()
            case ports.TransferFailed():
                self._context.ctx.update(self._before_transfer)
                self._controls.instruct(NOT_PUT_THROUGH)

    async def ended(self, ending: ports.Ending) -> None:
        """The lifecycle tells the business."""


# The session: from the config itself, or from the business for every call anew -----------------------------


class SessionFailed(Exception):
    """There is no session for this call, which is refused; the message says why, without addresses and
    content."""


@dataclass(frozen=True, slots=True)
class Session:
    """`document` is the whole reply, JSON, which templates know as `session`; `ctx` is for the call's
    context. `voice` is None where the reply names none."""

    instructions: str
    tools: tuple[Declaration, ...]
    voice: str | ports.CustomVoice | None = None
    ctx: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    document: JsonValue = None


def inline_session(session: InlineSession, scope: Scope) -> Session:
    return Session(session.instructions.render_text(scope), session.tools.declarations(scope))


async def fetched_session(session: ConfigUrlSession, http: http_calls.HttpCaller, scope: Scope) -> Session:
    """The session that the business answers with, JSON. Raises SessionFailed where there is no usable reply,
    or one without instructions."""
    try:
        document = await http.send(session, scope)
    except http_calls.CallFailed as failure:
        raise SessionFailed(failure.reason) from failure
    return mapped_session(session.response_mapping, document, scope)


def mapped_session(mapping: ResponseMapping, document: JsonValue, scope: Scope) -> Session:
    """The session that a reply describes. What is null there is as good as missing. Raises SessionFailed."""
    instructions = mapping.instructions.first(document, scope)
    if not isinstance(instructions, str) or not instructions.strip():
        raise SessionFailed("the reply has no instructions")
    try:
        tools = declarations(mapping.tools.first(document, scope) if mapping.tools else None)
    except NotDeclarations as error:
        raise SessionFailed(f"the tools of the reply: {error}") from error
    voice = mapping.voice.first(document, scope) if mapping.voice else None
    found = {name: path.first(document, scope) for name, path in mapping.ctx_init.items()}
    return Session(
        instructions=instructions,
        tools=tools,
        voice=read_voice(voice),
        ctx={name: value for name, value in found.items() if value is not None},
        document=document,
    )
