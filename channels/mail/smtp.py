"""Sending by SMTP (RFC 5321): one message over one connection, with an answer that tells three cases apart.

Until the dot that ends the message nothing is sent, whatever breaks. After it, only the server's reply tells:
where it does not come, the message may be on its way (`DeliveryUnknown`), and nobody may send it again.
"""

import ssl
from collections.abc import Awaitable, Callable, Sequence

import aiosmtplib
from aiosmtplib import SMTPAuthenticationError, SMTPDataError, SMTPException, SMTPResponseException

from adapters.outbound.network import public_tls
from channels.mail.logins import Login
from flow_engine.errors import CallTheOperator, RetryLater

CONNECT_WITHIN_S = 10.0
ANSWER_WITHIN_S = 60.0
"""Seconds for each reply of the server; RFC 5321 allows it minutes after the message."""


class NotSent(Exception):
    """The message did not go out: the server refused it (RFC 5321) or was not reached. `may_pass`: the same
    again may go, as the server was away or busy."""

    def __init__(self, reason: str, *, may_pass: bool) -> None:
        super().__init__(reason)
        self.may_pass = may_pass


class DeliveryUnknown(Exception):
    """The connection failed after the whole message was out and before the server's reply."""


class SmtpSender:
    """`login` is asked before each connection: where there is none, nothing is sent. `refused` is told of one
    that the server does not take."""

    def __init__(
        self, login: Callable[[], Awaitable[Login]], refused: Callable[[Login], None] = lambda login: None
    ) -> None:
        self._login = login
        self._refused = refused

    async def send(self, sender: str, recipients: Sequence[str], raw: bytes) -> None:
        """`raw`, in bytes with CRLF, to every recipient or to none. Raises NotSent, DeliveryUnknown."""
        try:
            login = await self._login()
        except (RetryLater, CallTheOperator) as none:
            raise NotSent(none.detail, may_pass=isinstance(none, RetryLater)) from none
        client = aiosmtplib.SMTP(
            hostname=login.host,
            port=login.port,
            use_tls=login.tls == "implicit",
            start_tls=login.tls == "starttls",
            tls_context=None if login.tls == "none" else public_tls(),
            timeout=CONNECT_WITHIN_S,
        )
        try:
            await self._offer(client, login, sender, recipients)
            try:
                await client.data(raw, timeout=ANSWER_WITHIN_S)
            except SMTPDataError as refused:
                raise _refusal(refused) from None
            except (SMTPException, OSError, TimeoutError) as broken:  # no reply, or one that is none
                raise DeliveryUnknown(type(broken).__name__) from broken
            try:
                await client.quit(timeout=CONNECT_WITHIN_S)
            except (SMTPException, OSError, TimeoutError):
                return  # the message was taken
        finally:
            client.close()

    async def _offer(
        self, client: aiosmtplib.SMTP, login: Login, sender: str, recipients: Sequence[str]
    ) -> None:
        """Everything before the message. Raises NotSent."""
        try:
            await client.connect()
            if login.user:
                if login.is_token:
                    await client.ehlo()
                    await client.auth_xoauth2(login.user, login.secret)
                else:
                    await client.login(login.user, login.secret)
            await client.mail(sender, timeout=ANSWER_WITHIN_S)
            for recipient in recipients:
                await client.rcpt(recipient, timeout=ANSWER_WITHIN_S)
        except SMTPAuthenticationError as refused:
            self._refused(login)
            # A kept token may have been withdrawn: the next try is made with another one.
            raise _refusal(refused, may_pass=login.is_token) from None
        except SMTPResponseException as refused:
            raise _refusal(refused) from None
        except ssl.SSLCertVerificationError as error:
            raise NotSent(f"the certificate of the SMTP server: {error}", may_pass=False) from error
        except (SMTPException, OSError, TimeoutError) as broken:
            trouble = type(broken).__name__
            raise NotSent(f"the SMTP server was not reached: {trouble}", may_pass=True) from broken


def _refusal(refused: SMTPResponseException, *, may_pass: bool = False) -> NotSent:
    passing = may_pass or 400 <= refused.code < 500
    return NotSent(f"the SMTP server refused it with {refused.code}", may_pass=passing)
