"""The tools of a config, run for a model (V6, V7, V14).

The order of an `http` tool: `pre_steps`, body, null removal, request, `store_in_ctx`,
`on_success_flags`, return. Whatever a model asks for and a server answers, the tool has an answer: what
the config says, the reply, or `{"error": "<reason>"}`. A failing fetch of a step is a failure of the tool.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, cast

import orjson
import structlog

from adapters.models.tools import Arguments, Tool, Verdict, shortened
from channels.http_tools.body_builders import BodyRefused, Builders, built_body
from channels.http_tools.documents import BuiltinTool, HttpTool
from channels.http_tools.http_calls import CallFailed, HttpCaller
from channels.http_tools.scope import Scope, Values
from flow_engine.json_values import deeper_than
from flow_engine.ports.models import ToolSpec
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import MAX_DEPTH, JsonValue

_log: Any = structlog.get_logger("flow_engine.agents.tools")

Outcome = Literal["ok", "failed", "unknown", "cancelled"]

MOST_TOOL_S: Final = 180.0
"""Seconds that a declarative tool may take, its steps included."""

_PHONE_OR_SIP: Final = re.compile(r"\+?[0-9]{2,15}|sips?:[^\s@<>\"]+@[^\s@<>\"]+")


class Actions(Protocol):
    """What a builtin tool does to its call. Both return at once."""

    def hang_up(self) -> None: ...

    def transfer(self, target: str) -> None: ...


@dataclass(slots=True)
class CallContext:
    """What is known in one call, JSON values. `ctx` changes while the call goes on; `specials` are asked for
    every time, as the clock is one of them."""

    ctx: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    session: JsonValue = None
    agent: Values = field(default_factory=dict[str, JsonValue])
    root: Values = field(default_factory=dict[str, JsonValue])
    specials: Callable[[], Values] = dict

    def scope(self, *, args: Values | None = None, **specials: JsonValue) -> Scope:
        """What a template sees now. `specials` are those of the moment, such as `error` or `outcome`."""
        return Scope(
            specials={**self.specials(), **specials},
            args=args or {},
            ctx=self.ctx,
            session=self.session,
            agent=self.agent,
            root=self.root,
        )


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of a tool that is known and allowed; `began` is in seconds, as the caller's clock has them."""

    name: str
    args: Values
    context: CallContext
    actions: Actions
    began: float
    pre: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])

    def scope(self, **specials: JsonValue) -> Scope:
        return self.context.scope(args=self.args, **specials).with_pre(self.pre)


