"""A phone call as Twilio streams it, without Twilio and without a phone.

    async with FakeTwilioCall("ws://127.0.0.1:5050/media-stream", parameters={"caller": "+33…"}) as call:
        await call.say("A table for two, please.")
        await eventually(lambda: call.playout.heard != [])
        await call.hang_up()

The line has a way there and back, plays what it is sent in real time, and keeps a log of the truth: what
its caller heard and when (`playout`), what arrived (`received`), and what Twilio would not have taken
(`mistakes`). All times are those of the running loop, in seconds. `speed` makes everything go faster than
in the world.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import orjson
from picows import WSHandshakeError, ws_connect  # pyright: ignore[reportUnknownVariableType]

from channels.voice.testing import playout, signals, sockets
from channels.voice.wires.frames import Malformed, audio_of, name, part, read_object, text

FRAME_MS: Final = 20
_SILENCE: Final = base64.b64encode(signals.silence(FRAME_MS)).decode()
_FRAME_BYTES: Final = len(signals.silence(FRAME_MS))
_MS_PER_LETTER: Final = 60
_numbers: Final = itertools.count(1)


class CallRefused(Exception):
    """The server did not take the stream. `status` is that of its answer, None where there was none."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the stream was refused with status {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Received:
    """One frame as it arrived at the line: a mark by its name, media by its milliseconds."""

    at: float
    event: str
    name: str = ""
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Spoken:
    """What the caller said: when the first frame of it was sent, and the last. It arrives a way later."""

    begins_at: float
    ends_at: float
    text: str


@dataclass(slots=True)
class _Utterance:
    text: str
    frames: deque[str]
    done: asyncio.Future[Spoken]
    begins_at: float | None = None


