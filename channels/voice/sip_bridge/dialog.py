"""One call of a SIP phone: the dialog with the server (RFC 3261), its audio, and the agent's stream."""

import asyncio
import re
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

import structlog

from channels.voice.carriers.call_control import address_in
from channels.voice.carriers.sip.calls import sip_call
from channels.voice.sip_bridge import messages
from channels.voice.sip_bridge.account import Account
from channels.voice.sip_bridge.agent_stream import AgentAway, AgentStream, offered
from channels.voice.sip_bridge.descriptions import (
    UNDESCRIBED,
    AudioOffer,
    read_offer,
    write_answer,
    write_offer,
)
from channels.voice.sip_bridge.invites import ReceivedInvite
from channels.voice.sip_bridge.rtp import KEYS, RtpStream
from flow_engine.ports.outbound import OutboundSender

ALLOW = ("allow", "INVITE, ACK, BYE, CANCEL, OPTIONS, INFO, UPDATE")
MOST_KNOWN = 50
"""Requests of one call whose answers are known, where they come again."""

_SIGNAL = re.compile(rb"(?:Signal\s*=|\A)\s*([0-9]{1,2}|[*#A-D])\s*(?:[\r\n]|\Z)", re.IGNORECASE)
"""Of `application/dtmf-relay`, or all of an `application/dtmf`."""

log: Any = structlog.get_logger("flow_engine.voice.sip_bridge")


class Server(Protocol):
    """What a dialog needs of its phone."""

    @property
    def account(self) -> Account: ...

    @property
    def host(self) -> str: ...

    @property
    def contact(self) -> str: ...

    def send(self, datagram: bytes) -> None: ...

    async def request(
        self, method: str, uri: str, headers: list[tuple[str, str]], *, number: int
    ) -> messages.SipMessage: ...


