"""The audio of one call as RTP: what is heard comes in packets, what is to be said goes out every 20 ms.

1. The agent hears and speaks µ-law at 8 kHz; a line that has A-law only is translated, byte by byte.
2. A packet goes out every 20 ms, silence too: some networks end a call on which nothing comes.
3. A mark is reached when the last byte before it was sent; `clear` throws away what was not, and reaches all.
4. Packets come from where the other side says it hears, or from where its first one came (RFC 4961): behind
   address translation the two differ. A stranger may have been first: the place that was said takes over as
   soon as it speaks. Nobody else is listened to, but for the place that a line has left until the new one
   speaks, and for a source that goes on from another place, as when its translation was made anew: whoever
   has not seen its packets cannot go on with them (RFC 7362, 5).
5. Of packets that overtake each other the late ones are left out: the model hears a gap rather than a mix.
   Each source (SSRC) counts its own, and may begin anew.
6. A line with silence suppression sends comfort noise at times, or nothing: the agent hears silence then,
   for without audio it takes no turn for ended. Without any packet for 15 s the line is lost, but on hold.
7. A line on hold hears nothing, and what comes of it is music: what is to be said waits, and the agent hears
   silence.
"""

import asyncio
import secrets
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, cast

from channels.voice.sip_bridge.descriptions import A_LAW, NOWHERE, AudioOffer

PACKET_S = 0.02
PACKET_BYTES = 160
MOST_WAITING_BYTES = 8000 * 600
"""Ten minutes of speech that was not played yet."""

MOST_LATE = 100
"""Packets, of 2 s: one that is further behind is no late one, its source counts anew (RFC 3550, A.1)."""

MOST_TICKS_LATE = 5
"""Of 20 ms. A packet that takes longer than others is no silence."""

LOST_AFTER_TICKS = 750
"""15 s without any packet, of silence suppression neither: nobody is there."""

SILENCE = b"\xff" * PACKET_BYTES
KEYS = "0123456789*#ABCD"

_HEAD = struct.Struct(">BBHII")
_VERSION = 0x80
_HAS_PADDING = 0x20
_HAS_EXTENSION = 0x10


def _from_mu_law(code: int) -> int:
    """16 bit linear (G.711)."""
    code = ~code & 0xFF
    value = (((code & 0x0F) << 3) + 0x84 << ((code & 0x70) >> 4)) - 0x84
    return -value if code & 0x80 else value


def _to_mu_law(value: int) -> int:
    size = min(abs(value), 32_635) + 0x84
    exponent = size.bit_length() - 8
    return ~((0x80 if value < 0 else 0) | exponent << 4 | (size >> exponent + 3) & 0x0F) & 0xFF


def _from_a_law(code: int) -> int:
    code ^= 0x55
    value, segment = (code & 0x0F) << 4, (code & 0x70) >> 4
    value = value + 8 if segment == 0 else value + 0x108 << segment - 1
    return value if code & 0x80 else -value


def _to_a_law(value: int) -> int:
    size = min(abs(value), 32_635)
    exponent = max(size.bit_length() - 8, 0)
    mantissa = size >> (exponent + 3 if exponent else 4)
    return ((0x80 if value >= 0 else 0) | exponent << 4 | mantissa & 0x0F) ^ 0x55


MU_LAW_OF_A = bytes(_to_mu_law(_from_a_law(code)) for code in range(256))
A_LAW_OF_MU = bytes(_to_a_law(_from_mu_law(code)) for code in range(256))


class _Packet(NamedTuple):
    kind: int
    number: int
    stamp: int
    source: int
    payload: bytes


def _read_packet(data: bytes) -> _Packet | None:
    """None for what is no packet of RTP."""
    if len(data) <= _HEAD.size or data[0] & 0xC0 != _VERSION:
        return None
    _, kind, number, stamp, source = _HEAD.unpack_from(data)
    begins = _HEAD.size + 4 * (data[0] & 0x0F)
    if data[0] & _HAS_EXTENSION:
        begins += 4 + 4 * int.from_bytes(data[begins + 2 : begins + 4], "big")
    ends = len(data) - (data[-1] if data[0] & _HAS_PADDING else 0)
    return _Packet(kind & 0x7F, number, stamp, source, data[begins : max(0, ends)])


