"""A SIP phone whose calls a voice agent answers: it registers, is called, and passes the audio on (V12, V13).

    unregistered ──REGISTER, 401, REGISTER──▶ registered ──before it expires──▶ …
    INVITE ──100──▶ offered to the agent ──stream open──▶ 200 ──ACK──▶ up ──BYE of either side──▶ over
            └──busy: 486, not there: 480, no G.711: 488, CANCEL: 487

1. UDP, one address: only datagrams of the server that the phone registers with are read.
2. A request that comes again gets the answer that it got; a 200 is sent again until its ACK comes.
3. Every call has a socket for its audio, and one stream to the agent. The end of one ends the other.
4. Addresses behind translation are those that the server has seen (`received`, `rport`), and a few bytes
   every 20 s keep them.
"""

import asyncio
import re
import socket
import uuid
from dataclasses import dataclass
from typing import Any, cast

import structlog
from pydantic import SecretStr

from channels.voice.sip_bridge import messages
from channels.voice.sip_bridge.dialog import AGAIN_S, ALLOW, MOST_TRIES, SipDialog
from flow_engine.ports.outbound import OutboundSender

SIP_PORT = 5060
EXPIRES_S = 300
KEEP_ALIVE_S = 20.0
RETRY_S = 5.0
MOST_CALLS = 200

_RECEIVED = re.compile(r";received=([^;\s]+)")
_RPORT = re.compile(r";rport=([0-9]+)")

log: Any = structlog.get_logger("flow_engine.voice.sip_bridge")


@dataclass(frozen=True, slots=True)
class Account:
    """`domain` is a host, with `:port` where that is not 5060."""

    domain: str
    username: str
    password: SecretStr

    @property
    def server(self) -> tuple[str, int]:
        host, _, port = self.domain.partition(":")
        return host, int(port) if port.isdecimal() else SIP_PORT


class RegistrationFailed(Exception):
    """The server does not take the account, or does not answer; the message says which."""


