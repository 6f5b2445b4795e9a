"""The line's WebSocket on uvicorn's connection, on both event loops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport
from structlog.testing import capture_logs

from channels.voice.carriers.twilio.carrier import HEADER, signature
from channels.voice.server import line_sockets as upgrade
from tests.channels.voice.server.front_desk import (
    TOKEN,
    Echo,
    EchoCallServer,
    exchange,
    handshake,
    open_desk,
    secret,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: Any) -> Any:
    return ("asyncio", {"use_uvloop": request.param})


async def test_a_line_connects_and_its_frames_are_answered() -> None:  # V12
    async with open_desk() as desk:
        caller = await desk.dial()
        assert await caller.say("hello") == "hello"
        assert desk.answering.answered == 1
        assert (await desk.http.get("/healthz")).json()["liveCalls"] == 1
        caller.transport.disconnect()
        assert await caller.next() is None
        while desk.app.admission.live:
            await asyncio.sleep(0.01)
        assert desk.answering.disconnected == 1


async def test_large_and_many_frames_pass_whole() -> None:  # V12
    async with open_desk() as desk:
        caller = await desk.dial()
        for size in (1, 125, 126, 70_000, 900_000):
            assert await caller.say("x" * size) == "x" * size
        for number in range(500):
            caller.transport.send(WSMsgType.TEXT, str(number))
        assert [await caller.next() for _ in range(500)] == [str(number) for number in range(500)]


async def test_a_frame_of_more_than_a_mebibyte_closes_the_line_with_1009() -> None:  # V12
    async with open_desk() as desk:
        caller = await desk.dial()
        caller.transport.send(WSMsgType.TEXT, "x" * 10_000_000)
        assert await caller.next() is None
        assert caller.close_code in (1009, None)  # the end of the connection may overtake the reason
        assert (await (await desk.dial()).say("next")) == "next"


async def test_compression_is_not_agreed_on() -> None:  # V12
    async with open_desk() as desk:
        head = await exchange(desk.port, handshake(Sec_WebSocket_Extensions="permessage-deflate"))
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"extensions" not in head.lower()


async def test_a_connection_that_served_http_before_may_become_a_line() -> None:  # V12
    async with open_desk(realtime_url="ws://127.0.0.1:9") as desk:
        reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await reader.readuntil(b"}")
        writer.write(handshake(Connection="keep-alive, Upgrade"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(b"\x81\x82\x00\x00\x00\x00hi")
        assert await reader.readexactly(4) == b"\x81\x02hi"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (handshake("/elsewhere"), b"404"),
        (handshake("/media-stream/more"), b"404"),
        (handshake(Sec_WebSocket_Key="short"), b"400"),
        (handshake(Sec_WebSocket_Key="\xe9" * 24), b"400"),
        (handshake(Sec_WebSocket_Key=""), b"400"),
        (handshake(Sec_WebSocket_Version="12"), b"400"),
        (handshake(Sec_WebSocket_Version=""), b"400"),
        (handshake().replace(b"GET", b"POST"), b"400"),
        (handshake(Upgrade="h2c"), b"426"),
        (handshake(**{f"X-{number}": "x" for number in range(200)}), b"400"),
        (handshake(Content_Length="5") + b"hello", b"400"),
    ],
)
async def test_what_is_no_handshake_is_refused_before_anybody_answers(
    sent: bytes, status: bytes
) -> None:  # V12
    async with open_desk() as desk:
        head = await exchange(desk.port, sent)
        assert head.split(b" ")[1] == status
        assert not desk.answering.answered
        assert desk.app.admission.live == 0


async def test_a_head_without_end_is_not_kept() -> None:  # V12
    async with open_desk() as desk:
        head = await exchange(desk.port, handshake(X_Long="x" * 20_000))
        assert head.startswith(b"HTTP/1.1 431 ")
        assert not desk.answering.answered


async def test_every_slash_and_query_of_the_path_is_the_line() -> None:  # V12
    async with open_desk() as desk:
        for path in ("/media-stream/", "/media-stream?x=1"):
            assert (await exchange(desk.port, handshake(path))).startswith(b"HTTP/1.1 101 ")


async def test_an_unsigned_line_gets_1008_and_nobody_answers() -> None:  # V12
    async with open_desk(twilio_auth_token=secret(TOKEN)) as desk:
        for headers in ({}, {HEADER: "wrong"}, {HEADER: "\xff\xfe"}):
            raw = handshake(**{name.title(): value for name, value in headers.items()})
            received = await exchange(desk.port, raw, until=b"\x88\x02\x03\xf0")
            assert received.startswith(b"HTTP/1.1 101 ")
            assert received.endswith(b"\r\n\r\n\x88\x02\x03\xf0")
        caller = await desk.dial()
        assert await caller.next() is None
        assert caller.close_code == 1008
        assert not desk.answering.answered
        assert desk.app.admission.live == 0
        assert desk.count("calls_refused_total", reason="not_allowed") == 4


async def test_a_line_signed_over_the_wss_url_is_answered() -> None:  # V12
    async with open_desk(twilio_auth_token=secret(TOKEN), public_url="https://voice.example") as desk:
        signed = signature(TOKEN, "wss://voice.example/media-stream", {})
        caller = await desk.dial({HEADER: signed})
        assert await caller.say("hello") == "hello"
        assert desk.answering.answered == 1


async def test_without_a_token_a_web_page_cannot_call() -> None:  # V12
    async with open_desk() as desk:
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Via": "1.1 tunnel"}):
            caller = await desk.dial(headers)
            assert await caller.next() is None
            assert caller.close_code == 1008
        assert not desk.answering.answered


async def test_a_line_beyond_the_limit_is_told_to_try_later() -> None:  # V12
    async with open_desk(voice_max_calls=1) as desk:
        first = await desk.dial()
        second = await desk.dial()
        assert await second.next() is None
        assert second.close_code == 1013
        first.transport.disconnect()
        while desk.app.admission.live:
            await asyncio.sleep(0.01)
        assert await (await desk.dial()).say("hello") == "hello"


async def test_stopping_the_server_closes_every_line() -> None:  # V12
    async with open_desk() as desk:
        callers = [await desk.dial() for _ in range(3)]
    for caller in callers:
        assert await caller.next() is None
        assert caller.close_code == 1001
    assert desk.answering.disconnected == 3
    assert desk.app.admission.live == 0


class Broken(EchoCallServer):
    def answer(self) -> WSListener:
        raise RuntimeError("+33612345678")


async def test_an_answering_that_breaks_is_reported_and_takes_up_no_place() -> None:  # V12 V14
    with capture_logs() as logged:
        async with open_desk(answering=Broken()) as desk:
            received = await exchange(desk.port, handshake(), until=b"\x88\x02\x03\xf3")
            assert received.endswith(b"\x88\x02\x03\xf3")  # 1011: an error of ours
            assert desk.app.admission.live == 0
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == ["bug"]
    assert b"612345678" not in received


class Clumsy(EchoCallServer):
    def answer(self) -> WSListener:
        answering = self

        class Raising(Echo):
            def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
                raise RuntimeError("a bug")

        return Raising(answering)


async def test_a_listener_that_breaks_ends_its_line_and_is_reported() -> None:  # V12 V14
    with capture_logs() as logged:
        async with open_desk(answering=Clumsy()) as desk:
            caller = await desk.dial()
            assert await caller.say("hello") is None
            assert caller.close_code == 1011
            while desk.app.admission.live:
                await asyncio.sleep(0.01)
            assert desk.answering.disconnected == 1
    reported = [entry for entry in logged if entry["log_level"] == "error"]
    assert {entry["event"] for entry in reported} == {"socket_bug"}
    assert reported[0]["exc_info"]


async def test_a_peer_that_has_gone_silently_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:  # V12
    monkeypatch.setattr(upgrade, "PING_AFTER_S", 0.1)
    monkeypatch.setattr(upgrade, "PONG_WITHIN_S", 0.1)
    async with open_desk() as desk:
        received = await exchange(desk.port, handshake(), until=b"\x03\xe9")  # 1001
        assert b"\x89\x00" in received  # a ping
        while desk.app.admission.live:
            await asyncio.sleep(0.01)
        assert desk.answering.disconnected == 1
