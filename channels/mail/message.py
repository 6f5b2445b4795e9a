"""A mail as the agent reads it: parsed once, whatever came, into a frozen model.

Malformed MIME, charsets that lie and headers that cannot be read are no errors: what can be read is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from channels.mail.addresses import Address


@dataclass(frozen=True, slots=True)
class Attachment:
    """`size` in bytes, decoded. `text` is what was extracted, None where nothing can be. An inline image is
    shown in the mail's HTML."""

    name: str
    content_type: str
    size: int
    text: str | None = None
    is_inline: bool = False


@dataclass(frozen=True, slots=True)
class Invitation:
    """One event of a calendar part; moments as ISO 8601 text in the invitation's own zone."""

    method: str
    summary: str
    starts: str
    ends: str
    location: str
    organizer: str


@dataclass(frozen=True, slots=True)
class ParsedMail:
    """`headers` are in their order with decoded, unfolded values; names as they were written.

    `message_id`, `in_reply_to` and `references` keep their angle brackets; `text` is everything that can be
    read, `own_text` without quoted history and signatures. `size` is the whole mail's in bytes, of which
    `is_cut` says that not all was read.
    """

    headers: tuple[tuple[str, str], ...]
    message_id: str | None
    senders: tuple[Address, ...]
    reply_to: tuple[Address, ...]
    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    subject: str
    date: datetime | None
    in_reply_to: tuple[str, ...]
    references: tuple[str, ...]
    text: str
    own_text: str
    content_type: str = "text/plain"
    attachments: tuple[Attachment, ...] = ()
    invitations: tuple[Invitation, ...] = ()
    size: int = 0
    is_cut: bool = False
    digest: str = field(default="", repr=False)
    """Over From, To, Date, Subject and the body: tells two mails of one Message-ID apart, in hexadecimal."""

    @property
    def sender(self) -> Address | None:
        """The author; None where there is not exactly one who has an address."""
        return self.senders[0] if len(self.senders) == 1 and self.senders[0].email else None

    def values(self, name: str) -> tuple[str, ...]:
        """The values of all headers of that name, topmost first; names compare without case."""
        wanted = name.lower()
        return tuple(value for header, value in self.headers if header.lower() == wanted)

    @property
    def thread(self) -> str:
        """The Message-ID that the thread began with, as far as the headers tell; empty without any."""
        return next(iter((*self.references, *self.in_reply_to)), self.message_id or "")


def parse_mail(raw: bytes, *, size: int | None = None) -> ParsedMail:
    """`raw` is the mail, or the beginning of one of `size` bytes. Never raises for what a mail can hold."""
    raise NotImplementedError
