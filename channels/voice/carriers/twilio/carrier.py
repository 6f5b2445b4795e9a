"""Twilio as a carrier: offers by signed webhook, answers in TwiML, control by REST, audio by Media Streams.

`X-Twilio-Signature` is HMAC-SHA1 with the account's auth token. Signed is the URL as Twilio knows it,
followed by the names and values of a form, sorted and without anything between. What Twilio takes for that
URL varies, so each of these counts:

- with its port and without: Twilio signs some requests to `https://host:8443/` as if the port were not there,
  and others to `https://host/` as if `:443` were;
- for the WebSocket, `wss://` for `https://`, and the path with and without a slash at its end.

No variant names another host, path or form, so whoever holds a signature can use it for nothing else.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, urlencode

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings

from channels.voice.carriers.call_control import LineControlFailed, caller_number, check, parse_target, post
from channels.voice.carriers.carrier import CallOffer
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.carriers.twilio.twiml import TwiMl, dial_twiml, form_fields
from channels.voice.server.public_address import PublicAddress, RequestInfo, base_url, is_local
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.outbound import OutboundSender

HEADER = "x-twilio-signature"

Form = Mapping[str, Sequence[str]]

_URL = re.compile(
    r"(?P<scheme>[a-z]+)://(?P<host>[^/?]*?)(?P<port>:[0-9]+)?(?P<path>/[^?]*)?(?P<query>\?.*)?\Z"
)
_DEFAULT_PORT = {"http": ":80", "ws": ":80", "https": ":443", "wss": ":443"}


def signature(token: str, url: str, form: Form) -> str:
    """HMAC-SHA1 in base64, as Twilio computes it. Of a value that comes twice under one name, one counts."""
    signed = [url]
    for name in sorted(form):
        signed += [name + value for value in sorted(set(form[name]))]
    text = "".join(signed).encode("utf-8", "surrogateescape")
    return base64.b64encode(hmac.new(token.encode(), text, hashlib.sha1).digest()).decode()


class TwilioRequestValidator:
    """Lets Twilio in, and without a token whoever is on this machine; everybody else is refused."""

    def __init__(self, token: str | None, address: PublicAddress) -> None:
        self._token = token
        self._address = address

    def admit_request(self, info: RequestInfo, form: Form) -> None:
        """For the request's URL with and without its port. Raises CorrectTheInput `signature_missing`,
        `signature_wrong` or `not_local`."""
        self._admit(info, form, _with_ports(self._address.url(info)))

    def admit_upgrade(self, info: RequestInfo) -> None:
        """The same for the WebSocket URL of a stream, which carries no form. Raises as `admit_request`
        does."""
        scheme, _, rest = self._address.url(info).partition("://")
        schemes = ("wss",) if scheme == "https" else ("wss", "ws")
        place, mark, query = rest.partition("?")
        slashed = [place.rstrip("/") + end + mark + query for end in ("", "/")]
        spelled = (f"{each}://{url}" for each in schemes for url in slashed)
        self._admit(info, {}, (url for each in spelled for url in _with_ports(each)))

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
        header = sent.encode("utf-8", "surrogateescape")
        # All are compared, so that the time tells nothing of which one would have been right.
        matches = [hmac.compare_digest(signature(self._token, url, form).encode(), header) for url in urls]
        if not any(matches):
            url = self._address.url(info).partition("?")[0][:200]
            raise CorrectTheInput(
                "signature_wrong",
                f"the signature is not that of {url!r} and its form, by the token that is set; "
                "FLOW_ENGINE_PUBLIC_URL names the URL that Twilio calls, FLOW_ENGINE_TRUSTED_PROXIES the "
                "proxies in between",
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


DEFAULT_API_URL = "https://api.twilio.com"

_FOR_TRANSFERS = "FLOW_ENGINE_TWILIO_ACCOUNT_SID and FLOW_ENGINE_TWILIO_AUTH_TOKEN"
_PARAMETERS = {"callerPhone": "From", "calledPhone": "To", "callSid": "CallSid"}


class TwilioSettings(BaseSettings):
    """Twilio's part of the settings of an agent."""

    twilio_auth_token: SecretStr | None = Field(
        default=None, description="What Twilio signs its requests with; unset: calls from this machine only"
    )
    twilio_account_sid: str | None = Field(
        default=None, description="Twilio account, AC...; unset: calls on Twilio are not transferred"
    )
    twilio_api_url: str = Field(
        default=DEFAULT_API_URL, description="Twilio's REST API; another one for its other regions"
    )

    @field_validator("twilio_api_url")
    @classmethod
    def _names_a_server(cls, url: str) -> str:
        return base_url(url)


def lacks_for_transfers(settings: TwilioSettings) -> str | None:
    has_both = settings.twilio_account_sid is not None and settings.twilio_auth_token is not None
    return None if has_both else _FOR_TRANSFERS


class TwilioCarrier(TwilioStreams, TwiMl):
    """Implements `Carrier`. Requests are signed for `address`; REST goes through `sender`. Without a token
    calls from elsewhere than this machine are refused, without it or an account none is transferred."""

    def __init__(self, settings: TwilioSettings, address: PublicAddress, sender: OutboundSender) -> None:
        token = settings.twilio_auth_token
        self._token = None if token is None else token.get_secret_value()
        self._account_sid = settings.twilio_account_sid
        self._api_url = settings.twilio_api_url
        self._sender = sender
        self._validator = TwilioRequestValidator(self._token, address)

    def admit(self, request: RequestInfo, body: bytes | None) -> CallOffer:
        if body is None:
            self._validator.admit_upgrade(request)
            return CallOffer()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if body and kind != "application/x-www-form-urlencoded":
            raise CorrectTheInput(
                "media_type_unsupported", "a call is offered as application/x-www-form-urlencoded"
            )
        form = form_fields(body)
        self._validator.admit_request(request, form)
        fields = form or form_fields(request.target.partition("?")[2].encode("latin-1"))
        first = {name: fields[field][0] for name, field in _PARAMETERS.items() if field in fields}
        first["callerPhone"] = caller_number(first.get("callerPhone")) or ""
        return CallOffer(first.get("callSid", ""), {name: value for name, value in first.items() if value})

    async def transfer(self, call_id: str | None, target: str) -> None:
        """Twilio ends the stream when the call is redirected. Raises LineControlFailed, also without an
        account or a stream that names its call, and CorrectTheInput `transfer_target_invalid`."""
        document = dial_twiml(parse_target(target))
        if self._account_sid is None or self._token is None or call_id is None:
            raise LineControlFailed(
                f"a transfer on Twilio needs {_FOR_TRANSFERS}, and a stream that names its call"
            )
        step = "the transfer of a call on Twilio"
        calls = f"{self._api_url}/2010-04-01/Accounts/{quote(self._account_sid, safe='')}/Calls"
        credentials = base64.b64encode(f"{self._account_sid}:{self._token}".encode()).decode()
        headers = {
            "Authorization": f"Basic {credentials}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        url = f"{calls}/{quote(call_id, safe='')}.json"
        content = urlencode({"Twiml": document}).encode()
        check(step, await post(self._sender, step, url, headers, content))
