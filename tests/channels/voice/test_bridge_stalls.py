"""V12: sides that stall, read slowly or say nonsense, and calls in a row: nothing is left of any of it."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha1

import pytest
from picows import WSMsgType

from channels.voice import model_connection
from channels.voice.call import audio_output as audible_module
from channels.voice.call import dialogue as responses_module
from channels.voice.call import state as call_module
from channels.voice.model_connection import Patience
from channels.voice.testing.fake_realtime import FakeRealtime, Fault
from channels.voice.testing.fake_response import Pace
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.script import Reaction, Say, Script
from channels.voice.testing.sockets import eventually
from channels.voice.wires import sockets as sockets_module
from tests.channels.voice.books import Book, Bridged, bridged
from tests.channels.voice.leaks import Held, nothing_left, resident_kb

pytestmark = pytest.mark.anyio

TALKATIVE = Script((Reaction((Say("Hello there", 1500),), once=False),))
ENDLESS = Script((Reaction((Say("A very long story", 170_000),), once=False),))


@dataclass
class Scene:
    model: FakeRealtime
    bridge: Bridged
    book: Book

    async def over(self, reason: str, within_s: float = 30.0) -> None:
        """The call has ended for this reason, and its end was told once."""
        await eventually(lambda: self.bridge.watcher.ended != [], within_s)
        await eventually(lambda: self.bridge.bridge.live_calls == 0)
        assert self.bridge.watcher.ended == [reason]
        assert self.book.asked.count("ended") == self.book.asked.count("started")
        assert self.book.asked.count("ended") + self.book.asked.count("closed") == 1


@asynccontextmanager
async def scene(
    script: Script = TALKATIVE, *faults: Fault, pace: Pace | None = None
) -> AsyncGenerator[Scene]:
    """Afterwards no task and no socket is left of it."""
    book = Book()
    async with (
        nothing_left(),
        FakeRealtime(script, faults=faults, pace=pace) as model,
        bridged(book, model.url) as bridge,
    ):
        yield Scene(model, bridge, book)


class TestCounting:
    """The negative control: what counts tasks and files notices one of each."""

    async def test_notices_a_task(self) -> None:
        task = None
        with pytest.raises(AssertionError):
            async with nothing_left(within_s=0.1):
                task = asyncio.ensure_future(asyncio.sleep(60))
        assert task is not None
        task.cancel()

    async def test_notices_a_socket(self) -> None:
        async with FakeRealtime() as model:
            port = int(model.url.split(":")[2].split("/")[0])
            writer = None
            with pytest.raises(AssertionError):
                async with nothing_left(within_s=0.1):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
            assert writer is not None
            writer.close()
            await writer.wait_closed()


class TestALineThatStalls:
    async def test_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V12
        monkeypatch.setattr(call_module, "LINE_SILENT_S", 0.6)
        monkeypatch.setattr(sockets_module, "CLOSE_WITHIN_S", 0.3)
        async with scene() as s, FakeTwilioCall(s.bridge.url) as call:
            await eventually(lambda: call.playout.heard != [])
            call.stall()
            await s.over("line_lost")
            await eventually(lambda: not s.model.connections[0].socket.is_open)

    async def test_and_has_megabytes_waiting_is_closed_all_the_same(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # V12
        monkeypatch.setattr(call_module, "LINE_SILENT_S", 1.0)
        monkeypatch.setattr(sockets_module, "CLOSE_WITHIN_S", 0.3)
        pace = Pace(chunk_ms=1000, speed=1e6)
        async with scene(ENDLESS, pace=pace) as s, FakeTwilioCall(s.bridge.url) as call:
            await s.model.session()
            call.stall()
            await s.over("line_lost")

    async def test_that_only_listens_is_lost_too(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V12
        monkeypatch.setattr(call_module, "LINE_SILENT_S", 0.6)
        # Without the caller's audio and without marks nothing tells that anybody is there.
        script = Script((Reaction((Say("Hello", 200),)),))
        async with scene(script) as s, FakeTwilioCall(s.bridge.url, sends_silence=False) as call:
            await s.over("line_lost")
            await call.closed()


class TestALineThatSendsAMessageInPieces:
    async def test_takes_no_more_time_for_very_many(self) -> None:  # V12
        """Those that hold nothing are bounded by no size of a message."""
        async with scene() as s, FakeTwilioCall(s.bridge.url) as call:
            await eventually(lambda: call.playout.heard != [])
            transport = call.socket._transport
            assert transport is not None
            began = time.process_time()
            transport.send(WSMsgType.TEXT, b'{"event": ', fin=False)
            for _ in range(60_000):
                transport.send(WSMsgType.CONTINUATION, b"", fin=False)
            transport.send(WSMsgType.CONTINUATION, b'"stop"}')
            await s.over("caller_hung_up")
            assert time.process_time() - began < 5


class TestALineThatDoesNotRead:
    async def test_but_speaks_is_given_up_at_the_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V12
        monkeypatch.setattr(audible_module, "MOST_WAITING_MS", 1e9)
        pace = Pace(chunk_ms=1000, speed=1e6)
        script = Script((Reaction((Say("A very long story", 170_000),) * 20, once=False),))
        async with scene(script, pace=pace) as s, FakeTwilioCall(s.bridge.url) as call:
            gc.collect()
            before = resident_kb()
            call.socket.stop_reading()
            await s.over("caller_hung_up", 10.0)
            assert resident_kb() - before < 40_000  # of 46 MB, besides what the double makes

    async def test_takes_no_more_memory_than_three_minutes_of_audio(self) -> None:  # V12
        pace = Pace(chunk_ms=1000, speed=1e6)
        script = Script((Reaction((Say("A very long story", 170_000),) * 20, once=False),))
        async with scene(script, pace=pace) as s, FakeTwilioCall(s.bridge.url) as call:
            gc.collect()
            before = resident_kb()
            call.socket.stop_reading()
            session = await s.model.session()
            await eventually(lambda: session.received("response.cancel") != [])
            await asyncio.sleep(0.3)
            assert s.bridge.bridge.live_calls == 1
            # 180 s are 2 MB as they are sent; 20 such stories would have been 46.
            assert resident_kb() - before < 16_000
            call.drop()


class TestAModelThatStalls:
    async def test_in_the_middle_of_a_response_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(call_module, "MODEL_SILENT_S", 0.6)  # V12
        async with scene(TALKATIVE, Fault("stall", after_events=8)) as s:
            async with FakeTwilioCall(s.bridge.url) as call:
                await eventually(lambda: len(s.model.connections) == 2)
                await eventually(lambda: call.playout.heard != [])
                await call.hang_up()
            await s.over("caller_hung_up")
            assert s.bridge.watcher.renewed == 1

    async def test_before_a_response_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V12
        monkeypatch.setattr(responses_module, "ANSWERED_WITHIN_S", 0.6)
        async with scene(TALKATIVE, Fault("stall", after_events=2)) as s:
            async with FakeTwilioCall(s.bridge.url) as call:
                await eventually(lambda: len(s.model.connections) == 2)
                await eventually(lambda: call.playout.heard != [])
                await call.hang_up()
            await s.over("caller_hung_up")

    async def test_while_nothing_is_asked_of_it_is_noticed_by_its_pings(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # V12
        monkeypatch.setattr(sockets_module, "PING_AFTER_S", 0.3)
        monkeypatch.setattr(sockets_module, "PONG_WITHIN_S", 0.3)
        async with scene() as s, FakeTwilioCall(s.bridge.url) as call:
            session = await s.model.session()
            await eventually(lambda: session.sent("response.done") != [])
            s.model.connections[0].stall()
            await eventually(lambda: len(s.model.connections) == 2)
            await call.hang_up()
            await s.over("caller_hung_up")

    async def test_and_stalls_again_and_again_keeps_the_caller(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(call_module, "MODEL_SILENT_S", 0.4)  # V12
        faults = [Fault("stall", after_events=8)] * 3
        async with scene(TALKATIVE, *faults) as s, FakeTwilioCall(s.bridge.url) as call:
            await eventually(lambda: len(s.model.connections) == 4)
            await eventually(lambda: call.playout.heard != [])
            await call.hang_up()
            await s.over("caller_hung_up")

    async def test_from_the_first_moment_ends_the_call(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V12
        monkeypatch.setattr(model_connection, "OPENING", Patience(0.4, (0.1,), 1.0))
        faults = [Fault("stall", after_events=1)] * 2
        async with scene(TALKATIVE, *faults) as s, FakeTwilioCall(s.bridge.url) as call:
            await call.closed()
            await s.over("model_unreachable")

    async def test_whose_handshake_never_ends_leaves_no_socket(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sockets_module, "HANDSHAKE_WITHIN_S", 0.4)  # V12
        book = Book()
        accepted: list[asyncio.StreamWriter] = []

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(writer)
            await reader.read()  # until the other side has gone
            await reader.read()
            writer.close()

        async with nothing_left():
            server = await asyncio.start_server(silent, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            async with bridged(book, f"ws://127.0.0.1:{port}/v1/realtime") as bridge:
                async with FakeTwilioCall(bridge.url) as call:
                    await call.closed()
                await eventually(lambda: bridge.watcher.ended == ["model_unreachable"])
            await eventually(lambda: len(accepted) == 2 and all(each.is_closing() for each in accepted))
            server.close()
            await server.wait_closed()

    async def test_whose_handshake_ends_after_its_caller_has_gone_keeps_no_session(self) -> None:  # V12
        """It would be there as long as the model lets it be: picows answers its pings."""
        ended = asyncio.Event()

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            await eventually(lambda: book.asked == ["open", "closed"])
            [key] = re.findall(r"(?i)sec-websocket-key: *(\S+)", head)
            proof = base64.b64encode(sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest())
            headers = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + proof
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\n" + headers + b"\r\n\r\n")
            await reader.read()
            writer.close()
            ended.set()

        book = Book()
        async with nothing_left():
            server = await asyncio.start_server(late, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            async with bridged(book, f"ws://127.0.0.1:{port}/v1/realtime") as bridge:
                async with FakeTwilioCall(bridge.url) as call:
                    await eventually(lambda: book.asked == ["open"])
                    await call.hang_up()
                await asyncio.wait_for(ended.wait(), 30)
                await eventually(lambda: bridge.watcher.ended == ["caller_hung_up"])
            server.close()
            await server.wait_closed()

    async def test_that_does_not_read_gets_no_late_audio_and_takes_no_memory(self) -> None:  # V12
        payload = base64.b64encode(b"\xff" * 24_000)
        media = b'{"event":"media","media":{"track":"inbound","payload":"%b"}}' % payload
        async with scene() as s, FakeTwilioCall(s.bridge.url, latency_s=0.0) as call:
            session = await s.model.session()
            await eventually(lambda: session.sent("response.done") != [])
            s.model.connections[0].socket.stop_reading()
            [runner] = s.bridge.bridge._calls.values()
            gc.collect()
            before = resident_kb()
            # The kernel takes megabytes of a loopback connection before anything waits.
            for _ in range(1000):
                call.send_raw(media)
                await asyncio.sleep(0.001)
                if runner.call.counts.unheard > 100:
                    break
            assert runner.call.counts.unheard > 100
            assert resident_kb() - before < 16_000
            call.drop()
            await s.over("caller_hung_up")


class TestNonsense:
    @pytest.mark.parametrize("frame", [b"\x00garbage", b"[]", b'{"type": 1}', b'{"type":"response.done"}'])
    async def test_of_the_model_ends_its_connection_when_there_is_much(self, frame: bytes) -> None:  # V12
        async with scene() as s, FakeTwilioCall(s.bridge.url) as call:
            session = await s.model.session()
            await eventually(lambda: session.sent("response.done") != [])
            for _ in range(sockets_module.MOST_UNREADABLE):
                s.model.connections[0].send_raw(frame)
            await eventually(lambda: len(s.model.connections) == 2)
            await call.say("Are you there", 400)
            await eventually(lambda: "Are you there" in s.book.turns)
            await call.hang_up()
            await s.over("caller_hung_up")

    async def test_of_ten_megabytes_from_both_sides_at_once(self) -> None:  # V12
        async with scene(TALKATIVE, Fault("oversized", after_events=8)) as s:
            async with FakeTwilioCall(s.bridge.url) as call:
                await eventually(lambda: len(s.model.connections) == 2)
                call.send_raw(b'"%b"' % (b"x" * 10 * 1024 * 1024))
                await call.closed()
            await s.over("caller_hung_up")

    async def test_in_error_events_changes_nothing(self) -> None:  # V12
        async with scene() as s, FakeTwilioCall(s.bridge.url) as call:
            session = await s.model.session()
            for code in ("server_error", "invalid_value", "conversation_already_has_active_response") * 10:
                s.model.connections[0].error(code)
            await call.say("Are you there", 400)
            await eventually(lambda: "Are you there" in s.book.turns)
            assert len(s.model.connections) == 1
            assert len(session.received("response.create")) <= 3
            await call.hang_up()
            await s.over("caller_hung_up")


@pytest.mark.long
async def test_300_short_calls_in_a_row_leave_nothing() -> None:  # V12
    async with scene(Script((Reaction((Say("Hello", 200),), once=False),))) as s:

        async def one() -> None:
            async with FakeTwilioCall(s.bridge.url, latency_s=0) as call:
                await eventually(lambda: call.playout.heard != [] or call.received != [])
                await call.hang_up()

        async def many(calls: int) -> None:
            for _ in range(calls // 10):
                await asyncio.gather(*(one() for _ in range(10)))
            await eventually(lambda: s.bridge.bridge.live_calls == 0)
            await asyncio.sleep(0.2)
            s.model.connections.clear()  # the double remembers everything
            gc.collect()

        await many(50)
        before, used = Held.now(), resident_kb()
        await many(300)
        assert len(s.bridge.watcher.ended) == 350
        assert set(s.bridge.watcher.ended) == {"caller_hung_up"}
        after = Held.now()
        assert after.tasks <= before.tasks
        assert after.files <= before.files
        assert resident_kb() - used < 20_000, os.getpid()
