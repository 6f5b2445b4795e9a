"""The IMAP side, against a real Dovecot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from channels.mail.imap import ImapConnection, UidsChanged
from channels.mail.logins import Login
from flow_engine.errors import CallTheOperator, RetryLater
from tests.certificates import trusting
from tests.channels.mail.dovecot import PASSWORD, Dovecot
from tests.ports import free_port
from tests.proof.link import Link

pytestmark = pytest.mark.anyio

MAIL = b"From: a@example.org\r\nSubject: one\r\nMessage-ID: <one@example.org>\r\n\r\nhello\r\n"


@asynccontextmanager
async def connected(
    server: Dovecot, user: str, *, port: int | None = None, tls: str = "none", secret: str = PASSWORD
) -> AsyncIterator[ImapConnection]:
    async def login() -> Login:
        return Login("localhost", port or server.port, tls, user, secret)  # type: ignore[arg-type]

    connection = ImapConnection(login)
    yield connection
    await connection.aclose()


@pytest.mark.parametrize("tls", ["implicit", "starttls"])
async def test_tls_checks_the_certificate_and_its_name(  # M1
    dovecot: Dovecot, new_user: Callable[[], str], tls: str
) -> None:
    port = dovecot.tls_port if tls == "implicit" else dovecot.port
    async with connected(dovecot, new_user(), port=port, tls=tls) as connection:
        with pytest.raises(CallTheOperator, match="certificate"):
            await connection.state("INBOX")
        with trusting(dovecot.certificate):
            assert (await connection.state("INBOX")).uid_next == 1


@pytest.mark.parametrize("secret", ["wrong", 'schwarzes "Gewürz"'])
async def test_a_login_that_is_refused_is_the_operators(  # M1
    dovecot: Dovecot, new_user: Callable[[], str], secret: str
) -> None:
    async with connected(dovecot, new_user(), secret=secret) as connection:
        with pytest.raises(CallTheOperator, match="refuses the login"):
            await connection.state("INBOX")


async def test_reading_leaves_a_mail_unseen_and_stops_at_the_bound(  # M1
    dovecot: Dovecot, new_user: Callable[[], str]
) -> None:
    user = new_user()
    dovecot.deliver(user, MAIL, b"Subject: two\r\n\r\n" + b"x" * 100_000)
    async with connected(dovecot, user) as connection:
        state, uids = await connection.uids("INBOX")
        mails = await connection.fetch("INBOX", uids, uid_validity=state.uid_validity, most_bytes=1_000)
        assert [(mail.size, len(mail.raw)) for mail in mails] == [(len(MAIL), len(MAIL)), (100_016, 1_000)]
        assert (await connection.find("INBOX", ["Message-ID"], ["<one@example.org>"]))[1] == [1]
        assert (await connection.find("INBOX", ["Message-ID"], ["<\x00@é>"]))[1] == ()
    assert dovecot.flags(user) == [set(), set()]


async def _tells_flags_of_another(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server with the UIDs 1 and 3; at a fetch it tells the flags of its second message, by number."""
    writer.write(b"* OK [CAPABILITY IMAP4rev1] ready\r\n")
    while line := await reader.readline():
        tag, _, command = line.strip().partition(b" ")
        if command.startswith(b"CAPABILITY"):
            writer.write(b"* CAPABILITY IMAP4rev1\r\n")
        if command.startswith(b"EXAMINE"):
            writer.write(b"* 2 EXISTS\r\n* OK [UIDVALIDITY 1] ok\r\n* OK [UIDNEXT 4] ok\r\n")
        if command.startswith(b"UID FETCH"):
            text = b"BODY[HEADER.FIELDS (SUBJECT)]" if b"HEADER" in command else b"BODY[]<0>"
            writer.write(b"* 1 FETCH (UID 1 RFC822.SIZE 5 " + text + b' "hello")\r\n')
            writer.write(b"* 2 FETCH (FLAGS (\\Seen))\r\n")
        writer.write(tag + b" OK done\r\n")
        await writer.drain()
    writer.close()


async def test_flags_of_another_message_are_no_answer_to_a_fetch() -> None:  # M1
    server = await asyncio.start_server(_tells_flags_of_another, "127.0.0.1", 0)

    async def login() -> Login:
        return Login("127.0.0.1", server.sockets[0].getsockname()[1], "none", "u", PASSWORD)

    connection = ImapConnection(login)
    mails = await connection.fetch("INBOX", [1, 2], uid_validity=1, most_bytes=100)
    assert [(mail.uid, mail.raw, mail.size) for mail in mails] == [(1, b"hello", 5)]
    assert await connection.sizes("INBOX", [1, 2], uid_validity=1) == {1: 5}
    assert await connection.headers("INBOX", [1, 2], ["Subject"], uid_validity=1) == {1: b"hello"}
    await connection.aclose()
    server.close()


@pytest.mark.parametrize(
    ("told", "found"), [(b"* OK [UIDVALIDITY 1] ok", b"one"), (b"* OK [UIDVALIDITY x] ok", b"1"), (b"", b"1")]
)
async def test_a_server_that_answers_nonsense_is_one_that_is_away(told: bytes, found: bytes) -> None:  # M1
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"* OK [CAPABILITY IMAP4rev1] ready\r\n")
        while line := await reader.readline():
            tag, _, command = line.strip().partition(b" ")
            if command.startswith(b"EXAMINE"):
                writer.write(b"* OK [UIDNEXT 4] ok\r\n" + (told and told + b"\r\n"))
            if command.startswith(b"UID SEARCH"):
                writer.write(b"* SEARCH " + found + b"\r\n")
            writer.write(tag + b" OK done\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)

    async def login() -> Login:
        return Login("127.0.0.1", server.sockets[0].getsockname()[1], "none", "u", PASSWORD)

    connection = ImapConnection(login)
    with pytest.raises(RetryLater, match="answer cannot be read"):
        await connection.uids("INBOX", start=1)
    await connection.aclose()
    server.close()


async def test_a_server_that_hangs_up_is_told_of_as_that() -> None:  # M1, F46
    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)

    async def login() -> Login:
        return Login("127.0.0.1", server.sockets[0].getsockname()[1], "none", "u", PASSWORD)

    connection = ImapConnection(login)
    with pytest.raises(RetryLater, match="did not answer: the connection was lost"):
        await connection.uids("INBOX", start=1)
    await connection.aclose()
    server.close()


