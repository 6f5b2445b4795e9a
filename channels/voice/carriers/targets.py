"""Whom a call can come from or go to: phone numbers and SIP addresses, as carriers and people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from flow_engine.errors import CorrectTheInput

_SEPARATORS = re.compile(r"[\s().\-\u00a0]")
_NUMBER = re.compile(r"\+?[0-9]{3,15}")
# Without a `?`: headers in a SIP address would be carried out by whoever is dialled for us.
_SIP = re.compile(
    r"sips?:(?:[^\s<>@\"?]{1,128}@)?[A-Za-z0-9.\-\[\]:]{1,253}(?:;[^\s<>@\"?]{1,256})?", re.IGNORECASE
)
_ANGLE = re.compile(r"<([^<>]*)>")


@dataclass(frozen=True, slots=True)
class Target:
    """`number` is what to dial, empty for a SIP address; `uri` says it as SIP does, `tel:` or `sip:`."""

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
    """The URI in the value of a SIP header like From: `"Name" <sip:user@host>;tag=x` or bare."""
    bracketed = _ANGLE.search(header)
    return bracketed[1].strip() if bracketed else header.partition(";")[0].strip()


def number_in(uri: str) -> str | None:
    """The phone number that a `sip:`, `sips:` or `tel:` URI names; None where it names somebody else."""
    scheme, _, rest = uri.partition(":")
    if scheme.lower() not in ("sip", "sips", "tel"):
        return None
    user = rest if scheme.lower() == "tel" else rest.rpartition("@")[0]
    return _number(unquote(user.partition(";")[0].partition(":")[0]))


def _number(text: str) -> str | None:
    bare = _SEPARATORS.sub("", text)
    return bare if _NUMBER.fullmatch(bare) else None
