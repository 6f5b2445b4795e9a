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
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from statistics import quantiles

import orjson
import psutil
import uvloop
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.processes import pinned
from benchmarks.servers import redis_server

CORES = sorted(os.sched_getaffinity(0))
PIECES_A_SECOND = 25
"""Of one answer, as a model writes: with 100 talking, 2,500 frames a second."""

PIECES = 150
STARTS_WITHIN_S = 2.0
QUESTION = "Hello, how are you?"

GOALS = {
    "control_ms_p99": 10.0,
    "first_ms_p50": 15.0,
    "piece_ms_p99": 100.0,
    "kib_a_connection": 64.0,
    "cores": 1.0,
}
"""The most of each: milliseconds after the model's server sent the piece, KiB, and cores."""


async def model_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Streams pieces that are times, one request a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
    await reader.readexactly(int(length[1]) if length else 0)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    for number in range(PIECES + 1):
        ends = number == PIECES
        delta = {} if ends else {"content": f"{time.monotonic():.6f} "}
        choice = {"index": 0, "delta": delta, "finish_reason": "stop" if ends else None}
        chunk = {
            "id": "x",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }
        writer.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
        await writer.drain()
        await asyncio.sleep(1 / PIECES_A_SECOND)
    writer.write(b"data: [DONE]\n\n")
    writer.close()


async def opened(stack: AsyncExitStack, url: str, user: str) -> ClientConnection:
    client = await stack.enter_async_context(connect(url, proxy=None, compression=None, open_timeout=60))
    await client.send(orjson.dumps({"type": "hello", "user": user, "session": None, "after": None}).decode())
    await client.recv()
    return client


async def talked(client: ClientConnection, delay_s: float) -> list[float]:
    """Milliseconds from the model's server to the client, of every piece in order; empty for an answer
    that failed."""
    await asyncio.sleep(delay_s)
    await client.send(orjson.dumps({"type": "message", "id": "m", "content": QUESTION}).decode())
    delays: list[float] = []
    while True:
        frame = orjson.loads(await client.recv())
        if frame["type"] == "dialogue":
            delays += [(time.monotonic() - float(sent)) * 1000 for sent in frame["content"].split()]
        if frame["final"]:
            return delays if frame["state"] == "done" else []


async def controlled(port: int, delay_s: float) -> list[float]:
    """As `talked`, of a client that reads the stream of the model's server itself."""
    await asyncio.sleep(delay_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    delays: list[float] = []
    async for line in reader:
        if found := re.search(rb'"content":"([0-9.]+) "', line):
            delays.append((time.monotonic() - float(found[1])) * 1000)
    writer.close()
    return delays


async def measured(idle: int, talking: int, redis_url: str | None) -> dict[str, float]:
    server = await asyncio.start_server(model_server, "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    starts = [STARTS_WITHIN_S * number / talking for number in range(talking)]
    control = await asyncio.gather(*(controlled(port, start) for start in starts))
    alone = quantiles([delay for delays in control for delay in delays], n=100)
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "FLOW_ENGINE_DATA_DIR": folder,
            "FLOW_ENGINE_LLM_MODEL": "",
            "FLOW_ENGINE_LOG_LEVEL": "warning",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
            **({"FLOW_ENGINE_REDIS_URL": redis_url, "FLOW_ENGINE_REDIS_UNSAFE": "true"} if redis_url else {}),
        }
        command = [sys.executable, "-m", "service.cli", "chat", "serve", "--port", "0"]
        with pinned(CORES[0]):
            process = await asyncio.create_subprocess_exec(*command, env=env, stderr=subprocess.PIPE)
        try:
            found = await _measured(process, idle, starts)
            return {"control_ms_p50": alone[49], "control_ms_p99": alone[98], **found}
        finally:
            process.terminate()
            await process.wait()
            server.close()


async def _measured(
    process: asyncio.subprocess.Process, idle: int, starts: Sequence[float]
) -> dict[str, float]:
    """`starts` are the seconds after which each talking client asks."""
    if process.stderr is None:
        raise RuntimeError("the chat has no standard error")
    line = (await process.stderr.readline()).decode()
    (host,) = re.findall(r"http://([0-9.:]+)", line)
    body = orjson.dumps({"model": "local:m"})
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(
        b"PATCH /v1/ai-agents/smalltalk_agent HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    await reader.read()
    writer.close()
    server = psutil.Process(process.pid)
    async with AsyncExitStack() as stack:
        url = f"ws://{host}/v1/chat/ws"
        warm = await opened(stack, url, "warm")
        await talked(warm, 0)
        before = server.memory_info().rss
        for number in range(idle):
            await opened(stack, url, f"idle-{number}")
        per_connection = (server.memory_info().rss - before) / max(idle, 1)
        clients = [await opened(stack, url, f"talks-{number}") for number in range(len(starts))]
        spent, began = server.cpu_times(), time.monotonic()
        found = await asyncio.gather(*map(talked, clients, starts))
        after, seconds = server.cpu_times(), time.monotonic() - began
        cpu_s = after.user + after.system - spent.user - spent.system
    pieces = [delay for delays in found for delay in delays]
    every = quantiles(pieces, n=100)
    first = quantiles([delays[0] for delays in found if delays], n=100)
    return {
        "whole_answers": sum(len(delays) == PIECES for delays in found),
        "piece_ms_p50": every[49],
        "piece_ms_p99": every[98],
        "first_ms_p50": first[49],
        "first_ms_p99": first[98],
        "kib_a_connection": per_connection / 1024,
        "cores": cpu_s / seconds,
        "cpu_ms_a_piece": 1000 * cpu_s / len(pieces),
    }


async def loaded(idle: int, talking: int, *, on_redis: bool) -> dict[str, float]:
    if not on_redis:
        return await measured(idle, talking, None)
    async with redis_server(core=CORES[-1], aof=False) as redis:
        return await measured(idle, talking, f"redis://127.0.0.1:{redis.port}/0")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat_load", description=__doc__)
    parser.add_argument("--idle", type=int, default=500)
    parser.add_argument("--talking", type=int, default=100)
    parser.add_argument("--redis", action="store_true", help="sessions on Redis")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, CORES[-1:])
    figures = uvloop.run(loaded(options.idle, options.talking, on_redis=options.redis))
    print(
        f"{options.idle} idle, {options.talking} answers of {PIECES} pieces, {PIECES_A_SECOND} a second each"
    )
    for name, value in figures.items():
        goal = f"   goal: at most {GOALS[name]:g}" if name in GOALS else ""
        missed = "   MISSED" if value > GOALS.get(name, value) else ""
        print(f"{name:<20}{value:>10.2f}{goal}{missed}")
    met = all(figures[name] <= goal for name, goal in GOALS.items())
    return 0 if met and figures["whole_answers"] == options.talking else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