class FakeTwilioCall:
    """One call: a client of the media stream. `latency_s` is one way of the line."""

    def __init__(
        self,
        url: str | Callable[[Callable[[bytes], None]], sockets.Socket],
        *,
        parameters: Mapping[str, str] | None = None,
        auth_token: str | None = None,
        signed_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        latency_s: float = 0.06,
        speed: float = 1.0,
        sends_silence: bool = True,
    ) -> None:
        """`url` is the server's; or what opens a line within the process, given what takes its frames.

        With `auth_token` the handshake is signed, over `signed_url` (default: `url` as wss). Without
        `sends_silence` nothing is sent while the caller says nothing."""
        number = next(_numbers)
        self.stream_sid = f"MZ{number:032x}"
        self.call_sid = f"CA{number:032x}"
        self.received: list[Received] = []
        self.mistakes: list[str] = []
        self._url = url
        self._parameters = dict(parameters or {})
        self._headers = dict(headers or {})
        if auth_token is not None:
            signed = signed_url or str(url).replace("ws://", "wss://", 1)
            self._headers["X-Twilio-Signature"] = signature(auth_token, signed)
        self._latency_s = latency_s / speed
        self._speed = speed
        self._sends_silence = sends_silence
        self._chunks = itertools.count(1)
        self._sequence = itertools.count(1)
        self._utterances: deque[_Utterance] = deque()
        self._is_stalled = False

    async def __aenter__(self) -> Self:
        """Raises CallRefused."""
        self.playout = playout.Playout(asyncio.get_running_loop().time(), speed=self._speed)
        self._there: sockets.Delay[bytes] = sockets.Delay(
            self._latency_s, lambda frame, _: self.socket.send(frame)
        )
        self._back: sockets.Delay[bytes] = sockets.Delay(self._latency_s, self._arrive)
        if isinstance(self._url, str):
            self.socket = await self._connected(self._url)
        else:
            self.socket = self._url(self._back.put)
        self._send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        start = {
            "accountSid": "AC0",
            "streamSid": self.stream_sid,
            "callSid": self.call_sid,
            "tracks": ["inbound"],
            "customParameters": self._parameters,
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        }
        self._send(self._numbered("start", start))
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._ticking
        self._there.cancel()
        self._back.cancel()
        if self.socket.is_open:
            self.socket.drop()
            await self.socket.closed.wait()
        for utterance in self._utterances:
            utterance.done.cancel()

    # What a caller does ------------------------------------------------------------------------------

    def say(self, text: str, ms: int | None = None) -> asyncio.Future[Spoken]:
        """Speech, of `ms` milliseconds, from now on or after what is being said. The result is there when it
        has been said."""
        lasts = max(400, _MS_PER_LETTER * len(text)) if ms is None else ms
        raw = signals.speech(text, -(-lasts // FRAME_MS) * FRAME_MS)
        frames = (raw[at : at + _FRAME_BYTES] for at in range(0, len(raw), _FRAME_BYTES))
        done: asyncio.Future[Spoken] = asyncio.get_running_loop().create_future()
        encoded = deque(base64.b64encode(frame).decode() for frame in frames)
        self._utterances.append(_Utterance(text, encoded, done))
        return done

    def press(self, digit: str) -> None:
        self._send(self._numbered("dtmf", {"track": "inbound_track", "digit": digit}))

    async def hang_up(self) -> None:
        """The end of the stream, as it comes when the caller hangs up."""
        self._send(self._numbered("stop", {"accountSid": "AC0", "callSid": self.call_sid}))
        self._is_stalled = True
        await asyncio.sleep(self._latency_s)
        self._there.flush()
        self.socket.close()
        await self.socket.closed.wait()

    async def closed(self, within_s: float = 5.0) -> int:
        """Wait up to `within_s` seconds for the server to end the stream. Returns its close code. Raises
        TimeoutError."""
        async with asyncio.timeout(within_s):
            await self.socket.closed.wait()
        return self.socket.close_code

    # What goes wrong -----------------------------------------------------------------------------------

    def drop(self) -> None:
        """The connection is gone, without stop and without close."""
        self.socket.drop()

    def stall(self) -> None:
        """Nothing is sent or read any more, but the connection stays."""
        self._is_stalled = True
        self.socket.stop_reading()

    def send_raw(self, frame: bytes | str) -> None:
        """Any text frame at all, invalid JSON too."""
        self._there.put(frame.encode() if isinstance(frame, str) else frame)

    # Inside --------------------------------------------------------------------------------------------

    async def _connected(self, url: str) -> sockets.Socket:
        socket = sockets.Socket(self._back.put)
        try:
            await ws_connect(
                lambda: socket, url, extra_headers=self._headers, max_frame_size=sockets.MOST_BYTES
            )
        except WSHandshakeError as error:
            raise CallRefused(None if error.response is None else int(error.response.status)) from None
        except OSError:
            raise CallRefused(None) from None
        return socket

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while not self.socket.closed.is_set():
            self._back.flush()
            self.playout.advance(loop.time())
            self._return_marks()
            if not self._is_stalled:
                self._speak(loop.time())
            next_at += FRAME_MS / 1000 / self._speed
            await asyncio.sleep(max(0.0, next_at - loop.time()))

    def _speak(self, now: float) -> None:
        if not self._utterances:
            if self._sends_silence:
                self._send_audio(_SILENCE)
            return
        utterance = self._utterances[0]
        if utterance.begins_at is None:
            utterance.begins_at = now
        self._send_audio(utterance.frames.popleft())
        if not utterance.frames:
            self._utterances.popleft()
            if not utterance.done.done():
                utterance.done.set_result(Spoken(utterance.begins_at, now, utterance.text))

    def _numbered(self, event: str, fields: Mapping[str, object]) -> dict[str, object]:
        sequence = str(next(self._sequence))
        return {"event": event, "sequenceNumber": sequence, event: fields, "streamSid": self.stream_sid}

    def _send_audio(self, payload: str) -> None:
        chunk = next(self._chunks)
        timestamp = str((chunk - 1) * FRAME_MS)
        media = {"track": "inbound", "chunk": str(chunk), "timestamp": timestamp, "payload": payload}
        self._send(self._numbered("media", media))

    def _send(self, message: Mapping[str, object]) -> None:
        self._there.put(orjson.dumps(message))

    def _return_marks(self) -> None:
        while self.playout.reached:
            if not self._is_stalled:
                self._send(self._numbered("mark", {"name": self.playout.reached[0]}))
            self.playout.reached.popleft()

    def _arrive(self, frame: bytes, at: float) -> None:
        try:
            message = read_object(frame)
            event = text(message, "event")
            if message.get("streamSid") != self.stream_sid:
                raise Malformed(f"{event} for another stream")
            if event == "media":
                payload = audio_of(text(part(message, "media"), "payload"))
                if payload is None:
                    raise Malformed("media that is not base64")
                raw = base64.b64decode(payload)
                self.received.append(Received(at, event, ms=len(raw) * FRAME_MS / _FRAME_BYTES))
                self.playout.play(raw, at)
            elif event == "mark":
                mark = name(part(message, "mark"), "name")
                self.received.append(Received(at, event, name=mark))
                self.playout.mark(mark, at)
            elif event == "clear":
                self.received.append(Received(at, event))
                self.playout.clear(at)
            else:
                raise Malformed(f"an event {event!r}; a line takes media, mark and clear")
        except Malformed as wrong:
            self.mistakes.append(str(wrong))
        self._return_marks()


def signature(auth_token: str, url: str) -> str:
    """How Twilio signs a request for `url` that has no form of its own."""
    digest = hmac.new(auth_token.encode(), url.encode(), hashlib.sha1).digest()
    return base64.b64encode(digest).decode()