class RtpStream(asyncio.DatagramProtocol):
    """`offer` is what the line was described as last. `heard` gets µ-law, `pressed` a key of the phone,
    `reached` the name of a mark; `lost` is called when nothing has come for 15 s. To be used as the protocol
    of a datagram endpoint; `speak` runs until it is cancelled."""

    def __init__(
        self,
        offer: AudioOffer,
        *,
        heard: Callable[[bytes], None],
        pressed: Callable[[str], None],
        reached: Callable[[str], None],
        lost: Callable[[], None],
    ) -> None:
        self.offer = offer
        self._heard = heard
        self._pressed = pressed
        self._reached = reached
        self._lost = lost
        self._ticks_without_audio = 0
        self._ticks_without_packet = 0
        self._transport: asyncio.DatagramTransport | None = None
        self._remote: tuple[str, int] = (offer.host, offer.port)
        self._left: tuple[str, int] | None = None
        self._is_known = False
        self._is_where_it_said = False
        self._heard_source: int | None = None
        self._last_number = 0
        self._event: int | None = None
        self._waiting = bytearray()
        self._played = 0
        self._marks: deque[tuple[int, str]] = deque()
        self._sent = secrets.randbits(16)
        self._source = secrets.randbits(32)

    def redirect(self, offer: AudioOffer) -> None:
        """The line goes on as another description of it says."""
        if offer.host == NOWHERE:
            offer = replace(offer, host=self.offer.host, port=self.offer.port)
        before, self.offer = self.offer, offer
        if (offer.host, offer.port) != (before.host, before.port):
            self._left = None if before.host == NOWHERE else self._remote  # which nobody leaves
            self._remote = offer.host, offer.port
            self._is_known = self._is_where_it_said = False

    # What is to be said ------------------------------------------------------------------------------

    def play(self, audio: bytes) -> None:
        """µ-law of any length. What is beyond ten minutes is left out."""
        if len(self._waiting) + len(audio) <= MOST_WAITING_BYTES:
            self._waiting += audio

    def mark(self, name: str) -> None:
        """Have `name` reached when all that was to be played before has been sent."""
        self._marks.append((self._played + len(self._waiting), name))
        self._reach(0)

    def clear(self) -> None:
        thrown_away = len(self._waiting)
        self._waiting.clear()
        self._reach(thrown_away)

    async def speak(self) -> None:
        """Send a packet every 20 ms, by the clock: one that is late makes none of the next late."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            audio = bytes(self._waiting[:PACKET_BYTES]) if self.offer.hears else b""
            del self._waiting[: len(audio)]
            payload = audio + SILENCE[len(audio) :]
            payload = payload.translate(A_LAW_OF_MU) if self.offer.payload_type == A_LAW else payload
            self._sent += 1
            stamp = self._sent * PACKET_BYTES & 0xFFFF_FFFF
            head = _HEAD.pack(_VERSION, self.offer.payload_type, self._sent & 0xFFFF, stamp, self._source)
            if self._transport is not None and self.offer.hears:
                self._transport.sendto(head + payload, self._remote)
            self._reach(len(audio))
            self._bridge_gap()
            due = max(due + PACKET_S, loop.time() - 5 * PACKET_S)
            await asyncio.sleep(due - loop.time())

    def _reach(self, further: int) -> None:
        self._played += further
        while self._marks and self._marks[0][0] <= self._played:
            self._reached(self._marks.popleft()[1])

    def _bridge_gap(self) -> None:
        """To be called every 20 ms: the agent hears silence where the line sends none."""
        self._ticks_without_audio += 1
        if self._ticks_without_audio > MOST_TICKS_LATE:
            self._heard(SILENCE)
        self._ticks_without_packet = self._ticks_without_packet + 1 if self.offer.speaks else 0
        if self._ticks_without_packet == LOST_AFTER_TICKS:
            self._lost()

    # What is heard -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        packet, place = _read_packet(data), addr[:2]
        was_said = place == (self.offer.host, self.offer.port)
        takes_over = not self._is_known or (was_said and not self._is_where_it_said)
        if packet is None or not (place == self._remote or takes_over or self._goes_on(packet)):
            return
        if place != self._left:
            self._remote, self._is_known = place, True
            self._is_where_it_said = self._is_where_it_said or was_said
        self._ticks_without_packet = 0
        if packet.kind == self.offer.events_type:
            if packet.payload and packet.payload[0] < len(KEYS) and self._is_new_event(packet.stamp):
                self._pressed(KEYS[packet.payload[0]])
        elif not self.offer.hears:
            return
        elif packet.kind == self.offer.payload_type and packet.payload and not self._is_late(packet):
            self._ticks_without_audio = 0
            self._heard(packet.payload.translate(MU_LAW_OF_A) if packet.kind == A_LAW else packet.payload)

    def _is_new_event(self, stamp: int) -> bool:
        """An event has one stamp in all its packets, the last of which may come after another one's first."""
        if self._event is not None and (self._event - stamp) & 0xFFFF_FFFF < MOST_LATE * PACKET_BYTES:
            return False
        self._event = stamp
        return True

    def _goes_on(self, packet: _Packet) -> bool:
        """Whether it comes after those that were heard of its source."""
        ahead = (packet.number - self._last_number) & 0xFFFF
        return packet.source == self._heard_source and 0 < ahead < 0x8000

    def _is_late(self, packet: _Packet) -> bool:
        """Whether one that was sent after it was heard. Packets of another source, or of one that has begun
        anew, are counted from the first of them."""
        behind = (self._last_number - packet.number) & 0xFFFF
        if packet.source == self._heard_source and behind < MOST_LATE:
            return True
        self._heard_source, self._last_number = packet.source, packet.number
        return False
