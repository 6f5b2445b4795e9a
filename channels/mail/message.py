"""A mail as the agent reads it: parsed once, whatever came, into a frozen model.

Malformed MIME, charsets that lie and headers that cannot be read are no errors: what can be read is read.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.message import Message
from email.parser import BytesParser
from email.policy import Compat32, Policy
from email.utils import parsedate_to_datetime
from hashlib import sha256
from itertools import islice
from typing import Final, cast

from channels.mail.addresses import Address, read_addresses
from channels.mail.attachments import MOST_BYTES, MOST_PDFS, Invitation, attached_text, invitations, opens
from channels.mail.attachments import MOST_TEXT as TEXT_KEPT
from channels.mail.text import decoded, forwards, header_text, html_text, own_words, tidy, unescaped, unfolded

MOST_HEADERS: Final = 2_000
MOST_TEXT: Final = 200_000
"""Characters of a mail's text that are kept."""

HASHED_BYTES: Final = 25_000_000
"""The beginning of a mail that its digest is of, whatever is read of it: one that changed with a setting
would be another mail's."""

_LONGEST_HEADER: Final = 100_000
_LONGEST_LIST: Final = 256_000
"""Characters of the headers of one name that list addresses."""

_LONGEST_HEADERS: Final = 1_000_000
"""Characters of all headers together that are read."""

_MOST_REFERENCES: Final = 100
_DEEPEST: Final = 60
_MOST_PARTS: Final = 2_000
"""Parts, and parts inside of parts, that are taken apart; a mail that has more is read as one text."""

_LISTS: Final = ("from", "to", "cc", "reply-to", "x-forwarded-from")
_STRUCTURED: Final = frozenset({"authentication-results"})
"""Encoded words have no place there (RFC 2047, section 5): decoded, they would let a sender write results."""

_ID: Final = re.compile(r"<[^<>\s]{1,990}>")
_NESTING: Final = (b"multipart/", b"message/")
_MOST_LINES: Final = 20_000_000
"""Lines of a mail times its parts that have parts: each line is compared with the boundaries of those."""

_FORWARD: Final = re.compile(
    r"\s*(?:\[[^\]]{0,60}\]\s*)*(?:fwd?|wg|tr|rv|enc|přepos\w*|fw\s*\(\d+\))\s*:", re.IGNORECASE
)
_ODD_PARAMETERS: Final = (ValueError, LookupError, TypeError, AttributeError, AssertionError)
"""What the standard library raises for parameters that are none."""

_MOST_PARAMETERS: Final = 100
_MOST_CALENDARS: Final = 5
_MOST_ATTACHMENTS: Final = 200
_MOST_OPENED: Final = 20
_NO_TEXT: Final = ("image/", "audio/", "video/", "application/", "font/", "model/")
_SHOWN: Final = frozenset({"from", "to", "date", "subject"})


class _FewParameters(Compat32):
    """What describes a part keeps some parameters: the standard library takes quadratic time to read them."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        if name.lower().startswith("content-"):
            value = ";".join(value.split(";", _MOST_PARAMETERS)[:_MOST_PARAMETERS])
        return name, value


class _TooManyParts(Exception):
    """Each takes its time and its room, however little stands in it."""


def _message(raw: bytes) -> Message:
    """Its parts taken apart, or, where only the time of whoever reads it is meant, none of them."""
    numbers = iter(range(_MOST_PARTS))

    def part(policy: "Policy[Message]") -> Message:
        if next(numbers, None) is None:
            raise _TooManyParts
        return Message(policy)

    lowered = raw.lower()
    # A type begins a value: behind a slash it is part of an address, of which a digest may have hundreds.
    nested = sum(lowered.count(kind) - lowered.count(b"/" + kind) for kind in _NESTING)
    lines = max(raw.count(b"\n"), raw.count(b"\r"))
    if nested <= _DEEPEST and lines * (nested + 1) <= _MOST_LINES:
        with suppress(_TooManyParts):
            return BytesParser(policy=_FewParameters(message_factory=part)).parsebytes(raw)
    return BytesParser(policy=_FewParameters()).parsebytes(raw[:MOST_TEXT], headersonly=True)


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
class ParsedMail:
    """`headers` are in their order with decoded, unfolded values, those of Authentication-Results unfolded
    only; names as they were written.

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
    forwarded_from: tuple[Address, ...]
    """Of `X-Forwarded-From`."""
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
        """The Message-ID that the thread began with, as far as the headers tell (RFC 5322); empty without
        any."""
        return next(iter((*self.references, *self.in_reply_to)), self.message_id or "")

    @property
    def relatives(self) -> tuple[str, ...]:
        """The Message-IDs of the thread, the telling ones first: its own, what it answers, the first one,
        then the latest."""
        own = () if self.message_id is None else (self.message_id,)
        referred = (*self.references[:1], *reversed(self.references))
        return tuple(dict.fromkeys((*own, *self.in_reply_to, *referred)))


