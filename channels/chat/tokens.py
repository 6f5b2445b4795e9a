"""Short-lived tokens for browsers, which hold no API key: `<payload>.<signature>`, both base64url.

The payload is `{tenant, user, exp}`; the signature HMAC-SHA256 by a secret that all replicas share.
"""

import base64
import binascii
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import orjson

from flow_engine.errors import CorrectTheInput
from flow_engine.ports.clock import Clock

LONGEST_S = 24 * 60 * 60
DEFAULT_S = 3600


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """Implements `Principal` for the user of a token, who can be no other."""

    tenant_id: str
    user: str

    @property
    def name(self) -> str:
        return self.user


class Tokens:
    """`secret` is at least 32 bytes."""

    def __init__(self, secret: bytes, clock: Clock) -> None:
        self._secret = secret
        self._clock = clock

    def issue(self, tenant_id: str, user: str, ttl_s: int) -> tuple[str, datetime]:
        """The token, and when it ends, in UTC."""
        ends = self._clock.now() + timedelta(seconds=ttl_s)
        payload = _encoded(orjson.dumps({"tenant": tenant_id, "user": user, "exp": int(ends.timestamp())}))
        return f"{payload}.{_encoded(self._signature(payload))}", ends

    def holder(self, token: str) -> TokenHolder:
        """By the clock, in UTC. Raises CorrectTheInput `token_invalid` for a token that is false, or has
        ended."""
        payload, _, signature = token.partition(".")
        try:
            given = _decoded(signature)
            is_ours = hmac.compare_digest(self._signature(payload), given)
            claims = orjson.loads(_decoded(payload)) if is_ours else None
        except (binascii.Error, ValueError):
            claims = None
        if claims is None or datetime.fromtimestamp(claims["exp"], UTC) <= self._clock.now():
            raise CorrectTheInput("token_invalid", "the token is not valid, or not any more")
        return TokenHolder(claims["tenant"], claims["user"])

    def _signature(self, payload: str) -> bytes:
        return hmac.digest(self._secret, payload.encode(), "sha256")


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
