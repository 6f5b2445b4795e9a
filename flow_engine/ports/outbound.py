"""The port to everything outside: the one way out (F45)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

JSON_HEADERS: Final[Mapping[str, str]] = {"Content-Type": "application/json", "Accept": "application/json"}

_HEADER_TEXT: Final = re.compile(r"[\t -~]*")


def is_header_text(text: str) -> bool:
    """Whether a header can hold it: one line of ASCII, with no space at its ends."""
    return _HEADER_TEXT.fullmatch(text) is not None and text == text.strip()


def header_key(text: str | None) -> str | None:
    """A key of the environment for a header, where a line end that its file had is no part of it; None where
    there is none. Raises ValueError for one that no header can hold."""
    key = (text or "").strip()
    if not is_header_text(key):
        raise ValueError("accepted is a key of one line of ASCII characters, which a header can hold")
    return key or None


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


class UnusableAnswer(OutboundFailed):
    """An answer came, and is no use: a redirect that is not followed, in an encoding, too large."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def post_json(sender: OutboundSender, url: str, payload: object, *, timeout_s: float) -> OutboundReply:
    """POST a JSON body. Any status but a redirect is a reply. Raises OutboundRefused or OutboundFailed; a
    payload that JSON cannot hold fails too, as payloads carry people's data."""
    try:
        content = orjson.dumps(payload)
    except orjson.JSONEncodeError as error:
        raise OutboundFailed("the payload cannot be written as JSON") from error
    return await sender.request("POST", url, headers=JSON_HEADERS, content=content, timeout_s=timeout_s)
