"""What the model is in one call: from the config itself, or from the business for every call anew (V2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from channels.http_tools.http_calls import CallFailed, HttpCaller
from channels.http_tools.scope import Scope
from channels.voice.config.declarations import Declaration, NotDeclarations, declarations
from channels.voice.config.models import ConfigUrlSession, InlineSession, ResponseMapping
from flow_engine.values import JsonValue


class SessionFailed(Exception):
    """There is no session for this call; the message says why, without addresses and content."""


@dataclass(frozen=True, slots=True)
class Session:
    """`document` is the whole reply, which templates know as `session`; `ctx` is for the call's context."""

    instructions: str
    tools: tuple[Declaration, ...]
    voice: str | None = None
    ctx: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    document: JsonValue = None


def inline_session(session: InlineSession, scope: Scope) -> Session:
    return Session(session.instructions.render_text(scope), session.tools.declarations(scope))


async def fetched_session(session: ConfigUrlSession, http: HttpCaller, scope: Scope) -> Session:
    """Raises SessionFailed."""
    try:
        document = await http.send(session, scope)
    except CallFailed as failure:
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
        voice=voice if isinstance(voice, str) and voice else None,
        ctx={name: value for name, value in found.items() if value is not None},
        document=document,
    )