class SipPhone(asyncio.DatagramProtocol):
    """One account, whose calls the agent on `agent_port` of this machine answers; `local` reaches it."""

    def __init__(self, account: Account, agent_port: int, local: OutboundSender) -> None:
        self.account = account
        self._agent_port = agent_port
        self._local = local
        self._calls: dict[str, SipDialog] = {}
        self._answers: dict[str, asyncio.Future[messages.SipMessage]] = {}
        self._identity = uuid.uuid4().hex
        self._numbers = 0
        self._transport: asyncio.DatagramTransport | None = None
        self._address: tuple[str, int] = ("127.0.0.1", 0)
        self.is_registered = False

    @property
    def live_calls(self) -> int:
        return len(self._calls)

    @property
    def username(self) -> str:
        return self.account.username

    @property
    def host(self) -> str:
        """This machine's address as the server sees it."""
        return self._address[0]

    @property
    def contact(self) -> str:
        return f"<sip:{self.account.username}@{self._address[0]}:{self._address[1]}>"

    async def run(self) -> None:
        """Be registered until cancelled; then the registration is taken back, and every call ended. What the
        server refuses is tried again after 5 s. Raises OSError where it has no address."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: self, remote_addr=self.account.server, family=socket.AF_INET
        )
        try:
            while True:
                try:
                    for_s = await self._register(EXPIRES_S)
                except RegistrationFailed as failed:
                    self.is_registered = False
                    log.warning("sip_not_registered", reason=str(failed))
                    await asyncio.sleep(RETRY_S)
                    continue
                if not self.is_registered:
                    log.info("sip_registered", expires_s=for_s)
                self.is_registered = True
                until = loop.time() + for_s / 2
                while loop.time() < until:
                    await asyncio.sleep(min(KEEP_ALIVE_S, max(0.0, until - loop.time())))
                    self.send(b"\r\n\r\n")
        finally:
            if self._calls:
                for call in tuple(self._calls.values()):
                    call.end()
                await asyncio.wait([call.task for call in self._calls.values()], timeout=5.0)
            if self.is_registered:
                self.is_registered = False
                try:
                    async with asyncio.timeout(1.0):
                        await self._register(0)
                except (RegistrationFailed, TimeoutError):
                    log.warning("sip_still_registered")
            transport.close()

    def send(self, datagram: bytes) -> None:
        if self._transport is not None:
            self._transport.sendto(datagram)

    async def request(
        self, method: str, uri: str, headers: list[tuple[str, str]], *, number: int, branch: str | None = None
    ) -> messages.SipMessage:
        """The last response to a request, which is sent until one comes; `number` is that of its CSeq. Raises
        TimeoutError after 15 s."""
        branch = branch or "z9hG4bK" + uuid.uuid4().hex
        via = f"SIP/2.0/UDP {self._address[0]}:{self._address[1]};rport;branch={branch}"
        own = [("via", via), ("max-forwards", "70"), ("cseq", f"{number} {method}")]
        datagram = messages.write_message(f"{method} {uri} SIP/2.0", [*own, *headers])
        answer = self._answers[branch] = asyncio.get_running_loop().create_future()
        try:
            pause_s = AGAIN_S
            for _ in range(MOST_TRIES):
                self.send(datagram)
                done, _ = await asyncio.wait({answer}, timeout=pause_s)
                if done:
                    return answer.result()
                pause_s = min(2 * pause_s, 4.0)
            raise TimeoutError("no answer")
        finally:
            del self._answers[branch]

    async def _register(self, expires_s: int) -> float:
        """Returns for how many seconds. Raises RegistrationFailed."""
        account, uri = self.account, f"sip:{self.account.domain}"
        address = f"<sip:{account.username}@{account.domain}>"
        proof: list[tuple[str, str]] = []
        for attempt in range(3):
            self._numbers += 1
            headers = [("from", f"{address};tag={self._identity[:8]}"), ("to", address)]
            headers += [("call-id", self._identity), ("contact", self.contact), ("expires", str(expires_s))]
            try:
                reply = await self.request("REGISTER", uri, [*headers, *proof], number=self._numbers)
            except TimeoutError:
                raise RegistrationFailed("the server does not answer") from None
            via = reply.first("via")
            host, port = _RECEIVED.search(via), _RPORT.search(via)
            seen = (host[1] if host else self._address[0], int(port[1]) if port else self._address[1])
            is_moved, self._address = seen != self._address, seen
            if 200 <= reply.status < 300 and not is_moved:
                expires = re.search(r"expires=([0-9]+)", reply.first("contact")) or re.match(
                    r"([0-9]+)", reply.first("expires")
                )
                return min(float(expires[1]) if expires else EXPIRES_S, 3600.0) or float(EXPIRES_S)
            if reply.status in (401, 407) and attempt < 2:
                proof = [self._proof(reply, uri)]
            elif not 200 <= reply.status < 300:
                raise RegistrationFailed(f"the server answered with status {reply.status}")
        raise RegistrationFailed("the server sees another address every time")

    def _proof(self, reply: messages.SipMessage, uri: str) -> tuple[str, str]:
        challenge, answered = (
            ("www-authenticate", "authorization")
            if reply.status == 401
            else ("proxy-authenticate", "proxy-authorization")
        )
        account = self.account
        try:
            return answered, messages.credentials(
                reply.first(challenge),
                account.username,
                account.password.get_secret_value(),
                "REGISTER",
                uri,
                uuid.uuid4().hex[:16],
            )
        except messages.NotSip as error:
            raise RegistrationFailed(str(error)) from error

    # Datagrams ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)
        self._address = transport.get_extra_info("sockname")[:2]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if not data.strip():
            return  # what keeps an address
        try:
            message = messages.read_message(data)
        except messages.NotSip as error:
            log.debug("datagram_unreadable", reason=str(error))
            return
        if message.status:
            branch = re.search(r";branch=([^;\s]+)", message.first("via"))
            answer = self._answers.get(branch[1]) if branch else None
            if answer is not None and not answer.done() and message.status >= 200:
                answer.set_result(message)
            return
        call = self._calls.get(message.first("call-id"))
        if call is not None:
            call.take(message)
        elif message.method == "INVITE" and len(self._calls) < MOST_CALLS:
            call_id = message.first("call-id")
            call = self._calls[call_id] = SipDialog(self, message, self._agent_port, self._local)
            call.task.add_done_callback(lambda _: self._calls.pop(call_id, None))
        elif message.method == "INVITE":
            self.send(messages.write_response(message, "486 Busy Here", tag=uuid.uuid4().hex[:8]))
        elif message.method == "OPTIONS":
            self.send(messages.write_response(message, "200 OK", tag=self._identity[:8], headers=[ALLOW]))
        elif message.method != "ACK":
            self.send(messages.write_response(message, "481 Call/Transaction Does Not Exist"))
