"""Calls that come by SIP to the model itself: who calls, and steering the call by the model's REST interface.

The audio never passes here. The model's server answers the phone, and this side joins the session beside it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import orjson
import structlog

from channels.voice.call.events import Audio
from channels.voice.carriers import call_control
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue

BUSY_HERE = 486
MOST_OWN_HEADERS = 32
LONGEST_VALUE = 400

log: Any = structlog.get_logger("flow_engine.voice")


@dataclass(frozen=True, slots=True)
class SipCall:
    """A call that waits to be accepted. `call_id` is the model's name for it.

    `parameters`: `callerPhone` and `calledPhone` where the addresses name numbers, `from` and `to` as URIs,
    and the carrier's own `X-` headers by their names in lower case. All of it is the caller's word.
    """

    call_id: str
    phone: str | None
    parameters: Mapping[str, str]


def sip_call(call_id: str, headers: Sequence[tuple[str, str]]) -> SipCall:
    """Who calls, by the headers of the SIP INVITE (RFC 3261). The network's own word (P-Asserted-Identity)
    counts before the phone's; one who asks for privacy is nobody. Never raises for what a header holds."""
    first: dict[str, str] = {}
    for name, value in headers:
        first.setdefault(name.strip().lower(), value.strip())
    caller, called = (call_control.address_in(first.get(name, "")) for name in ("from", "to"))
    is_private = first.get("privacy", "none").lower() not in ("", "none")
    asserted = (
        call_control.caller_number(address)
        for name, value in headers
        if name.strip().lower() == "p-asserted-identity"
        for address in call_control.addresses_in(value)
    )
    phone = None if is_private else next(filter(None, asserted), None) or call_control.caller_number(caller)
    own = [(name, value) for name, value in first.items() if name.startswith("x-")][:MOST_OWN_HEADERS]
    parameters = {
        **dict(own),
        "from": "" if is_private else caller,
        "to": called,
        "callerPhone": phone or "",
        "calledPhone": call_control.number_in(called) or "",
    }
    return SipCall(
        call_id, phone, {name: value[:LONGEST_VALUE] for name, value in parameters.items() if value}
    )


class SipCalls:
    """Raises LineControlFailed where the model's server refuses the request."""

    def __init__(self, sender: OutboundSender, realtime_url: str, api_key: str) -> None:
        self._sender = sender
        url = urlsplit(realtime_url)
        scheme = {"wss": "https", "ws": "http"}[url.scheme]
        self._calls = urlunsplit((scheme, url.netloc, url.path.rstrip("/") + "/calls", "", ""))
        self._headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}

    async def accept(self, call_id: str, session: Mapping[str, JsonValue]) -> None:
        """Answer the phone. `session` is the JSON of `session.update`, with `type` and `model`. Raises
        LineControlFailed."""
        await self._do("accept", call_id, session)

    async def reject(self, call_id: str, status: int = BUSY_HERE) -> None:
        await self._do("reject", call_id, {"status_code": status})

    async def refer(self, call_id: str, target: str) -> None:
        """Give the call to a phone number or SIP address. Raises CorrectTheInput
        `transfer_target_invalid` too, before anything is sent."""
        await self._do("refer", call_id, {"target_uri": call_control.parse_target(target).uri})

    async def hang_up(self, call_id: str) -> None:
        """A call that has ended already is no error. Raises LineControlFailed for any other refusal."""
        await self._do("hangup", call_id, None, gone_is_fine=True)

    async def _do(
        self, action: str, call_id: str, body: Mapping[str, JsonValue] | None, *, gone_is_fine: bool = False
    ) -> None:
        step = f"{action} of a SIP call"
        url = f"{self._calls}/{quote(call_id, safe='')}/{action}"
        content = b"" if body is None else orjson.dumps(body)
        reply = await call_control.post(self._sender, step, url, self._headers, content)
        if not (gone_is_fine and reply.status == 404):
            call_control.check(step, reply)


class SipLine:
    """Implements `Line` for a call whose audio the model's server plays itself: there is nothing to play,
    to mark or to clear here."""

    def __init__(self, call_id: str, calls: SipCalls) -> None:
        self._call_id = call_id
        self._calls = calls
        self._left = False
        self._leaving: asyncio.Task[None] | None = None

    def play(self, audio: Audio) -> None:
        pass

    def mark(self, name: str) -> None:
        pass

    def clear(self) -> None:
        pass

    def close(self) -> None:
        """Hang up, unless the call has been given to somebody else."""
        if not self._left:
            self._left = True
            self._leaving = asyncio.get_running_loop().create_task(self._hang_up())

    async def transfer(self, target: str) -> None:
        """Raises LineControlFailed, or CorrectTheInput `transfer_target_invalid`; the line is still there
        then, to be closed."""
        await self._calls.refer(self._call_id, target)
        self._left = True

    async def left(self) -> None:
        """Returns when the hanging up that `close` began is done."""
        if self._leaving is not None:
            await self._leaving

    async def _hang_up(self) -> None:
        try:
            await self._calls.hang_up(self._call_id)
        except call_control.LineControlFailed as failed:
            log.warning("hang_up_failed", reason=str(failed))
