"""The load for a bridge that changes the audio: pulses tell its delay, for they outlive resampling.

    python -m benchmarks.voice_pulses --bridge ws://127.0.0.1:5050/media-stream --model-port 5060 --pid P

Both ends send silence, and every 300 ms a frame that opens with a 4 ms pulse. The sender notes when that
frame was due; the message in which the pulse comes out of the bridge ends its way. The bridge must put the
line's stream id into the path of the model's URL, so that both ends of a call are known. What arrives is
counted by the length of its audio, because a bridge may send many frames as one.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from dataclasses import dataclass, field

import uvloop
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest

from benchmarks.voice_load import Latencies, Line, Load, Model, main, options

EVERY = 15
"""Frames from pulse to pulse: longer than two blocks of a resampler, so that one message never holds two."""

CATCH_UP_S = 1.5


@dataclass(frozen=True, slots=True)
class Encoding:
    """How 20 ms of audio look in bytes, and which values of its telling bytes are quiet ones."""

    size: int
    silence: bytes
    """Base64, like `pulse`."""
    pulse: bytes
    quiet: bytes
    step: int
    """From one telling byte to the next: 1, or 2 for the high bytes of 16-bit samples."""

    def is_loud(self, audio: bytes) -> bool:
        return bool(audio[self.step - 1 :: self.step].translate(None, self.quiet))


MULAW = Encoding(
    size=160,
    silence=base64.b64encode(b"\xff" * 160),
    pulse=base64.b64encode(b"\x80" * 32 + b"\xff" * 128),
    quiet=bytes([*range(0x20, 0x80), *range(0xA0, 0x100)]),
    step=1,
)
LINEAR = Encoding(
    size=960,
    silence=base64.b64encode(bytes(960)),
    pulse=base64.b64encode((30_000).to_bytes(2, "little") * 96 + bytes(768)),
    quiet=bytes([*range(0x40), *range(0xC0, 0x100)]),
    step=2,
)
"""16-bit samples at 24 kHz."""


@dataclass(slots=True)
class Direction:
    """One way of one call: the pulses that are on the way, oldest first, as the stamps of their frames."""

    due: deque[bytes] = field(default_factory=deque)
    was_loud: bool = False
    frames: int = 0

    def payload(self, encoding: Encoding, stamp: bytes, pulses: bool) -> bytes:
        self.frames += 1
        if not pulses or self.frames % EVERY:
            return encoding.silence
        self.due.append(stamp)
        return encoding.pulse

    def hear(self, encoding: Encoding, payload: str, latencies: PulseLatencies, into: list[int]) -> None:
        audio = base64.b64decode(payload)
        latencies.add(len(audio) / encoding.size)
        is_loud = encoding.is_loud(audio)
        if is_loud and not self.was_loud and self.due:
            latencies.note(into, self.due.popleft())
        self.was_loud = is_loud


class PulseLatencies(Latencies):
    def __init__(self) -> None:
        super().__init__()
        self._frames = 0.0

    def add(self, frames: float) -> None:
        if self.is_open:
            self._frames += frames

    def clear(self) -> None:
        super().clear()
        self._frames = 0.0

    @property
    def frames(self) -> float:
        return self._frames


class PulseCall:
    def __init__(self, number: int) -> None:
        self.to_model = Direction(frames=number)
        self.to_line = Direction(frames=number)
        self.is_up = False
        """Whether the model has the session; before that the bridge may drop what the line says."""


class PulseModel(Model):
    def __init__(self, load: PulsedLoad, slot: int, call: PulseCall) -> None:
        super().__init__(load, slot)
        self._load = load
        self._pulses = load.pulses
        self._call = call
        self._encoding = LINEAR

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
            return
        event = json.loads(frame.get_payload_as_bytes())
        if event["type"] == "input_audio_buffer.append":
            self._call.to_model.hear(self._encoding, event["audio"], self._pulses, self._pulses.to_model)
        elif event["type"] == "session.update":
            wire = event["session"]["audio"]["output"]["format"]["type"]
            self._encoding = MULAW if wire == "audio/pcmu" else LINEAR
            self._begin(event)
            self._call.is_up = True

    def speak(self, stamp: bytes) -> None:
        if self._transport is not None and not self._load.is_dialling:
            audio = self._call.to_line.payload(self._encoding, stamp, pulses=True)
            self._transport.send(WSMsgType.TEXT, b'%b%b"}' % (self._head, audio))


class PulseLine(Line):
    def __init__(self, load: PulsedLoad, number: int) -> None:
        super().__init__(load, number)
        self._pulses = load.pulses
        self._call = load.calls[self.sid] = PulseCall(number)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            transport.disconnect()
            return
        event = json.loads(frame.get_payload_as_bytes())
        if event["event"] == "media":
            audio = event["media"]["payload"]
            self._call.to_line.hear(MULAW, audio, self._pulses, self._pulses.to_line)

    def speak(self, stamp: bytes) -> None:
        if self.transport is not None:
            audio = self._call.to_model.payload(MULAW, stamp, self._call.is_up)
            self.transport.send(WSMsgType.TEXT, b'%b%b"}}' % (self._wire_head, audio))


class PulsedLoad(Load):
    def __init__(self, bridge: str) -> None:
        super().__init__(bridge)
        self.latencies = self.pulses = PulseLatencies()
        self.calls: dict[str, PulseCall] = {}
        self.is_dialling = False

    async def dial(self, calls: int) -> None:
        """The models are silent until a bridge that plays in real time has made up for a stall."""
        self.is_dialling = True
        await super().dial(calls)
        await asyncio.sleep(CATCH_UP_S)
        self.is_dialling = False

    def line(self, number: int) -> Line:
        return PulseLine(self, number)

    def accept(self, request: WSUpgradeRequest) -> WSListener:
        stream = request.path.decode().split("?")[0].rsplit("/", 1)[-1]
        return PulseModel(self, self.smallest_slot(), self.calls[stream])


if __name__ == "__main__":
    given = options()
    uvloop.run(main(PulsedLoad(given.bridge), given))
