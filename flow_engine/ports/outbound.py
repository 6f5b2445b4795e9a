"""The port to everything outside: the one way out (F45)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OutboundReply:
    status: int
    body: bytes


class OutboundCaller(Protocol):
    """The one way out. Raises OutboundRefused or OutboundFailed, never a vendor's error."""

    async def post_json(self, url: str, payload: object, *, timeout_s: float) -> OutboundReply: ...


class OutboundSender(Protocol):
    """The same way out, for requests of any method. Raises OutboundRefused or OutboundFailed."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply: ...


class OutboundRefused(Exception):
    """The policy forbids the address."""


class OutboundFailed(Exception):
    """No usable answer: not reached, too slow, too large."""
