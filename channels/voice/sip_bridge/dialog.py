"""One call of a SIP phone: the dialog with the server (RFC 3261), its audio, and the agent's stream.

To the agent the call comes as from its carrier: offered over HTTP, and streamed to its WebSocket. The agent
is on this machine, and takes calls of it without a signature where it has no token of Twilio.
"""

import asyncio
import base64
import binascii
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast
from urllib.parse import urlencode
from xml.sax.saxutils import unescape

import orjson
import structlog
from picows import WSError, ws_connect  # pyright: ignore[reportUnknownVariableType] - untyped keywords

from channels.voice.carriers.call_control import address_in
from channels.voice.carriers.sip.calls import sip_call
from channels.voice.sip_bridge import messages
from channels.voice.sip_bridge.rtp import RtpStream
from channels.voice.wires.sockets import MAX_LINE_MESSAGE, MessageSocket
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundSender

OFFERED_WITHIN_S = 5.0

_PARAMETER = re.compile(r'<Parameter name="([^"]*)" value="([^"]*)"')
_QUOTES: Mapping[str, str] = {"&quot;": '"'}


class AgentAway(Exception):
    """The agent takes no call now: it is busy, not there, or wants a signature. The message says which."""


class Playing(Protocol):
    """What an agent does to its line. All methods return at once."""

    def play(self, audio: bytes) -> None: ...

    def mark(self, name: str) -> None: ...

    def clear(self) -> None: ...


async def offered(
    sender: OutboundSender, port: int, call_sid: str, caller: str | None, called: str
) -> dict[str, str]:
    """Offer a call to the agent on `port`. Returns the parameters of the stream that it wants. Raises
    AgentAway."""
    form = urlencode({"CallSid": call_sid, "From": caller or "anonymous", "To": called})
    try:
        reply = await sender.request(
            "POST",
            f"http://127.0.0.1:{port}/incoming-call",
            timeout_s=OFFERED_WITHIN_S,
            headers={"Content-Type": "application/x-www-form-urlencoded"},
            content=form.encode(),
        )
    except (OutboundRefused, OutboundFailed) as error:
        raise AgentAway(f"the agent does not answer: {error}") from error
    text = reply.body.decode("utf-8", "replace")
    if reply.status != 200 or "<Stream" not in text:
        raise AgentAway("busy" if reply.status == 200 else f"the agent answered with status {reply.status}")
    return {name: unescape(value, dict(_QUOTES)) for name, value in _PARAMETER.findall(text)}


