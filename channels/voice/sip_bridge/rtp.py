"""The audio of one call as RTP: what is heard comes in packets, what is to be said goes out every 20 ms.

1. The agent hears and speaks µ-law at 8 kHz; a line that has A-law only is translated, byte by byte.
2. A packet goes out every 20 ms, silence too: some networks end a call on which nothing comes.
3. A mark is reached when the last byte before it was sent; `clear` throws away what was not, and reaches all.
4. Packets come from where the other side says it hears, or from where its first one came (RFC 4961): behind
   address translation the two differ. Nobody else is listened to.
5. Of packets that overtake each other the late ones are left out: the model hears a gap rather than a mix.
"""

import asyncio
import secrets
import struct
from collections import deque
from collections.abc import Callable
from typing import cast

from channels.voice.sip_bridge.messages import AudioOffer

PACKET_S = 0.02
PACKET_BYTES = 160
MOST_WAITING_BYTES = 8000 * 600
"""Ten minutes of speech that was not played yet."""

SILENCE = b"\xff" * PACKET_BYTES
KEYS = "0123456789*#ABCD"

_HEAD = struct.Struct(">BBHII")
_VERSION = 0x80
_A_LAW = 8


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


class RtpStream(asyncio.DatagramProtocol):
    """`heard` gets µ-law, `pressed` a key of the phone, `reached` the name of a mark. To be used as the
    protocol of a datagram endpoint; `speak` runs until it is cancelled."""

    def __init__(
        self,
        offer: AudioOffer,
        *,
        heard: Callable[[bytes], None],
        pressed: Callable[[str], None],
        reached: Callable[[str], None],
    ) -> None:
        self._offer = offer
        self._heard = heard
        self._pressed = pressed
        self._reached = reached
        self._transport: asyncio.DatagramTransport | None = None
        self._remote: tuple[str, int] = (offer.host, offer.port)
        self._is_known = False
        self._last: int | None = None
        self._event: int | None = None
        self._waiting = bytearray()
        self._marks: deque[tuple[int, str]] = deque()
        self._sent = secrets.randbits(16)
        self._source = secrets.randbits(32)

    # What is to be said ------------------------------------------------------------------------------

    def play(self, audio: bytes) -> None:
        """µ-law of any length. What is beyond ten minutes is left out."""
        if len(self._waiting) + len(audio) <= MOST_WAITING_BYTES:
            self._waiting += audio

    def mark(self, name: str) -> None:
        """Have `name` reached when all that was to be played before has been sent."""
        self._marks.append((len(self._waiting), name))
        self._reach(0)

    def clear(self) -> None:
        self._waiting.clear()
        self._marks = deque((0, name) for _, name in self._marks)
        self._reach(0)

    async def speak(self) -> None:
        """Send a packet every 20 ms, by the clock: one that is late makes none of the next late."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            audio = bytes(self._waiting[:PACKET_BYTES])
            del self._waiting[:PACKET_BYTES]
            payload = audio + SILENCE[len(audio) :]
            payload = payload.translate(A_LAW_OF_MU) if self._offer.payload_type == _A_LAW else payload
            self._sent += 1
            stamp = self._sent * PACKET_BYTES & 0xFFFF_FFFF
            head = _HEAD.pack(_VERSION, self._offer.payload_type, self._sent & 0xFFFF, stamp, self._source)
            if self._transport is not None:
                self._transport.sendto(head + payload, self._remote)
            self._reach(len(audio))
            due = max(due + PACKET_S, loop.time() - 5 * PACKET_S)
            await asyncio.sleep(due - loop.time())

    def _reach(self, sent: int) -> None:
        self._marks = deque((max(0, left - sent), name) for left, name in self._marks)
        while self._marks and self._marks[0][0] == 0:
            self._reached(self._marks.popleft()[1])

    # What is heard -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(data) <= _HEAD.size or data[0] & 0xC0 != _VERSION:
            return
        if addr[:2] != self._remote:
            if self._is_known:
                return
            self._remote = addr[:2]
        self._is_known = True
        kind, number = data[1] & 0x7F, int.from_bytes(data[2:4], "big")
        payload = data[_HEAD.size + 4 * (data[0] & 0x0F) :]
        if kind == self._offer.events_type:
            stamp = int.from_bytes(data[4:8], "big")
            if payload and stamp != self._event and payload[0] < len(KEYS):
                self._event = stamp
                self._pressed(KEYS[payload[0]])
            return
        is_late = self._last is not None and not 0 < (number - self._last) & 0xFFFF < 0x8000
        if kind == self._offer.payload_type and payload and not is_late:
            self._last = number
            self._heard(payload.translate(MU_LAW_OF_A) if kind == _A_LAW else payload)
