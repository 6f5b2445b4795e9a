"""Laws of the mail agent, on made-up mails: parsing, threading, routing, trust, budgets, once only."""

from __future__ import annotations

import asyncio
import email
import email.policy
import html
import string
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.models.scripted import CallsTools, Says
from channels.mail.addresses import normal_address, read_addresses
from channels.mail.composing import (
    Letter,
    Unsendable,
    compose,
    new_message_id,
    one_line,
    read_letter,
    reply_subject,
)
from channels.mail.config import Limits
from channels.mail.memory_mailbox import MemoryAllowance
from channels.mail.message import ParsedMail, parse_mail
from channels.mail.ports import RunProgress, StoredCall, StoredTurn, ToolLine
from channels.mail.preprocessing import crisp_text, default_text, read_inquiry, reads
from channels.mail.routing import addresses_in, automatic_reason, judge
from channels.mail.runs import RunStore, RunTables, run_id
from channels.mail.state import MailboxState
from channels.mail.text import html_text, own_words, tidy
from flow_engine.ports.models import ToolCall
from flows.records import SqliteRecords
from flows.sqlite_store import MEMORY, SqliteDatabase
from tests.channels.mail.mails import OWN, SERVER, config, dmarc, mail, raw_mail, rule
from tests.channels.mail.test_processing import World

FEW = settings(max_examples=20, deadline=None)
NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)

WORDS = st.text("abcčďeéěghijklmnňoóprřsštťuúůyýzž 0123456789", min_size=1, max_size=30)
LOCALS = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=10)
DOMAINS = st.sampled_from(["customer.example", "mail.customer.example", "leku.example", "evil.example"])
ADDRESSES = st.builds("{}@{}".format, LOCALS, DOMAINS)
HEADERS = st.fixed_dictionaries(
    {
        "From": st.one_of(
            ADDRESSES,
            st.builds("{} <{}>".format, LOCALS, ADDRESSES),
            st.builds("{}, {}".format, ADDRESSES, ADDRESSES),
        ),
        "Subject": WORDS,
        "body": st.one_of(WORDS, st.builds("{} wrote: {}".format, ADDRESSES, WORDS)),
    },
    optional={"Reply_To": ADDRESSES, "X_Forwarded_From": ADDRESSES, "X_Site": WORDS, "Cc": ADDRESSES},
)
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "sender_email": ADDRESSES,
        "sender_domain": DOMAINS,
        "subject_contains": st.text("aeé ", min_size=1, max_size=2).filter(str.strip),
        "header_match": st.just({"X-Site": "a"}),
        "forwarded_from": st.one_of(ADDRESSES, DOMAINS),
    },
)


def judged(rules: list[dict[str, Any]], message: ParsedMail) -> Any:
    made = config(rules)
    return judge(made, made.every_mailbox[0], message)


# --- parsing ---------------------------------------------------------------------------------------


@FEW
@given(st.binary(max_size=2_000))
def test_whatever_bytes_come_are_a_mail(raw: bytes) -> None:
    found = parse_mail(raw)
    for text in (found.text, found.own_text, found.subject, *(value for _, value in found.headers)):
        text.encode()
        assert not {each for each in text if ord(each) < 32} - {"\n", "\t"}
    assert parse_mail(raw) == found
    reads(found, default_text)
    reads(found, crisp_text)


@FEW
@given(st.lists(st.binary(max_size=60), max_size=8), st.binary(max_size=200))
def test_headers_in_any_bytes_leave_the_body_where_it_is(lines: list[bytes], body: bytes) -> None:
    kept = [
        b"X-%d: %s" % (at, line.replace(b"\r", b" ").replace(b"\n", b" ")) for at, line in enumerate(lines)
    ]
    found = parse_mail(b"\r\n".join([*kept, b"", body]))
    assert len(found.headers) == len(kept)
    assert found.size == len(b"\r\n".join([*kept, b"", body]))


@FEW
@given(WORDS, st.sampled_from(["utf-8", "iso-8859-2", "windows-1250", "utf-16"]))
@example("0" * 24, "utf-16")  # two encoded words
def test_a_subject_is_read_in_whatever_charset_it_was_written(text: str, charset: str) -> None:
    written = email.header.Header(text, charset).encode(linesep="\r\n")
    assert mail(Subject=written).subject.split() == text.split()


@FEW
@given(st.lists(st.text(string.ascii_letters + "<>&\"'", min_size=1, max_size=12), min_size=1, max_size=6))
def test_escaped_html_says_what_the_text_says(words: list[str]) -> None:
    assert html_text(f"<p>{html.escape(' '.join(words))}</p>").split() == " ".join(words).split()


