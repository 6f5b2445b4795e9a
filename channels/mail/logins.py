"""What opens a mail server at this moment: a password of the environment, or an OAuth 2 access token.

1. A token is what a refresh token gives (RFC 6749, section 6), and is kept until shortly before it expires.
2. Whoever needs a token while one is being asked for gets that one, or its failure.
3. A refresh token that the server gives in place of the old one is used from then on, by this process: the
   environment still has the old one after a restart.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import httpx2
import orjson
from pydantic import BaseModel, ValidationError

from channels.mail.config import Imap, MailConfig, OAuth2, Smtp, Tls
from flow_engine.errors import CallTheOperator, RetryLater

TOKEN_WITHIN_S = 10.0
RENEWED_BEFORE_S = 60.0
"""Seconds that a kept token has to live at least."""

_PASSING: Final = frozenset((408, 429))
_ERROR_CODE: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)


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


def check_secrets(config: MailConfig, environ: Mapping[str, str]) -> None:
    """Raises CallTheOperator `mail_secret_missing`, which names every variable of the mailboxes that is not
    set."""
    servers = [each for box in config.every_mailbox for each in (box.imap, box.smtp) if each is not None]
    grants = [server.oauth2 for server in servers if server.oauth2 is not None]
    named = [server.password_env for server in servers]
    named += [name for grant in grants for name in (grant.refresh_token_env, grant.client_secret_env)]
    if missing := sorted({name for name in named if name is not None and not environ.get(name)}):
        raise CallTheOperator("mail_secret_missing", f"not set in the environment: {', '.join(missing)}")


class _Token(BaseModel):
    access_token: str
    expires_in: float = 300.0
    refresh_token: str | None = None


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
        self._asking: dict[OAuth2, asyncio.Task[str]] = {}
        self._refresh_tokens: dict[tuple[str, str, str], str] = {}

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
        kept = self._tokens.get(by)
        if kept is not None and kept[0] > self._monotonic():
            return kept[1]
        asking = self._asking.get(by)
        if asking is None:
            asking = self._asking[by] = asyncio.create_task(self._asked(by))
            asking.add_done_callback(lambda _: self._asking.pop(by))
        return await asyncio.shield(asking)

    async def _asked(self, by: OAuth2) -> str:
        now, grant = self._monotonic(), (by.token_url, by.client_id, by.refresh_token_env)
        form = {
            "grant_type": "refresh_token",
            "client_id": by.client_id,
            "refresh_token": self._refresh_tokens.get(grant) or self._secret(by.refresh_token_env),
            **({} if by.client_secret_env is None else {"client_secret": self._secret(by.client_secret_env)}),
            **({} if by.scope is None else {"scope": by.scope}),
        }
        try:
            answer = await self._http.post(by.token_url, data=form, timeout=TOKEN_WITHIN_S)
        except httpx2.RequestError as error:
            raise RetryLater("mail_token_unavailable", "the token server did not answer") from error
        status = answer.status_code
        if status >= 500 or status in _PASSING:
            raise RetryLater("mail_token_unavailable", f"the token server answered {status}")
        try:
            token = _Token.model_validate_json(answer.content if answer.is_success else b"{}")
        except ValidationError:
            told = " ".join(filter(None, (f"status {status}", _error_code(answer.content))))
            raise CallTheOperator(
                "mail_token_refused", f"the token server gave no access token: {told}"
            ) from None
        if token.refresh_token:
            self._refresh_tokens[grant] = token.refresh_token
        self._tokens[by] = (now + max(token.expires_in - RENEWED_BEFORE_S, 0.0), token.access_token)
        return token.access_token


def _error_code(body: bytes) -> str | None:
    """Why, as RFC 6749 has it in section 5.2, such as `invalid_grant`; None where that is not told."""
    try:
        told: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    code = cast("dict[str, object]", told).get("error") if isinstance(told, dict) else None
    return code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else None
