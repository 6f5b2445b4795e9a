"""What one process of the chat holds on one core: `python -m benchmarks.chat_load`.

Idle connections, and talking ones whose answers a model's server streams at the pace at which models write.
Every piece of an answer carries the time at which that server sent it, so that the delay of a frame is
measured from there. The chat has one core for itself, the model's server and the clients have another.

The control is the same load without a chat: the clients read the model's streams. What it finds is the delay
of the measurement itself, and of the machine: where it is not small, the other figures say nothing. With
`--redis` a redis-server of its own holds the sessions, as for replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import quantiles
from typing import cast

import orjson
import uvloop

from benchmarks.processes import cpu_seconds, resident_mb
from benchmarks.servers import HOST, Server, free_port, redis_server, running_process

CORES = sorted(os.sched_getaffinity(0))
PIECES_A_SECOND = 25
"""Of one answer, as a model writes: with 100 talking, 2,500 frames a second."""

PIECES = 100
ANSWERS = 2
"""Of each client, one after the other; the first ones begin spread over the time that an answer takes."""
QUESTION = "Hello, how are you?"

TIMES = re.compile(rb'"content":"([0-9. ]+) "')
PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"%.6f "},"finish_reason":null}]}\n\n'
LAST_PIECE = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
UPGRADE = (
    b"GET /v1/chat/ws HTTP/1.1\r\nHost: %b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)

GOALS = {
    "control_ms_p99": 10.0,
    "first_ms_p50": 15.0,
    "piece_ms_p99": 100.0,
    "kib_a_connection": 64.0,
    "load_cores": 0.8,
    "cores": 1.0,
}
"""The most of each: milliseconds after the model's server sent the piece, KiB, and cores."""


async def model_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Streams pieces that are times, one request a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
    await reader.readexactly(int(length[1]) if length else 0)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    for _ in range(PIECES):
        writer.write(PIECE % time.monotonic())
        await asyncio.sleep(1 / PIECES_A_SECOND)
    writer.write(LAST_PIECE)
    writer.close()