class ToolExecutor:
    """Runs the tools of one config in one call. Whether one may run is decided before."""

    def __init__(
        self,
        tools: Mapping[str, HttpTool | BuiltinTool],
        caller: HttpCaller,
        builders: Builders,
    ) -> None:
        self._tools = tools
        self._caller = caller
        self._builders = builders

    async def run(
        self, name: str, arguments: str | Values, context: CallContext, actions: Actions
    ) -> JsonValue:
        """The answer for the model, `shortened`, as JSON holds it. `arguments` as the model wrote them, JSON
        text, or already read. Never raises for what a model asks for or a server answers: the answer is
        `{"error": …}` then."""
        started = self._caller.monotonic()
        args = _read_arguments(arguments)
        outcome: Outcome = "failed"
        answer: JsonValue
        try:
            tool = self._tools.get(name)
            if tool is None:
                answer, outcome = {"error": f"Fonction inconnue: {name}"}, "unknown"
            elif args is None:
                answer, outcome = {"error": "the arguments are no JSON object"}, "failed"
            elif isinstance(tool, BuiltinTool):
                answer, outcome = self._act(tool, _Run(name, args, context, actions, started))
            else:
                answer, outcome = await self._call(tool, _Run(name, args, context, actions, started))
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            _log.info(
                "tool_call",
                tool=name if name in self._tools else None,
                outcome=outcome,
                duration_ms=round((self._caller.monotonic() - started) * 1000),
                **self._caller.log_fields,
            )
        _log.debug("tool_values", tool=name, arguments=args, answer=answer, **self._caller.log_fields)
        return shortened(answer)

    def _act(self, tool: BuiltinTool, run: _Run) -> tuple[JsonValue, Outcome]:
        if tool.target is not None:
            target = tool.target.render_text(run.scope()).strip()
            _log.debug("template_rendered", tool=run.name, target=target, **self._caller.log_fields)
            if not _PHONE_OR_SIP.fullmatch(target):
                return {"error": "accepted as target is a phone number or a SIP address"}, "failed"
            run.actions.transfer(target)
        else:
            run.actions.hang_up()
            run.context.ctx["should_hangup"] = True
        self._set_flags(tool.on_success_flags, run)
        return {"status": "ok"}, "ok"

    async def _call(self, tool: HttpTool, run: _Run) -> tuple[JsonValue, Outcome]:
        try:
            for number, step in enumerate(tool.pre_steps, start=1):
                request = step.request
                reply = None if request is None else await self._caller.send(request, run.scope())
                scope = run.scope()
                extracted = {name: path.first(reply, scope) for name, path in step.extract.items()}
                run.pre.update(extracted)
                scope = run.scope()
                if any(
                    condition is not None and condition.holds(scope, reply, extracted)
                    for condition in (step.fail_if, step.condition)
                ):
                    reason = step.description or f"step {number} before the call failed"
                    told = step.fail_return
                    return {"error": reason} if told is None else told.render(scope, reply), "failed"
            built: JsonValue = None
            if tool.body_builder is not None:
                known = run.context.ctx, run.context.session
                built = built_body(self._builders, tool.body_builder, run.args, *known)
            reply = await self._caller.send(tool, run.scope(), body=built)
        except (CallFailed, BodyRefused) as failure:
            if tool.on_error is None:
                return {"error": str(failure)}, "failed"
            reply = failure.reply if isinstance(failure, CallFailed) else None
            return tool.on_error.answer.render(run.scope(error=str(failure)), reply), "failed"
        scope = run.scope()
        run.context.ctx.update({key: path.first(reply, scope) for key, path in tool.store_in_ctx.items()})
        self._set_flags(tool.on_success_flags, run)
        return reply if tool.on_success is None else tool.on_success.answer.render(run.scope(), reply), "ok"

    def _set_flags(self, flags: tuple[str, ...], run: _Run) -> None:
        if flags:
            run.context.ctx.update(dict.fromkeys(flags, True))
            duration_ms = round((self._caller.monotonic() - run.began) * 1000)
            _log.info(
                "flags_set",
                tool=run.name,
                flags=list(flags),
                duration_ms=duration_ms,
                **self._caller.log_fields,
            )


def _read_arguments(arguments: str | Values) -> Values | None:
    """None for what is no JSON object, or one too deep to be worked with. A model that has no arguments to
    give may write nothing at all."""
    read: JsonValue = dict(arguments) if isinstance(arguments, Mapping) else {}
    if isinstance(arguments, str) and arguments.strip():
        try:
            read = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return None
    return read if isinstance(read, dict) and not deeper_than(read, MAX_DEPTH) else None


class _NoLine:
    """Implements `Actions` where nobody is on the phone: an `http` tool never asks for it."""

    def hang_up(self) -> None:
        return

    def transfer(self, target: str) -> None:
        return


def http_tool(
    name: str,
    tool: HttpTool,
    parameters: Mapping[str, object],
    outbound: OutboundSender,
    context: CallContext,
    log_fields: Mapping[str, str],
    *,
    approval: Verdict = "allow",
) -> Tool:
    """A declarative tool for an agent that writes. `parameters` is the JSON Schema of its arguments; the
    defaults in there are filled in before the call, after the arguments were checked."""
    executor = ToolExecutor({name: tool}, HttpCaller(outbound, log_fields), {})

    async def run(arguments: Arguments) -> object:
        return await executor.run(name, with_defaults(parameters, arguments), context, _NoLine())

    return Tool(ToolSpec(name, tool.description or "", parameters), run, MOST_TOOL_S, approval)


def with_defaults(schema: Mapping[str, object], arguments: Values) -> dict[str, JsonValue]:
    """The arguments with what the schema's properties say of those that are left out, in objects inside of
    them too."""
    filled = dict(arguments)
    properties = schema.get("properties")
    for name, declared in (
        cast("dict[str, object]", properties) if isinstance(properties, dict) else {}
    ).items():
        if not isinstance(declared, dict):
            continue
        inner, value = cast("dict[str, object]", declared), filled.get(name)
        if name not in filled and "default" in inner:
            filled[name] = cast("JsonValue", inner["default"])
        elif isinstance(value, dict):
            filled[name] = with_defaults(inner, value)
    return filled
