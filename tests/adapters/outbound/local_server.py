"""A tiny HTTP/1.1 server on loopback, and a dialler that leads any address to it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpcore2
from httpcore2 import SOCKET_OPTION

# A self-signed certificate for partner.example and its key, made for these tests only; valid till 2120.
PARTNER_PEM = Path(__file__).with_name("partner_example.pem")

PUBLIC = "93.184.216.34"
OTHER_PUBLIC = "93.184.216.35"

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def ok(body: bytes = b"true", *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def redirect(location: str, status: bytes = b"302 Found") -> bytes:
    return ok(b"", b"Location: " + location.encode(), status=status)


class LocalServer:
    """Answers each request with the next answer; the last one repeats. Records what it was sent."""

    def __init__(self, answers: Sequence[bytes | Handler]) -> None:
        self._answers = answers
        self.port = 0
        self.requests: list[bytes] = []
        self.connections = 0
        self.open_now = 0
        self.most_open = 0
        self.client_gone = asyncio.Event()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            while True:
                await self._answer(await _read_request(reader), writer)
        except (OSError, asyncio.IncompleteReadError):
            self.client_gone.set()
        finally:
            self.open_now -= 1
            writer.close()

    async def _answer(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        self.requests.append(request)
        answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
        else:
            await answer(request, writer)


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head + await reader.readexactly(int(line.partition(b":")[2]))
    return head


@asynccontextmanager
async def serving(
    *answers: bytes | Handler, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[LocalServer, None]:
    local = LocalServer(answers or [ok()])
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(local.connected(reader, writer))
        tasks.add(task)

    server = await asyncio.start_server(accept, host, port, ssl=tls)
    local.port = server.sockets[0].getsockname()[1]
    try:
        yield local
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RecordingDialler(httpcore2.AsyncNetworkBackend):
    """Records the address of every connection; leads those in `routes` to a port of this machine.

    Any other address refuses the connection.
    """

    def __init__(self, routes: dict[str, int] | None = None) -> None:
        self.dialled: list[tuple[str, int]] = []
        self._routes = routes or {}
        self._inner: httpcore2.AsyncNetworkBackend = httpcore2.AnyIOBackend()  # pyright: ignore[reportAttributeAccessIssue, reportAssignmentType]

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.dialled.append((host, port))
        if host not in self._routes:
            raise httpcore2.ConnectError("no route")
        return await self._inner.connect_tcp("127.0.0.1", self._routes[host], timeout)


class ScriptedResolver:
    """Answers with the next list of addresses, the last one repeating, whatever the name."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self._answers[min(len(self.asked), len(self._answers)) - 1]
