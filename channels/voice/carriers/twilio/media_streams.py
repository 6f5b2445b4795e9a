"""Twilio Media Streams: frames of the line to events, and the line to play on.

A stream is bidirectional (`<Connect><Stream>`), 8 kHz µ-law, and only the caller's own track is heard.
Frames are parsed whole, which is too cheap for a search of the payload alone to be worth believing frames
that are not what they seem; of audio only the fields that are needed are made.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec
import orjson

from channels.voice.call import events
from channels.voice.call.events import CallerAudio
from channels.voice.call.ports import AudioFormat, Line
from channels.voice.carriers.carrier import Decoder, RecordedFrame
from channels.voice.wires import frames
from channels.voice.wires.frames import audio_of
from flow_engine.values import JsonValue


class _Media(msgspec.Struct, frozen=True, gc=False):
    payload: str
    track: Literal["inbound"] = "inbound"  # streams of one track may leave its name out


class _MediaFrame(msgspec.Struct, frozen=True, gc=False):
    event: Literal["media"]  # not a tag, which may be missing
    media: _Media


_read_frame: Final = msgspec.json.Decoder(_MediaFrame).decode


def _media(message: frames.Object) -> events.CallerAudio | None:
    media = frames.part(message, "media")
    # Streams of one track may leave its name out.
    if frames.optional_text(media, "track") not in (None, "inbound"):
        return None
    audio = frames.audio_of(frames.text(media, "payload"))
    if audio is None:
        raise frames.Malformed("media that is not base64")
    return events.CallerAudio(audio)


def _start(message: frames.Object) -> events.StreamStarted:
    start = frames.part(message, "start")
    used = frames.part(start, "mediaFormat")
    audio = used.get("encoding"), used.get("sampleRate"), used.get("channels", 1)
    if audio != ("audio/x-mulaw", 8000, 1):
        raise frames.Malformed("a stream that is not audio/x-mulaw at 8000 Hz with one channel")
    parameters = frames.optional_part(start, "customParameters")
    return events.StreamStarted(
        stream_id=frames.name(start, "streamSid"),
        carrier_call_id=frames.optional_text(start, "callSid"),
        parameters={key: frames.text(parameters, key) for key in parameters},
    )


def _mark(message: frames.Object) -> events.MarkReturned:
    return events.MarkReturned(frames.text(frames.part(message, "mark"), "name"))


_READERS: Final[dict[str, Callable[[frames.Object], events.LineEvent | None]]] = {
    "media": _media,
    "start": _start,
    "mark": _mark,
    "dtmf": lambda m: events.DigitPressed(frames.name(frames.part(m, "dtmf"), "digit")),
    "stop": lambda _: events.StreamStopped(),
}

decode_any: Final = frames.event_decoder("event", _READERS)
"""As `decode_line`, without the short way for audio."""


def decode_line(frame: bytes | str) -> events.LineEvent | events.Unreadable | None:
    """The event of one frame of JSON, None for one that nobody needs. Never raises."""
    try:
        audio = audio_of(_read_frame(frame).media.payload)
    except frames.NO_STRUCT:
        return decode_any(frame)
    return decode_any(frame) if audio is None else CallerAudio(audio)


class TwilioLine:
    """The caller's side of a stream, µ-law at 8000 Hz in base64. `send` takes one text frame; `close` ends
    the stream's socket."""

    __slots__ = ("_clear", "_close", "_mark", "_media", "_send")

    def __init__(self, stream_id: str, send: Callable[[bytes], None], close: Callable[[], None]) -> None:
        stream = b',"streamSid":%b' % orjson.dumps(stream_id)
        self._media = b'{"event":"media"%b,"media":{"payload":"' % stream
        self._mark = b'{"event":"mark"%b,"mark":{"name":' % stream
        self._clear = b'{"event":"clear"%b}' % stream
        self._send = send
        self._close = close

    def play(self, audio: events.Audio) -> None:
        self._send(self._media + audio + b'"}}')

    def mark(self, name: str) -> None:
        self._send(b"%b%b}}" % (self._mark, orjson.dumps(name)))

    def clear(self) -> None:
        self._send(self._clear)

    def close(self) -> None:
        self._close()


class TwilioStreams:
    """Implements `StreamCodec`."""

    @property
    def audio_formats(self) -> frozenset[AudioFormat]:
        return frozenset(("g711_ulaw",))

    def decoder(self) -> Decoder:
        """Twilio sends its frames in order over one WebSocket, so nothing is kept between them."""
        return lambda frame: () if (event := decode_line(frame)) is None else (event,)

    def line(self, stream_id: str, send: Callable[[bytes], None], close: Callable[[], None]) -> Line:
        return TwilioLine(stream_id, send, close)

    def recorded(self, message: Mapping[str, JsonValue]) -> RecordedFrame | None:
        """Audio of the caller has a `timestamp`: milliseconds since the stream began."""
        if "event" not in message:
            return None
        media = message.get("media")
        if message["event"] != "media" or not isinstance(media, dict):
            return RecordedFrame(is_audio=False)
        timestamp = str(media.get("timestamp"))
        is_count = timestamp.isascii() and timestamp.isdigit()
        return RecordedFrame(is_audio=True, at_ms=float(timestamp) if is_count else None)
