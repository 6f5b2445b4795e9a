"""The account that a bridge registers with."""

import re
import uuid
from dataclasses import dataclass

from pydantic import SecretStr

from channels.voice.sip_bridge import messages
from flow_engine.values import whole_number_in

SIP_PORT = 5060

_SERVER = re.compile(r"([A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?)(?::([0-9]{1,5}))?")
_LABELS = re.compile(r"[^.]{1,63}(?:\.[^.]{1,63})*")
_USERNAME = re.compile(r"[A-Za-z0-9_.!~*'()&=+$,;?/%-]{1,200}")


@dataclass(frozen=True, slots=True)
class Account:
    """`domain` is a host, with `:port` where that is not 5060."""

    domain: str
    username: str
    password: SecretStr

    @property
    def server(self) -> tuple[str, int]:
        return server_in(self.domain)

    def proof(self, reply: messages.SipMessage, method: str, uri: str) -> tuple[str, str]:
        """The header that has a request taken which `reply`, a 401 or 407, asks a proof of: it answers the
        first challenge that can be answered. Raises NotSip."""
        asked, answered = (
            ("www-authenticate", "authorization")
            if reply.status == 401
            else ("proxy-authenticate", "proxy-authorization")
        )
        password, nonce_use = self.password.get_secret_value(), uuid.uuid4().hex[:16]
        reason = "a challenge that is none"
        for _, challenge in reply.all(asked):
            try:
                value = messages.credentials(challenge, self.username, password, method, uri, nonce_use)
            except messages.NotSip as error:
                reason = str(error)
            else:
                return answered, value
        raise messages.NotSip(reason)


def server_in(domain: str) -> tuple[str, int]:
    """Host and port of `host` or `host:port`. Raises ValueError."""
    found = _SERVER.fullmatch(domain)
    port = whole_number_in(found[2] or str(SIP_PORT)) if found is not None else None
    if found is None or _LABELS.fullmatch(found[1]) is None or port is None or not 0 < port < 65_536:
        raise ValueError("must be a host, or host:port with a port from 1 to 65535")
    return found[1], port


def checked_username(username: str) -> str:
    """Raises ValueError for one that no SIP address can have (RFC 3261, 25.1)."""
    if _USERNAME.fullmatch(username) is None:
        raise ValueError("must be 1 to 200 of the characters A-Z a-z 0-9 - _ . ! ~ * ' ( ) & = + $ , ; ? / %")
    return username
