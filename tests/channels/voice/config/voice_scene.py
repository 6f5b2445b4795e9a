"""One call of a configured handler, with the business's API and the call's controls written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import orjson

from adapters.models.tools import Approval
from channels.http_tools.body_builders import default_builders
from channels.voice.call.ports import Caller, Ending, EndReason, SessionSettings, Turn
from channels.voice.config.call_handler import open_configured
from channels.voice.config.loader import load_config
from flow_engine.ports.outbound import OutboundFailed, OutboundReply
from flow_engine.values import JsonValue
from tests.channels.voice.books import InOrder
from tests.channels.voice.recording_doubles import RecordingControls

BEGIN = datetime(2026, 1, 15, 18, 0, tzinfo=UTC)
BEGIN_TEXT = "2026-01-15T18:00:00.000Z"
PHONE = "+33612345678"
PHONE_IN_QUERY = "%2B33612345678"

Reply: TypeAlias = "JsonValue | OutboundReply | OutboundFailed"
HttpCall = tuple[str, str, JsonValue]
"""Method, address behind the base, body (None for none)."""


class FakeBusiness:
    """Implements `OutboundSender`: answers by method and path, and keeps every call as it was made."""

    def __init__(self, base_url: str, replies: Mapping[str, Reply | Callable[[Any], Reply]]) -> None:
        self._base_url = base_url
        self.replies = dict(replies)
        self.calls: list[HttpCall] = []

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply:
        assert url.startswith(self._base_url + "/"), url
        address = url.removeprefix(self._base_url)
        body = orjson.loads(content) if content else None
        self.calls.append((method, address, body))
        reply = self.replies[f"{method} {address.partition('?')[0]}"]
        if callable(reply):
            reply = reply(body)
        if isinstance(reply, OutboundFailed):
            raise reply
        return reply if isinstance(reply, OutboundReply) else OutboundReply(200, orjson.dumps(reply))

    def taken(self) -> list[HttpCall]:
        """The calls since this was asked last."""
        calls, self.calls = self.calls, []
        return calls


@dataclass
class Scene:
    """`seconds` is how far the call has come."""

    config: dict[str, Any]
    business: FakeBusiness
    handler: InOrder
    controls: RecordingControls
    seconds: float = 0.0
    turns: list[Turn] = field(default_factory=list[Turn])

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.seconds)

    async def begin(self) -> SessionSettings:
        settings = await self.handler.open()
        assert isinstance(settings, SessionSettings), settings
        return settings

    async def tool(self, name: str, **arguments: JsonValue) -> JsonValue:
        return await self.handler.run_tool(name, json.dumps(arguments))

    async def hear(self, *texts: str) -> None:
        """Turns of both sides, a second each, the caller's first."""
        for text in texts:
            self.seconds += 1
            role = "assistant" if self.turns and self.turns[-1].role == "user" else "user"
            self.turns.append(Turn(role, text, self.now()))
            await self.handler.said(self.turns[-1])

    async def end(self, reason: EndReason = "caller_hung_up", seconds: float | None = None) -> None:
        self.seconds = self.seconds if seconds is None else seconds
        self.handler.has_begun = True
        await self.handler.ended(Ending(True, reason, self.seconds, tuple(self.turns)))

    def transcript(self) -> JsonValue:
        return [
            {
                "role": turn.role,
                "content": turn.text,
                "timestamp": f"2026-01-15T18:00:{(turn.at - BEGIN).seconds:02d}.000Z",
            }
            for turn in self.turns
        ]


def scene(
    config: dict[str, Any],
    replies: Mapping[str, Reply | Callable[[Any], Reply]] | None = None,
    *,
    phone: str | None = PHONE,
    approval: Approval | None = None,
) -> Scene:
    """A call of `config` as it is written in a file."""

    def clock() -> datetime:
        return made.now()

    builders = default_builders(clock)
    loaded = load_config(json.dumps(config).encode(), builders=builders)
    business = FakeBusiness(str(config.get("base_url")).rstrip("/"), replies or {})
    opened = open_configured(loaded.config, business, clock=clock, builders=builders, approval=approval)
    controls = RecordingControls()
    answered = opened(Caller("call-under-test", phone, {}, BEGIN), controls)
    made = Scene(config, business, InOrder(answered.handler, answered.lifecycle), controls)
    return made
