"""What opens a mail server at this moment: a password of the environment, or an OAuth 2 access token.

A token is what a refresh token gives (RFC 6749, section 6), and is kept until shortly before it expires."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx2
from pydantic import BaseModel, ValidationError

from channels.mail.config import Imap, OAuth2, Smtp, Tls
from flow_engine.errors import CallTheOperator, RetryLater

TOKEN_WITHIN_S = 10.0
RENEWED_BEFORE_S = 60.0
"""Seconds that a kept token has to live at least."""


@dataclass(frozen=True, slots=True)
class Login:
    """`user` is empty where nothing is authenticated. `secret` is a password, or with `is_token` an OAuth 2
    access token."""

    host: str
    port: int
    tls: Tls
    user: str
    secret: str = ""
    is_token: bool = False


class _Token(BaseModel):
    access_token: str
    expires_in: float = 300.0


class Logins:
    """`environ` has the secrets by the names of the config; `monotonic` gives seconds. `http` is closed by
    who made it."""

    def __init__(
        self,
        environ: Mapping[str, str],
        http: httpx2.AsyncClient,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environ = environ
        self._http = http
        self._monotonic = monotonic
        self._tokens: dict[OAuth2, tuple[float, str]] = {}

    async def login(self, server: Imap | Smtp) -> Login:
        """A token that is asked for comes within `TOKEN_WITHIN_S` seconds. Raises CallTheOperator
        `mail_secret_missing`, `mail_token_refused`; RetryLater `mail_token_unavailable`."""
        if server.oauth2 is not None:
            token = await self._token(server.oauth2)
            return Login(server.host, server.at_port, server.tls, server.user or "", token, is_token=True)
        if server.password_env is not None:
            secret = self._secret(server.password_env)
            return Login(server.host, server.at_port, server.tls, server.user or "", secret)
        return Login(server.host, server.at_port, server.tls, "")

    def refused(self, login: Login) -> None:
        """A server does not take this login: a token is fetched anew for the next one."""
        self._tokens = {by: kept for by, kept in self._tokens.items() if kept[1] != login.secret}

    def _secret(self, name: str) -> str:
        secret = self._environ.get(name)
        if not secret:
            raise CallTheOperator("mail_secret_missing", f"the environment variable {name} is not set")
        return secret

    async def _token(self, by: OAuth2) -> str:
        now = self._monotonic()
        kept = self._tokens.get(by)
        if kept is not None and kept[0] > now:
            return kept[1]
        form = {
            "grant_type": "refresh_token",
            "client_id": by.client_id,
            "refresh_token": self._secret(by.refresh_token_env),
            **({} if by.client_secret_env is None else {"client_secret": self._secret(by.client_secret_env)}),
            **({} if by.scope is None else {"scope": by.scope}),
        }
        try:
            answer = await self._http.post(by.token_url, data=form, timeout=TOKEN_WITHIN_S)
        except httpx2.TransportError as error:
            raise RetryLater("mail_token_unavailable", "the token server did not answer") from error
        if answer.status_code >= 500:
            raise RetryLater("mail_token_unavailable", f"the token server answered {answer.status_code}")
        try:
            token = _Token.model_validate_json(answer.content if answer.is_success else b"{}")
        except ValidationError:
            raise CallTheOperator(
                "mail_token_refused", f"the token server gave no access token: status {answer.status_code}"
            ) from None
        self._tokens[by] = (now + max(token.expires_in - RENEWED_BEFORE_S, 0.0), token.access_token)
        return token.access_token
