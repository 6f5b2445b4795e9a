"""What attachments say, where a kept library can tell within bounds; everything else is named only.

Archives and office documents are never opened. A PDF is opened in a process of its own (`pdf_text.py`), which
is ended when it takes too long: some take their reader minutes.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from icalendar import Calendar, Component, vDDDTypes

from channels.mail.text import clean, decoded, html_text, tidy

MOST_BYTES: Final = 3_000_000
"""Of an attachment that is opened."""

MOST_CALENDAR_BYTES: Final = 200_000
"""Of an invitation; one with many events takes its reader seconds."""

MOST_TEXT: Final = 20_000
"""Characters kept of one attachment."""

MOST_PDFS: Final = 5
"""Of one mail that are opened."""

PDF_WITHIN_S: Final = 10.0
"""Seconds of one PDF; then its process is killed."""

_READER: Final = str(Path(__file__).with_name("pdf_text.py"))
_MOST_EVENTS: Final = 5
_FOLD: Final = re.compile(r"\n+[ \t]")
_PLAIN: Final = frozenset(
    {"text/plain", "text/csv", "text/markdown", "text/tab-separated-values", "application/json", "text/xml"}
)


@dataclass(frozen=True, slots=True)
class Invitation:
    """One event of a calendar part; moments as ISO 8601 text in the invitation's own zone, whose name follows
    where it is no zone that is known."""

    method: str
    summary: str
    starts: str
    ends: str
    location: str
    organizer: str


def opens(content_type: str) -> bool:
    """Whether such an attachment may have text for `attached_text`."""
    return content_type in _PLAIN or content_type in ("text/html", "application/pdf")


def attached_text(content_type: str, data: bytes, charset: str | None) -> str | None:
    """The first `MOST_TEXT` characters of the attachment's text; None for one that cannot be read, or has
    more than `MOST_BYTES` bytes."""
    if len(data) > MOST_BYTES or not opens(content_type):
        return None
    if content_type == "application/pdf":
        return pdf_text(data)
    text = decoded(data, charset)
    return (html_text(text) if content_type == "text/html" else tidy(text))[:MOST_TEXT]


def pdf_text(data: bytes, *, within_s: float = PDF_WITHIN_S) -> str | None:
    """The text of its first pages, as far as it was read in `within_s` seconds; None where there is none.
    Blocks as long."""
    try:
        # -I: nothing beside the installed libraries is imported there, whatever the environment says.
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-I", _READER], input=data, capture_output=True, timeout=within_s, check=False
        )
        found = done.stdout
    except subprocess.TimeoutExpired as killed:
        found = killed.stdout or b""
    return tidy(found.decode("utf-8", "replace"))[:MOST_TEXT] or None


def invitations(data: bytes, charset: str | None) -> tuple[Invitation, ...]:
    """The first events of a calendar part (RFC 5545); none where it cannot be read, or is over
    `MOST_CALENDAR_BYTES` bytes."""
    if len(data) > MOST_CALENDAR_BYTES:
        return ()
    lines = _FOLD.sub("", decoded(data, charset)).split("\n")
    # The library keeps a zone under its name for every later mail, and works out each moment of its rules.
    written = "\n".join(line for line in lines if "VTIMEZONE" not in line.upper())
    try:
        calendar = Calendar.from_ical(written)
        events = cast("Iterable[Component]", calendar.walk("VEVENT"))
        method = _line(calendar, "METHOD")
        return tuple(
            Invitation(
                method=method,
                summary=_line(event, "SUMMARY"),
                starts=_moment(event, "DTSTART"),
                ends=_end(event),
                location=_line(event, "LOCATION"),
                organizer=_line(event, "ORGANIZER").removeprefix("mailto:").removeprefix("MAILTO:"),
            )
            for event in islice(events, _MOST_EVENTS)
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        return ()


def _line(component: Component, name: str) -> str:
    value: object = component.get(name)
    return "" if value is None else clean(str(value)).replace("\n", " ")[:500]


def _moment(event: Component, name: str, lasts: timedelta = timedelta()) -> str:
    found: object = event.get(name)
    value: object = found.dt if isinstance(found, vDDDTypes) else None  # else it is missing, or broken
    if not isinstance(value, date):
        return ""
    is_bare = isinstance(value, datetime) and value.tzinfo is None
    zone = clean(str(cast("Any", found).params.get("TZID", "")))[:100] if is_bare else ""
    return f"{(value + lasts).isoformat()} {zone}".rstrip()


def _end(event: Component) -> str:
    """As it is written, else by the start and how long it lasts."""
    found: object = event.get("DURATION")
    lasts: object = found.dt if isinstance(found, vDDDTypes) else None
    if isinstance(lasts, timedelta) and event.get("DTEND") is None:
        return _moment(event, "DTSTART", lasts)
    return _moment(event, "DTEND")
