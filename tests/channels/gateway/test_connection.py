"""HTTP to a backend, byte by byte: what is whole, what is lost, and which connections are used again."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from channels.gateway import connection
from channels.gateway.connection import ConnectionFailed, Pool
from tests.channels.mail.dovecot import make_certificate

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\n"


@dataclass
class Backend:
    """Answers the n-th request with the n-th of `replies`; what is empty closes the connection instead.
    `requests` are whole requests, with the number of the connection that they came by."""

    replies: Sequence[bytes]
    closes: bool = False
    port: int = 0
    requests: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.writers)
        self.writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head.rpartition(b"Content-Length: ")[2]))
                reply = self.replies[len(self.requests)]
                self.requests.append((number, head + body))
                writer.write(reply)
                if self.closes or not reply:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(
        self, tls: ssl.SSLContext | None = None, trusts: ssl.SSLContext | None = None
    ) -> AsyncGenerator[Pool]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        pool = Pool(f"http{'s' if tls else ''}://127.0.0.1:{self.port}/base", {"X-Own": "1"}, trusts)
        try:
            yield pool
        finally:
            pool.close()
            server.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)


async def body_of(pool: Pool, content: bytes = b"{}", silence_s: float = 5) -> tuple[int, bytes]:
    async with pool.post("/chat", content, silence_s) as reply:
        parts = list[bytes]()
        while piece := await reply.piece():
            parts.append(piece)
        return reply.status, b"".join(parts)


WHOLE: Sequence[tuple[bytes, bytes, bool]] = (
    (OK + b"Content-Length: 2\r\n\r\nab", b"ab", True),
    (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1;x=y\r\nb\r\n0\r\nT: 1\r\n\r\n", b"ab", True),
    (OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nab", b"ab", False),
    (b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nab", b"ab", True),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", b"ab", False),
    (b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\nab", b"ab", True),
)


@pytest.mark.parametrize(("reply", "body", "stays"), WHOLE)
async def test_a_reply_is_whole_and_its_connection_used_again(reply: bytes, body: bytes, stays: bool) -> None:
    backend = Backend([reply] * 2)
    async with backend.running() as pool:
        assert [(await body_of(pool, b"[1]"))[1] for _ in range(2)] == [body] * 2
        assert [number for number, _ in backend.requests] == [0, 0 if stays else 1]
        head, _, content = backend.requests[0][1].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /base/chat HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % backend.port)
        assert (b"X-Own: 1" in head, content) == (True, b"[1]")


async def test_without_a_length_the_end_of_the_connection_ends_the_reply() -> None:
    async with Backend([OK + b"\r\nab"], closes=True).running() as pool:
        assert await body_of(pool) == (200, b"ab")


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200",
        OK,
        OK + b"Content-Length: 3\r\n\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nnothing\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
    ],
)
async def test_what_is_cut_or_no_http_is_lost(reply: bytes) -> None:  # W9
    backend = Backend([reply], closes=True)
    async with backend.running() as pool:
        with pytest.raises(ConnectionFailed, match="lost"):
            await body_of(pool)
    assert len(backend.requests) == 1


async def test_a_reply_without_an_end_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_REPLY_BYTES", 1000)
    async with Backend([OK + b"\r\n" + b"x" * 1001], closes=True).running() as pool:
        with pytest.raises(ConnectionFailed, match="lost"):
            await body_of(pool)


async def test_an_idle_connection_that_the_backend_has_closed_costs_nobody_an_answer() -> None:
    whole = OK + b"Content-Length: 2\r\n\r\nab"
    # The second request finds the connection closed after it was sent: it goes out once more, on a new one.
    backend = Backend([whole, b"", whole, OK + b"Content-Length: 9\r\n\r\nab"])
    async with backend.running() as pool:
        for _ in range(2):
            assert await body_of(pool) == (200, b"ab")
        assert [number for number, _ in backend.requests] == [0, 0, 1]
        backend.writers[1].close()  # and this one is closed in time to be noticed
        await asyncio.sleep(0.01)
        with pytest.raises(ConnectionFailed, match="silent"):  # once a reply has begun nothing is sent again
            await body_of(pool, silence_s=0.05)
        assert [number for number, _ in backend.requests] == [0, 0, 1, 2]


async def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    whole = OK + b"Content-Length: 2\r\n\r\nab"
    backend = Backend([whole, whole])
    async with backend.running() as pool:
        await body_of(pool)
        backend.writers[0].write(whole)
        await asyncio.sleep(0.02)
        assert await body_of(pool) == (200, b"ab")
        assert [number for number, _ in backend.requests] == [0, 1]


async def test_leaving_early_closes_the_connection() -> None:  # W9
    backend = Backend([OK + b"Content-Length: 9\r\n\r\nab"] * 2)
    async with backend.running() as pool:
        async with pool.post("/chat", b"{}", 5) as reply:
            assert await reply.piece() == b"ab"
        async with asyncio.timeout(30):
            while not backend.writers[0].is_closing():
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("reply", [b"HTTP/1.1 2", OK + b"Content-Length: 9\r\n\r\nab"])
async def test_silence_is_an_end_too(reply: bytes) -> None:
    async with Backend([reply]).running() as pool:
        with pytest.raises(ConnectionFailed, match="silent"):
            await body_of(pool, silence_s=0.05)


async def test_a_certificate_that_nobody_vouches_for_is_no_backend(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    backend = Backend([OK + b"Content-Length: 2\r\n\r\nab"] * 2)
    async with backend.running(served) as pool:
        with pytest.raises(ConnectionFailed, match="unreachable"):
            await body_of(pool)
    async with backend.running(served, ssl.create_default_context(cafile=tmp_path / "cert.pem")) as pool:
        assert [await body_of(pool) for _ in range(2)] == [(200, b"ab")] * 2
    assert len({number for number, _ in backend.requests}) == 1
