"""A SIP phone whose calls a voice agent answers: it registers, is called, and passes the audio on (V12, V13).

    unregistered ──REGISTER, 401, REGISTER──▶ registered ──before it expires──▶ …
    INVITE ──100──▶ offered to the agent ──stream open──▶ 200 ──ACK──▶ up ──BYE of either side──▶ over
            └──busy: 486, not there: 480, no G.711: 488, CANCEL: 487

1. UDP, one address: only datagrams of the server that the phone registers with are read.
2. A request that comes again gets the answer that it got, after the call's end too, and does nothing more;
   the final answer to an INVITE is sent again until its ACK comes.
3. Every call has a socket for its audio, and one stream to the agent. The end of one ends the other.
4. Addresses behind translation are those that the server has seen (`received`, `rport`), and a few bytes
   every 20 s keep them.
5. Told to end, the phone takes no more calls (480), takes its registration back, and waits for those it has.
"""

import asyncio
import re
import socket
import uuid
from contextlib import suppress
from typing import Any, cast

import structlog

from channels.voice.sip_bridge import messages
from channels.voice.sip_bridge.account import Account
from channels.voice.sip_bridge.dialog import ALLOW, SipDialog
from channels.voice.sip_bridge.invites import AGAIN_S, MOST_TRIES
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import whole_number_in

KEEP_ALIVE_S = 20.0
RETRY_S = 5.0
LONGEST_RETRY_S = 300.0
"""Of an account that is refused: who insists on a wrong password is shut out, with the whole machine."""

MOST_CALLS = 200
REPEATED_WITHIN_S = 32.0
"""How long the other side repeats what it takes for unanswered (RFC 3261, timer H)."""

MOST_REGISTER_TRIPS = 6
"""A proof and a newer one, a longer time, another address, and one to spare."""

DRAIN_S = 30.0
"""Less than the manager's 40 s, after which it kills."""

EXPIRES_S = 300
LONGEST_S = 3600
"""That a registration is taken for (RFC 3261, 10.3)."""

_RECEIVED = re.compile(r";received=([^;\s]+)")
_RPORT = re.compile(r";rport=([0-9]{1,5})")
_ENTRY = re.compile(r'(?:"[^"]*"|<[^<>]*>|[^,"<])+')
_EXPIRES = re.compile(r">[^>]*;\s*expires\s*=\s*([0-9]+)", re.IGNORECASE)

log: Any = structlog.get_logger("flow_engine.voice.sip_bridge")


class RegistrationFailed(Exception):
    """The server does not take the account, or does not answer; the message says which."""


class ServerAway(RegistrationFailed):
    """The server does not answer."""


class AccountRefused(RegistrationFailed):
    """The server knows no such account, or has another password of it."""


