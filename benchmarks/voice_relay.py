"""The least a bridge can be: frames from one socket to the other, with the wires' fields changed.

It knows no interruption, no tool and no playback. What it costs is the floor that the voice agent is measured
against.

    python -m benchmarks.voice_relay --port 5050 --model ws://127.0.0.1:5060
"""

from __future__ import annotations

import argparse
import asyncio
import gc

import orjson
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

_CONFIGURE = orjson.dumps({"type": "session.update", "session": {"type": "realtime"}})


class ModelEnd(WSListener):
    def __init__(self, line: LineEnd) -> None:
        self._line = line

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            transport.disconnect()
            return
        event = orjson.loads(frame.get_payload_as_memoryview())
        if event["type"] == "response.output_audio.delta":
            self._line.play(event["delta"])


class LineEnd(WSListener):
    def __init__(self, model_url: str) -> None:
        self._url = model_url
        self._model: WSTransport | None = None
        self._transport: WSTransport | None = None
        self._stream = ""
        self._connecting: asyncio.Task[None] | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            transport.disconnect()
            return
        event = orjson.loads(frame.get_payload_as_memoryview())
        if event["event"] == "media" and self._model is not None:
            audio = event["media"]["payload"]
            self._model.send(
                WSMsgType.TEXT, orjson.dumps({"type": "input_audio_buffer.append", "audio": audio})
            )
        elif event["event"] == "start":
            self._stream = event["streamSid"]
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._model is not None:
            self._model.disconnect()

    def play(self, audio: str) -> None:
        if self._transport is not None:
            media = {"event": "media", "streamSid": self._stream, "media": {"payload": audio}}
            self._transport.send(WSMsgType.TEXT, orjson.dumps(media))

    async def _connect(self) -> None:
        transport, _ = await ws_connect(lambda: ModelEnd(self), self._url)
        transport.send(WSMsgType.TEXT, _CONFIGURE)
        self._model = transport


async def main(options: argparse.Namespace) -> None:
    def accept(_: WSUpgradeRequest) -> WSListener:
        return LineEnd(options.model)

    server = await ws_create_server(accept, "127.0.0.1", options.port)
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    uvloop.run(main(parser.parse_args()))