class SipDialog:
    """One call, from its INVITE to its end. `task` is done when nothing is left of it."""

    def __init__(
        self, phone: Server, invite: messages.SipMessage, agent_port: int, local: OutboundSender
    ) -> None:
        self._phone = phone
        self._tag = uuid.uuid4().hex[:8]
        self._invite = ReceivedInvite(invite, self._tag, phone.send)
        self._renewals: list[ReceivedInvite] = []
        self._target = address_in(invite.first("contact")) or address_in(invite.first("from"))
        self._agent_port = agent_port
        self._local = local
        self._over = asyncio.Event()
        self._abandoned = asyncio.Event()
        self._by_caller = False
        self._stream: AgentStream | None = None
        self._rtp: RtpStream | None = None
        self._rtp_port = 0
        self._descriptions = 0
        self._caller = sip_call(invite.first("call-id"), invite.headers)
        self._answers: dict[str, bytes] = {}
        """To requests but INVITEs, by their CSeq."""
        self._newest = invite.number
        self._beside: set[asyncio.Task[bool]] = set()
        self.task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """Hang up, and wait for no ACK."""
        self._over.set()
        self._abandoned.set()

    def is_begun_by(self, message: messages.SipMessage) -> bool:
        return self._invite.is_meant_by(message)

    def take(self, message: messages.SipMessage) -> None:
        """A request of the other side in this call."""
        invites = (self._invite, *self._renewals)
        invite = next((each for each in invites if each.is_meant_by(message)), None)
        known = self._answers.get(message.first("cseq"))
        match message.method:
            case "ACK" if invite is not None:
                self._acknowledged(invite, message)
            case "ACK":
                pass
            case "INVITE" if invite is not None:
                invite.again()
            case _ if known is not None:
                self._phone.send(known)
            case "CANCEL":
                self._answer(message, "200 OK")
                if not self._invite.is_accepted:  # too late to cancel otherwise
                    self._end_by_caller()
            case _ if message.number < self._newest:
                self._answer(message, "500 Server Internal Error")  # it was overtaken (RFC 3261, 12.2.2)
            case _:
                self._newest = message.number
                self._take_new(message)

    def _take_new(self, message: messages.SipMessage) -> None:
        match message.method:
            case "BYE":
                self._answer(message, "200 OK")
                self._end_by_caller()
            case _ if self._over.is_set():
                self._answer(message, "481 Call/Transaction Does Not Exist")
            case "INVITE":
                self._renew(message)
            case "UPDATE" if message.body:
                self._update(message)
            case "INFO" | "OPTIONS" | "UPDATE":
                if self._stream is not None and (key := key_in(message.body)) is not None:
                    self._stream.pressed(key)
                self._answer(message, "200 OK", headers=[ALLOW])
            case _:
                self._answer(message, "405 Method Not Allowed", headers=[ALLOW])

    def _answer(
        self,
        message: messages.SipMessage,
        status: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> None:
        answer = messages.write_response(message, status, tag=self._tag, headers=headers, body=body)
        self._answers[message.first("cseq")] = answer
        if len(self._answers) > MOST_KNOWN:
            del self._answers[next(iter(self._answers))]
        self._phone.send(answer)

    def _end_by_caller(self) -> None:
        self._by_caller = True
        self._over.set()

    def _acknowledged(self, invite: ReceivedInvite, ack: messages.SipMessage) -> None:
        """To an INVITE without an offer the answer made one, which the ACK answers."""
        is_answer = not (invite.request.body or invite.is_confirmed)
        invite.confirm()
        rtp = self._rtp
        if not is_answer or rtp is None:
            return
        taken = read_offer(ack.body)
        if taken is not None:
            rtp.redirect(taken)
        elif rtp.offer is UNDESCRIBED:
            self._over.set()  # nothing of what was offered is spoken there

    def _renew(self, message: messages.SipMessage) -> None:
        """Another INVITE in the call: it may move its audio, hold it, or only ask whether it goes on."""
        renewal = ReceivedInvite(message, self._tag, self._phone.send)
        # The ACK of one may come after the next one.
        self._renewals = [*self._renewals[1 - MOST_KNOWN :], renewal]
        rtp = self._rtp if self._invite.is_accepted else None
        offer = read_offer(message.body) if message.body else rtp and replace(rtp.offer, direction="sendrecv")
        if rtp is None:
            renewal.answer("500 Server Internal Error", headers=[("retry-after", "1")])
        elif offer is None:
            renewal.answer("488 Not Acceptable Here")
        else:
            self._target = address_in(message.first("contact")) or self._target
            if message.body:
                rtp.redirect(offer)
            self._accept(renewal, offer)
        repeating = asyncio.get_running_loop().create_task(renewal.confirmed(self._over))
        self._beside.add(repeating)
        repeating.add_done_callback(self._beside.discard)

    def _update(self, message: messages.SipMessage) -> None:
        """As another INVITE, but without an ACK (RFC 3311)."""
        offer = read_offer(message.body)
        if self._rtp is None or self._rtp.offer is UNDESCRIBED:
            self._answer(message, "500 Server Internal Error", headers=[("retry-after", "1")])
        elif offer is None:
            self._answer(message, "488 Not Acceptable Here")
        else:
            self._target = address_in(message.first("contact")) or self._target
            self._rtp.redirect(offer)
            headers, body = self._description(offer)
            self._answer(message, "200 OK", headers=headers, body=body)

    def _accept(self, invite: ReceivedInvite, offer: AudioOffer) -> None:
        headers, body = self._description(offer)
        invite.answer("200 OK", headers=headers, body=body)

    def _description(self, offer: AudioOffer) -> tuple[list[tuple[str, str]], bytes]:
        """The headers and body that tell where this side hears."""
        self._descriptions += 1
        headers = [("contact", self._phone.contact), ALLOW, ("content-type", "application/sdp")]
        place = (self._phone.host, self._rtp_port, self._descriptions)
        return headers, write_offer(*place) if offer is UNDESCRIBED else write_answer(offer, *place)

    async def _run(self) -> None:
        self._invite.answer("100 Trying")
        body = self._invite.request.body
        offer = read_offer(body) if body else UNDESCRIBED
        if offer is None:
            await self._refuse("488 Not Acceptable Here")
            return
        call_sid = "CA" + uuid.uuid4().hex
        log.info("sip_call_offered", call_sid=call_sid)
        loop = asyncio.get_running_loop()
        carrying, over = loop.create_task(self._carry(offer, call_sid)), loop.create_task(self._over.wait())
        await asyncio.wait({carrying, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not self._invite.is_accepted:
            carrying.cancel()  # who has gone does not wait for the agent
        await asyncio.wait({carrying})
        refusal = self._refusal(None if carrying.cancelled() else carrying.exception(), call_sid)
        if self._invite.is_accepted:
            await self._hang_up()
        else:
            await self._refuse(refusal)
        log.info("sip_call_ended", call_sid=call_sid)

    async def _refuse(self, status: str) -> None:
        self._invite.answer(status)
        await self._invite.confirmed(self._abandoned)
        self._over.set()

    def _refusal(self, error: BaseException | None, call_sid: str) -> str:
        """The status of a call that was not answered. `error` is told."""
        if isinstance(error, AgentAway):
            log.warning("sip_call_not_taken", call_sid=call_sid, reason=str(error))
            return "486 Busy Here" if str(error) == "busy" else "480 Temporarily Unavailable"
        if error is not None:
            log.error("bug", call_sid=call_sid, exc_info=error)
            return "500 Server Internal Error"
        return "487 Request Terminated" if self._by_caller else "480 Temporarily Unavailable"

    async def _carry(self, offer: AudioOffer, call_sid: str) -> None:
        """Raises AgentAway."""
        called = self._caller.parameters.get("calledPhone") or self._phone.account.username
        wanted = await offered(self._local, self._agent_port, call_sid, self._caller.phone, called)
        loop = asyncio.get_running_loop()
        stream = self._stream = AgentStream(self._over.set)
        stream.line = rtp = self._rtp = RtpStream(
            offer, heard=stream.heard, pressed=stream.pressed, reached=stream.reached, lost=stream.close
        )
        # The server says where audio comes from: any address of this machine may be the one.
        transport, _ = await loop.create_datagram_endpoint(lambda: rtp, local_addr=("0.0.0.0", 0))  # noqa: S104
        self._rtp_port = transport.get_extra_info("sockname")[1]
        try:
            await stream.open(self._agent_port, call_sid, wanted)
            speaking = loop.create_task(rtp.speak())
            try:
                if not self._over.is_set():
                    self._accept(self._invite, offer)
                    if await self._invite.confirmed(self._over):
                        await self._over.wait()
            finally:
                speaking.cancel()
                stream.hang_up()
                self._over.set()
        finally:
            transport.close()

    async def _hang_up(self) -> None:
        """Tell the other side, where it does not know; it may want to know by whom it is told."""
        if self._by_caller:
            return
        invite = self._invite.request
        own = invite.first("to") + f";tag={self._tag}"
        headers = [("from", own), ("to", invite.first("from")), ("call-id", invite.first("call-id"))]
        headers += [("route", value) for _, value in invite.all("record-route")]
        try:
            reply = await self._phone.request("BYE", self._target, headers, number=1)
            if reply.status in (401, 407):
                proof = self._phone.account.proof(reply, "BYE", self._target)
                reply = await self._phone.request("BYE", self._target, [*headers, proof], number=2)
        except TimeoutError:
            log.warning("sip_bye_unanswered")
        except messages.NotSip as error:
            log.warning("sip_bye_refused", reason=str(error))
        else:
            if reply.status in (401, 403, 407):
                log.warning("sip_bye_refused", reason=f"the server answered with status {reply.status}")


def key_in(body: bytes) -> str | None:
    """The key of the phone that an INFO names, by itself or by its number; None where it names none."""
    found = _SIGNAL.search(body)
    signal = found[1].decode().upper() if found is not None else ""
    if not signal.isdigit():
        return signal or None
    return KEYS[int(signal)] if int(signal) < len(KEYS) else None
