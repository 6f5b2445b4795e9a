"""What opens a mail server: passwords of the environment, and tokens (M1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs

import httpx2
import orjson
import pytest
from pydantic import ValidationError

from channels.mail.config import Imap, Smtp
from channels.mail.imap import ImapConnection
from channels.mail.logins import Login, Logins
from channels.mail.ports import Delivery
from channels.mail.smtp import NotSent, SmtpSender
from flow_engine.errors import CallTheOperator, RetryLater
from tests.certificates import trusting
from tests.channels.mail.dovecot import Dovecot, access_token, make_certificate
from tests.channels.mail.smtp_server import SmtpServer, running_smtp
from tests.channels.mail.test_delivery import desk, reply
from tests.ports import free_port

pytestmark = pytest.mark.anyio

SECRETS = {"REFRESH": "refresh-me", "CLIENT_SECRET": "client-secret", "MAIL_PASSWORD": "secret"}


class TokenServer:
    """Answers with `replies`, status and object, the last one repeating. `forms` are what it was sent."""

    def __init__(self, *replies: tuple[int, object]) -> None:
        self.replies = list(replies)
        self.forms: list[dict[str, list[str]]] = []
        self.url = ""

    async def __aenter__(self) -> TokenServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/token"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        self.forms.append(parse_qs((await reader.readexactly(length)).decode()))
        status, reply = self.replies[0] if len(self.replies) == 1 else self.replies.pop(0)
        body = orjson.dumps(reply)
        writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n" % status)
        if reply == "packed":
            writer.write(b"Content-Encoding: gzip\r\n")
        writer.write(b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False) as client:
        yield client


def imap(token_url: str | None = None) -> Imap:
    opened: dict[str, object] = {"password_env": "MAIL_PASSWORD"}
    if token_url is not None:
        secrets = {"client_secret_env": "CLIENT_SECRET", "refresh_token_env": "REFRESH"}
        opened = {"oauth2": {"token_url": token_url, "client_id": "me", "scope": "imap", **secrets}}
    return Imap.model_validate({"host": "mail.example.org", "user": "u@example.org", **opened})


async def test_a_password_is_read_from_the_environment(http: httpx2.AsyncClient) -> None:
    login = await Logins(SECRETS, http).login(imap())
    assert login == Login("mail.example.org", 993, "implicit", "u@example.org", "secret")
    with pytest.raises(CallTheOperator, match="MAIL_PASSWORD is not set"):
        await Logins({}, http).login(imap())


async def test_a_token_is_fetched_and_kept_until_shortly_before_it_expires(http: httpx2.AsyncClient) -> None:
    now = [0.0]
    async with TokenServer(
        (200, {"access_token": "one", "expires_in": 3600}), (200, {"access_token": "two"})
    ) as server:
        logins = Logins(SECRETS, http, monotonic=lambda: now[0])
        for at, token in ((0.0, "one"), (3539.0, "one"), (3541.0, "two")):
            now[0] = at
            login = await logins.login(imap(server.url))
            assert (login.secret, login.is_token) == (token, True)
    assert server.forms[0] == {
        "grant_type": ["refresh_token"],
        "client_id": ["me"],
        "client_secret": ["client-secret"],
        "refresh_token": ["refresh-me"],
        "scope": ["imap"],
    }
    assert len(server.forms) == 2


@pytest.mark.parametrize(
    ("status", "reply", "error"),
    [
        (503, {}, RetryLater),
        (429, {}, RetryLater),
        (200, "packed", RetryLater),
        (400, {"error": "invalid_grant"}, CallTheOperator),
        (200, {"token": "none"}, CallTheOperator),
    ],
)
async def test_a_token_that_is_refused_is_the_operators_and_a_server_away_is_tried_again(
    http: httpx2.AsyncClient, status: int, reply: object, error: type[Exception]
) -> None:
    async with TokenServer((status, reply)) as server:
        with pytest.raises(error) as raised:
            await Logins(SECRETS, http).login(imap(server.url))
    assert "refresh-me" not in str(raised.value)
    with pytest.raises(RetryLater):
        await Logins(SECRETS, http).login(imap(server.url))


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ({"error": "invalid_grant", "error_description": "for u@example.org"}, "status 400 invalid_grant"),
        ({"error": "two words"}, "status 400"),
        ({"error": {"code": 7}}, "status 400"),
        (["invalid_grant"], "status 400"),
    ],
)
async def test_a_refusal_tells_why_by_its_code_alone(
    http: httpx2.AsyncClient, reply: object, told: str
) -> None:  # M1, F46
    async with TokenServer((400, reply)) as server:
        with pytest.raises(CallTheOperator) as raised:
            await Logins(SECRETS, http).login(imap(server.url))
    assert raised.value.detail == f"the token server gave no access token: {told}"


async def test_a_refresh_token_that_takes_the_place_of_the_old_one_is_used_from_then_on(
    http: httpx2.AsyncClient,
) -> None:  # M1
    replies = [
        (200, {"access_token": "one", "expires_in": 0, "refresh_token": "second"}),
        (200, {"access_token": "two", "expires_in": 0}),
        (200, {"access_token": "three", "expires_in": 0, "refresh_token": "third"}),
        (200, {"access_token": "four"}),
    ]
    async with TokenServer(*replies) as server:
        logins = Logins(SECRETS, http)
        for _ in replies:
            await logins.login(imap(server.url))
    asked = [form["refresh_token"] for form in server.forms]
    assert asked == [["refresh-me"], ["second"], ["second"], ["third"]]


async def test_those_who_need_a_token_at_once_get_the_same_one(http: httpx2.AsyncClient) -> None:  # M1
    async with TokenServer((200, {"access_token": "one", "expires_in": 0})) as server:
        logins = Logins(SECRETS, http)
        found = await asyncio.gather(*(logins.login(imap(server.url)) for _ in range(5)))
        assert ({login.secret for login in found}, len(server.forms)) == ({"one"}, 1)
        server.replies = [(400, {"error": "invalid_grant"})]
        refused = await asyncio.gather(
            *(logins.login(imap(server.url)) for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(each, CallTheOperator) for each in refused)
        assert len(server.forms) == 2
        server.replies = [(200, {"access_token": "two"})]
        assert (await logins.login(imap(server.url))).secret == "two", "a failure is not kept"


def test_tokens_are_fetched_over_tls_but_on_loopback() -> None:
    with pytest.raises(ValidationError, match="https"):
        imap("http://tokens.example.org/token")


# --- the servers that take a token ------------------------------------------------------------------


def by_token(port: int, user: str, token_url: str) -> dict[str, object]:
    oauth2 = {"token_url": token_url, "client_id": "me", "refresh_token_env": "REFRESH"}
    return {"host": "localhost", "port": port, "tls": "none", "user": user, "oauth2": oauth2}


async def test_dovecot_opens_a_mailbox_by_xoauth2_and_no_other(  # M1
    http: httpx2.AsyncClient, dovecot: Dovecot, new_user: Callable[[], str]
) -> None:
    user = new_user()
    refused = (
        access_token("somebody-else@example.org"),
        access_token(user, valid_s=-60),
        access_token(user, key=b"another-key-another-key-another-key"),
        "no-token",
    )
    replies = [(200, {"access_token": token}) for token in (*refused, access_token(user))]
    async with TokenServer(*replies) as server:
        logins = Logins(SECRETS, http)
        imap = Imap.model_validate(by_token(dovecot.port, user, server.url))
        connection = ImapConnection(partial(logins.login, imap), logins.refused)
        for _ in refused:
            with pytest.raises(CallTheOperator, match="imap_refused"):
                await connection.state("INBOX")
        assert (await connection.state("INBOX")).uid_next == 1, "a refused token is fetched anew"
        assert (await connection.uids("INBOX"))[1] == []
        await connection.aclose()
    assert len(server.forms) == len(replies)


async def test_smtp_sends_by_xoauth2(  # M1
    http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    make_certificate(tmp_path)
    smtp = SmtpServer(free_port(), tokens={"fresh"})
    replies = [(200, {"access_token": token}) for token in ("stale", "fresh")]
    async with TokenServer(*replies) as server:
        with running_smtp(tmp_path, server=smtp, authenticate=True), trusting(tmp_path / "cert.pem"):
            logins = Logins(SECRETS, http)
            document = by_token(smtp.port, "info@example.org", server.url) | {"tls": "starttls"}
            declared = Smtp.model_validate(document)
            sender = SmtpSender(partial(logins.login, declared), logins.refused)
            raw = b"Subject: x\r\n\r\nHello.\r\n"
            with pytest.raises(NotSent, match="535"):
                await sender.send("info@example.org", ["jana@example.com"], raw)
            await sender.send("info@example.org", ["jana@example.com"], raw)
            await sender.send("info@example.org", ["jana@example.com"], raw)
    assert smtp.contents == [raw, raw]
    assert len(server.forms) == 2


@pytest.mark.parametrize(
    "first", [(200, {"access_token": "withdrawn"}), (503, {}), (429, {})], ids=["withdrawn", "away", "busy"]
)
async def test_a_reply_goes_out_with_the_next_token_where_the_first_one_fails(
    http: httpx2.AsyncClient,
    dovecot: Dovecot,
    new_user: Callable[[], str],
    tmp_path: Path,
    first: tuple[int, object],
) -> None:  # M11
    make_certificate(tmp_path)
    smtp = SmtpServer(free_port(), tokens={"fresh"})
    async with TokenServer(first, (200, {"access_token": "fresh"})) as server:
        with running_smtp(tmp_path, server=smtp, authenticate=True), trusting(tmp_path / "cert.pem"):
            logins = Logins(SECRETS, http)
            document = by_token(smtp.port, "info@example.org", server.url) | {"tls": "starttls"}
            sender = SmtpSender(partial(logins.login, Smtp.model_validate(document)), logins.refused)
            async with desk(dovecot, new_user(), smtp.port) as at:
                at.parts = replace(at.parts, sender=sender)
                assert await at.again().send(reply()) == Delivery("sent")
                assert len(at.pauses) == 1
    assert smtp.contents == [reply().content]


async def test_a_reply_without_a_token_is_a_draft_with_the_reason(
    http: httpx2.AsyncClient, dovecot: Dovecot, new_user: Callable[[], str]
) -> None:  # M11
    async with TokenServer((400, {"error": "invalid_grant"})) as server:
        logins = Logins(SECRETS, http)
        declared = Smtp.model_validate(by_token(25, "info@example.org", server.url))
        async with desk(dovecot, new_user(), 25) as at:
            at.parts = replace(at.parts, sender=SmtpSender(partial(logins.login, declared), logins.refused))
            delivery = await at.again().send(reply())
            assert (delivery.status, at.pauses) == ("drafted", [])
            assert delivery.reason == "the token server gave no access token: status 400 invalid_grant"
