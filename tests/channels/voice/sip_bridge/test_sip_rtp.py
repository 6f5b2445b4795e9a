"""What is heard of a line's packets of RTP, and what it is told (V12)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from channels.voice.sip_bridge import rtp
from channels.voice.sip_bridge.descriptions import UNDESCRIBED, AudioOffer
from channels.voice.sip_bridge.rtp import RtpStream

pytestmark = pytest.mark.anyio

COMFORT_NOISE = 13
LINE = ("127.0.0.1", 4000)
AUDIO = bytes(range(160))
OFFER = AudioOffer(*LINE, 0, 101)


class Line:
    """A stream, and what was heard of it."""

    def __init__(self, offer: AudioOffer = OFFER) -> None:
        self.heard: list[bytes] = []
        self.keys: list[str] = []
        self.reached: list[str] = []
        self.lost = asyncio.Event()
        self.stream = RtpStream(
            offer,
            heard=self.heard.append,
            pressed=self.keys.append,
            reached=self.reached.append,
            lost=self.lost.set,
        )

    def packet(
        self,
        number: int,
        payload: bytes = AUDIO,
        *,
        source: int = 7,
        first: int = 0x80,
        kind: int = 0,
        stamp: int = 0,
        place: tuple[str, int] = LINE,
    ) -> None:
        head = struct.pack(">BBHII", first, kind, number & 0xFFFF, stamp, source)
        self.stream.datagram_received(head + payload, place)


def test_packets_that_overtake_each_other_are_left_out() -> None:  # V12
    line = Line()
    for number in (65_534, 65_535, 1, 0, 1, 2):
        line.packet(number, bytes((number & 0xFF,)))
    assert line.heard == [b"\xfe", b"\xff", b"\x01", b"\x02"]


def test_a_key_whose_last_packet_is_overtaken_by_the_next_key_counts_once() -> None:  # V12
    line = Line()
    first = 0xFFFF_FF00  # the stamps begin anew between the keys
    for number, key, stamp in ((1, 4, first), (3, 2, first + 800), (2, 4, first), (4, 2, first + 800)):
        line.packet(number, bytes((key, 0x80, 3, 32)), kind=101, stamp=stamp & 0xFFFF_FFFF)
    line.packet(9, bytes((4, 0x80, 3, 32)), kind=101, stamp=first + 1600 & 0xFFFF_FFFF)
    assert line.keys == ["4", "2", "4"]


def test_another_source_is_heard_from_its_first_packet_on() -> None:  # V12
    line = Line()
    line.packet(30_000, b"a")
    line.packet(5, b"b", source=8)
    line.packet(6, b"c", source=8)
    assert line.heard == [b"a", b"b", b"c"]


def test_a_source_that_counts_anew_is_heard() -> None:  # V12
    line = Line()
    line.packet(30_000, b"a")
    line.packet(5, b"b")
    line.packet(6, b"c")
    assert line.heard == [b"a", b"b", b"c"]


def test_only_the_audio_of_a_packet_is_heard() -> None:  # V12
    line = Line()
    extension = b"\xbe\xde\x00\x01\x10\x55\x00\x00"
    line.packet(1, extension + AUDIO, first=0x90)
    line.packet(2, AUDIO + b"\x00\x00\x03", first=0xA0)
    line.packet(3, b"\x00" * 8 + extension + AUDIO + b"\x01", first=0xB2)
    assert line.heard == [AUDIO] * 3
    line.packet(4, b"\xbe\xde\xff\xff" + AUDIO, first=0x90)
    line.packet(5, AUDIO + b"\xff", first=0xA0)
    line.packet(6, b"\xbe", first=0x90)
    assert line.heard == [AUDIO] * 3


@asynccontextmanager
async def speaking(line: Line, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    """As fast as it goes: no clock is waited for."""
    monkeypatch.setattr(rtp, "PACKET_S", 0.0)
    task = asyncio.create_task(line.stream.speak())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ticks(line: Line, count: int) -> None:
    """Wait until that many frames of silence more were heard."""
    until = len(line.heard) + count
    while len(line.heard) < until:
        await asyncio.sleep(0)


async def test_a_line_that_suppresses_silence_is_heard_as_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12
    line = Line()
    async with speaking(line, monkeypatch):
        line.packet(1)
        for number in range(2, 42):
            await ticks(line, rtp.LOST_AFTER_TICKS // 20)
            line.packet(number, b"\x40", kind=COMFORT_NOISE)
        assert not line.lost.is_set()
    assert line.heard[0] == AUDIO
    assert set(line.heard[1:]) == {rtp.SILENCE}


async def test_a_line_without_any_packet_is_lost_unless_it_is_on_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12
    line = Line()
    line.stream.redirect(AudioOffer(*LINE, 0, 101, "inactive"))
    async with speaking(line, monkeypatch):
        await ticks(line, 2 * rtp.LOST_AFTER_TICKS)
        assert not line.lost.is_set()
        line.stream.redirect(AudioOffer(*LINE, 0, 101))
        await line.lost.wait()


class Wire(asyncio.DatagramTransport):
    """What was sent in packets, and where to."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.to: list[object] = []

    def sendto(self, data: Any, addr: object = None) -> None:
        self.sent.append(data[12:])
        self.to.append(addr)


