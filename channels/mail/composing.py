"""Replies and drafts as RFC 5322: threading, both kinds of body, and headers that nobody can break out of.

A mail is composed the same again from the same run, its Message-ID included, so that it goes out once.
"""

import hashlib
import html
import re
from dataclasses import dataclass
from datetime import datetime
from email.charset import QP, Charset
from email.header import Header
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.policy import compat32
from email.utils import format_datetime, formataddr
from typing import Final, cast

from channels.mail import addresses, config, message, ports

MOST_BODY: Final = 100_000
MOST_SUBJECT: Final = 250
MOST_RECIPIENTS: Final = 50

_MOST_REFERENCES: Final = 20
_REPLY: Final = re.compile(r"\s*(?:re|aw|odp|sv|antw|rif|r)\s*:", re.IGNORECASE)
_UTF8: Final = Charset("utf-8")
_UTF8.body_encoding = QP
_WIRE: Final = compat32.clone(linesep="\r\n", max_line_length=None)


class Unsendable(ValueError):
    """The arguments make no mail. The message says what would be accepted."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What is to be written. `to` are addresses in their normal form."""

    to: tuple[str, ...]
    subject: str
    body: str


def read_letter(to: str, subject: str, body: str) -> Letter:
    """The letter of a tool's arguments; the body is cut at `MOST_BODY` characters. Line breaks never make a
    header: in `to` they are refused, in the subject they become spaces. Raises Unsendable."""
    if re.search(r"[\r\n\0]", to):
        raise Unsendable("to: accepted are addresses in one line")
    entries = addresses.read_addresses(to)
    if not entries or len(entries) > MOST_RECIPIENTS or not all(entry.email for entry in entries):
        raise Unsendable(f"to: accepted are 1 to {MOST_RECIPIENTS} addresses, separated by commas")
    emails = tuple(dict.fromkeys(entry.email for entry in entries))
    if not all(email.isascii() for email in emails):
        raise Unsendable("to: accepted are addresses whose part before the @ is ASCII")
    if not body.strip():
        raise Unsendable("body: accepted is text")
    return Letter(emails, one_line(subject), body[:MOST_BODY])


def one_line(text: str) -> str:
    """A header's text: no line breaks or other controls, at most `MOST_SUBJECT` characters."""
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text).strip()[:MOST_SUBJECT]


def reply_subject(subject: str) -> str:
    """`Re:` before it, unless it is there."""
    plain = one_line(subject)
    return plain if _REPLY.match(plain) else f"Re: {plain}".rstrip()


def compose(
    letter: Letter,
    mail: message.ParsedMail,
    box: config.MailboxConfig,
    message_id: str,
    now: datetime,
    *,
    is_sent: bool,
) -> ports.OutgoingMail:
    """An answer to `mail`. What is sent by itself says so (RFC 3834); a draft is a person's own mail."""
    # No line of quoted-printable text has `=_`, so the boundary stands in no body.
    boundary = f"=_{hashlib.sha256(message_id.encode()).hexdigest()[:32]}"
    whole = MIMEMultipart("alternative", boundary, policy=compat32)
    whole["From"] = formataddr((one_line(box.display_name or ""), box.own_address))
    whole["To"] = ",\r\n ".join(letter.to)
    charset = None if letter.subject.isascii() else "utf-8"
    whole["Subject"] = Header(letter.subject, charset).encode(linesep="\r\n")
    whole["Date"] = format_datetime(now)
    whole["Message-ID"] = message_id
    if mail.message_id is not None:
        whole["In-Reply-To"] = mail.message_id
        before = mail.references or mail.in_reply_to
        kept = (*before[:1], *before[1:][-_MOST_REFERENCES:])
        ids = [*(each for each in kept if each != mail.message_id), mail.message_id]
        whole["References"] = "\r\n ".join(ids)
    if is_sent:
        whole["Auto-Submitted"] = "auto-replied"
        whole["X-Auto-Response-Suppress"] = "All"
    text = letter.body.replace("\r\n", "\n").replace("\r", "\n").strip() + "\n"
    paragraphs = [html.escape(each).replace("\n", "<br>\n") for each in re.split(r"\n{2,}", text.strip())]
    body = "\n".join(f"<p>{each}</p>" for each in paragraphs)
    page = f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"></head><body>\n{body}\n</body></html>\n'
    for kind, content in (("plain", text), ("html", page)):
        part = MIMEText(content, kind, cast("str", _UTF8))  # a Charset is taken too
        del part["MIME-Version"]
        whole.attach(part)
    return ports.OutgoingMail(
        message_id=message_id,
        sender=box.own_address,
        recipients=letter.to,
        subject=letter.subject,
        text=letter.body,
        content=whole.as_bytes(policy=_WIRE),
    )


def new_message_id(run_id: str, number: int, box: config.MailboxConfig) -> str:
    """That of the run's mail with this number (RFC 5322), the same again at every attempt."""
    return f"<{run_id}.{number}@{addresses.domain_of(box.own_address)}>"
