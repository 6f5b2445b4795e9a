"""An INVITE of the other side and its answer, sent again until its ACK comes (RFC 3261,
13.3.1.4 and 17.2.1)."""

import asyncio
from collections.abc import Callable, Iterable

from channels.voice.sip_bridge import messages

AGAIN_S = 0.5
MOST_TRIES = 7
"""Of a message without an answer, after 0.5, 1, 2, 4, 4, 4 s."""


class ReceivedInvite:
    """`tag` is this side's."""

    def __init__(self, request: messages.SipMessage, tag: str, send: Callable[[bytes], None]) -> None:
        self.request = request
        self._tag = tag
        self._send = send
        self._last = b""
        self._confirmed = asyncio.Event()

    @property
    def is_accepted(self) -> bool:
        return self._last.startswith(b"SIP/2.0 200")

    @property
    def is_confirmed(self) -> bool:
        """Its answer is acknowledged."""
        return self._confirmed.is_set()

    def answer(self, status: str, *, headers: Iterable[tuple[str, str]] = (), body: bytes = b"") -> None:
        tag = "" if status.startswith("100") else self._tag
        self._last = messages.write_response(self.request, status, tag=tag, headers=headers, body=body)
        self.again()

    def again(self) -> None:
        if self._last:
            self._send(self._last)

    def is_meant_by(self, message: messages.SipMessage) -> bool:
        """Whether it is this INVITE again, or the ACK of its answer."""
        return message.first("cseq").split()[:1] == self.request.first("cseq").split()[:1]

    def confirm(self) -> None:
        self._confirmed.set()

    async def confirmed(self, over: asyncio.Event) -> bool:
        """Send the answer again until its ACK comes, at most until `over`; whether it came."""
        pause_s = AGAIN_S
        for _ in range(MOST_TRIES):
            waiting = {asyncio.ensure_future(each.wait()) for each in (self._confirmed, over)}
            await asyncio.wait(waiting, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            if self._confirmed.is_set() or over.is_set():
                break
            self.again()
            pause_s = min(2 * pause_s, 4.0)
        return self._confirmed.is_set()
