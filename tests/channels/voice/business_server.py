"""A business's API on loopback that behaves as badly as a test says, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import orjson

from flow_engine.values import JsonValue

Trouble = Literal[
    "500", "silence", "slow body", "half a body", "to metadata", "to loopback", "to inside", "not json",
    "huge", "reset", "endless headers",
]  # fmt: skip
TROUBLES: tuple[Trouble, ...] = (
    "500", "silence", "slow body", "half a body", "to metadata", "to loopback", "to inside", "not json",
    "huge", "reset", "endless headers",
)  # fmt: skip


@dataclass
class BusinessServer:
    """`answers` and `troubles` are by path; a path of neither is answered with an empty object."""

    answers: dict[str, JsonValue] = field(default_factory=dict)
    troubles: dict[str, Trouble] = field(default_factory=dict)
    delays: dict[str, float] = field(default_factory=dict)
    """Seconds before an answer, by path."""
    asked: list[tuple[str, str, JsonValue]] = field(default_factory=list)
    keys: list[tuple[str, str]] = field(default_factory=list)
    """Path and Idempotency-Key of the requests that had one."""
    open_connections: int = 0
    elsewhere: int = 0
    """Requests that arrived where a redirect pointed to."""
    url: str = ""
    elsewhere_url: str = ""

    def count(self, path: str) -> int:
        return sum(1 for _, asked, _ in self.asked if asked == path)

    def body(self, path: str) -> JsonValue:
        return next(body for _, asked, body in self.asked if asked == path)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        finally:
            writer.close()

    async def serve_elsewhere(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.elsewhere += 1
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, target, _ = head.split("\r\n", 1)[0].split(" ")
        length = next(
            (int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0
        )
        body = await reader.readexactly(length)
        path = target.partition("?")[0]
        self.asked.append((method, path, orjson.loads(body) if body else None))
        self.keys += [
            (path, line.partition(":")[2].strip())
            for line in head.split("\r\n")
            if line.lower().startswith("idempotency-key:")
        ]
        if (delay_s := self.delays.get(path)) is not None:
            await asyncio.sleep(delay_s)
        trouble = self.troubles.get(path)
        if trouble is None:
            await _reply(writer, orjson.dumps(self.answers.get(path, {})))
            return True
        await self._misbehave(trouble, writer)
        return False

    async def _misbehave(self, trouble: Trouble, writer: asyncio.StreamWriter) -> None:
        targets = {
            "to metadata": "http://169.254.169.254/latest/meta-data/",
            "to loopback": self.elsewhere_url,
            "to inside": "http://10.1.2.3/",
        }
        match trouble:
            case "500":
                await _reply(writer, b'{"error": "out of order"}', status="500 Oops")
            case "silence":
                await asyncio.Event().wait()
            case "slow body":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
                while True:
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            case "half a body":
                writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"half": ')
                await writer.drain()
            case "not json":
                await _reply(writer, b'{"broken": \xff\xfe')
            case "huge":
                await _reply(writer, b'"%b"' % (b"x" * 8 * 1024 * 1024))
            case "reset":
                writer.transport.abort()
            case "endless headers":
                writer.write(b"HTTP/1.1 200 OK\r\n")
                while True:
                    writer.write(b"x-more: %b\r\n" % (b"x" * 8000))
                    await writer.drain()
            case _:
                await _reply(writer, b"", status="307 Elsewhere", location=targets[trouble])


async def _reply(
    writer: asyncio.StreamWriter, body: bytes, status: str = "200 OK", location: str = ""
) -> None:
    extra = f"location: {location}\r\n" if location else ""
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def business_server(
    answers: dict[str, JsonValue] | None = None, troubles: dict[str, Trouble] | None = None
) -> AsyncGenerator[BusinessServer]:
    business = BusinessServer(answers or {}, troubles or {})
    serving: set[asyncio.Task[None]] = set()

    def handler(serve: Handler) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            business.open_connections += 1
            try:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    await serve(reader, writer)
            finally:
                business.open_connections -= 1
                writer.close()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(handle(reader, writer))
            serving.add(task)
            task.add_done_callback(serving.discard)

        return begin

    main = await asyncio.start_server(handler(business.serve), "127.0.0.1", 0)
    other = await asyncio.start_server(handler(business.serve_elsewhere), "127.0.0.1", 0)
    business.url = f"http://127.0.0.1:{main.sockets[0].getsockname()[1]}"
    business.elsewhere_url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/"
    try:
        yield business
    finally:
        for server in (main, other):
            server.close()
        for task in tuple(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        for server in (main, other):
            await server.wait_closed()
