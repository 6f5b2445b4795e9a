"""Attachments: what is opened, PDF files in a process of their own within bounds, and what is named only."""

from __future__ import annotations

import asyncio
import base64
import time
import zlib

import pytest

from channels.mail.attachments import MOST_BYTES, MOST_PDFS, attached_text, opens, pdf_text
from channels.mail.message import ParsedMail, parse_mail
from tests.channels.mail.mails import raw_mail

PATIENT_S = 60.0
"""Of a machine that has other things to do."""


def pdf(*pages: bytes) -> bytes:
    """A PDF of pages with these content streams, deflated."""
    kids = b" ".join(b"%d 0 R" % (3 + 2 * number) for number in range(len(pages)))
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, len(pages))]
    font = b"<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    for number, content in enumerate(pages):
        own = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents %d 0 R/Resources %s>>"
        packed = zlib.compress(content)
        objects.append(own % (4 + 2 * number, font))
        head = b"<</Length %d/Filter/FlateDecode>>" % len(packed)
        objects.append(head + b"\nstream\n" + packed + b"\nendstream")
    out, places = b"%PDF-1.4\n", list[int]()
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    out += b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    start = len(out) - len(b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table))
    return out + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (size, start)


def written(text: str) -> bytes:
    return f"BT /F1 12 Tf 10 100 Td ({text}) Tj ET".encode()


ENDLESS = b"q 1 0 0 1 0 0 cm Q\n" * 3_000_000
"""A page that takes its reader minutes, and packs into 60 KB."""


def with_attachments(*files: tuple[str, bytes], inner: bytes | None = None) -> bytes:
    parts = ["--o", "Content-Type: text/plain", "", "See below."]
    for content_type, data in files:
        parts += [
            "--o",
            f"Content-Type: {content_type}; name=file",
            "Content-Transfer-Encoding: base64",
            "",
            base64.encodebytes(data).decode(),
        ]
    if inner is not None:
        parts += ["--o", "Content-Type: message/rfc822", "", inner.decode()]
    return raw_mail("\r\n".join([*parts, "--o--"]), Content_Type="multipart/mixed; boundary=o")


def texts(found: ParsedMail) -> list[str | None]:
    return [each.text for each in found.attachments]


def test_the_text_of_a_pdf_is_read_page_by_page() -> None:
    found = pdf_text(pdf(written("Ibuprofen 400 mg"), written("twice a day")), within_s=PATIENT_S)
    assert found == "Ibuprofen 400 mg\ntwice a day"


def test_a_pdf_that_takes_too_long_is_ended_and_what_was_read_of_it_stays() -> None:
    data = pdf(written("The first page."), ENDLESS)
    assert len(data) < MOST_BYTES
    began = time.monotonic()
    found = pdf_text(data, within_s=2.0)
    assert time.monotonic() - began < 2.0 + PATIENT_S / 4, "the process is ended, not waited for"
    assert found in ("The first page.", None)  # None where the machine took so long for the first one


@pytest.mark.parametrize("data", [b"", b"hello", b"%PDF-1.4\n<<<<<<", pdf(b"(not closed Tj")])
def test_a_pdf_that_cannot_be_read_has_no_text(data: bytes) -> None:
    assert pdf_text(data, within_s=PATIENT_S) is None


def test_what_is_opened_and_what_is_named_only() -> None:
    assert all(map(opens, ("text/plain", "text/csv", "text/html", "application/json", "application/pdf")))
    assert not any(map(opens, ("application/zip", "application/msword", "image/png", "text/rtf")))
    assert attached_text("text/html", "<p>Žluť</p>".encode("cp1250"), "cp1250") == "Žluť"
    assert attached_text("application/zip", b"PK", None) is None
    assert attached_text("text/plain", b"x" * (MOST_BYTES + 1), None) is None


def test_of_one_mail_a_bounded_number_is_opened_forwarded_ones_included() -> None:
    inner = with_attachments(*[("text/csv", b"inner")] * 30)
    found = parse_mail(with_attachments(*[("text/csv", b"outer")] * 15, inner=inner))
    assert texts(found).count("outer") == 15
    assert texts(found).count("inner") == 5
    assert len(found.attachments) == 46, "the forwarded mail itself is one"
    assert MOST_PDFS <= 5


def test_what_need_not_be_opened_is_the_same_mail() -> None:
    raw = with_attachments(("application/pdf", pdf(written("x"))), ("text/csv", b"a,b"))
    closed, opened = parse_mail(raw, opened=False), parse_mail(raw)
    assert texts(closed) == [None, None]
    assert texts(opened)[1] == "a,b"
    same = ("digest", "message_id", "text", "own_text", "headers", "size", "references")
    assert [getattr(closed, name) for name in same] == [getattr(opened, name) for name in same]
    assert [each.name for each in closed.attachments] == [each.name for each in opened.attachments]


@pytest.mark.anyio
async def test_a_mail_of_25_mb_is_read_while_the_loop_does_other_things() -> None:
    raw = with_attachments(("application/octet-stream", b"\0\1\2" * 6_250_000))
    assert len(raw) > 25_000_000
    reading = asyncio.create_task(asyncio.to_thread(parse_mail, raw, opened=False))
    turns, longest, last = 0, 0.0, time.monotonic()
    while not reading.done():
        await asyncio.sleep(0.001)
        turns, longest, last = turns + 1, max(longest, time.monotonic() - last), time.monotonic()
    assert (await reading).size == len(raw)
    assert turns > 5
    assert longest < 5.0