async def test_a_line_that_speaks_before_it_is_described_is_answered_where_it_speaks_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12
    line, wire = Line(UNDESCRIBED), Wire()
    line.stream.connection_made(wire)
    line.packet(1)
    line.stream.redirect(AudioOffer("192.168.1.7", 4000, 0, 101))  # as it knows itself, behind a translation
    line.packet(2)
    async with speaking(line, monkeypatch):
        while not wire.to:
            await asyncio.sleep(0)
    assert set(wire.to) == {LINE}


async def test_a_line_that_goes_on_from_another_place_is_followed_and_a_stranger_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12
    line, wire = Line(), Wire()
    line.stream.connection_made(wire)
    moved, stranger = ("127.0.0.1", 4002), ("127.0.0.1", 4004)
    line.packet(65_534, b"a")
    line.packet(65_535, b"x", source=8, place=stranger)
    line.packet(1, b"b", place=moved)  # its translation was made anew
    line.packet(65_535, b"x")  # overtaken on the old way
    line.packet(2, b"x", source=8, place=stranger)
    line.packet(2, b"c", place=moved)
    async with speaking(line, monkeypatch):
        while not wire.to:
            await asyncio.sleep(0)
    assert (b"".join(line.heard[:3]), set(wire.to)) == (b"abc", {moved})


async def test_a_stranger_who_speaks_first_is_not_taken_for_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12
    line, wire, stranger = Line(), Wire(), ("127.0.0.1", 4004)
    line.stream.connection_made(wire)
    line.packet(1, b"x", source=8, place=stranger)
    line.packet(1, b"a")
    line.packet(2, b"x", source=8, place=stranger)
    line.packet(2, b"b")
    async with speaking(line, monkeypatch):
        while not wire.to:
            await asyncio.sleep(0)
    assert (b"".join(line.heard[:3]), set(wire.to)) == (b"xab", {LINE})


async def test_a_line_on_hold_is_heard_as_silent_and_told_the_rest_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12
    line, wire = Line(), Wire()
    line.stream.connection_made(wire)
    line.stream.redirect(AudioOffer(*LINE, 0, 101, "sendonly"))
    line.stream.play(AUDIO * 3)
    line.stream.mark("end")
    async with speaking(line, monkeypatch):
        for number in range(10):
            line.packet(number, b"music")
            await ticks(line, 1)
        assert (set(line.heard), line.reached, wire.to) == ({rtp.SILENCE}, [], [])
        line.stream.redirect(OFFER)
        while not line.reached:
            await asyncio.sleep(0)
        assert wire.sent[:3] == [AUDIO] * 3
        line.packet(11)
    assert line.heard[-1] == AUDIO