class AgentStream(MessageSocket):
    """The stream of one call: audio in raw µ-law of 8 kHz, both ways. `line` is set before it is opened;
    `over` is called once, when the agent has ended it."""

    line: Playing

    def __init__(self, over: Callable[[], None]) -> None:
        super().__init__(MAX_LINE_MESSAGE)
        self._over = over
        self._stream_sid = "MZ" + uuid.uuid4().hex
        self._frames = 0

    async def open(self, port: int, call_sid: str, parameters: Mapping[str, str]) -> None:
        """Raises AgentAway."""
        try:
            await ws_connect(
                lambda: self,
                f"ws://127.0.0.1:{port}/media-stream",
                max_frame_size=MAX_LINE_MESSAGE,
                max_redirects=0,
                enable_auto_ping=True,
            )
        except (OSError, WSError) as error:
            raise AgentAway(f"the agent takes no stream: {error}") from error
        start = {
            "streamSid": self._stream_sid,
            "callSid": call_sid,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": dict(parameters),
        }
        self._tell("connected", protocol="Call", version="1.0.0")
        self._tell("start", start=start)

    def heard(self, audio: bytes) -> None:
        if self.is_congested:
            return
        self._frames += 1
        media = {
            "track": "inbound",
            "chunk": str(self._frames),
            "timestamp": str(self._frames * len(audio) // 8),
            "payload": base64.b64encode(audio).decode(),
        }
        self._tell("media", media=media)

    def pressed(self, key: str) -> None:
        self._tell("dtmf", dtmf={"track": "inbound_track", "digit": key})

    def reached(self, name: str) -> None:
        self._tell("mark", mark={"name": name})

    def hang_up(self) -> None:
        """The caller has gone."""
        self._tell("stop", stop={"accountSid": "", "callSid": ""})
        self.close()

    def message(self, message: bytes) -> None:
        try:
            read: object = orjson.loads(message)
        except orjson.JSONDecodeError:
            read = None
        event = cast("dict[str, object]", read) if isinstance(read, dict) else {}
        kind, media, mark = (event.get(name) for name in ("event", "media", "mark"))
        if kind == "media" and isinstance(media, dict):
            payload = cast("dict[str, object]", media).get("payload")
            try:
                self.line.play(base64.b64decode(str(payload), validate=True))
            except binascii.Error:
                self.unreadable("media that is not base64")
        elif kind == "mark" and isinstance(mark, dict):
            self.line.mark(str(cast("dict[str, object]", mark).get("name")))
        elif kind == "clear":
            self.line.clear()
        else:
            self.unreadable("no event that a line knows")

    def gone(self) -> None:
        self._over()

    def _tell(self, event: str, **fields: object) -> None:
        self.send(orjson.dumps({"event": event, "streamSid": self._stream_sid, **fields}))


AGAIN_S = 0.5
MOST_TRIES = 7
"""Of a message without an answer, after 0.5, 1, 2, 4, 4, 4 s."""

ALLOW = ("allow", "INVITE, ACK, BYE, CANCEL, OPTIONS, INFO")

_SIGNAL = re.compile(rb"Signal\s*=\s*([0-9*#A-D])")

log: Any = structlog.get_logger("flow_engine.voice.sip_bridge")


class Server(Protocol):
    """What a dialog needs of its phone."""

    @property
    def username(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def contact(self) -> str: ...

    def send(self, datagram: bytes) -> None: ...

    async def request(
        self, method: str, uri: str, headers: list[tuple[str, str]], *, number: int, branch: str | None = None
    ) -> messages.SipMessage: ...


class SipDialog:
    """One call, from its INVITE to its end. `task` is done when nothing is left of it."""

    def __init__(
        self, phone: Server, invite: messages.SipMessage, agent_port: int, local: OutboundSender
    ) -> None:
        self._phone = phone
        self._invite = invite
        self._agent_port = agent_port
        self._local = local
        self._tag = uuid.uuid4().hex[:8]
        self._last = b""
        self._confirmed = asyncio.Event()
        self._over = asyncio.Event()
        self._description = b""
        self._by_caller = False
        self._stream: AgentStream | None = None
        self._caller = sip_call(invite.first("call-id"), invite.headers)
        self.task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """Hang up."""
        self._over.set()

    def take(self, message: messages.SipMessage) -> None:
        """A request of the other side in this call."""
        match message.method:
            case "ACK":
                self._confirmed.set()
            case "INVITE" if message.first("cseq") == self._invite.first("cseq"):
                self._phone.send(self._last)
            case "INVITE":  # the same audio goes on
                self._phone.send(
                    messages.write_response(message, "200 OK", tag=self._tag, body=self._description)
                )
            case "BYE" | "CANCEL":
                self._phone.send(messages.write_response(message, "200 OK", tag=self._tag))
                if message.method == "BYE" or not self._is_answered:  # too late to cancel otherwise
                    self._by_caller = True
                    self._over.set()
            case _:
                if self._stream is not None and (key := _SIGNAL.search(message.body)) is not None:
                    self._stream.pressed(key[1].decode())
                self._phone.send(messages.write_response(message, "200 OK", tag=self._tag, headers=[ALLOW]))

    @property
    def _is_answered(self) -> bool:
        return self._last.startswith(b"SIP/2.0 200")

    async def _run(self) -> None:
        self._answer("100 Trying")
        offer = messages.read_offer(self._invite.body)
        if offer is None:
            self._answer("488 Not Acceptable Here")
            return
        call_sid = "CA" + uuid.uuid4().hex
        log.info("sip_call_offered", call_sid=call_sid)
        try:
            called = self._caller.parameters.get("calledPhone") or self._phone.username
            wanted = await offered(self._local, self._agent_port, call_sid, self._caller.phone, called)
            loop = asyncio.get_running_loop()
            stream = self._stream = AgentStream(self._over.set)
            stream.line = rtp = RtpStream(
                offer, heard=stream.heard, pressed=stream.pressed, reached=stream.reached
            )
            # The server says where audio comes from: any address of this machine may be the one.
            transport, _ = await loop.create_datagram_endpoint(lambda: rtp, local_addr=("0.0.0.0", 0))  # noqa: S104
            self._description = messages.write_answer(
                offer, self._phone.host, transport.get_extra_info("sockname")[1]
            )
            try:
                await stream.open(self._agent_port, call_sid, wanted)
                speaking = loop.create_task(rtp.speak())
                try:
                    if not self._over.is_set() and await self._is_confirmed():
                        await self._over.wait()
                finally:
                    speaking.cancel()
                    stream.hang_up()
                await self._hang_up()
            finally:
                transport.close()
        except AgentAway as away:
            log.warning("sip_call_not_taken", call_sid=call_sid, reason=str(away))
            self._answer("486 Busy Here" if str(away) == "busy" else "480 Temporarily Unavailable")
        log.info("sip_call_ended", call_sid=call_sid)

    async def _is_confirmed(self) -> bool:
        """Answer the call until its ACK comes; whether it came."""
        pause_s = AGAIN_S
        for _ in range(MOST_TRIES):
            contact = [("contact", self._phone.contact), ALLOW, ("content-type", "application/sdp")]
            self._answer("200 OK", headers=contact, body=self._description)
            waiting = {asyncio.ensure_future(each.wait()) for each in (self._confirmed, self._over)}
            await asyncio.wait(waiting, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            if self._confirmed.is_set() or self._over.is_set():
                return self._confirmed.is_set()
            pause_s = min(2 * pause_s, 4.0)
        return False

    async def _hang_up(self) -> None:
        """Tell the other side, where it does not know."""
        if not self._is_answered:
            self._answer("487 Request Terminated" if self._by_caller else "480 Temporarily Unavailable")
            return
        if self._by_caller:
            return
        invite = self._invite
        own = invite.first("to") + f";tag={self._tag}"
        headers = [("from", own), ("to", invite.first("from")), ("call-id", invite.first("call-id"))]
        headers += [("route", value) for _, value in invite.all("record-route")]
        target = address_in(invite.first("contact")) or address_in(invite.first("from"))
        try:
            await self._phone.request("BYE", target, headers, number=1)
        except TimeoutError:
            log.warning("sip_bye_unanswered")

    def _answer(
        self, status: str, *, headers: list[tuple[str, str]] | None = None, body: bytes = b""
    ) -> None:
        tag = "" if status.startswith("100") else self._tag
        self._last = messages.write_response(self._invite, status, tag=tag, headers=headers or (), body=body)
        self._phone.send(self._last)
