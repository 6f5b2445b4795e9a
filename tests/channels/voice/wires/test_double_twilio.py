"""The fake line, against a server that does what the test says and reads with the real codec."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from picows import WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener, ws_create_server

from channels.voice.call.events import (
    CallerAudio,
    DigitPressed,
    MarkReturned,
    StreamStarted,
    StreamStopped,
    Unreadable,
)
from channels.voice.carriers.twilio.media_streams import TwilioLine, decode_line
from channels.voice.testing.fake_twilio import CallRefused, FakeTwilioCall, signature
from channels.voice.testing.signals import Stretch, agent_audio, understood
from channels.voice.testing.sockets import Socket, eventually
from channels.voice.wires.frames import duration_ms
from tests.timing import in_the_best_round

pytestmark = pytest.mark.anyio


class Server:
    """A media stream's other end."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[WSUpgradeRequest] = []
        self.events: list[tuple[float, Any]] = []
        self.sockets: list[Socket] = []
        self.refuses = False
        self.on_event: Callable[[TwilioLine, Any], None] = lambda _line, _event: None
        self._line = TwilioLine("", lambda _: None, lambda: None)

    @property
    def line(self) -> TwilioLine:
        return self._line

    def upgrade(self, request: WSUpgradeRequest) -> Any:
        self.requests.append(request)
        if self.refuses:
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(403), None)
        socket = Socket(self._take)
        self.sockets.append(socket)
        return socket

    def _take(self, message: bytes) -> None:
        event = decode_line(message)
        self.events.append((asyncio.get_running_loop().time(), event))
        if isinstance(event, StreamStarted):
            socket = self.sockets[-1]
            self._line = TwilioLine(event.stream_id, socket.send, socket.close)
        self.on_event(self._line, event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def at(self, kind: type[Any]) -> list[float]:
        return [at for at, event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    listening = await ws_create_server(server.upgrade, "127.0.0.1", 0)
    server.url = f"ws://127.0.0.1:{listening.sockets[0].getsockname()[1]}/media-stream"
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()


@asynccontextmanager
async def calling(**options: Any) -> AsyncIterator[tuple[FakeTwilioCall, Server]]:
    """A call whose start has arrived; without latency unless the options say otherwise."""
    async with serving() as server, FakeTwilioCall(server.url, **{"latency_s": 0.0, **options}) as call:
        await eventually(lambda: bool(server.of(StreamStarted)))
        yield call, server


async def test_a_call_starts_with_its_parameters() -> None:  # V12
    async with calling(parameters={"caller": "+33600000000"}) as (call, server):
        started = StreamStarted(call.stream_sid, call.call_sid, {"caller": "+33600000000"})
        assert [event for _, event in server.events][:2] == [None, started]


async def test_every_call_has_its_own_names() -> None:  # V12
    async with serving() as server, FakeTwilioCall(server.url) as one, FakeTwilioCall(server.url) as other:
        assert one.stream_sid != other.stream_sid
        assert one.call_sid != other.call_sid


async def test_the_handshake_is_signed_over_the_secure_url() -> None:  # V12
    async with calling(auth_token="secret") as (_, server):
        expected = signature("secret", server.url.replace("ws://", "wss://"))
        assert server.requests[0].headers["X-Twilio-Signature"] == expected
    async with calling(auth_token="secret", signed_url="wss://voice.test/media-stream") as (_, server):
        assert server.requests[0].headers["X-Twilio-Signature"] == signature(
            "secret", "wss://voice.test/media-stream"
        )
    async with calling() as (_, server):
        assert "X-Twilio-Signature" not in server.requests[0].headers


def test_the_signature_is_the_base64_of_the_hmac_sha1_of_the_url() -> None:  # V12
    assert signature("12345", "wss://example.com/x") == "IGw1aVQcx1WoEyzKIwckjqzZNHM="


async def test_a_refused_call_says_with_which_status() -> None:  # V12
    async with serving() as server:
        server.refuses = True
        with pytest.raises(CallRefused) as refused:
            async with FakeTwilioCall(server.url):
                pass
        assert refused.value.status == 403
    with pytest.raises(CallRefused) as nobody:
        async with FakeTwilioCall(server.url):
            pass
    assert nobody.value.status is None


@in_the_best_round
async def test_audio_streams_in_real_time_whether_or_not_the_caller_speaks() -> None:  # V12
    async with calling() as (call, server):
        await asyncio.sleep(0.4)
        spoken = await call.say("Hello!", 200)
        await asyncio.sleep(0.02)
        frames = server.of(CallerAudio)
        assert 24 <= len(frames) <= 36
        assert {duration_ms(frame.payload, "g711_ulaw") for frame in frames} == {20.0}
        assert understood(b"".join(base64.b64decode(frame.payload) for frame in frames)) == "Hello!"
        assert spoken.text == "Hello!"
        assert 0.15 <= spoken.ends_at - spoken.begins_at <= 0.3


async def test_a_silent_caller_may_send_nothing() -> None:  # V12
    async with calling(sends_silence=False) as (call, server):
        await asyncio.sleep(0.1)
        assert server.of(CallerAudio) == []
        await call.say("Hello!", 100)
        await asyncio.sleep(0.1)
        assert len(server.of(CallerAudio)) == 5


async def test_utterances_are_said_one_after_the_other() -> None:  # V12
    async with calling(speed=8.0, sends_silence=False) as (call, server):
        call.say("One.", 100)
        await call.say("Two.", 100)
        await eventually(lambda: len(server.of(CallerAudio)) == 10)
        raw = b"".join(base64.b64decode(frame.payload) for frame in server.of(CallerAudio))
        assert understood(raw) == "One. Two."


@in_the_best_round
async def test_what_the_line_is_sent_plays_and_its_marks_come_back_when_played() -> None:  # V12
    async with calling() as (call, server):
        now = asyncio.get_running_loop().time()
        server.line.play(base64.b64encode(agent_audio(5, 0, 300)))
        server.line.mark("end")
        await eventually(lambda: bool(server.of(MarkReturned)))
        assert server.of(MarkReturned) == [MarkReturned("end")]
        assert 0.29 <= server.at(MarkReturned)[0] - now <= 0.42
        assert call.playout.heard_ms(5) == pytest.approx(300)
        assert [(got.event, got.ms, got.name) for got in call.received] == [
            ("media", 300, ""),
            ("mark", 0, "end"),
        ]
        assert call.mistakes == []


@in_the_best_round
async def test_a_clear_gives_back_all_marks_at_once_and_the_rest_is_not_heard() -> None:  # V12
    async with calling() as (call, server):
        for item in (5, 6):
            server.line.play(base64.b64encode(agent_audio(item, 0, 2000)))
            server.line.mark(f"end of {item}")
        await eventually(lambda: call.playout.heard_ms(5) >= 100)
        server.line.clear()
        await eventually(lambda: len(server.of(MarkReturned)) == 2)
        heard = call.playout.heard_ms(5)
        assert 100 <= heard <= 400
        assert call.playout.clears[0].marks == ("end of 5", "end of 6")
        assert call.playout.clears[0].dropped[-1] == Stretch(6, 0, 2000)
        assert call.playout.clears[0].dropped_ms == pytest.approx(4000 - heard)
        await asyncio.sleep(0.1)
        assert call.playout.heard_ms(6) == 0


@in_the_best_round
async def test_the_line_has_a_way_there_and_a_way_back() -> None:  # V12
    async with serving() as server, FakeTwilioCall(server.url, latency_s=0.1) as call:
        began = asyncio.get_running_loop().time()
        await eventually(lambda: bool(server.of(StreamStarted)))
        assert 0.08 <= server.at(StreamStarted)[0] - began <= 0.25
        sent = asyncio.get_running_loop().time()
        server.line.mark("now")
        await eventually(lambda: bool(server.of(MarkReturned)))
        assert call.received[0].at - sent == pytest.approx(0.1, abs=0.05)
        assert 0.18 <= server.at(MarkReturned)[0] - sent <= 0.4


@in_the_best_round
async def test_a_faster_line_is_faster_in_everything() -> None:  # V12
    async with calling(speed=10.0, latency_s=0.1) as (call, server):
        began = asyncio.get_running_loop().time()
        server.line.play(base64.b64encode(agent_audio(5, 0, 2000)))
        server.line.mark("end")
        await eventually(lambda: bool(server.of(MarkReturned)))
        assert asyncio.get_running_loop().time() - began < 0.6
        assert call.playout.heard_ms(5) == pytest.approx(2000)


async def test_digits_are_pressed() -> None:  # V12
    async with calling() as (call, server):
        call.press("5")
        call.press("#")
        await eventually(lambda: len(server.of(DigitPressed)) == 2)
        assert [event.digit for event in server.of(DigitPressed)] == ["5", "#"]


async def test_a_caller_who_hangs_up_sends_stop_and_closes() -> None:  # V12
    async with calling(latency_s=0.05) as (call, server):
        await call.hang_up()
        await eventually(server.sockets[0].closed.is_set)
        assert server.events[-1][1] == StreamStopped()
        assert server.sockets[0].close_code == 1000


async def test_a_line_that_is_lost_says_nothing() -> None:  # V12
    async with calling() as (call, server):
        call.drop()
        await eventually(server.sockets[0].closed.is_set)
        assert server.of(StreamStopped) == []
        assert server.sockets[0].close_code == 1006


async def test_a_server_that_closes_is_noticed_with_its_code() -> None:  # V12
    async with calling() as (call, server):
        server.sockets[0].close(1008)
        assert await call.closed() == 1008


async def test_a_stalled_line_sends_and_reads_nothing_but_stays() -> None:  # V12
    async with calling() as (call, server):
        call.stall()
        await asyncio.sleep(0.1)
        before = len(server.events)
        server.line.mark("never read")
        await asyncio.sleep(0.2)
        assert len(server.events) == before
        assert call.received == []
        assert server.sockets[0].is_open


async def test_any_frame_can_be_sent() -> None:  # V12
    async with calling(sends_silence=False) as (call, server):
        call.send_raw("no JSON")
        call.send_raw(b'{"event":"media","media":{"payload":7}}')
        await eventually(lambda: len(server.of(Unreadable)) == 2)


@pytest.mark.parametrize(
    ("frame", "mistake"),
    [
        ('{"event":"clear","streamSid":"MZother"}', "clear for another stream"),
        ("no JSON", "a frame that is not JSON"),
        ('{"event":"media","streamSid":"%s","media":{"payload":"?"}}', "media that is not base64"),
        ('{"event":"mark","streamSid":"%s","mark":{}}', "name that names nothing"),
        ('{"event":"hello","streamSid":"%s"}', "an event 'hello'; a line takes media, mark and clear"),
    ],
)
async def test_what_no_line_would_take_is_noted(frame: str, mistake: str) -> None:  # V12
    async with calling() as (call, server):
        server.sockets[0].send(frame.replace("%s", call.stream_sid))
        await eventually(lambda: bool(call.mistakes))
        assert call.mistakes == [mistake]


async def test_leaving_a_call_leaves_nothing_behind() -> None:  # V12
    before = len(asyncio.all_tasks())
    async with calling() as (call, server):
        unsaid = call.say("This will not be said to its end.", 5000)
        await asyncio.sleep(0.05)
    assert unsaid.cancelled()
    assert server.sockets[0].closed.is_set()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before
