"""Whether a request is Twilio's: `X-Twilio-Signature`, HMAC-SHA1 with the account's auth token.

Signed is the URL as Twilio knows it, followed by the names and values of a form, sorted and without anything
between. What Twilio takes for that URL varies, so each of these counts:

- with its port and without: Twilio signs some requests to `https://host:8443/` as if the port were not there,
  and others to `https://host/` as if `:443` were;
- for the WebSocket, `wss://` for `https://`, and the path with and without a slash at its end.

No variant names another host, path or form, so whoever holds a signature can use it for nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence

from channels.voice.server.public_address import PublicAddress, RequestInfo, is_local
from flow_engine.errors import CorrectTheInput

HEADER = "x-twilio-signature"

Form = Mapping[str, Sequence[str]]

_URL = re.compile(
    r"(?P<scheme>[a-z]+)://(?P<host>[^/?]*?)(?P<port>:[0-9]+)?(?P<path>/[^?]*)?(?P<query>\?.*)?\Z"
)
_DEFAULT_PORT = {"http": ":80", "ws": ":80", "https": ":443", "wss": ":443"}


def signature(token: str, url: str, form: Form) -> str:
    """As Twilio computes it. Of a value that comes twice under one name, one counts."""
    signed = [url]
    for name in sorted(form):
        signed += [name + value for value in sorted(set(form[name]))]
    text = "".join(signed).encode("utf-8", "surrogateescape")
    return base64.b64encode(hmac.new(token.encode(), text, hashlib.sha1).digest()).decode()


class TwilioRequestValidator:
    """Lets Twilio in, and without a token whoever is on this machine."""

    def __init__(self, token: str | None, address: PublicAddress) -> None:
        self._token = token
        self._address = address

    def admit_request(self, info: RequestInfo, form: Form) -> None:
        """Raises CorrectTheInput `signature_missing`, `signature_wrong` or `not_local`."""
        self._admit(info, form, _with_ports(self._address.url(info)))

    def admit_upgrade(self, info: RequestInfo) -> None:
        """The same for the WebSocket of a stream, which carries no form."""
        scheme, _, rest = self._address.url(info).partition("://")
        schemes = ("wss",) if scheme == "https" else ("wss", "ws")
        slashed = (url for told in schemes for url in _with_slashes(f"{told}://{rest}"))
        self._admit(info, {}, (url for spelled in slashed for url in _with_ports(spelled)))

    def _admit(self, info: RequestInfo, form: Form, urls: Iterable[str]) -> None:
        if self._token is None:
            if is_local(info):
                return
            raise CorrectTheInput(
                "not_local",
                "without FLOW_ENGINE_TWILIO_AUTH_TOKEN calls come from this machine, through no proxy",
            )
        sent = info.headers.get(HEADER)
        if sent is None:
            raise CorrectTheInput("signature_missing", f"the header {HEADER} is missing")
        told = sent.encode("utf-8", "surrogateescape")
        # All are compared, so that the time tells nothing of which one would have been right.
        matches = [hmac.compare_digest(signature(self._token, url, form).encode(), told) for url in urls]
        if not any(matches):
            raise CorrectTheInput(
                "signature_wrong",
                "the signature is not that of this URL and form; FLOW_ENGINE_PUBLIC_URL names the URL that "
                "Twilio calls, FLOW_ENGINE_TRUSTED_PROXIES the proxies in between",
            )


def _with_ports(url: str) -> tuple[str, ...]:
    parts = _URL.match(url)
    if parts is None:
        return (url,)
    scheme, host, port, path, query = parts.group("scheme", "host", "port", "path", "query")
    other = "" if port else _DEFAULT_PORT.get(scheme, "")
    return tuple(
        f"{scheme}://{host}{spelled}{path or ''}{query or ''}"
        for spelled in dict.fromkeys((port or "", other))
    )


def _with_slashes(url: str) -> tuple[str, ...]:
    path, mark, query = url.partition("?")
    bare = path.rstrip("/")
    return tuple(spelled + mark + query for spelled in (bare, bare + "/"))