@FEW
@given(
    st.lists(st.one_of(WORDS, st.sampled_from(["> quoted", "--", "", "Bob wrote:", "Od: Bob"])), max_size=12)
)
def test_what_is_cut_of_a_text_leaves_lines_of_it_and_never_nothing(lines: list[str]) -> None:
    text = "\n".join(lines)
    own = own_words(text)
    assert {line.strip() for line in own.split("\n")} <= {line.strip() for line in lines} | {""}
    assert bool(own) == bool(tidy(text))


# --- addresses -------------------------------------------------------------------------------------


@FEW
@given(ADDRESSES, st.text(string.ascii_letters + "@.,;<> ", max_size=20))
def test_a_display_name_never_counts(address: str, name: str) -> None:
    quoted = name.replace("\\", "").replace('"', "")
    (entry,) = read_addresses(f'"{quoted}" <{address}>')
    assert entry.email == address


@FEW
@given(st.lists(ADDRESSES, min_size=1, max_size=5), st.sampled_from([", ", ",", ";", " , "]))
def test_a_list_of_addresses_is_read_in_order_in_any_case(addresses: list[str], separator: str) -> None:
    for written in (separator.join(addresses), separator.join(addresses).upper()):
        assert [entry.email for entry in read_addresses(written)] == addresses


@FEW
@given(
    ADDRESSES,
    st.sampled_from([" ", "\n", "<", "(", "mailto:"]),
    st.sampled_from(["", " ", ">", ")", ".", ","]),
)
def test_an_address_that_stands_for_itself_is_found_in_a_text(address: str, before: str, after: str) -> None:
    assert address in set(addresses_in(f"text {before}{address}{after} text"))


@FEW
@given(ADDRESSES, st.text(string.ascii_lowercase + string.digits + "._+-", min_size=1, max_size=5))
def test_a_part_of_a_longer_address_is_not_found(address: str, more: str) -> None:
    found = set(addresses_in(f"a {more}{address} b"))
    assert address not in found or normal_address(f"{more}{address}") == address
    assert address not in set(addresses_in(f"a {address}x{more.replace('.', '')} b"))


# --- routing ---------------------------------------------------------------------------------------


@FEW
@given(HEADERS, st.lists(MATCHES.filter(bool), min_size=1, max_size=4))
def test_the_first_rule_that_matches_wins_and_each_is_judged_for_itself(
    headers: dict[str, Any], matches: list[dict[str, Any]]
) -> None:
    message = mail(**headers)
    rules = [rule(match, name=f"r{at}") for at, match in enumerate(matches)]
    found = judged(rules, message)
    assert found.rule == next((each.name for each in found.verdicts if each.matched), None)
    assert [each.matched for each in found.verdicts] == [
        judged([each], message).verdicts[0].matched for each in rules
    ]
    more = judged([*rules, rule({"all": True}, name="last")], message)
    assert more.rule == (found.rule or ("last" if message.sender else None))


@FEW
@given(HEADERS, MATCHES.filter(lambda match: len(match) > 1))
def test_a_rule_matches_where_each_of_its_conditions_does(
    headers: dict[str, Any], match: dict[str, Any]
) -> None:
    message = mail(**headers)
    each = [judged([rule({name: value})], message).verdicts[0].matched for name, value in match.items()]
    assert judged([rule(match)], message).verdicts[0].matched == all(each)
    assert judged([rule({**match, "all": True})], message).verdicts[0].matched == all(each)


@FEW
@given(HEADERS, MATCHES.filter(bool))
def test_letters_case_and_display_names_change_no_verdict_on_the_sender(
    headers: dict[str, Any], match: dict[str, Any]
) -> None:
    match = {name: value for name, value in match.items() if name.startswith("sender")} or {"all": True}
    message = mail(**headers)
    if message.sender is None:
        assert not judged([rule(match)], message).verdicts[0].matched
        return
    for written in (message.sender.email.upper(), f"Eve <{message.sender.email}>"):
        again = mail(**{**headers, "From": written})
        assert (
            judged([rule(match)], again).verdicts[0].matched
            == judged([rule(match)], message).verdicts[0].matched
        )


# --- trust -----------------------------------------------------------------------------------------

