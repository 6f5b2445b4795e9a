"""Both doubles with the thinnest bridge in between: what they say of each other has to agree."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from picows import WSUpgradeRequest, ws_connect, ws_create_server

from channels.voice.call.events import AgentAudio, AgentAudioEnded, CallerAudio, SpeechStarted, StreamStarted
from channels.voice.call.ports import SessionSettings
from channels.voice.carriers.twilio.media_streams import TwilioLine, decode_line
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_response import Pace
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.realtime_session import item_number
from channels.voice.testing.script import Say, Script
from channels.voice.testing.sockets import Socket, eventually
from channels.voice.wires.openai_realtime import RealtimeLink, realtime_url
from channels.voice.wires.realtime_events import decode
from tests.timing import in_the_best_round

pytestmark = pytest.mark.anyio


class Relay:
    """One call passed on: audio both ways, a mark at each item's end, a clear when the caller speaks."""

    def __init__(self, model_url: str) -> None:
        self._model_url = model_url
        self.line_socket = Socket(self._from_line, on_close=self._hung_up)
        self.model_socket = Socket(self._from_model)
        self._link = RealtimeLink(self.model_socket.send, self.model_socket.close)
        self._line = TwilioLine("", lambda _: None, lambda: None)
        self._connecting: asyncio.Task[object] | None = None

    def _from_line(self, message: bytes) -> None:
        event = decode_line(message)
        if isinstance(event, CallerAudio):
            self._link.append_audio(event.payload)
        elif isinstance(event, StreamStarted):
            self._line = TwilioLine(event.stream_id, self.line_socket.send, self.line_socket.close)
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        await ws_connect(lambda: self.model_socket, self._model_url)
        self._link.configure(SessionSettings("Relay."))

    def _from_model(self, message: bytes) -> None:
        event = decode(message)
        if isinstance(event, AgentAudio):
            self._line.play(event.payload)
        elif isinstance(event, AgentAudioEnded):
            self._line.mark(event.item_id)
        elif isinstance(event, SpeechStarted):
            self._line.clear()

    def _hung_up(self) -> None:
        self.model_socket.drop()


@asynccontextmanager
async def relaying(server: FakeRealtime) -> AsyncIterator[str]:
    relays: list[Relay] = []

    def upgrade(_: WSUpgradeRequest) -> Socket:
        relays.append(Relay(realtime_url(server.url, "model", "gpt-realtime")))
        return relays[-1].line_socket

    listening = await ws_create_server(upgrade, "127.0.0.1", 0)
    try:
        yield f"ws://127.0.0.1:{listening.sockets[0].getsockname()[1]}/media-stream"
    finally:
        listening.close()
        for relay in relays:
            relay.line_socket.drop()
            relay.model_socket.drop()
        await listening.wait_closed()


async def test_the_caller_is_heard_and_hears_the_answer() -> None:  # V12
    async with (
        FakeRealtime(Script.of(Say("Good evening!", 600))) as server,
        relaying(server) as url,
        FakeTwilioCall(url) as call,
    ):
        session = await server.session()
        await eventually(lambda: bool(session.commands))
        await call.say("A table for two, please.", 400)
        await eventually(lambda: any(got.event == "mark" for got in call.received))
        caller, agent = session.conversation.items
        assert (caller.text, agent.text) == ("A table for two, please.", "Good evening!")
        number = item_number(agent.item_id)
        await eventually(lambda: call.playout.heard_ms(number) >= 599.9)
        assert session.errors == []
        assert call.mistakes == []


@in_the_best_round
async def test_the_truth_of_an_interruption_is_known_to_the_millisecond() -> None:  # V12
    async with (
        FakeRealtime(Script.of(Say("A long story.", 5000), Say("Yes?", 200))) as server,
        relaying(server) as url,
        FakeTwilioCall(url) as call,
    ):
        session = await server.session()
        await eventually(lambda: bool(session.commands))
        await call.say("Tell me.", 300)
        await eventually(lambda: bool(call.playout.heard) and not session.is_responding)
        await call.say("Stop!", 300)
        await eventually(lambda: len(call.playout.clears) == 2)
        number = item_number(session.conversation.items[1].item_id)
        cleared = call.playout.clears[-1]
        heard = next(heard for heard in call.playout.heard if heard.item == number)
        assert heard.ends_ms - heard.begins_ms == pytest.approx((cleared.at - heard.at) * 1000, abs=1)
        assert call.playout.heard_ms(number) + cleared.dropped_ms == pytest.approx(5000, abs=1)
        spoke_at = session.sent("input_audio_buffer.speech_started")[-1].at
        assert 0.05 <= cleared.at - spoke_at <= 0.2


@in_the_best_round
async def test_twenty_calls_run_side_by_side() -> None:  # V12
    async with AsyncExitStack() as stack:
        pace = Pace(chunk_ms=200, speed=5)
        server = await stack.enter_async_context(
            FakeRealtime(Script.of(Say("Good evening!", 1000)), pace=pace)
        )
        url = await stack.enter_async_context(relaying(server))
        calls = [await stack.enter_async_context(FakeTwilioCall(url)) for _ in range(20)]
        await server.session(19)
        await eventually(lambda: all(session.commands for session in server.sessions))
        cpu, began = time.process_time(), time.monotonic()
        await asyncio.gather(*(call.say(f"I am number {at}.", 500) for at, call in enumerate(calls)))
        await eventually(
            lambda: all(sum(h.ends_ms - h.begins_ms for h in call.playout.heard) >= 999 for call in calls)
        )
        used = (time.process_time() - cpu) / (time.monotonic() - began)
        texts = sorted(session.conversation.items[0].text for session in server.sessions)
        assert texts == sorted(f"I am number {at}." for at in range(20))
        assert all(call.mistakes == [] for call in calls)
        assert used < 0.5, f"twenty calls take {used:.0%} of a core"