async def test_what_a_message_id_holds_is_no_part_of_a_search(  # M1
    dovecot: Dovecot, new_user: Callable[[], str]
) -> None:
    user = new_user()
    odd = ["<{0A-1B}@example.com>", "<a(1)@x>", "<x{5}@[127.0.0.1]>", '<a"b\\c@x>', "<%*@x>", "<AND OR@x>"]
    dovecot.deliver(user, *(f"Message-ID: {each}\r\n\r\nhello\r\n".encode() for each in odd))
    async with connected(dovecot, user) as connection:
        for at, each in enumerate(odd, start=1):
            assert (await connection.find("INBOX", ["Message-ID"], [each]))[1] == [at], each
        found = await connection.find("INBOX", ["Message-ID", "References"], odd)
        assert found[1] == list(range(1, 1 + len(odd)))


async def test_flags_and_keywords_are_added(dovecot: Dovecot, new_user: Callable[[], str]) -> None:  # M2
    user = new_user()
    dovecot.deliver(user, MAIL)
    async with connected(dovecot, user) as connection:
        state = await connection.state("INBOX")
        for flag in ("urgent", "\\Flagged"):
            await connection.add_flags("INBOX", 1, [flag], uid_validity=state.uid_validity)
        with pytest.raises(UidsChanged):
            await connection.add_flags("INBOX", 1, ["later"], uid_validity=state.uid_validity + 1)
    assert dovecot.flags(user) == [{"urgent", "\\Flagged"}]


async def test_uids_of_another_uidvalidity_are_never_used(  # M1
    dovecot: Dovecot, new_user: Callable[[], str]
) -> None:
    user = new_user()
    dovecot.deliver(user, MAIL)
    async with connected(dovecot, user) as connection:
        before = await connection.state("INBOX")
        dovecot.renumber(user)
    async with connected(dovecot, user) as connection:
        assert (await connection.state("INBOX")).uid_validity != before.uid_validity
        with pytest.raises(UidsChanged):
            await connection.fetch("INBOX", [1], uid_validity=before.uid_validity, most_bytes=100)


async def test_idle_tells_of_a_new_mail_at_once(dovecot: Dovecot, new_user: Callable[[], str]) -> None:  # M1
    user = new_user()
    async with connected(dovecot, user) as connection:
        known = await connection.state("INBOX")
        waiting = asyncio.create_task(connection.wait("INBOX", known, until=asyncio.Event(), poll_s=60.0))
        await asyncio.sleep(0.2)
        threading.Thread(target=dovecot.deliver, args=(user, MAIL)).start()
        async with asyncio.timeout(10):
            await waiting
            await connection.wait("INBOX", known, until=asyncio.Event(), poll_s=60.0)  # missed no mail


async def test_without_idle_and_in_a_silent_one_the_time_to_poll_ends_the_wait(  # M1
    dovecot: Dovecot, dovecot_without_idle: Dovecot, new_user: Callable[[], str]
) -> None:
    for server in (dovecot, dovecot_without_idle):
        async with connected(server, new_user()) as connection, asyncio.timeout(10):
            known = await connection.state("INBOX")
            await connection.wait("INBOX", known, until=asyncio.Event(), poll_s=0.1)


async def test_a_stop_ends_the_wait(dovecot: Dovecot, new_user: Callable[[], str]) -> None:  # M1
    async with connected(dovecot, new_user()) as connection:
        stopping = asyncio.Event()
        known = await connection.state("INBOX")
        waiting = asyncio.create_task(connection.wait("INBOX", known, until=stopping, poll_s=60.0))
        await asyncio.sleep(0.1)
        stopping.set()
        async with asyncio.timeout(30):
            await waiting


async def test_what_is_read_survives_a_cut_and_what_is_written_says_so(  # M1
    dovecot: Dovecot, new_user: Callable[[], str]
) -> None:
    user = new_user()
    dovecot.deliver(user, MAIL)
    async with (
        Link(free_port(), dovecot.port) as link,
        connected(dovecot, user, port=link.port) as connection,
    ):
        assert (await connection.uids("INBOX"))[1] == [1]
        link.cut_all()
        assert (await connection.uids("INBOX"))[1] == [1]
        assert connection.connections == 2
        link.cut_all()
        with pytest.raises(RetryLater, match="imap_unavailable"):
            await connection.append("Drafts", MAIL, ["\\Draft"])
    assert dovecot.messages(user, "Drafts") == []


async def test_appending_makes_a_folder_that_is_missing(  # M11
    dovecot: Dovecot, new_user: Callable[[], str]
) -> None:
    user = new_user()
    async with connected(dovecot, user) as connection:
        await connection.append("Entwürfe", MAIL, ["\\Draft"])
        assert "Entwürfe" in await connection.folders()
        assert "Drafts" not in await connection.folders()
    assert dovecot.messages(user, "Entwürfe") == [MAIL]
    assert dovecot.flags(user, "Entwürfe") == [{"\\Draft"}]
