"""Load for a voice bridge: both ends of N calls in one process, so that one clock measures.

    python -m benchmarks.voice_load --bridge ws://127.0.0.1:5050/media-stream --model-port 5060 \
        --calls 100,200 --seconds 5

It plays the line (Twilio Media Streams) and the model (Realtime) of every call, 20 ms frames both ways at
once for as long as the call lasts, which is the most a call can cost. Frames carry the time at which they
were due, so that a bridge that falls behind is not let off. The calls' frames are spread over the 20 ms.
Prints one JSON object a step.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time

import uvloop
from picows import (
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    ws_connect,
    ws_create_server,
)

from benchmarks.processes import cpu_seconds

FRAME_S = 0.02
SLOTS = 20
"""Into which the calls' frames are spread: 1 ms each."""

STAMP = 16
FILL = b"A" * 200
START_WITHIN_S = 60.0

_START = (
    '{"event":"start","streamSid":"%s","start":{"streamSid":"%s","callSid":"CA%s","tracks":["inbound"],'
    '"mediaFormat":{"encoding":"audio/x-mulaw","sampleRate":8000,"channels":1},'
    '"customParameters":{"callerPhone":"+390212345678"}}}'
)


def stamp_of(now: float) -> bytes:
    return b"%016d" % int(now * 1_000_000)


class Latencies:
    """Microseconds of the frames that came while `is_open`."""

    def __init__(self) -> None:
        self.is_open = False
        self.to_model: list[int] = []
        self.to_line: list[int] = []

    def note(self, into: list[int], stamp: bytes) -> None:
        if self.is_open:
            into.append(int(time.monotonic() * 1_000_000) - int(stamp))

    def clear(self) -> None:
        self.to_model, self.to_line = [], []


class Model(WSListener):
    """The model's end of one call: confirms every session, then speaks one endless item."""

    def __init__(self, load: Load, slot: int) -> None:
        self._latencies = load.latencies
        self._load = load
        self._slot = slot
        self._transport: WSTransport | None = None
        self._head = b""

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._send('{"type":"session.created","event_id":"e","session":{"type":"realtime"}}')

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            transport.disconnect()
            return
        message = frame.get_payload_as_bytes()
        at = message.find(b'"audio":"')
        if at > 0 and b"input_audio_buffer.append" in message[:60]:
            latencies = self._latencies
            latencies.note(latencies.to_model, message[at + 9 : at + 9 + STAMP])
        elif b'"session.update"' in message[:60]:
            self._begin(json.loads(message))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._load.models[self._slot].discard(self)

    def _begin(self, update: dict[str, object]) -> None:
        number = self._load.next_number()
        self._send(json.dumps({"type": "session.updated", "event_id": "e", "session": update["session"]}))
        self._send(f'{{"type":"response.created","event_id":"e","response":{{"id":"resp_{number}"}}}}')
        item = f'{{"id":"item_{number}","type":"message","role":"assistant","content":[]}}'
        self._send(f'{{"type":"conversation.item.added","event_id":"e","item":{item}}}')
        self._head = (
            f'{{"type":"response.output_audio.delta","event_id":"event_{number}","response_id":"resp_{number}",'
            f'"item_id":"item_{number}","output_index":0,"content_index":0,"delta":"'
        ).encode()
        self._load.models[self._slot].add(self)

    def frame(self, stamp: bytes) -> bytes:
        return b'%b%b%b"}' % (self._head, stamp, FILL)

    def speak(self, stamp: bytes) -> None:
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, self.frame(stamp))

    def _send(self, text: str) -> None:
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, text.encode())


class Line(WSListener):
    """The line's end of one call: returns every mark at once, hears everything, always speaks."""

    def __init__(self, load: Load, number: int) -> None:
        self._latencies = load.latencies
        self.sid = f"MZ{number:032d}"
        self.transport: WSTransport | None = None
        self._head = f'{{"event":"media","sequenceNumber":"2","streamSid":"{self.sid}","media":{{"track":'
        self._head += '"inbound","chunk":"1","timestamp":"20","payload":"'
        self._wire_head = self._head.encode()

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        transport.send(WSMsgType.TEXT, b'{"event":"connected","protocol":"Call","version":"1.0.0"}')
        transport.send(WSMsgType.TEXT, (_START % (self.sid, self.sid, self.sid)).encode())

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            transport.disconnect()
            return
        message = frame.get_payload_as_bytes()
        at = message.find(b'"payload":"')
        if at > 0:
            latencies = self._latencies
            latencies.note(latencies.to_line, message[at + 11 : at + 11 + STAMP])
        elif b'"mark"' in message[:20]:
            transport.send(WSMsgType.TEXT, message)

    def frame(self, stamp: bytes) -> bytes:
        return b'%b%b%b"}}' % (self._wire_head, stamp, FILL)

    def speak(self, stamp: bytes) -> None:
        if self.transport is not None:
            self.transport.send(WSMsgType.TEXT, self.frame(stamp))


