"""A call as its agent has it: offered over HTTP, and streamed to its WebSocket, as from its carrier.

The agent is on this machine, and takes calls of it without a signature where it has no token of Twilio.
"""

import base64
import re
import uuid
from collections.abc import Callable, Mapping
from urllib.parse import urlencode
from xml.sax.saxutils import unescape

import orjson
from picows import WSError

from channels.voice.sip_bridge.rtp import RtpStream
from channels.voice.wires import frames
from channels.voice.wires.sockets import MAX_LINE_MESSAGE, MessageSocket
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundSender

OFFERED_WITHIN_S = 5.0

_PARAMETER = re.compile(r'<Parameter name="([^"]*)" value="([^"]*)"')


class AgentAway(Exception):
    """The agent takes no call now: it is busy, not there, or wants a signature. The message says which."""


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
    return {name: unescape(value, {"&quot;": '"'}) for name, value in _PARAMETER.findall(text)}


class AgentStream(MessageSocket):
    """The stream of one call: audio in raw µ-law of 8 kHz, both ways. `line` is set before it is opened;
    `over` is called once, when the agent has ended it."""

    line: RtpStream

    def __init__(self, over: Callable[[], None]) -> None:
        super().__init__(MAX_LINE_MESSAGE)
        self._over = over
        self._stream_sid = "MZ" + uuid.uuid4().hex
        self._frames = 0

    async def open(self, port: int, call_sid: str, parameters: Mapping[str, str]) -> None:
        """Raises AgentAway."""
        try:
            await self.connect(f"ws://127.0.0.1:{port}/media-stream")
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
            event = frames.read_object(message)
            match event.get("event"):
                case "media":
                    payload = frames.text(frames.part(event, "media"), "payload")
                    self.line.play(base64.b64decode(payload, validate=True))
                case "mark":
                    self.line.mark(frames.text(frames.part(event, "mark"), "name"))
                case "clear":
                    self.line.clear()
                case _:
                    self.unreadable("no event that a line knows")
        except frames.Malformed as wrong:
            self.unreadable(str(wrong))
        except ValueError:  # characters beyond ASCII too
            self.unreadable("media that is not base64")

    def gone(self) -> None:
        self._over()

    def _tell(self, event: str, **fields: object) -> None:
        self.send(orjson.dumps({"event": event, "streamSid": self._stream_sid, **fields}))
