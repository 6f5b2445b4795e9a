"""What is read of a mail: parts, charsets, history, signatures, Crisp, attachments (M12, M13)."""

from __future__ import annotations

import base64

import pytest

from channels.mail.addresses import read_addresses
from channels.mail.message import parse_mail
from channels.mail.preprocessing import crisp_text, default_text, read_inquiry, reads
from tests.channels.mail.mails import mail, raw_mail

# --- the author's own words ------------------------------------------------------------------------

CUT = [
    ("Yes.\n\nOn Mon, 2 Mar 2026 at 9:00, Bob <b@x.example> wrote:\n> No?\n> Bob", "Yes."),
    ("Ano.\n\nDne po 2. 3. 2026 v 9:00 odesílatel Bob <b@x.example> napsal:\n> Ne?", "Ano."),
    ("Ja.\n\nAm 02.03.26 um 9:00 schrieb Bob:\n> Nein?", "Ja."),
    ("Oui.\n\nLe lun. 2 mars 2026 à 9:00, Bob <b@x.example> a écrit :\n> Non?", "Oui."),
    ("Sì.\n\nIl giorno 2 mar 2026 Bob ha scritto:\n> No?", "Sì."),
    ("Yes.\n\n-----Original Message-----\nFrom: Bob\nNo?", "Yes."),
    ("Ano.\n\n-----Původní zpráva-----\nOd: Bob\nNe?", "Ano."),
    ("Yes.\n\nFrom: Bob <b@x.example>\nSent: Monday\nTo: Anna\nSubject: x\n\nNo?", "Yes."),
    ("Ano.\n\nOd: Bob\nOdesláno: pondělí\nKomu: Anna\n\nNe?", "Ano."),
    ("Yes.\n-- \nAnna\n+420 1", "Yes."),
    ("Yes.\n\nSent from my iPhone", "Yes."),
    ("Ano.\n\nOdesláno z iPhonu", "Ano."),
    ("> one?\nYes.\n> two?\nNo.", "> one?\nYes.\n> two?\nNo."),
    ("> only a quote", "> only a quote"),
    ("I wrote:\nhello", "I wrote:\nhello"),
    ("A list:\n--\none\n" + "line\n" * 20, "A list:\n--\none\n" + "line\n" * 19 + "line"),
]


@pytest.mark.parametrize(("text", "own"), CUT)
def test_history_and_signatures_are_cut(text: str, own: str) -> None:
    assert mail(text.replace("\n", "\r\n")).own_text == own


def test_a_forward_keeps_what_it_forwards() -> None:
    text = "See below.\n\n-----Original Message-----\nFrom: Bob\n\nHelp!"
    assert "Help!" in mail(text, Subject="Fwd: help").own_text
    assert "Help!" not in mail(text, Subject="Re: help").own_text


def test_html_is_read_as_text_without_its_quotes() -> None:
    quote = "<div class=gmail_quote>On Monday<blockquote>No</blockquote></div>"
    body = f"<p>Yes<br>please</p>{quote}<style>p{{}}</style>"
    found = mail(body, Content_Type="text/html")
    assert found.own_text == "Yes\nplease"
    assert "No" in found.text


LIES = [
    ("utf-8", "iso-8859-1"),
    ("utf-8", "us-ascii"),
    ("utf-8", "x-unknown"),
    ("utf-8", "base64"),
    ("windows-1250", "windows-1250"),
    ("iso-8859-2", "iso-8859-2"),
    ("utf-16", "utf-8"),
]


@pytest.mark.parametrize(("real", "declared"), LIES)
def test_charsets_that_lie_are_seen_through(real: str, declared: str) -> None:
    head = raw_mail("", Content_Type=f"text/plain; charset={declared}")
    assert parse_mail(head + "Žluťoučký kůň".encode(real)).text == "Žluťoučký kůň"


def test_plain_text_is_preferred_to_html_and_attachments_are_listed() -> None:
    csv = base64.b64encode(b"a,b\n1,2").decode()
    body = "\r\n".join(
        [
            *("--o", "Content-Type: multipart/alternative; boundary=i", ""),
            *(
                "--i",
                "Content-Type: text/plain",
                "",
                "Plain.",
                "--i",
                "Content-Type: text/html",
                "",
                "<p>Rich.",
            ),
            *(
                "--i--",
                "--o",
                "Content-Type: text/csv; name=a.csv",
                "Content-Transfer-Encoding: base64",
                "",
                csv,
            ),
            *("--o", "Content-Type: image/png; name=logo.png", "Content-ID: <l>", "", "x"),
            *(
                "--o",
                "Content-Type: application/zip; name=a.zip",
                "Content-Transfer-Encoding: base64",
                "",
                "AAAA",
            ),
            *("--o", "Content-Type: message/rfc822", "", "Subject: Inner", "", "Inside.", "--o--"),
        ]
    )
    found = mail(body, Content_Type="multipart/mixed; boundary=o")
    assert found.text == "Plain."
    assert [(each.name, each.is_inline) for each in found.attachments] == [
        ("a.csv", False),
        ("logo.png", True),
        ("a.zip", False),
        ("Inner.eml", False),
    ]
    texts = [each.text for each in found.attachments]
    assert (texts[0], texts[1], texts[2]) == ("a,b\n1,2", None, None)
    assert "Inside." in (texts[3] or "")
    read = reads(found, default_text)
    assert "Attachments: a.csv (text/csv, 7 bytes); logo.png" in read
    assert "a,b\n1,2" in read


