"""The way to the engine, which ends for one request: its caller is killed there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

CHUNK = 65_536

Moment = Literal["before", "after"]
"""Whether the engine has the request when its caller waits for the answer that never comes."""


@dataclass
class Gate:
    """`reached` is set once a request whose bytes have `marker` stands in the gate: `before` the engine gets
    it, or `after` the engine has answered it. Everything else passes."""

    url: str
    reached: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def gate_to(engine_url: str, marker: bytes, moment: Moment) -> AsyncGenerator[Gate]:
    target = urlsplit(engine_url)
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        far_reader, far_writer = await asyncio.open_connection(target.hostname, target.port)
        is_marked = False

        async def out() -> None:
            nonlocal is_marked
            while data := await reader.read(CHUNK):
                if marker in data:
                    is_marked = True
                if is_marked and moment == "before":
                    gate.reached.set()
                    continue
                far_writer.write(data)
                await far_writer.drain()
            far_writer.close()

        async def back() -> None:
            while data := await far_reader.read(CHUNK):
                if is_marked:
                    gate.reached.set()
                    continue
                writer.write(data)
                await writer.drain()
            writer.close()

        try:
            with suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(out(), back())
        finally:
            serving.discard(task)
            far_writer.close()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    gate = Gate(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield gate
    finally:
        server.close()
        for task in [*serving]:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
