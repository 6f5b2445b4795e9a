"""Sending, drafting and marking, against a real Dovecot and a real SMTP server (M11, M15)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from channels.mail.config import Limits, MailboxConfig
from channels.mail.delivery import UNKNOWN, ImapMailbox, MailboxParts
from channels.mail.imap import ImapConnection
from channels.mail.logins import Login
from channels.mail.message import parse_mail
from channels.mail.ports import DELAYING, Delivery, OutgoingMail
from channels.mail.runs import Place, RunStore, RunTables
from channels.mail.smtp import SmtpSender
from channels.mail.state import MailboxState
from flow_engine.errors import CallTheOperator
from flows.records import SqliteRecords
from flows.sqlite_store import MEMORY, SqliteDatabase
from tests.certificates import trusting
from tests.channels.mail.dovecot import PASSWORD, Dovecot, make_certificate
from tests.channels.mail.smtp_server import SmtpServer, running_smtp
from tests.ports import free_port

pytestmark = pytest.mark.anyio

RECEIVED = (
    b"From: jana@example.com\r\nSubject: Ibuprofen\r\nMessage-ID: <q1@example.com>\r\n\r\nHave you any?\r\n"
)


class Now:
    def now(self) -> datetime:
        return datetime(2026, 5, 4, 12, tzinfo=UTC)


def reply(number: int = 1) -> OutgoingMail:
    content = (
        f"From: info@example.org\r\nTo: jana@example.com\r\nSubject: Re: Ibuprofen\r\n"
        f"Message-ID: <a{number}@example.org>\r\nIn-Reply-To: <q1@example.com>\r\n\r\nYes.\r\n.dot\r\n"
    ).encode()
    return OutgoingMail(
        f"<a{number}@example.org>",
        "info@example.org",
        ("jana@example.com",),
        "Re: Ibuprofen",
        "Yes.",
        content,
    )


@dataclass
class Desk:
    """One mail of a user under way. `pauses` are the seconds that were waited before SMTP was tried again."""

    user: str
    mailbox: ImapMailbox
    parts: MailboxParts
    state: MailboxState
    pauses: list[float] = field(default_factory=list)

    def again(self) -> ImapMailbox:
        """As another process has it that took the run over."""
        return ImapMailbox(
            self.parts, Place(folder="INBOX", uid_validity=1, uid=1), "<q1@example.com>", DIGEST, 1_000_000
        )


DIGEST = parse_mail(RECEIVED).digest


@asynccontextmanager
async def desk(
    server: Dovecot, user: str, smtp_port: int | None, *, tls: str = "none", smtp_user: str = ""
) -> AsyncIterator[Desk]:
    async def imap_login() -> Login:
        return Login("localhost", server.port, "none", user, PASSWORD)

    async def smtp_login() -> Login:
        return Login("localhost", smtp_port or 0, tls, smtp_user, PASSWORD)  # type: ignore[arg-type]

    box = MailboxConfig.model_validate(
        {
            "name": "box",
            "imap": {"host": "localhost", "user": user, "tls": "none", "password_env": "MAIL_PASSWORD"},
        }
    )
    database, connection = SqliteDatabase(MEMORY), ImapConnection(imap_login)
    await database.open()
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    runs = RunStore(
        RunTables(*(SqliteRecords(database, table) for table in ("agent_runs", "llm_calls", "email_events"))),
        Now(),
        tenant_id="t",
        holder="here",
    )
    state = MailboxState(SqliteRecords(database, "mail_state"), runs, Limits(), "box")
    sender = None if smtp_port is None else SmtpSender(smtp_login)
    parts = MailboxParts(box, connection, sender, state, pause)
    server.deliver(user, RECEIVED)
    found = await connection.state("INBOX")
    place = Place(folder="INBOX", uid_validity=found.uid_validity, uid=1)
    yield Desk(user, ImapMailbox(parts, place, "<q1@example.com>", DIGEST, 1_000_000), parts, state, pauses)
    await connection.aclose()
    await database.close()


async def test_a_reply_is_sent_once_and_lies_in_sent(  # M11
    dovecot: Dovecot, smtp: SmtpServer, new_user: Callable[[], str]
) -> None:
    async with desk(dovecot, new_user(), smtp.port) as at:
        for mailbox in (at.mailbox, at.mailbox, at.again()):
            assert await mailbox.send(reply()) == Delivery("sent")
        assert smtp.contents == [reply().content]
        assert (smtp.sent[0].mail_from, smtp.sent[0].rcpt_tos) == ("info@example.org", ["jana@example.com"])
        assert dovecot.messages(at.user, "Sent") == [reply().content]
        assert dovecot.messages(at.user, "Drafts") == []
        assert dovecot.flags(at.user) == [set()], "what came in stays unseen"


async def test_a_reply_killed_between_smtp_and_its_record_is_not_sent_again(  # M1
    dovecot: Dovecot, smtp: SmtpServer, new_user: Callable[[], str]
) -> None:
    async with desk(dovecot, new_user(), smtp.port) as at:
        assert await at.state.intend(reply().message_id) is None
        await SmtpSender(at.parts.sender._login).send("info@example.org", reply().recipients, reply().content)  # type: ignore[union-attr]
        for _ in range(2):
            assert await at.again().send(reply()) == Delivery("drafted", UNKNOWN)
        assert len(smtp.sent) == 1
        assert len(dovecot.messages(at.user, "Drafts")) == 1
        assert dovecot.flags(at.user, "Drafts") == [{"\\Draft"}]


async def test_a_reply_that_lies_in_sent_was_sent(  # M1
    dovecot: Dovecot, smtp: SmtpServer, new_user: Callable[[], str]
) -> None:
    async with desk(dovecot, new_user(), smtp.port) as at:
        assert await at.state.intend(reply().message_id) is None
        dovecot.deliver(at.user, reply().content, folder="Sent")
        assert await at.again().send(reply()) == Delivery("sent")
        assert smtp.sent == []


async def test_what_was_sent_and_is_not_in_sent_is_put_there(  # M11
    dovecot: Dovecot, smtp: SmtpServer, new_user: Callable[[], str]
) -> None:
    async with desk(dovecot, new_user(), smtp.port) as at:
        await at.state.intend(reply().message_id)
        await at.state.became(reply().message_id, "sent", None)
        assert await at.again().send(reply()) == Delivery("sent")
        assert (smtp.sent, dovecot.messages(at.user, "Sent")) == ([], [reply().content])


async def test_without_an_answer_after_the_message_nobody_sends_again(  # M1
    dovecot: Dovecot, smtp: SmtpServer, new_user: Callable[[], str]
) -> None:
    async with desk(dovecot, new_user(), smtp.port) as at:
        smtp.vanish = 1
        assert await at.mailbox.send(reply()) == Delivery("drafted", UNKNOWN)
        assert len(smtp.sent) == 1
        assert at.pauses == []


@pytest.mark.parametrize(
    ("replies", "delivery"),
    [
        (["451 busy", "451 busy"], Delivery("sent")),
        (["451 busy"] * 3, Delivery("drafted", "the SMTP server refused it with 451")),
        (["554 spam"], Delivery("drafted", "the SMTP server refused it with 554")),
    ],
)
async def test_a_busy_server_is_tried_again_and_a_refusal_is_not(  # M11
    dovecot: Dovecot, smtp: SmtpServer, new_user: Callable[[], str], replies: list[str], delivery: Delivery
) -> None:
    async with desk(dovecot, new_user(), smtp.port) as at:
        smtp.refuse_with = list(replies)
        assert await at.mailbox.send(reply()) == delivery
        assert smtp.refuse_with == []
        assert len(dovecot.messages(at.user, "Drafts")) == (delivery.status == "drafted")


async def test_without_a_server_a_reply_becomes_a_draft(  # M15
    dovecot: Dovecot, new_user: Callable[[], str]
) -> None:
    async with desk(dovecot, new_user(), free_port()) as at:
        away = await at.mailbox.send(reply())
        assert away.status == "drafted"
        assert away.reason is not None
        assert away.reason.startswith("the SMTP server was not reached")
        assert at.pauses == [0.5, 2.0]
    async with desk(dovecot, new_user(), None) as at:
        assert await at.mailbox.send(reply()) == Delivery("drafted", "the mailbox has no SMTP server")


async def test_smtp_checks_certificates_and_logs_in(  # M1
    dovecot: Dovecot, new_user: Callable[[], str], tmp_path: Path
) -> None:
    make_certificate(tmp_path)
    with running_smtp(tmp_path, authenticate=True) as smtp:
        async with desk(dovecot, new_user(), smtp.port, tls="starttls", smtp_user="info") as at:
            refused = await at.mailbox.send(reply(1))
            assert refused.status == "drafted"
            with trusting(tmp_path / "cert.pem"):
                assert await at.mailbox.send(reply(2)) == Delivery("sent")
        assert [envelope.rcpt_tos for envelope in smtp.sent] == [["jana@example.com"]]


async def test_the_thread_is_read_from_all_folders_but_the_mail_itself(  # M11
    dovecot: Dovecot, new_user: Callable[[], str]
) -> None:
    async with desk(dovecot, new_user(), None) as at:
        dovecot.deliver(at.user, reply(1).content, folder="Sent")
        dovecot.deliver(at.user, b"Subject: other\r\nMessage-ID: <x@example.com>\r\n\r\nno\r\n")
        dovecot.deliver(
            at.user,
            RECEIVED.replace(b"q1", b"q2", 1).replace(
                b"\r\n\r\n", b"\r\nReferences: <q1@example.com>\r\n\r\n"
            ),
        )
        thread = await at.mailbox.thread(["<q1@example.com>", "<a1@example.org>"])
        assert [parse_mail(raw).message_id for raw in thread] == ["<q2@example.com>", "<a1@example.org>"]
        assert await at.mailbox.thread([]) == []


async def test_a_listed_folder_that_cannot_be_opened_is_told_and_left_out(  # M1
    dovecot: Dovecot, new_user: Callable[[], str]
) -> None:
    async with desk(dovecot, new_user(), None) as at:
        with dovecot.client(at.user) as client:
            for folder in ("Archive", "Broken", "Zoo"):
                client.create_folder(folder)
            client.append("Archive", reply().content)
            client.select_folder("INBOX")
            client.move([1], "Zoo")
        dovecot.close(at.user, "Broken")
        with structlog.testing.capture_logs() as logs:
            thread = await at.mailbox.thread(["<a1@example.org>"])
            assert await at.again().raw() == (RECEIVED, len(RECEIVED))
        assert [parse_mail(raw).message_id for raw in thread] == ["<a1@example.org>"]
        told = [line for line in logs if line["event"] == "folder_refused"]
        assert {line["folder"] for line in told} == {"Broken"}
        assert all("Broken" in line["detail"] for line in told)


@pytest.mark.parametrize("has_id", [True, False])
async def test_a_mail_is_found_in_the_last_of_many_folders_and_without_a_message_id(  # M1
    dovecot: Dovecot, new_user: Callable[[], str], has_id: bool
) -> None:
    async with desk(dovecot, new_user(), None) as at:
        raw = b"From: jana@example.com\r\nSubject: Last\r\n\r\nHello\r\n"
        raw = b"Message-ID: <q9@example.com>\r\n" + raw if has_id else raw
        dovecot.deliver(at.user, raw)
        with dovecot.client(at.user) as client:
            for number in range(10, 35):
                client.create_folder(f"Customer{number}")
            last = [name for *_, name in client.list_folders() if name.startswith("Customer")][-1]
            client.append(last, raw.replace(b"Hello", b"Another"))
            client.select_folder("INBOX")
            client.move([2], last)
        digest = parse_mail(raw).digest
        place = Place(folder="INBOX", uid_validity=1, uid=2)
        message_id = "<q9@example.com>" if has_id else digest
        assert await ImapMailbox(at.parts, place, message_id, digest, 1_000_000).raw() == (raw, len(raw))


async def test_a_mail_that_was_moved_or_renumbered_is_found_and_marked(  # M1
    dovecot: Dovecot, new_user: Callable[[], str]
) -> None:
    async with desk(dovecot, new_user(), None) as at:
        dovecot.deliver(at.user, RECEIVED.replace(b"any", b"none"))  # the same Message-ID
        with dovecot.client(at.user) as client:
            client.create_folder("Archive")
            client.select_folder("INBOX")
            client.move([1], "Archive")
        assert (await at.mailbox.raw()) == (RECEIVED, len(RECEIVED))
        await at.mailbox.mark(["urgent"])
        assert dovecot.flags(at.user, "Archive") == [{"urgent"}]
        assert (await at.again().raw()) == (RECEIVED, len(RECEIVED))
        with dovecot.client(at.user) as client:
            client.delete_folder("Archive")
        assert await at.again().raw() is None
        await at.again().mark(["later"])  # no harm is done
        assert dovecot.flags(at.user) == [set()]


@pytest.mark.parametrize("code", ["imap_refused", "mail_token_refused", "mail_secret_missing"])
async def test_a_flag_is_not_given_up_where_the_mailbox_cannot_be_opened_for_a_while(  # M2, M11
    dovecot: Dovecot, new_user: Callable[[], str], code: str
) -> None:
    is_fine = False

    async def login() -> Login:
        if not is_fine and code != "imap_refused":
            raise CallTheOperator(code, "not now")
        return Login("localhost", dovecot.port, "none", at.user, PASSWORD if is_fine else "expired")

    async with desk(dovecot, new_user(), None) as at, aclosing(ImapConnection(login)) as imap:
        found, state = await at.mailbox.raw(), await at.parts.imap.state("INBOX")
        place = Place(folder="INBOX", uid_validity=state.uid_validity, uid=1)
        parts = replace(at.parts, imap=imap)
        mailbox = ImapMailbox(parts, place, "<q1@example.com>", DIGEST, 1_000_000)
        for attempt in (lambda: mailbox.mark(["\\Flagged"]), mailbox.raw):
            with pytest.raises(CallTheOperator) as raised:
                await attempt()
            assert raised.value.code in DELAYING
        is_fine = True
        assert await mailbox.raw() == found
        await mailbox.mark(["\\Flagged"])
        assert dovecot.flags(at.user) == [{"\\Flagged"}]