class SipPhone(asyncio.DatagramProtocol):
    """One account, whose calls the agent on `agent_port` of this machine answers; `local` reaches it."""

    def __init__(self, account: Account, agent_port: int, local: OutboundSender) -> None:
        self.account = account
        self._agent_port = agent_port
        self._local = local
        self._calls: dict[str, SipDialog] = {}
        self._ended: dict[str, tuple[float, SipDialog]] = {}
        """Calls, and until when they are known."""
        self._answers: dict[str, asyncio.Future[messages.SipMessage]] = {}
        self._identity = uuid.uuid4().hex
        self._numbers = 0
        self._expires_s = EXPIRES_S
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._transport: asyncio.DatagramTransport | None = None
        self._address: tuple[str, int] = ("127.0.0.1", 0)
        self.is_registered = False

    @property
    def live_calls(self) -> int:
        return len(self._calls)

    @property
    def host(self) -> str:
        """This machine's address as the server sees it."""
        return self._address[0]

    @property
    def contact(self) -> str:
        return f"<sip:{self.account.username}@{self._address[0]}:{self._address[1]}>"

    def stop(self) -> None:
        """Take no more calls, and end after those that there are; called again, end them at once."""
        (self._hurried if self._stopping.is_set() else self._stopping).set()

    async def run(self) -> None:
        """Be registered until told to stop; then the registration is taken back, and calls may end, at most
        30 s long. Cancelled, it ends every call at once. Raises OSError where the server has no address."""
        await self._connect()
        loop = asyncio.get_running_loop()
        registering = loop.create_task(self._stay_registered())
        try:
            await _first_of(registering, loop.create_task(self._stopping.wait()))
            if registering.done():
                await registering  # which never returns: an error
            registering.cancel()
            await self._unregister()
            if self._calls:
                calls = loop.create_task(asyncio.wait([call.task for call in self._calls.values()]))
                await _first_of(calls, loop.create_task(self._hurried.wait()), timeout_s=DRAIN_S)
        finally:
            registering.cancel()
            if self._calls:
                for call in tuple(self._calls.values()):
                    call.end()
                await asyncio.wait([call.task for call in self._calls.values()], timeout=5.0)
            await self._unregister()
            if self._transport is not None:
                self._transport.close()

    async def _connect(self) -> None:
        """By a new socket to where the server's name leads now. Raises OSError."""
        loop, before = asyncio.get_running_loop(), self._transport
        await loop.create_datagram_endpoint(
            lambda: self, remote_addr=self.account.server, family=socket.AF_INET
        )
        if before is not None:
            before.close()

    async def _stay_registered(self) -> None:
        """What fails is tried again after 5 s, an account that the server refuses later and later. One that
        does not answer may have moved, or this machine has."""
        loop, refusals = asyncio.get_running_loop(), 0
        while True:
            try:
                for_s = await self._register(self._expires_s)
            except RegistrationFailed as failed:
                self.is_registered = False
                refusals = refusals + 1 if isinstance(failed, AccountRefused) else 0
                again_in_s = min(RETRY_S * 2 ** min(max(refusals - 1, 0), 16), LONGEST_RETRY_S)
                log.warning("sip_not_registered", reason=str(failed), again_in_s=again_in_s)
                await asyncio.sleep(again_in_s)
                if isinstance(failed, ServerAway) and not self._calls:
                    with suppress(OSError):  # a name that leads nowhere now: where it led is asked again
                        await self._connect()
                continue
            if not self.is_registered:
                log.info("sip_registered", expires_s=for_s)
            self.is_registered, refusals = True, 0
            until = loop.time() + for_s / 2
            while loop.time() < until:
                await asyncio.sleep(min(KEEP_ALIVE_S, max(0.0, until - loop.time())))
                self.send(b"\r\n\r\n")

    async def _unregister(self) -> None:
        if self.is_registered:
            self.is_registered = False
            try:
                async with asyncio.timeout(1.0):
                    await self._register(0)
            except (RegistrationFailed, TimeoutError):
                log.warning("sip_still_registered")

    def send(self, datagram: bytes) -> None:
        if self._transport is not None:
            self._transport.sendto(datagram)

    async def request(
        self, method: str, uri: str, headers: list[tuple[str, str]], *, number: int
    ) -> messages.SipMessage:
        """The last response to a request, which is sent until one comes; `number` is that of its CSeq. Raises
        TimeoutError after 15 s."""
        branch = "z9hG4bK" + uuid.uuid4().hex
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
        proof, proofs = list[tuple[str, str]](), 0
        for _ in range(MOST_REGISTER_TRIPS):
            self._numbers += 1
            headers = [("from", f"{address};tag={self._identity[:8]}"), ("to", address)]
            headers += [("call-id", self._identity), ("contact", self.contact), ("expires", str(expires_s))]
            try:
                reply = await self.request("REGISTER", uri, [*headers, *proof], number=self._numbers)
            except TimeoutError:
                raise ServerAway("the server does not answer") from None
            seen = _seen_address(reply, self._address)
            is_moved, self._address = seen != self._address, seen
            if 200 <= reply.status < 300 and not is_moved:
                return granted_s(reply, self.contact)
            shortest_s = whole_number_in(reply.first("min-expires")) or 0
            if reply.status in (401, 407) and proofs < 2:
                try:
                    proof, proofs = [account.proof(reply, "REGISTER", uri)], proofs + 1
                except messages.NotSip as error:
                    raise RegistrationFailed(str(error)) from error
            elif reply.status == 423 and 0 < expires_s < shortest_s:
                expires_s = self._expires_s = shortest_s
            elif not 200 <= reply.status < 300:
                is_account = reply.status in (401, 403, 404, 407)
                failed = AccountRefused if is_account else RegistrationFailed
                raise failed(f"the server answered with status {reply.status}")
        raise RegistrationFailed("the server wants something else every time")

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
        call_id, begins = message.first("call-id"), _begins_call(message)
        call = self._calls.get(call_id) or self._ended_call(message)
        if message.method not in ("ACK", "CANCEL") and (required := message.all("require")):
            # No extension is understood here (RFC 3261, 8.2.2.3).
            headers = [("unsupported", value) for _, value in required]
            self.send(
                messages.write_response(message, "420 Bad Extension", tag=self._identity[:8], headers=headers)
            )
        elif call is not None:
            call.take(message)
        elif begins and not self._stopping.is_set() and len(self._calls) < MOST_CALLS:
            call = self._calls[call_id] = SipDialog(self, message, self._agent_port, self._local)
            call.task.add_done_callback(lambda _: self._keep_ended(call_id))
        elif begins:
            status = "480 Temporarily Unavailable" if self._stopping.is_set() else "486 Busy Here"
            self.send(messages.write_response(message, status, tag=uuid.uuid4().hex[:8]))
        elif message.method == "OPTIONS":
            self.send(messages.write_response(message, "200 OK", tag=self._identity[:8], headers=[ALLOW]))
        elif message.method != "ACK":
            self.send(messages.write_response(message, "481 Call/Transaction Does Not Exist"))

    def _keep_ended(self, call_id: str) -> None:
        """Its last messages may come again."""
        now = asyncio.get_running_loop().time()
        self._ended[call_id] = now + REPEATED_WITHIN_S, self._calls.pop(call_id)
        for known, (until, _) in tuple(self._ended.items()):
            if until < now or len(self._ended) > MOST_CALLS:
                del self._ended[known]

    def _ended_call(self, message: messages.SipMessage) -> SipDialog | None:
        """The call that has ended which a message is of. An INVITE may begin another one of that name."""
        until, call = self._ended.get(message.first("call-id"), (0.0, None))
        if call is None or until < asyncio.get_running_loop().time():
            return None
        return None if _begins_call(message) and not call.is_begun_by(message) else call