class Load:
    def __init__(self, bridge: str) -> None:
        self._bridge = bridge
        self._numbers = 0
        self.latencies = Latencies()
        self.models: list[set[Model]] = [set() for _ in range(SLOTS)]
        self.lines: list[list[Line]] = [[] for _ in range(SLOTS)]
        self.late_slots = self.slots = 0

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def accept(self, request: WSUpgradeRequest) -> WSListener:
        return Model(self, min(range(SLOTS), key=lambda slot: len(self.models[slot])))

    @property
    def talking(self) -> int:
        return sum(map(len, self.models))

    async def dial(self, calls: int) -> None:
        """Have that many calls in all."""
        while sum(map(len, self.lines)) < calls:
            number = self.next_number()
            line = Line(self, number)

            def made(line: Line = line) -> Line:
                return line

            await ws_connect(made, self._bridge, max_frame_size=1 << 24)
            self.lines[number % SLOTS].append(line)
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(START_WITHIN_S):
            while self.talking < calls:
                await asyncio.sleep(0.05)

    async def pace(self) -> None:
        """Every slot speaks once every 20 ms, at its own millisecond."""
        due, slot = time.monotonic(), 0
        while True:
            now = time.monotonic()
            if due > now:
                await asyncio.sleep(due - now)
            elif now - due > FRAME_S:
                self.late_slots += 1
                await asyncio.sleep(0)
            self.slots += 1
            stamp = stamp_of(time.monotonic())
            for line in self.lines[slot]:
                line.speak(stamp)
            for model in tuple(self.models[(slot + SLOTS // 2) % SLOTS]):
                model.speak(stamp)
            slot = (slot + 1) % SLOTS
            due += FRAME_S / SLOTS

    def hang_up(self) -> None:
        for slot in self.lines:
            for line in slot:
                if line.transport is not None:
                    line.transport.disconnect()


def _percentile(values: list[int], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000 if ordered else float("nan")


async def _measure(load: Load, calls: int, seconds: float, bridge_pid: int) -> dict[str, object]:
    await load.dial(calls)
    await asyncio.sleep(1.0)
    gc.collect()
    load.latencies.clear()
    load.late_slots = load.slots = 0
    load.latencies.is_open = True
    own, bridge, began = time.process_time(), cpu_seconds(bridge_pid), time.monotonic()
    await asyncio.sleep(seconds)
    load.latencies.is_open = False
    took = time.monotonic() - began
    expected = calls * took / FRAME_S
    both = load.latencies.to_model + load.latencies.to_line
    return {
        "calls": calls,
        "p50_ms": _percentile(both, 0.5),
        "p99_ms": _percentile(both, 0.99),
        "to_model_p99_ms": _percentile(load.latencies.to_model, 0.99),
        "to_line_p99_ms": _percentile(load.latencies.to_line, 0.99),
        "frames_share": round(len(both) / (2 * expected), 4),
        "bridge_cpu": round((cpu_seconds(bridge_pid) - bridge) / took, 4),
        "load_cpu": round((time.process_time() - own) / took, 4),
        "late_slots": round(load.late_slots / max(1, load.slots), 4),
    }


async def main(options: argparse.Namespace) -> None:
    load = Load(options.bridge)
    server = await ws_create_server(load.accept, "127.0.0.1", options.model_port, max_frame_size=1 << 24)
    pacing = asyncio.create_task(load.pace())
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    print(json.dumps({"ready": True}), flush=True)
    try:
        for calls in [int(step) for step in options.calls.split(",")]:
            step = await _measure(load, calls, options.seconds, options.pid)
            print(json.dumps(step), flush=True)
            if options.stop_beyond_ms and not float(str(step["p99_ms"])) < options.stop_beyond_ms:
                break
    finally:
        pacing.cancel()
        load.hang_up()
        await asyncio.sleep(0.3)
        server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The load for a voice bridge: N calls, both ends of each.")
    parser.add_argument("--bridge", required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the bridge, for its CPU time")
    parser.add_argument("--model-port", type=int, required=True)
    parser.add_argument("--calls", default="100,200,300,400,500")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--stop-beyond-ms", type=float, default=0.0)
    uvloop.run(main(parser.parse_args()))