def fetched_bytes(most_bytes: int) -> int:
    """How much of a mail is fetched where `most_bytes` of it are read."""
    return max(most_bytes, HASHED_BYTES)


def parse_mail(
    raw: bytes, *, size: int | None = None, opened: bool = True, most_bytes: int | None = None
) -> ParsedMail:
    """`raw` is the mail, or the beginning of one of `size` bytes; of its body no more is read than makes
    `most_bytes` with the header. Unless they are `opened`, attachments have no text, and their sizes are
    estimates. Never raises for what a mail can hold. A large mail takes seconds:
    not for an event loop."""
    size = len(raw) if size is None else size
    ends = [at + len(gap) for gap in (b"\r\n\r\n", b"\n\n") if (at := raw.find(gap)) >= 0]
    header_bytes = min(ends, default=len(raw))
    lines = raw[header_bytes:HASHED_BYTES].replace(b"\r\n", b"\n").rstrip()
    if most_bytes is not None:
        raw = raw[: max(most_bytes, header_bytes)]
    message = _message(raw)
    headers = tuple(_headers(message))
    whole = ParsedMail(headers, None, (), (), (), (), (), "", None, (), (), "", "")
    subject = next(iter(whole.values("Subject")), "")
    found = _Parts(_FORWARD.match(subject) is not None, _ToOpen() if opened else _ToOpen(0, 0, 0))
    found.read(message, 0)
    text, own = found.texts()
    raw_lists = {name: _lists(message, name) for name in _LISTS}
    ids = [identifier for value in whole.values("Message-ID") for identifier in _ids(value, bare=True)]
    references = [each for value in whole.values("References") for each in _ids(value)]
    named = [value for name in ("From", "To", "Date", "Subject") for value in whole.values(name)]
    return replace(
        whole,
        message_id=ids[0] if ids else None,
        senders=raw_lists["from"],
        reply_to=raw_lists["reply-to"],
        to=raw_lists["to"],
        cc=raw_lists["cc"],
        forwarded_from=raw_lists["x-forwarded-from"],
        subject=subject,
        date=_date(whole.values("Date")),
        in_reply_to=tuple(each for value in whole.values("In-Reply-To") for each in _ids(value))[:10],
        references=tuple(dict.fromkeys((*references[:1], *references[1:][-_MOST_REFERENCES:]))),
        text=text[:MOST_TEXT],
        own_text=own[:MOST_TEXT],
        content_type=_parameter(message.get_content_type) or "text/plain",
        attachments=tuple(found.attachments),
        invitations=tuple(found.invitations),
        size=size,
        is_cut=size > len(raw),
        digest=sha256("\0".join(named).encode() + b"\0" + lines).hexdigest(),
    )


def _headers(message: Message) -> Iterator[tuple[str, str]]:
    left = _LONGEST_HEADERS
    for name, value in islice(message.raw_items(), MOST_HEADERS):
        text = str(value)[: min(left, _LONGEST_LIST if name.lower() in _LISTS else _LONGEST_HEADER)]
        left -= len(text)
        yield name, unfolded(text) if name.lower() in _STRUCTURED else header_text(text)