FORGED = st.lists(
    st.sampled_from(
        [
            ("ARC-Authentication-Results", f"i=1; {dmarc()}"),
            ("ARC-Seal", "i=1; cv=pass"),
            ("Authentication-Results", dmarc(server="mx.evil.example")),
            ("Authentication-Results", dmarc("evil.example")),
            ("Authentication-Results", f"{SERVER}; dkim=pass header.d=customer.example"),
            ("Authentication-Results-Original", dmarc()),
            ("X-Authentication-Results", dmarc()),
            ("Received-SPF", "pass"),
            ("DKIM-Signature", "v=1; d=customer.example"),
        ]
    ),
    max_size=5,
)


def with_headers(headers: list[tuple[str, str]], **fields: Any) -> ParsedMail:
    before = "".join(f"{name}: {value}\r\n" for name, value in headers).encode()
    return parse_mail(before + raw_mail(**fields))


@FEW
@given(FORGED, MATCHES)
def test_nothing_that_a_sender_can_write_makes_a_mail_trusted(
    headers: list[tuple[str, str]], match: dict[str, Any]
) -> None:
    message = with_headers(headers)
    found = judged([rule(match or {"all": True})], message)
    assert not found.is_authenticated
    assert not found.is_trusted
    assert found.sends == (found.rule is None)
    assert judged([rule(match or {"all": True}, trust="any")], message).sends


@FEW
@given(FORGED)
def test_what_stands_below_ones_own_servers_verdict_changes_nothing(headers: list[tuple[str, str]]) -> None:
    for verdict, is_trusted in ((dmarc(), True), (dmarc(result="fail"), False)):
        message = with_headers([("Authentication-Results", verdict), *headers])
        assert judged([rule({"all": True})], message).is_authenticated is is_trusted


@FEW
@given(HEADERS, MATCHES.filter(bool), st.booleans())
def test_trust_only_ever_widens_what_is_sent(
    headers: dict[str, Any], match: dict[str, Any], forged: bool
) -> None:
    domain = (
        "other.example" if forged else (mail(**headers).sender or read_addresses("a@x.example")[0]).domain
    )
    plain, trusted = mail(**headers), mail(**headers, Authentication_Results=dmarc(domain))
    before, after = judged([rule(match)], plain), judged([rule(match)], trusted)
    assert (before.rule, before.route) == (after.rule, after.route), "routing asks for no trust"
    assert after.sends >= before.sends


# --- what a machine sent ---------------------------------------------------------------------------


@FEW
@given(
    HEADERS,
    st.sampled_from(["Auto-Submitted: auto-replied", "Precedence: bulk", "List-Id: <x>", "Return-Path: <>"]),
)
def test_a_machines_mail_is_a_machines_whatever_else_stands_in_it(headers: dict[str, Any], mark: str) -> None:
    name, _, value = mark.partition(": ")
    message = with_headers([(name, value)], **headers)
    assert automatic_reason(message, frozenset({OWN})) is not None
    assert automatic_reason(mail(**headers), frozenset({OWN})) is None


# --- threads and what goes out ---------------------------------------------------------------------

BODIES = st.lists(WORDS.map(str.strip).filter(bool), min_size=1, max_size=5)
BOX = config().every_mailbox[0]


@FEW
@given(BODIES, st.text(max_size=60), st.lists(LOCALS, max_size=25, unique=True))
def test_an_answer_stands_in_its_thread_and_says_what_was_written(
    lines: list[str], subject: str, ids: list[str]
) -> None:
    references = [f"<{each}@x>" for each in ids]
    message = mail(References=" ".join(references) or None)
    letter = Letter(("anna@customer.example",), one_line(subject), "\n".join(lines))
    out = compose(letter, message, BOX, new_message_id("run", 0, BOX), NOW, is_sent=True)
    back = parse_mail(out.content)
    assert back.message_id == out.message_id == "<run.0@pharmacy.example>"
    assert back.in_reply_to == ("<1@customer.example>",)
    assert back.references[-1] == "<1@customer.example>"
    assert back.thread == message.thread
    assert len(back.references) <= 22
    assert back.text.split() == " ".join(lines).split()
    assert automatic_reason(back, frozenset()) is not None, "nobody's robot answers it"
    again = compose(letter, message, BOX, new_message_id("run", 0, BOX), NOW, is_sent=True)
    assert out.content == again.content, "made the same again by whoever takes the run over"


