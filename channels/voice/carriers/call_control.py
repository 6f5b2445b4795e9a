"""Steering live calls: whom a call can come from or go to, and how a REST interface is instructed.

Targets are phone numbers and SIP addresses, as carriers and people write them. REST goes through the outbound
guard, and fails in one way.
"""

import re
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from flow_engine.errors import CorrectTheInput
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply, OutboundSender

ANSWER_WITHIN_S = 10.0

_SEPARATORS = re.compile(r"[\s().\-\u00a0]")
_NUMBER = re.compile(r"\+?[0-9]{3,15}")
# Without a `?`: headers in a SIP address would be carried out by whoever is dialled for us.
_SIP = re.compile(
    r"sips?:(?:[^\s<>@\"?]{1,128}@)?[A-Za-z0-9.\-\[\]:]{1,253}(?:;[^\s<>@\"?]{1,256})?", re.IGNORECASE
)
_WITHHELD = ("anonymous", "blocked", "private", "restricted", "unavailable", "unknown")
_KEYPAD = str.maketrans("abcdefghijklmnopqrstuvwxyz", "22233344455566677778889999")
# A carrier without a word for it dials the word: +266696687 is ANONYMOUS on a keypad.
_WITHHELD_NUMBERS = frozenset("+" + word.translate(_KEYPAD) for word in _WITHHELD)
_ANGLE = re.compile(r"<([^<>]*)>")
_QUOTED = re.compile(
    r'"(?:[^"\\]|\\.?)*+(?:"|\Z)'
)  # one that does not end goes to the end: nothing is read twice


@dataclass(frozen=True, slots=True)
class Target:
    """`number` is what to dial, in E.164 or the carrier's own form, empty for a SIP address; `uri` says it as
    SIP does, `tel:` or `sip:`."""

    uri: str
    number: str = ""

    @property
    def is_sip(self) -> bool:
        return not self.number


def parse_target(text: str) -> Target:
    """Raises CorrectTheInput `transfer_target_invalid`. The message does not repeat the target."""
    text = text.strip()
    if _SIP.fullmatch(text):
        return Target(text)
    number = _number(text.partition(":")[2] if text.lower().startswith("tel:") else text)
    if number is None:
        raise CorrectTheInput(
            "transfer_target_invalid",
            "a call goes to a phone number such as +33123456789, or to sip:user@host",
        )
    return Target(f"tel:{number}", number)


def address_in(header: str) -> str:
    """The URI in the value of a SIP header like From (RFC 3261): `"Name" <sip:user@host>;tag=x` or bare."""
    return _bare(_QUOTED.sub("", header))


def addresses_in(header: str) -> list[str]:
    """The same for a header of several. What is in quotes is a name, which may hold an address too."""
    return [_bare(value) for value in _QUOTED.sub("", header).split(",")]


def _bare(value: str) -> str:
    bracketed = _ANGLE.search(value)
    return bracketed[1].strip() if bracketed else value.partition(";")[0].strip()


def caller_number(text: str | None) -> str | None:
    """The number of a caller as a carrier writes it, a phone number or a `tel:`, `sip:` or `sips:` URI; None
    for one who withholds it, and for whatever else has no number (`client:ada`, `anonymous`)."""
    text = (text or "").strip()
    number = number_in(text) if ":" in text else _number(text)
    return None if number in _WITHHELD_NUMBERS else number


def number_in(uri: str) -> str | None:
    """The phone number, its separators left out, that a `sip:`, `sips:` or `tel:` URI (RFC 3966) names; None
    where it names somebody else."""
    scheme, _, rest = uri.partition(":")
    if scheme.lower() not in ("sip", "sips", "tel"):
        return None
    user = rest if scheme.lower() == "tel" else rest.rpartition("@")[0]
    return _number(unquote(user.partition(";")[0].partition(":")[0]))


def _number(text: str) -> str | None:
    bare = _SEPARATORS.sub("", text)
    return bare if _NUMBER.fullmatch(bare) else None


class LineControlFailed(Exception):
    """The call is as it was: its carrier was not reached, or does not do what was requested.

    The message names the step and the status, never a number, a key or an answer's body.
    """


async def post(
    sender: OutboundSender, step: str, url: str, headers: Mapping[str, str], content: bytes
) -> OutboundReply:
    """Any status is a reply. Raises LineControlFailed when there is none within 10 seconds; its message
    begins with `step`. `url` is an https URL."""
    try:
        return await sender.request("POST", url, timeout_s=ANSWER_WITHIN_S, headers=headers, content=content)
    except (OutboundRefused, OutboundFailed) as error:
        raise LineControlFailed(f"{step}: {error}") from error


def check(step: str, reply: OutboundReply) -> None:
    """Raises LineControlFailed for a status that is not 2xx."""
    if not 200 <= reply.status < 300:
        raise LineControlFailed(f"{step}: refused with status {reply.status}")


async def is_transferred(transfer: Awaitable[None], log: Any) -> bool:
    """Whether a transfer came off. Why it failed is logged, without the target, to the call's `log`; never
    raises."""
    try:
        await transfer
    except (LineControlFailed, CorrectTheInput) as failed:
        log.error("call_not_transferred", reason=str(failed))
        return False
    return True
