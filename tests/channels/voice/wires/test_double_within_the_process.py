"""A fake call and a fake model without sockets: the line within the process, the order of a model's words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
import pytest

from channels.voice.call.events import ModelEvent
from channels.voice.call.ports import RealtimeListener
from channels.voice.replay import PlayedModel, played_link, run_in_virtual_time
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.sockets import ABNORMAL, LocalSocket


class Peer:
    """Keeps what it hears."""

    def __init__(self, socket: LocalSocket) -> None:
        self.socket = socket
        self.frames: list[bytes] = []
        self.goodbyes = 0

    def message(self, message: bytes) -> None:
        self.frames.append(message)

    def gone(self) -> None:
        self.goodbyes += 1


async def opened() -> tuple[LocalSocket, Peer, list[bytes]]:
    peers: list[Peer] = []
    heard: list[bytes] = []

    def open_peer(socket: LocalSocket) -> Peer:
        peers.append(Peer(socket))
        return peers[0]

    return LocalSocket(heard.append, open_peer), peers[0], heard


@pytest.mark.anyio
async def test_what_one_side_sends_the_other_hears_at_once() -> None:
    socket, peer, heard = await opened()
    socket.send(b"one")
    socket.send("two")
    peer.socket.deliver(b"three")
    assert (peer.frames, heard) == ([b"one", b"two"], [b"three"])


@pytest.mark.anyio
@pytest.mark.parametrize(("end", "code"), [("close", 1000), ("drop", ABNORMAL)])
async def test_a_closed_line_is_closed_once_and_carries_nothing(end: str, code: int) -> None:
    socket, peer, heard = await opened()
    getattr(socket, end)()
    socket.close(4000)
    socket.send(b"one")
    socket.deliver(b"two")
    assert (socket.is_open, socket.close_code, peer.goodbyes) == (False, code, 1)
    assert (peer.frames, heard) == ([], [])
    await socket.closed.wait()


@pytest.mark.anyio
async def test_a_side_that_has_stopped_reading_hears_nothing_more() -> None:
    socket, _, heard = await opened()
    socket.stop_reading()
    socket.deliver(b"one")
    assert heard == []
    assert socket.is_open


def test_a_call_within_the_process_speaks_as_one_over_the_network() -> None:
    peers: list[Peer] = []

    def line(receive: Callable[[bytes], None]) -> LocalSocket:
        def open_peer(socket: LocalSocket) -> Peer:
            peers.append(Peer(socket))
            return peers[-1]

        return LocalSocket(receive, open_peer)

    async def talk() -> list[str]:
        async with FakeTwilioCall(line, parameters={"callerPhone": "+33612345678"}) as call:
            await call.say("A table for four.")
            await call.hang_up()
        return [orjson.loads(frame)["event"] for frame in peers[0].frames]

    events = run_in_virtual_time(talk())
    assert events[:2] == ["connected", "start"]
    assert set(events[2:-1]) == {"media"}
    assert events[-1] == "stop"
    assert peers[0].goodbyes == 1


class Chatty:
    """Implements `PlayedModel`: says many things at the same moment."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send

    def begin(self) -> None:
        for number in range(50):
            event = {
                "type": "input_audio_buffer.committed",
                "item_id": f"i{number}",
            }
            self._send(orjson.dumps(event))

    def receive(self, frame: bytes) -> None: ...

    def stop(self) -> None: ...


class Listener(RealtimeListener):
    def __init__(self) -> None:
        self.heard: list[ModelEvent] = []

    def event(self, event: ModelEvent) -> None:
        self.heard.append(event)

    def lost(self) -> None: ...

    def audio_dropped(self) -> None: ...


def test_what_a_model_says_at_one_moment_is_heard_in_its_order() -> None:
    """Timers that are due at the same moment have no order of their own."""
    listener = Listener()

    async def connect() -> None:
        def model(send: Callable[[bytes], None]) -> PlayedModel:
            return Chatty(send)

        played_link(model, listener)
        await asyncio.sleep(1)

    run_in_virtual_time(connect())
    assert [getattr(event, "item_id", None) for event in listener.heard] == [f"i{n}" for n in range(50)]
