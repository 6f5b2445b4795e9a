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
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode
from xml.sax.saxutils import escape, quoteattr

from channels.voice.carriers.call_control import (
    LineControlFailed,
    Target,
    caller_number,
    check,
    parse_target,
    post,
)
from channels.voice.carriers.carrier import (
    CallOffer,
    ConnectStream,
    Document,
    HangUp,
    Instruction,
    RejectBusy,
    SpeakAndDial,
)
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.server.public_address import PublicAddress, RequestInfo, is_local
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


MEDIA_TYPE = "text/xml"
LONGEST_PARAMETER = 400
"""Twilio refuses a parameter whose name and value have more than 500 characters together."""

_NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def connect_twiml(stream_url: str, parameters: Mapping[str, str], action_url: str) -> str:
    """Give the call's audio to the WebSocket at the URL, both ways; the parameters come with its start
    event, of each value 400 characters. When the stream has ended, `action_url` is posted to for the next
    document."""
    inner = "".join(
        f"<Parameter name={_attribute(name)} value={_attribute(value[:LONGEST_PARAMETER])}/>"
        for name, value in parameters.items()
    )
    return _response(
        f"<Connect action={_attribute(action_url)}>"
        f"<Stream url={_attribute(stream_url)}>{inner}</Stream></Connect>"
    )


def busy_twiml() -> str:
    """The caller hears the busy tone, and nobody pays."""
    return _response('<Reject reason="busy"/>')


def hang_up_twiml() -> str:
    return _response("<Hangup/>")


def say_twiml(words: str, language: str, target: Target | None) -> str:
    """Words in a language of BCP 47, and after them the call for somebody else, or its end."""
    spoken = f"<Say language={_attribute(language)}>{escape(_readable(words))}</Say>"
    return _response(spoken + ("" if target is None else _dial(target)))


def dial_twiml(target: Target) -> str:
    """Give the call to somebody else."""
    return _response(_dial(target))


def _dial(target: Target) -> str:
    to = escape(_readable(target.uri if target.is_sip else target.number))
    return f"<Dial><Sip>{to}</Sip></Dial>" if target.is_sip else f"<Dial>{to}</Dial>"


def _response(inner: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><Response>{inner}</Response>'


def _attribute(value: str) -> str:
    return quoteattr(_readable(value))


def _readable(text: str) -> str:
    """Without the characters that no escape brings into an XML document."""
    return _NOT_IN_XML.sub("", text)


DEFAULT_API_URL = "https://api.twilio.com"
MOST_FIELDS = 500

_PARAMETERS = {"callerPhone": "From", "calledPhone": "To", "callSid": "CallSid"}


@dataclass(frozen=True, slots=True)
class TwilioAccount:
    """Without `auth_token` calls from elsewhere than this machine are refused, without either value none is
    transferred. `api_url` is the URL of the REST interface."""

    sid: str | None = None
    auth_token: str | None = None
    api_url: str = DEFAULT_API_URL


class TwilioCarrier(TwilioStreams):
    """Implements `Carrier`. Requests are signed for `address`; REST goes through `sender`."""

    def __init__(self, account: TwilioAccount, address: PublicAddress, sender: OutboundSender) -> None:
        self._account = account
        self._sender = sender
        self._validator = TwilioRequestValidator(account.auth_token, address)

    def admit(self, request: RequestInfo, body: bytes | None) -> CallOffer:
        if body is None:
            self._validator.admit_upgrade(request)
            return CallOffer()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if body and kind != "application/x-www-form-urlencoded":
            raise CorrectTheInput(
                "media_type_unsupported", "a call is offered as application/x-www-form-urlencoded"
            )
        form = _fields(body)
        self._validator.admit_request(request, form)
        fields = form or _fields(request.target.partition("?")[2].encode("latin-1"))
        first = {name: fields[field][0] for name, field in _PARAMETERS.items() if field in fields}
        first["callerPhone"] = caller_number(first.get("callerPhone")) or ""
        return CallOffer(first.get("callSid", ""), {name: value for name, value in first.items() if value})

    def answer(self, instruction: Instruction) -> Document:
        match instruction:
            case ConnectStream(url, parameters, ended_url):
                text = connect_twiml(url, parameters, ended_url)
            case RejectBusy():
                text = busy_twiml()
            case SpeakAndDial(words, language, target):
                text = say_twiml(words, language, None if target is None else parse_target(target))
            case HangUp():
                text = hang_up_twiml()
        return Document(MEDIA_TYPE, text)

    async def transfer(self, call_id: str | None, target: str) -> None:
        """Twilio ends the stream when the call is redirected. Raises LineControlFailed, also without an
        account or a stream that names its call, and CorrectTheInput `transfer_target_invalid`."""
        account = self._account
        document = dial_twiml(parse_target(target))
        if account.sid is None or account.auth_token is None or call_id is None:
            raise LineControlFailed(
                "a transfer on Twilio needs FLOW_ENGINE_TWILIO_ACCOUNT_SID, FLOW_ENGINE_TWILIO_AUTH_TOKEN "
                "and a stream that names its call"
            )
        step = "the transfer of a call on Twilio"
        calls = f"{account.api_url.rstrip('/')}/2010-04-01/Accounts/{quote(account.sid, safe='')}/Calls"
        credentials = base64.b64encode(f"{account.sid}:{account.auth_token}".encode()).decode()
        headers = {
            "Authorization": f"Basic {credentials}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        url = f"{calls}/{quote(call_id, safe='')}.json"
        content = urlencode({"Twiml": document}).encode()
        check(step, await post(self._sender, step, url, headers, content))


def _fields(text: bytes) -> Mapping[str, list[str]]:
    """Every field of a form or query with all its values. Raises CorrectTheInput `form_invalid` for more than
    500."""
    fields: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(text.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise CorrectTheInput("form_invalid", f"a form has at most {MOST_FIELDS} fields") from None
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields
