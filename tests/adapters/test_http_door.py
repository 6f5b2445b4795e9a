"""What the door lets in, over real sockets, with a small application behind it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
import uvicorn

from adapters.http_door import Door, DoorLimits, listen
from flow_engine.ports.telemetry import IDS_LOGGED
from service.logs import configure_logging

pytestmark = pytest.mark.anyio

HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\n"


LIMITS = DoorLimits(head_s=0.3, body_s=0.3, linger_s=0.3, body_bytes=200_000)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """`/refuses` answers before it reads; everything else answers how many bytes the body had."""
    size = 0
    while scope["path"] != "/refuses":
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


@asynccontextmanager
async def behind_a_door(app: Any, door_limits: DoorLimits) -> AsyncIterator[int]:
    """The port of an ASGI application behind a door with these limits."""

    class LimitedDoor(Door):
        limits = door_limits

    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        app,
        http=LimitedDoor,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server._serve([listening]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def sent(port: int, *pieces: bytes, pause_s: float = 0.0) -> tuple[bytes, float]:
    """All that comes back until the connection closes, and after how many seconds of the loop that was."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    clock = asyncio.get_running_loop().time
    began = clock()

    async def send() -> None:
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
        except ConnectionError:
            pass

    sending = asyncio.create_task(send())
    async with asyncio.timeout(10):
        reply = await reader.read()
    sending.cancel()
    writer.close()
    return reply, clock() - began


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"], b"414"),
        ([b"GET /" + b"a" * 40_000, b"a" * 40_000, b"a" * 400_000], b"414"),
        ([HEAD + b"x: " + b"a" * 70_000 + b"\r\n\r\n"], b"431"),
        ([HEAD + b"x: ", *[b"a" * 30_000] * 20], b"431"),
        ([HEAD, *[b"y: " + b"a" * 900 + b"\r\n"] * 900], b"431"),
    ],
)
async def test_a_head_of_more_than_64_kib_is_refused_and_the_connection_closed(  # contract 12, A4
    pieces: list[bytes], status: bytes
) -> None:
    async with behind_a_door(echo, LIMITS) as port:
        reply, _ = await sent(port, *pieces)
        assert reply.startswith(b"HTTP/1.1 " + status)
        assert b"application/problem+json" in reply
        assert b"connection: close" in reply


async def test_a_head_just_below_the_limit_is_taken() -> None:  # contract 12
    async with behind_a_door(echo, LIMITS) as port:
        head = HEAD + b"x: " + b"a" * 65_000 + b"\r\nconnection: close\r\ncontent-length: 2\r\n\r\n"
        assert (await sent(port, head + b"ab"))[0].endswith(
            b"\r\n2\r\n0\r\n\r\n".replace(b"\r\n2", b"\r\n1\r\n2")
        )


@pytest.mark.parametrize("before", [b"", HEAD + b"content-length: 2\r\n\r\nab"])
@pytest.mark.parametrize("pieces", [[], [b"GE"], [HEAD], [HEAD + b"x: "]])
async def test_a_head_that_is_not_whole_in_time_ends_with_408(  # contract 12, A4
    pieces: list[bytes], before: bytes
) -> None:
    async with behind_a_door(echo, LIMITS) as port:
        reply, seconds = await sent(port, *([before] if before and pieces else []), *pieces, pause_s=0.05)
        assert b"HTTP/1.1 408" in reply
        assert reply.startswith(b"HTTP/1.1 200" if before and pieces else b"HTTP/1.1 408")
        assert 0.25 < seconds < 3


async def test_bytes_that_trickle_do_not_put_the_deadline_off() -> None:  # contract 12, A4
    async with behind_a_door(echo, LIMITS) as port:
        reply, seconds = await sent(port, HEAD, *[b"x: y\r\n"] * 40, pause_s=0.05)
        assert reply.startswith(b"HTTP/1.1 408")
        assert seconds < 2


@pytest.mark.parametrize("framing", [b"content-length: 100\r\n", b"transfer-encoding: chunked\r\n"])
async def test_a_body_that_stands_still_ends_with_408(framing: bytes) -> None:  # contract 12, A4
    async with behind_a_door(echo, LIMITS) as port:
        reply, _ = await sent(port, HEAD + framing + b"\r\n", b"5\r\nabcde\r\n")
        assert reply.startswith(b"HTTP/1.1 408")


async def test_a_slow_body_that_goes_on_is_taken() -> None:  # contract 12
    async with behind_a_door(echo, LIMITS) as port:
        head = HEAD + b"connection: close\r\ncontent-length: 10\r\n\r\n"
        reply, seconds = await sent(port, head, *[b"a"] * 10, pause_s=0.1)
        assert reply.startswith(b"HTTP/1.1 200")
        assert seconds > 0.6


@pytest.mark.parametrize(
    "endless", [b"0\r\n" + b"t: " + b"a" * 1000, b"1;" + b"e" * 1000], ids=["trailers", "extensions"]
)
async def test_what_belongs_to_a_body_is_bounded_too(endless: bytes) -> None:  # contract 12
    head = b"POST /refuses HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    async with behind_a_door(echo, LIMITS) as port:
        reply, seconds = await sent(port, head + endless, *[b"b" * 10_000] * 100, pause_s=0.001)
        assert reply.startswith(b"HTTP/1.1 200")
        assert seconds < 5  # and then it was closed


async def test_requests_on_one_connection_are_counted_one_by_one() -> None:  # contract 12
    one = HEAD + b"x: " + b"a" * 20_000 + b"\r\ncontent-length: 1\r\n\r\na"
    last = one.replace(b"x: ", b"connection: close\r\nx: ")
    async with behind_a_door(echo, LIMITS) as port:
        reply, _ = await sent(port, one, one, one, one, last, pause_s=0.01)
        assert reply.count(b"HTTP/1.1 200") == 5


@pytest.mark.parametrize(
    ("request_sent", "told"),
    [
        (b"\x16\x03\x01 hello\r\n\r\n", b"this is no HTTP request"),
        (HEAD + b"Host: b\r\n\r\n", b"accepted is one Host header"),
    ],
)
async def test_what_is_no_http_is_told_so(request_sent: bytes, told: bytes) -> None:  # contract 12
    async with behind_a_door(echo, LIMITS) as port:
        reply, _ = await sent(port, request_sent)
        assert reply.startswith(b"HTTP/1.1 400")
        assert b'"code":"http_invalid"' in reply
        assert told in reply


@pytest.mark.parametrize("requests", [1, 2])
async def test_what_comes_behind_a_whole_request_leaves_it_its_reply(requests: int) -> None:  # contract 12
    """Such as the rest of a body whose length was counted in characters."""
    whole = HEAD + b"content-length: 4\r\n\r\nbody"
    async with behind_a_door(echo, LIMITS) as port:
        reply, _ = await sent(port, whole * requests + b'"}', b"more")
        assert reply.count(b"HTTP/1.1 200") == requests
        assert reply.count(b"connection: close") == 1
        assert reply.endswith(b"4\r\n0\r\n\r\n")


@pytest.mark.parametrize("requests_before", [0, 1])
async def test_an_address_that_cannot_be_read_is_told_so(requests_before: int) -> None:  # contract 12, F36
    async with behind_a_door(echo, LIMITS) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(requests_before):
            writer.write(HEAD + b"content-length: 0\r\n\r\n")
            await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n")
        reply = await reader.read()
        assert reply.startswith(b"HTTP/1.1 400")
        assert b'"code":"http_invalid"' in reply
        writer.close()


async def test_an_idle_connection_after_a_reply_is_not_told_of_a_deadline() -> None:  # contract 12
    async with behind_a_door(echo, LIMITS) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"content-length: 0\r\n\r\n")
        first = await reader.readuntil(b"0\r\n\r\n")
        await asyncio.sleep(0.5)
        writer.write(HEAD + b"content-length: 0\r\n\r\n")
        assert await reader.readuntil(b"0\r\n\r\n") == first
        writer.close()


async def test_a_reply_that_nobody_takes_is_not_kept_for_ever() -> None:  # contract 12
    cut = asyncio.Event()

    async def much(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(30_000_000), "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        cut.set()

    async with behind_a_door(much, replace(LIMITS, taken_s=0.2)) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(HEAD + b"content-length: 0\r\n\r\n")
            async with asyncio.timeout(30):
                await cut.wait()


@pytest.mark.parametrize("request_", [b"garbage\r\n\r\n", HEAD + b"X-F : 1\r\nContent-Length: 0\r\n\r\n"])
async def test_a_request_that_cannot_be_read_is_one_line_of_the_log(  # F46
    request_: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    configure_logging("info")
    IDS_LOGGED.set({})  # of no request, as where the server listens
    async with behind_a_door(echo, LIMITS) as port:
        assert (await sent(port, request_))[0].startswith(b"HTTP/1.1 400")
    written = capfdbinary.readouterr()
    (line,) = map(orjson.loads, written.out.splitlines())
    assert line.pop("timestamp").endswith("Z")
    told = {"event": "Invalid HTTP request received.", "level": "warning", "logger": "uvicorn.error"}
    assert (line, written.err) == (told, b"")


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
async def test_who_asks_for_another_protocol_is_answered_in_this_one(  # F46
    protocol: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    configure_logging("info")
    upgrade = b"connection: upgrade\r\nupgrade: " + protocol + b"\r\ncontent-length: 0\r\n\r\n"
    async with behind_a_door(echo, LIMITS) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + upgrade)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
    assert capfdbinary.readouterr() == (b"", b"")
