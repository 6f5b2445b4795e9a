"""What stands behind the HTTP side: whoever answers the calls that it lets in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from picows import WSListener

from channels.voice.carriers.sip.calls import SipCall


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A line's WebSocket that has passed all checks. `url` is that which the line knows, `wss://...`."""

    url: str
    peer: str | None


class CallServer(Protocol):
    def answer(self, request: LineRequest) -> WSListener:
        """The listener for one line's socket, which opens at once after that. Returns at once."""
        ...

    async def answer_sip(self, call: SipCall) -> None:
        """Take, or refuse, a call that waits with the model's server. Returns when the call is over."""
        ...

    async def close(self) -> None:
        """End every call that still runs, because the program ends. Returns when all their ends are done;
        cancelled when that takes too long."""
        ...