@FEW
@given(st.text(max_size=300))
def test_no_subject_makes_a_header(subject: str) -> None:
    letter = Letter(("anna@customer.example",), one_line(subject), "Yes.")
    raw = compose(letter, mail(), BOX, "<m@x>", NOW, is_sent=False).content
    found = email.message_from_bytes(raw, policy=email.policy.compat32)
    assert [name.lower() for name in found.keys()] == [  # noqa: SIM118
        *(
            "content-type",
            "mime-version",
            "from",
            "to",
            "subject",
            "date",
            "message-id",
            "in-reply-to",
            "references",
        )
    ]
    assert all(b"\n" not in line.replace(b"\r\n", b"") for line in raw.splitlines(keepends=True))


@FEW
@given(st.text(max_size=80))
def test_re_stands_before_a_subject_once(subject: str) -> None:
    once = reply_subject(subject)
    assert once == reply_subject(once)
    assert "\n" not in once


@FEW
@given(
    st.lists(ADDRESSES, max_size=4), st.sampled_from(["", "\r\nBcc: eve@evil.example", "\n", "\0", "nobody"])
)
def test_a_letter_goes_to_addresses_or_is_refused(addresses: list[str], tail: str) -> None:
    written = ", ".join(addresses) + (f", {tail}" if tail == "nobody" else tail)
    if addresses and not tail:
        assert read_letter(written, "x", "y").to == tuple(dict.fromkeys(addresses))
        return
    with pytest.raises(Unsendable, match="accepted"):
        read_letter(written, "x", "y")


PEOPLE = ["anna@customer.example", "carl@customer.example", OWN, "boss@allowed.example"]
STRANGERS = ["eve@evil.example", "anna@customer.example.evil.example", "xanna@customer.example"]


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from([*PEOPLE, *STRANGERS]), min_size=1, max_size=4), st.booleans())
def test_a_reply_is_sent_where_everybody_in_it_belongs_to_the_thread(to: list[str], trusted: bool) -> None:
    made = config([rule({"all": True})], profile={"allowed_recipients": ["boss@allowed.example"]})
    letter = {"to": ", ".join(to), "subject": "x", "body": "y"}
    world = World(made, [CallsTools([ToolCall("c", "send_reply", letter)]), Says("")])
    headers = {"Authentication_Results": dmarc()} if trusted else {}
    asyncio.run(world.run(Cc="carl@customer.example", **headers))
    assert world.sent == ["send" if trusted and set(to) <= set(PEOPLE) else "draft"]


# --- Crisp -----------------------------------------------------------------------------------------


@FEW
@given(
    st.text("abcčďeéěž ", min_size=1, max_size=20).map(str.strip).filter(bool),
    ADDRESSES,
    BODIES,
    st.sampled_from(["New message from", "Nová zpráva od"]),
    st.sampled_from(["--", "Reply in Crisp", "Odpovězte v Crisp", "Sent by Crisp", "Odesláno z Crisp", ""]),
)
def test_an_inquiry_of_crisp_is_read_back(
    name: str, address: str, lines: list[str], opening: str, closing: str
) -> None:
    text = "\n".join([f"{opening} {name} ({address})", "", *lines, "", closing, "footer" if closing else ""])
    found = read_inquiry(text)
    assert found is not None
    assert (found.patient_name, found.patient_email) == (name, address)
    assert found.original_message.split() == " ".join(lines).split()
    form = f"Jméno: {name}\nE-mail: {address}\nZpráva: {lines[0]}"
    assert read_inquiry(form) == read_inquiry(form.replace("Jméno", "Name").replace("Zpráva", "Message"))


# --- once only -------------------------------------------------------------------------------------


@FEW
@given(HEADERS, st.lists(st.sampled_from(["Received: by mx", "X-Spam: no", "Delivered-To: x"]), max_size=3))
def test_the_same_mail_over_another_way_is_the_same_mail(headers: dict[str, Any], added: list[str]) -> None:
    raw = raw_mail(**headers)
    before = "".join(f"{line}\r\n" for line in added).encode()
    for again in (before + raw, raw.replace(b"\r\n", b"\n"), raw + b"\r\n\r\n"):
        assert parse_mail(again).digest == parse_mail(raw).digest


@FEW
@given(HEADERS, st.sampled_from(["From", "To", "Date", "Subject", "body"]), LOCALS)
def test_another_content_is_another_mail(headers: dict[str, Any], name: str, change: str) -> None:
    whole = {"To": OWN, "Date": "Mon, 02 Mar 2026 09:00:00 +0100", **headers}
    changed = mail(**{**whole, name: f"{whole[name]}{change}"})
    assert changed.digest != mail(**whole).digest
    assert run_id("box", "<m@x>", changed.digest) != run_id("box", "<m@x>", mail(**whole).digest)


