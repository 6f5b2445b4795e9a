"""A SIP server with a phone of its own that runs on this machine, for bridges that register with it.

    async with FakeTrunk({"desk": "secret"}) as trunk:
        ...  # a bridge registers at trunk.domain
        call = await trunk.call("desk", caller="+33612345678")
        await call.say("two pizzas", 400)
        assert stretches(bytes(call.heard))
        await call.hang_up()

It is strict: a registration without the right digest is refused, and a call that nobody acknowledges ends.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import md5
from types import TracebackType
from typing import Self, cast

from channels.voice.sip_bridge.messages import SipMessage, read_message, write_message, write_response
from channels.voice.testing.signals import speech
from channels.voice.testing.sockets import eventually

NONCE = "b5f2"
CHALLENGE = f'Digest realm="here", nonce="{NONCE}", qop="auth", algorithm=MD5'
_FIELD = re.compile(r'(\w+)="?([^",]+)"?')


class _Audio(asyncio.DatagramProtocol):
    def __init__(self, call: TrunkCall) -> None:
        self._call = call
        self.transport: asyncio.DatagramTransport | None = None

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._call.packets.append(data)
        self._call.heard += data[12:]


@dataclass
class TrunkCall:
    """One call of the trunk's phone. `heard` is the payload of all packets so far, `statuses` are the answers
    to its INVITEs, `answer` is the last one, `answers` the last ones by method; `is_over` says that the other
    side has hung up."""

    trunk: FakeTrunk
    call_id: str
    caller: str
    target: str
    address: tuple[str, int]
    payload_type: int = 0
    heard: bytearray = field(default_factory=bytearray)
    packets: list[bytes] = field(default_factory=list[bytes])
    statuses: list[int] = field(default_factory=list[int])
    description: str = ""
    answer: SipMessage | None = None
    answers: dict[str, SipMessage] = field(default_factory=dict[str, SipMessage])
    is_over: bool = False
    to: str = ""
    _sent: int = 0

    async def say(self, text: str, ms: int) -> None:
        """Speak for that long, and be silent for half a second."""
        for raw in (speech(text, ms), b"\xff" * 4000):
            for at in range(0, len(raw), 160):
                self._packet(self.payload_type, raw[at : at + 160].ljust(160, b"\xff"))
                await asyncio.sleep(0.005)

    def press(self, key: str) -> None:
        """As phones do: three packets of the key, three of its end."""
        stamp = self._sent
        for ended in (0, 0, 0, 0x80, 0x80, 0x80):
            self._packet(101, bytes(("0123456789*#".index(key), ended | 10, 0, 160)), stamp * 160)

    async def invite_again(
        self,
        number: int,
        *,
        payload_types: tuple[int, ...] = (0, 8),
        direction: str = "sendrecv",
        is_empty: bool = False,
    ) -> SipMessage:
        """A re-INVITE that moves the audio to another port; returns its answer. With `is_empty` it describes
        nothing, and its ACK does."""
        described = await self.trunk.described(self, payload_types, direction)
        known = len(self.statuses)
        first, last = (b"", described) if is_empty else (described, b"")
        self.trunk.send(self.address, "INVITE", self.target, self, number=number, body=first)
        await eventually(lambda: len(self.statuses) > known)
        self.trunk.send(self.address, "ACK", self.target, self, number=number, body=last)
        assert self.answer is not None
        return self.answer

    async def hang_up(self) -> None:
        self.trunk.send(self.address, "BYE", self.target, self, number=99)
        await eventually(lambda: "BYE" in self.trunk.done.get(self.call_id, ()))

    def _packet(self, kind: int, payload: bytes, stamp: int | None = None) -> None:
        found = re.search(r"m=audio ([0-9]+)", self.description)
        self._sent += 1
        head = struct.pack(">BBHII", 0x80, kind, self._sent, self._sent * 160 if stamp is None else stamp, 7)
        transport = self.trunk.audio[self.call_id].transport
        if found is not None and transport is not None:
            transport.sendto(head + payload, ("127.0.0.1", int(found[1])))


class FakeTrunk(asyncio.DatagramProtocol):
    """`accounts` are passwords by name. `deaf` leaves that many requests of each method unanswered,
    `shortest_s` is how long a registration has to be for, `challenges` are put before the one it takes. With
    `asks_at_end` the other side may not end a call without a digest either. While it `is_away` it answers
    nothing."""

    def __init__(
        self,
        accounts: Mapping[str, str],
        *,
        deaf: int = 0,
        shortest_s: int = 0,
        challenges: tuple[str, ...] = (),
        asks_at_end: bool = False,
    ) -> None:
        self.registered: dict[str, tuple[str, int]] = {}
        self.refused = 0
        """Registrations with a wrong digest."""
        self.calls: dict[str, TrunkCall] = {}
        self.audio: dict[str, _Audio] = {}
        self.done: dict[str, list[str]] = {}
        """Methods that were answered with 200, by call."""
        self._accounts = accounts
        self._shortest_s = shortest_s
        self._challenges = challenges
        self._asks_at_end = asks_at_end
        self.is_away = False
        self._deaf = {"REGISTER": deaf, "BYE": deaf}
        self._numbers = itertools.count(1)
        self._transport: asyncio.DatagramTransport | None = None

    @property
    def domain(self) -> str:
        assert self._transport is not None
        host, port = self._transport.get_extra_info("sockname")
        return f"{host}:{port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for audio in self.audio.values():
            audio.close()
        if self._transport is not None:
            self._transport.close()

    async def call(
        self,
        user: str,
        *,
        caller: str = "+33612345678",
        payload_types: tuple[int, ...] = (0, 8),
        ack: bool = True,
        call_id: str = "",
        number: int = 1,
        is_empty: bool = False,
    ) -> TrunkCall:
        """Ring a registered account; returns when that is answered or refused. `call_id` stands in for a new
        name, `number` is that of its CSeq. With `is_empty` its ACK describes the audio, and it does not."""
        call_id = call_id or f"call-{next(self._numbers)}"
        call = TrunkCall(self, call_id, caller, f"sip:{user}@bridge", self.registered[user], payload_types[0])
        self.calls[call_id] = call
        described = await self.described(call, payload_types)
        first, last = (b"", described) if is_empty else (described, b"")
        self.send(call.address, "INVITE", call.target, call, number=number, body=first)
        await eventually(lambda: any(status >= 200 for status in call.statuses))
        if ack:
            self.send(call.address, "ACK", call.target, call, number=number, body=last)
        return call

    async def described(
        self, call: TrunkCall, payload_types: tuple[int, ...], direction: str = "sendrecv"
    ) -> bytes:
        """A description of the call's audio, which is on a new port from now on."""
        if call.call_id in self.audio:
            self.audio[call.call_id].close()
        audio = self.audio[call.call_id] = _Audio(call)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: audio, local_addr=("127.0.0.1", 0))
        port = transport.get_extra_info("sockname")[1]
        kinds = " ".join(map(str, (*payload_types, 101)))
        lines = ["v=0", "o=- 1 1 IN IP4 127.0.0.1", "s=-", "c=IN IP4 127.0.0.1", "t=0 0"]
        lines += [f"m=audio {port} RTP/AVP {kinds}", "a=rtpmap:101 telephone-event/8000"]
        return "\r\n".join([*lines, f"a={direction}", ""]).encode()

    def send(
        self,
        to: tuple[str, int],
        method: str,
        uri: str,
        call: TrunkCall,
        *,
        number: int,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        own = [
            ("v", f"SIP/2.0/UDP {self.domain};branch=z9hG4bK{call.call_id}{method}{number}"),
            ("f", f"<sip:{call.caller}@{self.domain}>;tag=trunk"),
            ("t", call.to or f"<{uri}>"),
            ("i", call.call_id),
            ("CSeq", f"{number} {method}"),
            ("m", f"<sip:phone@{self.domain}>"),
        ]
        self._send(write_message(f"{method} {uri} SIP/2.0", [*own, *headers], body), to)

    def _send(self, datagram: bytes, to: tuple[str, int]) -> None:
        if self._transport is not None:
            self._transport.sendto(datagram, to)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if not data.strip() or self.is_away:
            return
        message = read_message(data)
        call = self.calls.get(message.first("call-id"))
        if message.status:
            method = message.first("cseq").partition(" ")[2]
            if call is None:
                return
            call.answers[method] = message
            if method == "INVITE":
                call.statuses.append(message.status)
                call.answer = message
                call.to = message.first("to")
                call.description = message.body.decode() or call.description
            elif message.status == 200:
                self.done.setdefault(call.call_id, []).append(method)
        elif self._deaf.get(message.method, 0) > 0:
            self._deaf[message.method] -= 1
        elif message.method == "REGISTER":
            self._register(message, addr)
        elif message.method == "BYE" and call is not None:
            asks = self._asks_at_end and not self._is_proven(message, "proxy-authorization")
            call.is_over = not asks
            known = [("proxy-authenticate", CHALLENGE)]
            refusal = write_response(message, "407 Proxy Authentication Required", headers=known)
            self._send(refusal if asks else write_response(message, "200 OK"), addr)

    def _register(self, message: SipMessage, addr: tuple[str, int]) -> None:
        via = message.first("via")
        seen = via.replace(";rport", f";received={addr[0]};rport={addr[1]}")
        credentials = dict(_FIELD.findall(message.first("authorization")))
        user, expires = credentials.get("username", ""), message.first("expires")
        if not self._is_proven(message, "authorization"):
            self.refused += bool(credentials)
            headers = [("www-authenticate", each) for each in (*self._challenges, CHALLENGE)]
            answer = write_response(message, "401 Unauthorized", headers=headers)
        elif 0 < int(expires) < self._shortest_s:
            headers = [("min-expires", str(self._shortest_s))]
            answer = write_response(message, "423 Interval Too Brief", headers=headers)
        else:
            if expires == "0":
                self.registered.pop(user, None)
            else:
                self.registered[user] = addr
            headers = [("contact", f"{message.first('contact')};expires={expires}")]
            answer = write_response(message, "200 OK", headers=headers)
        self._send(answer.replace(via.encode(), seen.encode(), 1), addr)

    def _is_proven(self, message: SipMessage, header: str) -> bool:
        """Whether the header has the digest of an account, made for this request."""
        credentials = dict(_FIELD.findall(message.first(header)))
        user = credentials.get("username", "")
        secret = _hashed(f"{user}:here:{self._accounts.get(user, '')}")
        action = _hashed(f"{message.method}:{message.uri}")
        parts = (secret, NONCE, "00000001", credentials.get("cnonce", ""), "auth", action)
        return user in self._accounts and credentials.get("response") == _hashed(":".join(parts))


def _hashed(text: str) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()
