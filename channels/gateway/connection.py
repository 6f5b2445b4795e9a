"""HTTP/1.1 to one backend: requests with a body, replies as they come, connections that are used again.

1. A connection serves one request at a time. Whoever stops reading early closes it, which is how a backend
   learns that nobody waits any more.
2. A reply is whole when its length, its chunks or, without either, the end of the connection say so.
3. A backend is not read further than `MOST_AHEAD` bytes ahead of whoever reads the reply.
4. A reply of more than `MOST_REPLY_BYTES` is broken off.
5. A connection that had lain idle, and ends before the first byte of a reply, was closed by the other side
   meanwhile: the request is sent once more, on a new one.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal, cast
from urllib.parse import urlsplit

import httptools

MOST_AHEAD: Final = 256 * 1024
MOST_HEAD_BYTES: Final = 64 * 1024
MOST_REPLY_BYTES: Final = 64 * 1024 * 1024
MOST_IDLE: Final = 32
IDLE_S: Final = 4.0
CONNECT_WITHIN_S: Final = 5.0

Failing = Literal["unreachable", "silent", "lost"]


class ConnectionFailed(Exception):
    """`unreachable`: nobody took the connection; `silent`: nothing came in time; `lost`: it ended early, or
    what came is no HTTP."""

    def __init__(self, failing: Failing) -> None:
        super().__init__(failing)
        self.failing: Failing = failing


class Connection(asyncio.Protocol):
    """One connection, and the reply that it carries: its `status`, its `headers` (names in lower case) and
    its body by `piece`. `silence_s` bounds each wait, in seconds."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._pieces: deque[bytes] = deque()
        self._ahead = 0
        self._read = 0
        self._paused = False
        self._failing: Failing | None = None
        self._head_bytes = 0
        self.has_head = False
        self._whole = False
        self._stays = False
        self.silence_s = 0.0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.answered = False
        self.idle_since = 0.0

    # For whoever asks ------------------------------------------------------------------------------------

    def begin(self, request: bytes, silence_s: float) -> None:
        """Send a whole request. The connection is new, or its last reply is `reusable`."""
        self._parser = httptools.HttpResponseParser(self)
        self.has_head = self._whole = self.answered = False
        self._head_bytes = self._read = 0
        self.headers = {}
        self.silence_s = silence_s
        self._transport.write(request)

    async def head(self) -> None:
        """Wait for `status` and `headers`. Raises ConnectionFailed."""
        while not self.has_head:
            await self._more()

    async def piece(self) -> bytes:
        """What has come of the body since the last one; empty at the end. Raises ConnectionFailed."""
        while not self._pieces:
            if self._whole:
                return b""
            await self._more()
        found = self._pieces.popleft() if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._ahead = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return found

    @property
    def usable(self) -> bool:
        return self._failing is None and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        """Whether the reply is whole and another request may follow."""
        return self._whole and self._stays and not self._pieces and self.usable

    def close(self) -> None:
        self._transport.abort()

    async def _more(self) -> None:
        if self._failing is not None:
            raise ConnectionFailed(self._failing)
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(self.silence_s, self._fail, "silent")
        try:
            await self._waiter
        finally:
            self._waiter = None
            timer.cancel()

    # asyncio's callbacks -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._whole:  # nobody has asked
            self._fail("lost")
            return
        self.answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("lost")
            return
        if self._ahead > MOST_AHEAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if self._failing is None:
            self._whole = self._whole or (self.has_head and not framed and exc is None)
            self._failing = "lost"
        self._wake()

    def _fail(self, failing: Failing) -> None:
        self._failing = failing
        self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The parser's callbacks --------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MOST_HEAD_BYTES:
            raise httptools.HttpParserError("head too large")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self.has_head = self.status >= 200  # before that it is a reply on the way

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._ahead += len(body)
        self._read += len(body)
        if self._read > MOST_REPLY_BYTES:
            raise httptools.HttpParserError("reply too large")

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self.has_head:
            self._whole, self._stays = True, self._parser.should_keep_alive()
        else:
            self.headers = {}


class Pool:
    """The connections to one server. `url` is its `http://` or `https://` address with the path that those of
    requests are added to; `headers` go with every request. `tls` is who is trusted, the system's authorities
    by default."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path
        lines = {"Host": parts.netloc, "Accept-Encoding": "identity", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle: list[Connection] = []

    @asynccontextmanager
    async def post(self, path: str, content: bytes, silence_s: float) -> AsyncGenerator[Connection]:
        """The reply once its head is there, `silence_s` seconds from the last byte at most. Raises
        ConnectionFailed. Leaving before the reply is whole closes the connection."""
        head = f"POST {self._path}{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(content)}\r\n\r\n"
        connection = await self._answering(head.encode("ascii") + content, silence_s)
        try:
            yield connection
        finally:
            if connection.reusable and len(self._idle) < MOST_IDLE:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.close()

    async def _answering(self, request: bytes, silence_s: float) -> Connection:
        used = self._taken()
        connection = used or await self._connected(silence_s)
        connection.begin(request, silence_s)
        try:
            await connection.head()
        except ConnectionFailed as failed:
            if used is None or failed.failing != "lost" or connection.answered:
                raise
        finally:
            if not connection.has_head:
                connection.close()
        return connection if connection.has_head else await self._answering(request, silence_s)

    def _taken(self) -> Connection | None:
        oldest = time.monotonic() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    async def _connected(self, within_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(min(CONNECT_WITHIN_S, within_s)):
                _, connection = await loop.create_connection(
                    Connection, self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise ConnectionFailed("silent") from None
        except OSError as error:  # ssl.SSLError is one
            raise ConnectionFailed("unreachable") from error
        return connection

    def close(self) -> None:
        """The idle connections. Those in use end with their requests."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