def _seen_address(reply: messages.SipMessage, own: tuple[str, int]) -> tuple[str, int]:
    """This side's, as the server sees it."""
    via = reply.first("via")
    host, port = _RECEIVED.search(via), _RPORT.search(via)
    return host[1] if host else own[0], int(port[1]) if port else own[1]


def granted_s(reply: messages.SipMessage, contact: str) -> float:
    """For how many seconds `contact`, `<sip:user@host:port>`, is registered: the server names every phone of
    the account. Where it has rewritten the only one, that is meant."""
    entries = [entry for _, value in reply.all("contact") for entry in _ENTRY.findall(value)]
    begin = re.escape(contact.removesuffix(">"))
    own = [entry for entry in entries if re.search(begin + "[>;]", entry, re.IGNORECASE)]
    found = [_EXPIRES.search(entry) for entry in own or entries[: len(entries) == 1]]
    expires = found[0][1] if found and found[0] else reply.first("expires").partition(";")[0].strip()
    return float(min(whole_number_in(expires) or EXPIRES_S, LONGEST_S))


def _begins_call(message: messages.SipMessage) -> bool:
    """An INVITE with the tag of this side is of a call that was there before."""
    return message.method == "INVITE" and ";tag=" not in message.first("to").lower()


async def _first_of(*tasks: asyncio.Task[Any], timeout_s: float | None = None) -> None:
    """Wait for one of them; the last one is nobody else's."""
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        tasks[-1].cancel()