@FEW
@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_two_runs_have_one_id_only_where_mailbox_message_and_digest_are_one(
    mailbox: str, other: str, message_id: str, digest: str
) -> None:
    same = run_id(mailbox, message_id, digest) == run_id(other, message_id, digest)
    assert same == (mailbox == other)


# --- progress --------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=10)),
    lambda each: st.one_of(
        st.lists(each, max_size=3), st.dictionaries(st.text(max_size=5), each, max_size=3)
    ),
    max_leaves=6,
)


@FEW
@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=3), VALUES, st.integers(1, 100))
def test_progress_is_read_back_as_it_was_stored(
    arguments: dict[str, Any], result: Any, iteration: int
) -> None:
    line = ToolLine(tool="t", arguments=arguments, result=result, iteration=iteration)
    call = StoredCall(id="c", tool="t", arguments=arguments)
    turn = StoredTurn(role="assistant", content="é\n", tool_calls=(call,))
    progress = RunProgress(
        turns=(turn,), tool_calls=(line,), iterations=iteration, input_tokens=3, output_tokens=4
    )
    assert RunProgress.model_validate_json(progress.model_dump_json()) == progress
    assert progress.tokens == 7
    assert set(line.model_dump()) == {"tool", "arguments", "result", "iteration"}  # M14, letter by letter


# --- budgets ---------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("reply"),
            st.integers(0, 5).map("<{}>".format),
            st.sampled_from(["t1", "t2"]),
            st.sets(st.sampled_from(["a@x.example", "b@x.example"]), min_size=1),
        ),
        st.tuples(
            st.just("run"),
            st.integers(0, 5).map("r{}".format),
            st.sampled_from(["a@x.example", "b@x.example"]),
        ),
        st.tuples(
            st.just("tokens"),
            st.integers(0, 5).map("r{}".format),
            st.sampled_from(["a@x.example", "b@x.example"]),
            st.integers(0, 60),
        ),
    ),
    max_size=15,
)


class Still:
    def now(self) -> datetime:
        return NOW


@settings(max_examples=12, deadline=None)
@given(STEPS)
def test_no_order_of_replies_and_runs_passes_a_bound(steps: list[tuple[Any, ...]]) -> None:
    limits = Limits(
        replies_per_correspondent=2, replies_per_thread=3, runs_per_sender=2, tokens_per_sender=100
    )
    sent: dict[str, tuple[str, set[str]]] = {}
    begun: dict[str, set[str]] = {}

    async def play() -> None:
        database = SqliteDatabase(MEMORY)
        await database.open()
        tables = [SqliteRecords(database, name) for name in ("agent_runs", "llm_calls", "email_events")]
        runs = RunStore(RunTables(*tables), Still(), tenant_id="t", holder="here")  # type: ignore[arg-type]
        allowed = MailboxState(SqliteRecords(database, "mail_state"), runs, limits, "box")
        for kind, *rest in steps:
            refused = await getattr(allowed, kind)(*rest)
            if kind == "reply" and refused is None:
                sent[rest[0]] = (rest[1], rest[2])
            if kind == "run" and refused is None:
                begun.setdefault(rest[1], set()).add(rest[0])
        await database.close()

    asyncio.run(play())
    for thread in ("t1", "t2"):
        assert sum(each == thread for each, _ in sent.values()) <= 3
    assert all(len(each) <= 2 for each in begun.values())


async def _same(steps: list[tuple[str, str, int]], limits: Limits) -> None:
    database = SqliteDatabase(MEMORY)
    await database.open()
    tables = [SqliteRecords(database, name) for name in ("agent_runs", "llm_calls", "email_events")]
    runs = RunStore(RunTables(*tables), Still(), tenant_id="t", holder="here")  # type: ignore[arg-type]
    stored, remembered = (
        MailboxState(SqliteRecords(database, "mail_state"), runs, limits, "box"),
        MemoryAllowance(limits),
    )
    for run, sender, tokens in steps:
        assert await stored.tokens(run, sender, tokens) == await remembered.tokens(run, sender, tokens)
    await database.close()


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 60)).map(
            lambda each: (f"r{each[0]}", f"s{each[0] % 2}", each[1])
        ),
        max_size=12,
    )
)
def test_tokens_are_counted_alike_in_the_database_and_in_memory(steps: list[tuple[str, str, int]]) -> None:
    asyncio.run(_same(steps, Limits(tokens_per_sender=100)))