class Pieces(asyncio.Protocol):
    """Reads what comes with as little work as can be: the measurement must not wait for itself. `delays` are
    milliseconds from the model's server, of every piece in order; `upgraded`, `welcomed` and `ended` are
    done once."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.delays: list[float] = []
        self.upgraded: asyncio.Future[None] = loop.create_future()
        self.welcomed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._rest = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        text = self._rest + data
        end = 0
        for found in TIMES.finditer(text):
            end = found.end()
            self.delays += [(now - float(sent)) * 1000 for sent in found[1].split()]
        self._rest = text[max(end, len(text) - 300) :]
        if not self.upgraded.done():
            self.upgraded.set_result(None)
        elif b'"welcome"' in text and not self.welcomed.done():
            self.welcomed.set_result(None)
        if b'"final":true' in text and not self.ended.done():
            self._rest = b""
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def say(self, **frame: object) -> None:
        """A text frame of a WebSocket, masked by zeros."""
        text = orjson.dumps(frame)
        self.write(struct.pack(">BBH4x", 0x81, 0xFE, len(text)) + text)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def opened(stack: AsyncExitStack, port: int, user: str) -> Pieces:
    """A connection of the user that has been welcomed."""
    _, client = await asyncio.get_running_loop().create_connection(Pieces, HOST, port)
    stack.callback(client.close)
    client.write(UPGRADE % f"{HOST}:{port}".encode())
    await client.upgraded
    client.say(type="hello", user=user, session=None, after=None)
    await client.welcomed
    return client


async def talked(client: Pieces, delay_s: float) -> list[list[float]]:
    """The delays of each of its answers."""
    await asyncio.sleep(delay_s)
    found: list[list[float]] = []
    for number in range(ANSWERS):
        client.delays, client.ended = [], asyncio.get_running_loop().create_future()
        client.say(type="message", id=f"m-{number}", content=QUESTION)
        await client.ended
        found.append(client.delays)
    return found


async def controlled(port: int, delay_s: float) -> list[float]:
    """As `talked`, of a client that reads the stream of the model's server itself."""
    await asyncio.sleep(delay_s)
    _, client = await asyncio.get_running_loop().create_connection(Pieces, HOST, port)
    client.write(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    await client.ended
    return client.delays


async def measured(idle: int, talking: int, redis_url: str | None) -> dict[str, float]:
    server = await asyncio.start_server(model_server, HOST, 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    starts = [PIECES / PIECES_A_SECOND * number / talking for number in range(talking)]
    control = await asyncio.gather(*(controlled(port, start) for start in starts))
    alone = quantiles([delay for delays in control for delay in delays], n=100)
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "FLOW_ENGINE_DATA_DIR": folder,
            "FLOW_ENGINE_LLM_MODEL": "",
            "FLOW_ENGINE_LOG_LEVEL": "warning",
            "OPENAI_BASE_URL": f"http://{HOST}:{port}/v1",
            **({"FLOW_ENGINE_REDIS_URL": redis_url, "FLOW_ENGINE_REDIS_UNSAFE": "true"} if redis_url else {}),
        }
        chat_port = free_port()
        command = [sys.executable, "-m", "service.cli", "chat", "serve", "--port", str(chat_port)]
        async with (
            server,
            running_process(command, chat_port, CORES[0], environment, Path(folder, "log")) as chat,
        ):
            found = await _measured(chat, idle, starts)
    return {"control_ms_p50": alone[49], "control_ms_p99": alone[98], **found}


async def _measured(chat: Server, idle: int, starts: Sequence[float]) -> dict[str, float]:
    """`starts` are the seconds after which each talking client asks."""
    body = orjson.dumps({"model": "local:m"})
    reader, writer = await asyncio.open_connection(HOST, chat.port)
    writer.write(
        b"PATCH /v1/ai-agents/smalltalk_agent HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    await reader.read()
    writer.close()
    async with AsyncExitStack() as stack:
        await talked(await opened(stack, chat.port, "warm"), 0)
        before = resident_mb(chat.pid)
        for number in range(idle):
            await opened(stack, chat.port, f"idle-{number}")
        per_connection = (resident_mb(chat.pid) - before) / max(idle, 1)
        clients = [await opened(stack, chat.port, f"talks-{number}") for number in range(len(starts))]
        spent, own, began = cpu_seconds(chat.pid), time.process_time(), time.monotonic()
        found = [each for some in await asyncio.gather(*map(talked, clients, starts)) for each in some]
        cpu_s, seconds = cpu_seconds(chat.pid) - spent, time.monotonic() - began
        own = time.process_time() - own
    pieces = [delay for delays in found for delay in delays]
    every = quantiles(pieces, n=100)
    first = quantiles([delays[0] for delays in found if delays], n=100)
    return {
        "whole_answers": sum(len(delays) == PIECES for delays in found),
        "piece_ms_p50": every[49],
        "piece_ms_p99": every[98],
        "first_ms_p50": first[49],
        "first_ms_p99": first[98],
        "kib_a_connection": per_connection * 1024,
        "load_cores": own / seconds,
        "cores": cpu_s / seconds,
        "cpu_ms_a_piece": 1000 * cpu_s / len(pieces),
    }


async def loaded(idle: int, talking: int, *, on_redis: bool) -> dict[str, float]:
    if not on_redis:
        return await measured(idle, talking, None)
    async with redis_server(core=CORES[-1], aof=False) as redis:
        return await measured(idle, talking, f"redis://{HOST}:{redis.port}/0")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat_load", description=__doc__)
    parser.add_argument("--idle", type=int, default=500)
    parser.add_argument("--talking", type=int, default=100)
    parser.add_argument("--redis", action="store_true", help="sessions on Redis")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, CORES[-1:])
    figures = uvloop.run(loaded(options.idle, options.talking, on_redis=options.redis))
    print(f"{options.idle} idle, {options.talking} talking: {PIECES_A_SECOND} pieces a second each")
    for name, value in figures.items():
        goal = f"   goal: at most {GOALS[name]:g}" if name in GOALS else ""
        missed = "   MISSED" if value > GOALS.get(name, value) else ""
        print(f"{name:<20}{value:>10.2f}{goal}{missed}")
    met = all(figures[name] <= goal for name, goal in GOALS.items())
    return 0 if met and figures["whole_answers"] == options.talking * ANSWERS else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