def test_an_invitation_is_told() -> None:
    lines = ["BEGIN:VCALENDAR", "METHOD:REQUEST", "BEGIN:VEVENT", "SUMMARY:Visit", "LOCATION:Brno"]
    lines += ["DTSTART:20260302T090000Z", "DTEND:20260302T100000Z", "END:VEVENT", "END:VCALENDAR"]
    found = mail("\r\n".join(lines), Content_Type="text/calendar; method=REQUEST")
    [event] = found.invitations
    assert (event.method, event.summary, event.starts) == ("REQUEST", "Visit", "2026-03-02T09:00:00+00:00")
    assert "Invitation (REQUEST): Visit, 2026-03-02T09:00:00+00:00" in reads(found, default_text)


def test_the_hash_tells_mails_of_one_id_apart() -> None:
    same = [mail(), mail(Received="by mx"), mail(X_Spam="no")]
    others = [
        mail("Other."),
        mail(Subject="Other"),
        mail(To="b@x.example"),
        mail(From="c@x.example"),
        mail(Date="x"),
    ]
    assert len({each.digest for each in same}) == 1  # M1
    assert len({each.digest for each in (*same, *others)}) == 1 + len(others)


def test_a_cut_mail_says_so() -> None:
    found = parse_mail(raw_mail("The beginning."), size=30_000_000)
    assert (found.is_cut, found.size, found.text) == (True, 30_000_000, "The beginning.")
    assert "30000000 bytes" in reads(found, default_text)


def test_threading_headers() -> None:
    found = mail(References="<a@x>\r\n <b@x>", In_Reply_To="<b@x> (Bob)")
    assert (found.references, found.in_reply_to, found.thread) == (("<a@x>", "<b@x>"), ("<b@x>",), "<a@x>")
    assert mail().thread == "<1@customer.example>"


@pytest.mark.parametrize(
    ("header", "emails"),
    [
        ("a@x.example", ["a@x.example"]),
        ("A, b@x.example", ["", "b@x.example"]),
        ('"a, b" <c@x.example>, d@x.example', ["c@x.example", "d@x.example"]),
        ("group: a@x.example, b@x.example;, c@x.example", ["a@x.example", "b@x.example", "c@x.example"]),
        ('"\\"a@x.example\\"" <b@x.example>', ["b@x.example"]),
        ("<a@x.example> <b@x.example>", [""]),
        ("a@x.example b@x.example", [""]),
        ("<@relay.example:a@x.example>", ["a@x.example"]),
        ('"very odd"@x.example', ['"very odd"@x.example']),
        ("", []),
    ],
)
def test_address_lists(header: str, emails: list[str]) -> None:
    assert [each.email for each in read_addresses(header)] == emails


# --- preprocessors ---------------------------------------------------------------------------------

CRISP = [
    ("New message from Jana Nová (jana@x.example)\n\nHello?\n\n--\nReply in Crisp", "Hello?"),
    ("Nová zpráva od Jana Nová (JANA@x.example)\nHello?\nOdpovězte přímo v Crisp", "Hello?"),
    ("Hi team,\nNew message from Jana Nová (jana@x.example):\nHello?\nSent by Crisp", "Hello?"),
    ("Name: Jana Nová\nEmail: jana@x.example\nMessage: Hello?", "Hello?"),
    ("Jméno: Jana Nová\nE-mail: jana@x.example\nZpráva:\nHello?\n--\nCrisp", "Hello?"),
    ("Nová zpráva od Jana Nová (jana@x.example)\nZpráva: Hello?\nOdesláno z Crisp", "Hello?"),
    (
        "New message from Jana Nová (jana@x.example)\nReply soon, please.\nHello?",
        "Reply soon, please.\nHello?",
    ),
]


@pytest.mark.parametrize(("text", "message"), CRISP)
def test_crisp_is_read_in_czech_and_english(text: str, message: str) -> None:
    found = mail(text.replace("\n", "\r\n"), Subject="Léky")
    assert crisp_text(found) == (
        f"New support inquiry from Jana Nová (jana@x.example):\nSubject: Léky\n\n{message}"
    )  # M13


@pytest.mark.parametrize("text", ["Hello?", "New message from Jana", "Name: x\nHello", "Message: hi", ""])
def test_what_is_none_of_crisps_is_read_as_it_is(text: str) -> None:
    found = mail(text)
    assert read_inquiry(found.text) is None
    assert crisp_text(found) == default_text(found)  # M12
    assert (
        default_text(found) == f"From: Anna <anna@customer.example>\nSubject: A question\n\n{found.own_text}"
    )
