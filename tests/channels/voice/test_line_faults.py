"""V12: each fault of either side ends or recovers the call once, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from channels.voice import bridge as bridge_module
from channels.voice import model_connection
from channels.voice.model_connection import Patience
from channels.voice.testing.fake_realtime import FakeRealtime, Fault
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.script import Reaction, Say, Script
from channels.voice.testing.sockets import eventually
from tests.certificates import trusting
from tests.channels.mail.dovecot import make_certificate
from tests.channels.voice.books import Book, bridged

pytestmark = pytest.mark.anyio

TALKATIVE = Script((Reaction((Say("Hello there", 1500),), once=False),))


async def settled(book: Book, within_s: float = 10.0) -> None:
    await eventually(lambda: book.asked.count("ended") == 1, within_s)
    await asyncio.sleep(0.1)
    assert book.asked.count("ended") == book.asked.count("started") == 1


@pytest.mark.parametrize("how", ["stop", "drop", "garbage", "oversized", "binary flood"])
async def test_whatever_the_line_does_the_call_ends_once(how: str) -> None:  # V12
    book = Book()
    async with FakeRealtime(TALKATIVE) as model, bridged(book, model.url) as bridge:
        async with FakeTwilioCall(bridge.url) as call:
            await model.session()
            await eventually(lambda: "started" in book.asked)
            match how:
                case "stop":
                    await call.hang_up()
                case "drop":
                    call.drop()
                case "garbage":
                    for _ in range(60):
                        call.send_raw(b'{"event": "media", "media": \x00')
                case "oversized":
                    call.send_raw(b'"%b"' % (b"x" * 10 * 1024 * 1024))
                case _:
                    for _ in range(60):
                        call.send_raw(b"[]")
            await settled(book)
            await call.closed()
        assert bridge.bridge.live_calls == 0
        await eventually(lambda: not model.connections[0].socket.is_open)


async def test_a_little_garbage_of_the_line_is_passed_over() -> None:  # V12
    book = Book()
    async with FakeRealtime(TALKATIVE) as model, bridged(book, model.url) as bridge:
        async with FakeTwilioCall(bridge.url) as call:
            for _ in range(5):
                call.send_raw(b"{}")
                call.send_raw(b'{"event": "start"}')
            await eventually(lambda: call.playout.heard != [])
            await call.hang_up()
        await settled(book)


@pytest.mark.parametrize("kind", ["close", "drop", "expire", "oversized", "garbage", "error"])
async def test_whatever_the_model_does_in_the_middle_the_call_goes_on(kind: str) -> None:  # V12
    book = Book()
    fault = Fault(kind, after_events=8)  # type: ignore[arg-type]
    async with FakeRealtime(TALKATIVE, faults=[fault]) as model, bridged(book, model.url) as bridge:
        async with FakeTwilioCall(bridge.url) as call:
            lasting = kind in ("garbage", "error")
            await eventually(lambda: len(model.connections) == (1 if lasting else 2))
            await eventually(lambda: call.playout.heard != [])
            await call.say("Are you there", 500)
            await eventually(lambda: "Are you there" in book.turns)
            await call.hang_up()
        await settled(book)
        assert bridge.watcher.ended == ["caller_hung_up"]
        assert bridge.watcher.renewed == (0 if lasting else 1)


async def test_a_model_that_refuses_twice_ends_the_call_within_3_seconds() -> None:  # V12
    book, refuse = Book(), Fault("refuse")
    async with FakeRealtime(faults=[refuse, refuse]) as model, bridged(book, model.url) as bridge:
        async with FakeTwilioCall(bridge.url) as call:
            await call.closed(4.0)
        await eventually(lambda: bridge.watcher.ended == ["model_unreachable"])
        assert book.asked == ["open", "closed"]  # never started


async def test_nobody_at_the_models_address_ends_the_call_within_3_seconds() -> None:  # V12
    book = Book()
    async with bridged(book, "ws://127.0.0.1:9/v1/realtime") as bridge:
        async with FakeTwilioCall(bridge.url) as call:
            await call.closed(4.0)
        await eventually(lambda: bridge.watcher.ended == ["model_unreachable"])
        assert book.asked == ["open", "closed"]


async def test_a_model_that_stays_away_after_a_loss_ends_the_call_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12
    monkeypatch.setattr(model_connection, "LONGER", Patience(5.0, (0.5,), 10.5))
    book = Book()
    faults = [Fault("drop", after_events=8), Fault("refuse"), Fault("refuse")]
    async with FakeRealtime(TALKATIVE, faults=faults) as model, bridged(book, model.url) as bridge:
        async with FakeTwilioCall(bridge.url) as call:
            await call.closed(4.0)
        await settled(book)
        assert bridge.watcher.ended == ["model_lost"]


async def test_a_socket_on_which_no_call_begins_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:  # V12
    monkeypatch.setattr(bridge_module, "BEGIN_WITHIN_S", 0.3)
    book = Book()
    async with bridged(book, "ws://127.0.0.1:9/v1/realtime") as bridge:
        call = FakeTwilioCall(bridge.url)
        call._numbered = lambda *_: {"event": "connected"}  # type: ignore[method-assign] - says no start
        async with call:
            await call.closed(4.0)
        assert book.asked == []


async def test_calls_that_run_when_the_program_ends_run_their_lifecycle() -> None:  # V12
    book = Book()
    async with FakeRealtime(TALKATIVE) as model, bridged(book, model.url) as bridge:
        async with FakeTwilioCall(bridge.url) as call:
            await eventually(lambda: call.playout.heard != [])
            await bridge.bridge.close()
            await call.closed()
        await settled(book)
        assert bridge.watcher.ended == ["shut_down"]


async def test_the_certificates_are_read_once_for_all_models_connections(tmp_path: Path) -> None:  # V12
    """Reading them holds all calls for 20 ms: each that began did."""
    make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    asked: list[bytes] = []

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuses, "127.0.0.1", 0, ssl=tls)
    url = f"wss://localhost:{server.sockets[0].getsockname()[1]}/v1/realtime"
    with trusting(tmp_path / "cert.pem"):
        for _ in range(2):
            async with bridged(Book(), url) as bridge, FakeTwilioCall(bridge.url) as call:
                await call.closed(4.0)
            (tmp_path / "cert.pem").unlink(missing_ok=True)
    server.close()
    assert len(asked) == 4, "two tries each"
