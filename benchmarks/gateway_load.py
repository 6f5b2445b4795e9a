"""Both ends of a gateway, in one process: a model server that costs little, and clients that time what comes
back.

The server speaks just enough of OpenAI's protocol: a plain answer, or as many chunks as it is set to, each
with the moment at which it was sent in nanoseconds of the machine's clock.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import orjson

from benchmarks.client import build_request
from benchmarks.results import MeasurementFailed
from benchmarks.servers import HOST

PATH = "/v1/chat/completions"
WITHIN_S = 30.0
MODEL = "bench-model"
MESSAGES = [
    {"role": "system", "content": "You help people to plan journeys. " * 20},
    {"role": "user", "content": "When does the next train to Rome leave, and how long does it take?"},
]

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_SENT = re.compile(rb'"content": ?"([0-9]{12,})"')
_HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": MODEL}
_TOKENS = {"prompt_tokens": 150, "completion_tokens": 56, "total_tokens": 206}
_MESSAGE = {"role": "assistant", "content": "The next train leaves at ten. " * 8}
_WHOLE = {"index": 0, "message": _MESSAGE, "finish_reason": "stop"}
_ANSWER = orjson.dumps({**_HEAD, "object": "chat.completion", "choices": [_WHOLE], "usage": _TOKENS})


def _event(*choices: object, **more: object) -> bytes:
    return b"data: " + orjson.dumps({**_HEAD, "choices": choices, **more}) + b"\n\n"


def _choice(delta: object, finish: str | None = None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


_CHUNK_BEFORE, _CHUNK_AFTER = _event(_choice({"content": "@"})).split(b"@")
_LAST = _event(_choice({}, "stop"))
_USAGE = _event(usage=_TOKENS)


def body_of(**fields: object) -> bytes:
    """A request's body, JSON."""
    return orjson.dumps({"model": MODEL, "messages": MESSAGES, **fields})


@dataclass(slots=True)
class Pace:
    """How the server streams: so many chunks, each `pause_s` seconds after the one before."""

    chunks: int = 1
    pause_s: float = 0.0


class _ModelServer(asyncio.Protocol):
    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        length = _LENGTH.search(self._received, 0, head_end + 2)
        if head_end < 0 or length is None or len(self._received) < head_end + 4 + int(length[1]):
            return
        body = orjson.loads(self._received[head_end + 4 :])
        self._received = b""
        if not body.get("stream"):
            head = (
                f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(_ANSWER)}\r\n\r\n"
            )
            self._transport.write(head.encode() + _ANSWER)
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        wants_usage = (body.get("stream_options") or {}).get("include_usage")
        self._send(self._pace.chunks, _USAGE if wants_usage else b"")

    def _send(self, left: int, usage: bytes) -> None:
        if self._transport.is_closing():
            return
        if left:
            now = str(time.monotonic_ns()).encode()
            self._write(_CHUNK_BEFORE + now + _CHUNK_AFTER)
            asyncio.get_running_loop().call_later(self._pace.pause_s, self._send, left - 1, usage)
        else:
            self._write(_LAST + usage + b"data: [DONE]\n\n")
            self._transport.write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


@asynccontextmanager
async def model_server(pace: Pace) -> AsyncGenerator[int]:
    """Its port."""
    server = await asyncio.get_running_loop().create_server(lambda: _ModelServer(pace), HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@dataclass(slots=True)
class Streamed:
    """Of one streamed answer: seconds from the request to the first chunk, and the seconds that each chunk
    was on its way."""

    first: float = 0.0
    delays: list[float] = field(default_factory=list[float])


class _Client(asyncio.Protocol):
    def __init__(self, wire: bytes) -> None:
        self._wire = wire
        self._received = b""
        self._began = 0
        self._answer = Streamed()
        self._done: asyncio.Future[Streamed]
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self) -> asyncio.Future[Streamed]:
        self._done = asyncio.get_running_loop().create_future()
        self._answer, self._received = Streamed(), b""
        self._began = time.monotonic_ns()
        self.transport.write(self._wire)
        return self._done

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        *whole, self._received = (self._received + data).split(b"\n\n")
        for event in whole:
            if sent := _SENT.search(event):
                if not self._answer.delays:
                    self._answer.first = (now - self._began) / 1e9
                self._answer.delays.append((now - int(sent[1])) / 1e9)
            elif b"[DONE]" in event:
                self._received = b"[DONE]" + self._received
        if self._received.startswith(b"[DONE]") and self._received.endswith(b"0\r\n\r\n"):
            self._done.set_result(self._answer)
        elif b"HTTP/1.1 200" not in data and data.startswith(b"HTTP/1.1"):
            self._fail(f"a stream was answered by {data[:600]!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the service closed a connection")

    def _fail(self, reason: str) -> None:
        if not self._done.done():
            self._done.set_exception(MeasurementFailed(reason))


async def streams(port: int, rounds: int, at_once: int) -> Sequence[Streamed]:
    """`at_once` clients, each of which asks `rounds` times, one after the other. Raises MeasurementFailed for
    an answer that is none, or that takes more than 30 seconds."""
    wire = build_request("POST", PATH, port, body_of(stream=True)).wire

    async def client() -> list[Streamed]:
        _, protocol = await asyncio.get_running_loop().create_connection(lambda: _Client(wire), HOST, port)
        try:
            async with asyncio.timeout(WITHIN_S):
                return [await protocol.ask() for _ in range(rounds)]
        except TimeoutError:
            raise MeasurementFailed(f"streams through port {port} do not end") from None
        finally:
            protocol.transport.close()

    found = await asyncio.gather(*(client() for _ in range(at_once)))
    return [each for per_client in found for each in per_client]
