"""The port to everything outside: the one way out (F45)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

JSON_HEADERS: Final[Mapping[str, str]] = {"Content-Type": "application/json", "Accept": "application/json"}


@dataclass(frozen=True, slots=True)
class OutboundReply:
    status: int
    body: bytes


class OutboundSender(Protocol):
    """The one way out. Raises OutboundRefused or OutboundFailed, never a vendor's error. `timeout_s` is in
    seconds, bodies are bytes."""

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


async def post_json(sender: OutboundSender, url: str, payload: object, *, timeout_s: float) -> OutboundReply:
    """POST a JSON body. Any status but a redirect is a reply. Raises OutboundRefused or OutboundFailed; a
    payload that JSON cannot hold fails too, as payloads carry people's data."""
    try:
        content = orjson.dumps(payload)
    except orjson.JSONEncodeError as error:
        raise OutboundFailed("the payload cannot be written as JSON") from error
    return await sender.request("POST", url, headers=JSON_HEADERS, content=content, timeout_s=timeout_s)
