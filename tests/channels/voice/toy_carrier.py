"""A carrier that no product has, to show what one takes: this file, and a row of `CARRIERS`.

Calls are offered as JSON with a password in a header, answered in JSON, and moved by a list. Frames are JSON
arrays with a number, and may overtake each other on their way: the decoder puts them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from channels.voice.call.events import (
    Audio,
    CallerAudio,
    LineEvent,
    MarkReturned,
    StreamStarted,
    StreamStopped,
    Unreadable,
)
from channels.voice.call.ports import AudioFormat, Line
from channels.voice.carriers.carrier import (
    CallOffer,
    ConnectStream,
    Decoder,
    Document,
    Instruction,
    RecordedFrame,
)
from channels.voice.server.public_address import RequestInfo
from flow_engine.errors import CorrectTheInput
from flow_engine.values import JsonValue

PASSWORD = "toy"


class ToyLine:
    def __init__(self, send: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self._send = send
        self.close = close

    def play(self, audio: Audio) -> None:
        self._send(orjson.dumps(["play", audio.decode()]))

    def mark(self, name: str) -> None:
        self._send(orjson.dumps(["mark", name]))

    def clear(self) -> None:
        self._send(b'["clear"]')


class ToyCarrier:
    def __init__(self) -> None:
        self.transfers: list[tuple[str | None, str]] = []

    @property
    def audio_formats(self) -> frozenset[AudioFormat]:
        return frozenset(("g711_ulaw", "g711_alaw"))

    def decoder(self) -> Decoder:
        held: dict[int, Any] = {}
        due = 0

        def decode(frame: bytes) -> Sequence[LineEvent | Unreadable]:
            nonlocal due
            number, *rest = orjson.loads(frame)
            held[number] = rest
            events: list[LineEvent | Unreadable] = []
            while due in held:
                events.append(_event(*held.pop(due)))
                due += 1
            return events

        return decode

    def line(self, stream_id: str, send: Callable[[bytes], None], close: Callable[[], None]) -> Line:
        return ToyLine(send, close)

    def recorded(self, message: Mapping[str, JsonValue]) -> RecordedFrame | None:
        return None  # its frames are arrays

    def called_number(self, form: bytes) -> str | None:
        return None

    def admit(self, request: RequestInfo, body: bytes | None) -> CallOffer:
        if request.headers.get("x-toy") != PASSWORD:
            raise CorrectTheInput("signature_wrong", "the header x-toy is not the password")
        if body is None:
            return CallOffer()
        offered = orjson.loads(body)
        return CallOffer(offered["call"], {"callerPhone": offered["from"]})

    def answer(self, instruction: Instruction) -> Document:
        told = instruction.url if isinstance(instruction, ConnectStream) else None
        return Document("application/json", orjson.dumps({"stream": told}).decode())

    async def transfer(self, call_id: str | None, target: str) -> None:
        self.transfers.append((call_id, target))


def _event(kind: str, *values: Any) -> LineEvent | Unreadable:
    match kind:
        case "start":
            return StreamStarted("toy-stream", values[0], {"callerPhone": values[1]})
        case "audio":
            return CallerAudio(values[0].encode())
        case "mark":
            return MarkReturned(values[0])
        case "stop":
            return StreamStopped()
        case _:
            return Unreadable(f"a frame of kind {kind!r}")
