"""A bridge of pipecat's own parts, to be measured beside ours: its Twilio serializer, its Realtime service.

    python -m benchmarks.voice_pipecat --port 5050 --model ws://127.0.0.1:5060

The pipeline is the shortest that carries a call: transport in, service, transport out. What a working agent
adds to it (context aggregators, metrics, turn tracking, client messages) is left out or turned off, only
errors are logged, output goes in 20 ms chunks, and the event loop is uvloop where it is installed.

Twilio speaks 8 kHz u-law, pipecat's frames are 16-bit linear samples: it decodes and encodes every one. Its
Realtime service knows 24 kHz alone, so that it also resamples both ways, which holds audio back in blocks.
`--mulaw` replaces the two methods in which the service says so: the model gets and sends 8 kHz u-law, and
nothing is resampled.

Needs pipecat 1.14 with its extras `websocket` and `openai`, and uvicorn; of this project it needs nothing.
"""

from __future__ import annotations

import argparse
import audioop
import base64
import gc
import json
import sys

import uvicorn
from fastapi import FastAPI, WebSocket
from loguru import logger
from pipecat.frames.frames import InputAudioRawFrame, TTSAudioRawFrame, TTSStartedFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.workers.runner import WorkerRunner

RATE = 8000


class MulawRealtimeService(OpenAIRealtimeLLMService):
    """8 kHz u-law on the model's side; of the service's bookkeeping only what endless speech needs."""

    _has_spoken = False

    async def _send_user_audio(self, frame: InputAudioRawFrame) -> None:
        audio = base64.b64encode(audioop.lin2ulaw(frame.audio, 2)).decode()
        await self.send_client_event(events.InputAudioBufferAppendEvent(audio=audio))

    async def _handle_evt_audio_delta(self, evt: events.ResponseAudioDelta) -> None:
        if not self._has_spoken:
            self._has_spoken = True
            await self.push_frame(TTSStartedFrame())
        audio = audioop.ulaw2lin(base64.b64decode(evt.delta), 2)
        await self.push_frame(TTSAudioRawFrame(audio=audio, sample_rate=RATE, num_channels=1))


def _service(model_url: str, mulaw: bool) -> OpenAIRealtimeLLMService:
    wire = events.PCMUAudioFormat() if mulaw else events.PCMAudioFormat()
    audio = events.AudioConfiguration(
        input=events.AudioInput(format=wire), output=events.AudioOutput(format=wire)
    )
    made = MulawRealtimeService if mulaw else OpenAIRealtimeLLMService
    return made(
        api_key="bench",
        base_url=model_url,
        settings=made.Settings(session_properties=events.SessionProperties(audio=audio)),
    )


async def _carry(socket: WebSocket, stream: str, service: OpenAIRealtimeLLMService) -> None:
    """One call, until the line hangs up."""
    serializer = TwilioFrameSerializer(stream, params=TwilioFrameSerializer.InputParams(auto_hang_up=False))
    transport = FastAPIWebsocketTransport(
        socket,
        FastAPIWebsocketParams(
            audio_in_enabled=True, audio_out_enabled=True, audio_out_10ms_chunks=2, serializer=serializer
        ),
    )
    worker = PipelineWorker(
        Pipeline([transport.input(), service, transport.output()]),
        params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE),
        enable_rtvi=False,
        enable_turn_tracking=False,
        idle_timeout_secs=None,
    )

    @transport.event_handler("on_client_disconnected")
    async def hung_up(*_: object) -> None:
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()


def application(model: str, mulaw: bool) -> FastAPI:
    app = FastAPI()

    @app.websocket("/media-stream")
    async def media_stream(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()
        stream = json.loads(await socket.receive_text())["streamSid"]
        await _carry(socket, stream, _service(f"{model}/{stream}", mulaw))

    return app


def main(options: argparse.Namespace) -> None:
    logger.remove()
    logger.add(sys.stderr, level="ERROR")
    app = application(options.model, options.mulaw)
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="error", ws_per_message_deflate=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True, help="ws URL; the line's stream id is added as its path")
    parser.add_argument("--mulaw", action="store_true", help="8 kHz u-law to the model, nothing resampled")
    main(parser.parse_args())
