"""A real SMTP server on loopback for the tests, which keeps what it gets and can be told to misbehave."""

from __future__ import annotations

import base64
import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword, Session

from tests.channels.mail.dovecot import PASSWORD
from tests.ports import free_port


@dataclass
class SmtpServer:
    """`sent` are the envelopes that were taken. `refuse_with` are the replies to the next messages instead,
    `vanish` is how many next messages are taken without an answer: the connection ends."""

    port: int
    sent: list[Envelope] = field(default_factory=list)
    refuse_with: list[str] = field(default_factory=list)
    vanish: int = 0
    tokens: set[str] = field(default_factory=set)

    async def handle_DATA(self, server: Any, session: Session, envelope: Envelope) -> str:
        if self.refuse_with:
            return self.refuse_with.pop(0)
        self.sent.append(envelope)
        if self.vanish:
            self.vanish -= 1
            server.transport.abort()
        return "250 OK"

    @property
    def contents(self) -> list[bytes]:
        """The messages, with CRLF."""
        return [bytes(envelope.original_content or b"") for envelope in self.sent]

    async def auth_XOAUTH2(self, server: Any, args: list[str]) -> Any:
        """As providers do: a token that is not among `tokens` is answered with a challenge that has the
        reason, and refused after the client's empty line."""
        _, _, token = base64.b64decode(args[1]).decode().partition("auth=Bearer ")
        if token.rstrip("\x01") in self.tokens:
            return AuthResult(success=True)
        await server.push("334 " + base64.b64encode(b'{"status":"401"}').decode())
        await server._reader.readline()
        return AuthResult(success=False, handled=False)


def _authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    fine = isinstance(data, LoginPassword) and data.password == PASSWORD.encode()
    return AuthResult(success=fine)


@contextlib.contextmanager
def running_smtp(
    certificates: Path | None = None, *, authenticate: bool = False, server: SmtpServer | None = None
) -> Iterator[SmtpServer]:
    """With `certificates`, a folder of `cert.pem` and `key.pem`, the server requires STARTTLS."""
    server = server or SmtpServer(free_port())
    context = None
    if certificates is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    controller = Controller(
        server,
        hostname="127.0.0.1",
        port=server.port,
        tls_context=context,
        require_starttls=context is not None,
        authenticator=_authenticate if authenticate else None,
        auth_required=authenticate,
    )
    controller.start()
    try:
        yield server
    finally:
        controller.stop()
