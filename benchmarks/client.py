"""A load client that costs little: ready-made requests, keep-alive, no objects made from replies.

It speaks just enough HTTP/1.1 for this service, whose replies always carry a Content-Length.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

from benchmarks.results import MeasurementFailed
from benchmarks.servers import HOST

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
EXPECTED_WITHIN = 500
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """`wire` is sent as it is; a reply counts only with status 20x and a body that has `expected` early."""

    wire: bytes
    expected: bytes = b"{"


def build_request(
    method: str, path: str, port: int, body: bytes | None = None, expected: bytes = b"{"
) -> Request:
    head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\n"
    if body is None:
        return Request(f"{head}\r\n".encode(), expected)
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return Request(head.encode() + body, expected)


class Connection(asyncio.Protocol):
    """One request at a time; a whole reply goes to `on_reply`: head and body, and where the body begins."""

    def __init__(self, on_reply: Callable[[bytes, int], None], on_loss: Callable[[], None]) -> None:
        self._on_reply = on_reply
        self._on_loss = on_loss
        self._received = b""
        self._body_at = 0
        self._ends_at = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        if not self._ends_at:
            head_end = received.find(_HEAD_END)
            if head_end < 0:
                self._received = received
                return
            length = _LENGTH.search(received, 0, head_end)
            self._body_at = head_end + len(_HEAD_END)
            self._ends_at = self._body_at + (int(length[1]) if length else 0)
        if len(received) < self._ends_at:
            self._received = received
            return
        self._received, self._ends_at = b"", 0
        self._on_reply(received, self._body_at)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_loss()


@dataclass(slots=True)
class Load:
    """What a run of load saw. `latencies` in seconds, one a request; `cpu` the client's own, in seconds."""

    latencies: list[float] = field(default_factory=list[float])
    seconds: float = 0.0
    cpu: float = 0.0


class _Worker:
    def __init__(self, requests: Iterator[Request]) -> None:
        self._requests = requests
        self._connection: Connection
        self._request: Request
        self._sent = 0.0
        self._deadline = 0.0
        self._latencies: list[float] = []
        self._done: asyncio.Future[None]

    async def open(self, port: int) -> None:
        _, self._connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._replied, self._lost), HOST, port
        )
        self._done = asyncio.get_running_loop().create_future()

    def run_until(self, deadline: float, latencies: list[float]) -> asyncio.Future[None]:
        self._deadline, self._latencies = deadline, latencies
        self._done = asyncio.get_running_loop().create_future()
        self._next(time.perf_counter())
        return self._done

    def close(self) -> None:
        self._connection.transport.close()

    def _next(self, now: float) -> None:
        self._request = next(self._requests)
        self._sent = now
        self._connection.transport.write(self._request.wire)

    def _replied(self, reply: bytes, body_at: int) -> None:
        now = time.perf_counter()
        self._latencies.append(now - self._sent)
        if not is_expected(self._request, reply, body_at):
            self._fail(f"{self._request.wire[:200]!r} was answered by {reply[:600]!r}")
        elif now < self._deadline:
            self._next(now)
        elif not self._done.done():
            self._done.set_result(None)

    def _lost(self) -> None:
        self._fail("the service closed a connection")

    def _fail(self, reason: str) -> None:
        if not self._done.done():
            self._done.set_exception(MeasurementFailed(reason))


def is_expected(request: Request, reply: bytes, body_at: int) -> bool:
    early = body_at + EXPECTED_WITHIN
    return reply.startswith(b"20", 9) and reply.find(request.expected, body_at, early) >= 0


class LoadClient:
    """As many keep-alive connections as there are sources of requests."""

    def __init__(self, port: int, sources: list[Iterator[Request]]) -> None:
        self._port = port
        self._workers = [_Worker(source) for source in sources]

    async def open(self) -> None:
        await asyncio.gather(*(worker.open(self._port) for worker in self._workers))

    async def run(self, seconds: float) -> Load:
        """Raises MeasurementFailed with the first reply that is not what was asked for."""
        load = Load()
        cpu, started = time.process_time(), time.perf_counter()
        await asyncio.gather(*(w.run_until(started + seconds, load.latencies) for w in self._workers))
        load.seconds, load.cpu = time.perf_counter() - started, time.process_time() - cpu
        return load

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


class Caller:
    """One request after another, for setting up and for counting."""

    def __init__(self) -> None:
        self._reply: asyncio.Future[tuple[bytes, int]]
        self._connection: Connection
        self.bytes = 0
        """Sent and received."""

    async def open(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._reply = loop.create_future()
        _, self._connection = await loop.create_connection(
            lambda: Connection(self._replied, self._lost), HOST, port
        )

    async def ask(self, request: Request) -> bytes:
        """The body of the reply. Raises MeasurementFailed."""
        self._reply = asyncio.get_running_loop().create_future()
        self._connection.transport.write(request.wire)
        reply, body_at = await self._reply
        self.bytes += len(request.wire) + len(reply)
        if not is_expected(request, reply, body_at):
            raise MeasurementFailed(f"{request.wire[:200]!r} was answered by {reply[:600]!r}")
        return reply[body_at:]

    def close(self) -> None:
        self._reply.cancel()
        self._connection.transport.close()

    def _replied(self, reply: bytes, body_at: int) -> None:
        with suppress(asyncio.InvalidStateError):
            self._reply.set_result((reply, body_at))

    def _lost(self) -> None:
        with suppress(asyncio.InvalidStateError):
            self._reply.set_exception(MeasurementFailed("the service closed the connection"))


@asynccontextmanager
async def calling(port: int) -> AsyncGenerator[Caller]:
    """A connection that is closed when it is not used: the service ends those that rest for long."""
    caller = Caller()
    await caller.open(port)
    try:
        yield caller
    finally:
        caller.close()
