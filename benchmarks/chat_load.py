"""What one process of the chat holds: `python -m benchmarks.chat_load`.

Idle connections, and talking ones whose answers a model's server streams at a steady pace. Every piece of an
answer carries the time at which that server sent it, so that the delay of a frame is measured from there.
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
from websockets.asyncio.client import ClientConnection, connect

PIECES_A_SECOND = 20
"""Of one answer: with 100 talking, 2,000 frames a second."""

PIECES = 100
QUESTION = "Hello, how are you?"

GOALS = {"first_ms_p50": 15.0, "frame_ms_p99": 100.0, "kib_a_connection": 64.0, "cores": 1.0}
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
    """Milliseconds from the model's server to the client, of every frame in order."""
    await asyncio.sleep(delay_s)
    await client.send(orjson.dumps({"type": "message", "id": "m", "content": QUESTION}).decode())
    delays: list[float] = []
    while True:
        frame = orjson.loads(await client.recv())
        if frame["type"] == "dialogue":
            sent = float(frame["content"].split()[0])
            delays.append((time.monotonic() - sent) * 1000)
        if frame["final"]:
            return delays if frame["state"] == "done" else []


async def measured(idle: int, talking: int) -> dict[str, float]:
    server = await asyncio.start_server(model_server, "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "FLOW_ENGINE_DATA_DIR": folder,
            "FLOW_ENGINE_LLM_MODEL": "",
            "FLOW_ENGINE_LOG_LEVEL": "warning",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
        }
        command = [sys.executable, "-m", "service.cli", "chat", "serve", "--port", "0"]
        process = await asyncio.create_subprocess_exec(*command, env=env, stderr=subprocess.PIPE)
        try:
            return await _measured(process, idle, talking)
        finally:
            process.terminate()
            await process.wait()
            server.close()


async def _measured(process: asyncio.subprocess.Process, idle: int, talking: int) -> dict[str, float]:
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
        clients = [await opened(stack, url, f"talks-{number}") for number in range(talking)]
        spent, began = server.cpu_times(), time.monotonic()
        found = await asyncio.gather(*(talked(c, 2 * n / talking) for n, c in enumerate(clients)))
        after, seconds = server.cpu_times(), time.monotonic() - began
        cpu_s = after.user + after.system - spent.user - spent.system
    frames = sorted(delay for delays in found for delay in delays)
    first = sorted(delays[0] for delays in found if delays)
    return {
        "idle": idle,
        "talking": talking,
        "whole_answers": sum(len(delays) == PIECES for delays in found),
        "frames": len(frames),
        "frame_ms_p50": quantiles(frames, n=100)[49],
        "frame_ms_p99": quantiles(frames, n=100)[98],
        "first_ms_p50": quantiles(first, n=100)[49],
        "first_ms_p99": quantiles(first, n=100)[98],
        "kib_a_connection": per_connection / 1024,
        "cores": cpu_s / seconds,
        "cpu_ms_a_frame": 1000 * cpu_s / len(frames),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat_load", description=__doc__)
    parser.add_argument("--idle", type=int, default=500)
    parser.add_argument("--talking", type=int, default=100)
    options = parser.parse_args(arguments)
    figures = asyncio.run(measured(options.idle, options.talking))
    print(f"{options.talking} answers of {PIECES} pieces, {PIECES_A_SECOND} pieces a second each")
    for name, value in figures.items():
        goal = f"   goal: at most {GOALS[name]:g}" if name in GOALS else ""
        missed = "   MISSED" if value > GOALS.get(name, value) else ""
        print(f"{name:<20}{value:>10.2f}{goal}{missed}")
    met = all(figures[name] <= goal for name, goal in GOALS.items())
    return 0 if met and figures["whole_answers"] == options.talking else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
