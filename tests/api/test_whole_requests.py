"""A request that arrives whole is answered without ASGI's messages: every byte is the same (A4, F36)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapters.http_door import Door, listen
from adapters.http_whole import Answer, WholeRequests
from tests.api.test_lean_path import Sent, hostile, malformed, two_services, usual

pytestmark = pytest.mark.anyio

ONE = b"POST /one HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab"
LAST = ONE.replace(b"host", b"connection: close\r\nhost")


class Counting:
    """Answers how many bytes a body had, and counts which way the request came. `/waits` waits for `go`,
    `/breaks` has a bug, `/empty` is answered without a header, `/asgi` not from its whole body."""

    def __init__(self) -> None:
        self.whole = self.by_asgi = 0
        self.go = asyncio.Event()

    def answer_to(self, scope: Scope) -> Answer | None:
        async def answer(body: bytes) -> Response:
            self.whole += 1
            return await self.reply(scope, body)

        return None if scope["path"] == "/asgi" or scope["method"] == "BREW" else answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.by_asgi += 1
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        await (await self.reply(scope, body))(scope, receive, send)

    async def reply(self, scope: Scope, body: bytes) -> Response:
        if scope["path"] == "/waits":
            await self.go.wait()
        if scope["path"] == "/breaks":
            raise RuntimeError("a bug")
        if scope["path"] == "/empty":
            return Response(status_code=204)
        query = scope["query_string"].decode()
        return Response(f"{scope['method']} {scope['path']} {query} {len(body)}", headers={"x-a": "1"})


@asynccontextmanager
async def served(app: Any, door: type[Door], **more: Any) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    """On a port, without the header that tells the time."""
    listening = listen("127.0.0.1", 0)
    settings = {
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,
    }
    config = uvicorn.Config(
        app, http=door, date_header=False, timeout_graceful_shutdown=5, **settings, **more
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve([listening]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield listening.getsockname()[1], server
    finally:
        server.should_exit = True
        await serving


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.01 * (len(pieces) > 1))

    async def reply(self) -> bytes:
        """The next one, byte for byte; what is left where the connection closes."""
        async with asyncio.timeout(20):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as closed:
                return closed.partial
            size = re.search(rb"content-length: (\d+)", head)
            return head + (await self.reader.readexactly(int(size[1])) if size is not None else b"")

    async def rest(self) -> bytes:
        async with asyncio.timeout(20):
            return await self.reader.read()

    def close(self) -> None:
        self.writer.close()


def on_the_wire(sent: Sent, *, last: bool = False) -> Sequence[bytes]:
    headers = [("host", "localhost"), *sent.headers, *([("connection", "close")] if last else [])]
    if sent.body or sent.method in ("POST", "PUT"):
        headers.append(("content-length", str(len(sent.body))))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    whole = f"{sent.method} {sent.target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + sent.body
    size = -(-len(whole) // sent.pieces)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


async def test_every_call_is_answered_as_behind_the_usual_server() -> None:  # A4, F36
    corpus = [
        sent
        for sent in (*usual(), *malformed(), *hostile())
        if sent.method not in ("HEAD", "BREW", "get") and sent.target.isascii()
    ]
    async with (
        two_services() as (one, other),
        served(one, WholeRequests) as (whole, _),
        served(other, Door) as (usually, _),
    ):
        for sent in corpus:
            replies: list[bytes] = []
            for port in (whole, usually):
                line = await Line.to(port)
                await line.send(*on_the_wire(sent, last=True))
                replies.append(await line.rest())
                line.close()
            assert replies[0] == replies[1], sent


ODD = {
    "in pieces": ([LAST[:20], LAST[20:-1], LAST[-1:]], 0),
    "the body later": ([LAST[:-2], b"ab"], 0),
    "two at once": ([ONE + ONE.replace(b"one", b"two")], 0),
    "a second one begun": ([ONE + LAST[:9], LAST[9:]], 0),
    "one after one in pieces": ([ONE[:9], ONE[9:], LAST], 1),
    "chunks": (
        [b"POST /one HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"],
        0,
    ),
    "a client's usual headers": (
        [
            ONE.replace(
                b"host: a",
                b"Host: a:80\r\nUser-Agent: x/1 (y; z)\r\nAccept: */*\r\nConnection: keep-alive\r\n"
                b"Authorization: Bearer k\r\nContent-Type:application/json",
            )
        ],
        1,
    ),
    "a header's value between spaces": ([ONE.replace(b"host: a", b"host: \t a \t")], 0),
    "a header without a value": ([ONE.replace(b"host: a", b"host:")], 0),
    "a folded header": ([ONE.replace(b"host: a", b"host: a\r\n b")], 0),
    "a header of odd signs": ([ONE.replace(b"host: a", b"h\xf6st: a")], 0),
    "lines that end in one sign": ([ONE.replace(b"\r\n", b"\n")], 0),
    "two lengths": ([ONE.replace(b"host: a", b"content-length: 2")], 0),
    "two hosts": ([ONE.replace(b"host: a", b"host: a\r\nHost: b")], 0),
    "a length that is none": ([ONE.replace(b"length: 2", b"length: +2")], 0),
    "a body that has no length": ([ONE.replace(b"content-length", b"x-length")], 0),
    "an older version": ([ONE.replace(b"1.1", b"1.0")], 0),
    "closed afterwards": ([LAST], 1),
    "an address with signs": ([ONE.replace(b"/one", b"/%C3%A8%2Fb;c?d=%20&e")], 1),
    "an address in full": ([ONE.replace(b"/one", b"http://b/one")], 0),
    "another way": ([ONE.replace(b"one", b"asgi")], 0),
    "an upgrade": ([ONE.replace(b"host", b"connection: upgrade\r\nupgrade: websocket\r\nhost")], 0),
    "no body": ([b"GET /one?x HTTP/1.1\r\nhost: a\r\n\r\n"], 1),
    "a head only": ([b"HEAD /asgi HTTP/1.1\r\nhost: a\r\n\r\n"], 0),
    "a reply without headers": ([ONE.replace(b"one", b"empty")], 1),
    "and one that closes": ([LAST.replace(b"one", b"empty")], 1),
    "a bug": ([ONE.replace(b"one", b"breaks")], 1),
    "no HTTP": ([ONE[:-2] + b"ab" + b"\x16\x03 /"], 0),
    "an unknown method": ([ONE.replace(b"POST", b"BREW")], 0),
    "a body that is broken": (
        [b"POST /o HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n"],
        0,
    ),
    "too large a head": ([b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"], 0),
    "too many headers": ([b"GET /one HTTP/1.1\r\n" + b"a: b\r\n" * 12_000 + b"\r\n"], 0),
}


@pytest.mark.parametrize("name", ODD)
async def test_whatever_way_a_request_comes_the_bytes_are_the_same(name: str) -> None:
    # A4
    pieces, whole = ODD[name]
    apps, replies = (Counting(), Counting()), list[bytes]()
    for app, door in zip(apps, (WholeRequests, Door), strict=True):
        # What comes in pieces closes by itself: an idle connection's time may be over between two of them.
        async with served(app, door, timeout_keep_alive=0.2 if len(pieces) == 1 else 60) as (port, _):
            line = await Line.to(port)
            await line.send(*pieces)
            replies.append(await line.rest())
            line.close()
    assert replies[0] == replies[1]
    assert (apps[0].whole, apps[1].whole) == (whole, 0)


async def test_expect_is_answered_before_the_body_comes() -> None:
    expecting = ONE[:-2].replace(b"host", b"expect: 100-continue\r\nhost")
    async with served(Counting(), WholeRequests) as (port, _):
        line = await Line.to(port)
        await line.send(expecting)
        assert await line.reply() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await line.send(b"ab")
        assert (await line.reply()).endswith(b"POST /one  2")
        line.close()


async def test_replies_keep_the_order_of_their_requests() -> None:
    app = Counting()
    async with served(app, WholeRequests) as (port, _):
        line = await Line.to(port)
        await line.send(ONE.replace(b"one", b"waits"), ONE, ONE.replace(b"one", b"third"))
        app.go.set()
        found = [(await line.reply()).rpartition(b"\r\n")[2] for _ in range(3)]
        assert found == [b"POST /waits  2", b"POST /one  2", b"POST /third  2"]
        line.close()


async def test_a_stop_waits_for_what_is_under_way_and_closes_what_is_idle() -> None:
    app = Counting()
    async with served(app, WholeRequests) as (port, server):
        busy, idle = await Line.to(port), await Line.to(port)
        await idle.send(ONE)
        await idle.reply()
        await busy.send(ONE.replace(b"one", b"waits"))
        while app.whole < 2:
            await asyncio.sleep(0.005)
        server.should_exit = True
        assert await idle.rest() == b""
        app.go.set()
        left = await busy.rest()
        assert b"connection: close" in left
        assert left.endswith(b"POST /waits  2")
        busy.close()
        idle.close()


async def test_an_idle_connection_is_closed_in_time_and_not_before() -> None:
    loop = asyncio.get_running_loop()
    async with served(Counting(), WholeRequests, timeout_keep_alive=1) as (port, _):
        for _ in range(10):
            line, answered = await Line.to(port), list[float]()
            with suppress(ConnectionError):  # where the machine was held up for longer
                for _ in range(4):  # together longer than an idle connection lives
                    await line.send(ONE)
                    if not await line.reply():
                        break
                    answered.append(loop.time())
                    await asyncio.sleep(0.35)
                left = await line.rest()
                if len(answered) == 4:
                    assert left == b""
                    assert loop.time() - answered[-1] > 0.9
                    line.close()
                    return
            line.close()
    raise AssertionError("not once were four replies less than a second apart")


async def test_a_client_that_has_gone_is_not_written_to() -> None:
    app = Counting()
    async with served(app, WholeRequests) as (port, server):
        line = await Line.to(port)
        await line.send(ONE.replace(b"one", b"waits"))
        while not app.whole:
            await asyncio.sleep(0.005)
        line.close()
        while server.server_state.connections:
            await asyncio.sleep(0.005)
        app.go.set()
        while server.server_state.tasks:
            await asyncio.sleep(0.005)
        again = await Line.to(port)
        await again.send(ONE)
        assert (await again.reply()).endswith(b"POST /one  2")
        again.close()