def _lists(message: Message, name: str) -> tuple[Address, ...]:
    """The entries of all headers of that name. Read before encoded words are decoded: what a name says is
    no address."""
    values = [str(value) for header, value in message.raw_items() if header.lower() == name][:20]
    texts = [unescaped(value[: _LONGEST_LIST // len(values)]).replace("\r\n", " ") for value in values]
    entries = [entry for text in texts for entry in read_addresses(text)]
    return tuple(Address(header_text(entry.name), entry.email) for entry in entries)


def _ids(value: str, *, bare: bool = False) -> list[str]:
    """Message-IDs; with `bare` one that lacks its brackets too."""
    found: list[str] = _ID.findall(value)
    if not found and bare and value and len(value) < 990 and not re.search(r"[\s<>]", value):
        return [f"<{value}>"]
    return found


def _date(values: tuple[str, ...]) -> datetime | None:
    """In UTC; a date without a zone is taken as UTC."""
    try:
        moment = parsedate_to_datetime(values[0])
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, LookupError, TypeError, OverflowError):
        return None


def _parameter(read: Callable[[], str | None]) -> str | None:
    try:
        return read()
    except _ODD_PARAMETERS:
        return None


@dataclass(slots=True)
class _ToOpen:
    """How many attachments and calendars of a mail are opened still, its forwarded mails' too."""

    every: int = _MOST_OPENED
    pdfs: int = MOST_PDFS
    calendars: int = _MOST_CALENDARS

    def takes(self, content_type: str, size: int) -> bool:
        """Counts it, where there is room for it."""
        is_pdf = content_type == "application/pdf"
        if not opens(content_type) or size > MOST_BYTES or not self.every or (is_pdf and not self.pdfs):
            return False
        self.every -= 1
        self.pdfs -= is_pdf
        return True


class _Parts:
    """What has been found in the parts of a mail so far."""

    def __init__(self, is_forward: bool, to_open: _ToOpen) -> None:
        self.attachments: list[Attachment] = []
        self.invitations: list[Invitation] = []
        self._to_open = to_open
        self._is_forward = is_forward
        self._texts: list[str] = []
        self._own: list[str] = []

    def texts(self) -> tuple[str, str]:
        """All of the text, and what the author wrote of it."""
        return "\n\n".join(self._texts).strip(), "\n\n".join(self._own).strip()

    def read(self, part: Message, depth: int, *, is_shown: bool = True) -> None:
        """The text of a part that is not shown, as another version of it is, is left out."""
        content_type = _parameter(part.get_content_type) or "text/plain"
        children = _children(part)
        if content_type == "message/rfc822" and depth > 0:
            self._forwarded(part)
        elif children is not None:
            shown = children
            if content_type == "multipart/alternative":
                # One version of a text is read: the plain one, unless it is empty; what is attached to any.
                kinds = [(_parameter(each.get_content_type), each) for each in children]
                plain = [each for kind, each in kinds if kind == "text/plain" and _payload(each).strip()][:1]
                others = [each for kind, each in kinds if kind not in ("text/plain", "text/calendar")]
                shown = plain or others[-1:] or children[:1]
            chosen = {id(each) for each in shown}
            for child in children if depth < _DEEPEST else ():
                self.read(child, depth + 1, is_shown=is_shown and id(child) in chosen)
        else:
            name = header_text(_parameter(part.get_filename) or "")
            disposition = (_parameter(part.get_content_disposition) or "").lower()
            charset = _parameter(part.get_content_charset)
            if content_type == "text/calendar" and self._to_open.calendars:
                self._to_open.calendars -= 1
                self.invitations += invitations(_payload(part), charset)
            is_text = content_type in ("text/plain", "text/html") or not content_type.startswith(_NO_TEXT)
            if disposition != "attachment" and not name and is_text and content_type != "text/calendar":
                if is_shown:
                    text = decoded(_payload(part)[:MOST_BYTES], charset)
                    self._show(text, is_html=content_type == "text/html")
            elif content_type != "text/calendar" or name:
                self._attach(part, content_type, name, charset, disposition)

    def _show(self, text: str, *, is_html: bool) -> None:
        whole = html_text(text)[:MOST_TEXT] if is_html else tidy(text[:MOST_TEXT])
        self._texts.append(whole)
        own = whole
        if is_html and not self._is_forward and not forwards(whole):
            own = html_text(text, own=True)[:MOST_TEXT] or whole
        self._own.append(own_words(own, is_forward=self._is_forward))

    def _attach(
        self, part: Message, content_type: str, name: str, charset: str | None, disposition: str
    ) -> None:
        written = _parameter(lambda: cast("str", part.get_payload())) or ""
        is_base64 = str(part.get("Content-Transfer-Encoding", "")).strip().lower() == "base64"
        size = len(written) * 3 // 4 if is_base64 else len(written)
        text = None
        if self._to_open.takes(content_type, size):
            data = _payload(part)
            size, text = len(data), attached_text(content_type, data, charset)
        is_inline = disposition == "inline" or (
            content_type.startswith("image/") and part.get("Content-ID") is not None and not disposition
        )
        if len(self.attachments) < _MOST_ATTACHMENTS:
            self.attachments.append(Attachment(_file_name(name), content_type, size, text, is_inline))

    def _forwarded(self, part: Message) -> None:
        """A mail that is attached to this one, as an attachment that has its text."""
        children = _children(part)
        if not children:
            return
        inner = children[0]
        headers = [(name, value) for name, value in _headers(inner) if name.lower() in _SHOWN]
        parts = _Parts(True, self._to_open)
        parts.read(inner, 1)
        text = "\n".join(f"{name}: {value}" for name, value in headers) + "\n\n" + parts.texts()[0]
        name = next((value for name, value in headers if name.lower() == "subject"), "")
        attached = Attachment(_file_name(f"{name}.eml"), "message/rfc822", len(text), text[:TEXT_KEPT])
        self.attachments += [attached, *parts.attachments][: _MOST_ATTACHMENTS - len(self.attachments)]


def _children(part: Message) -> list[Message] | None:
    """The parts of a part; None for one that is text or data."""
    if not part.is_multipart():  # only then does `get_payload` look at parameters, which may be odd
        return None
    payload = cast("list[object]", part.get_payload())
    return [child for child in payload if isinstance(child, Message)]


def _payload(part: Message) -> bytes:
    """Decoded; as it stands where its encoding is not what it says."""
    try:
        payload = part.get_payload(decode=True)
    except _ODD_PARAMETERS:
        payload = None
    return payload if isinstance(payload, bytes) else b""


def _file_name(name: str) -> str:
    """The last part of a path, as people call a file."""
    plain = re.split(r"[/\\]", name.strip())[-1].strip() or "unnamed"
    return plain[:200]
