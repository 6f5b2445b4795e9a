"""Twilio as a carrier: offers by webhook, answers in TwiML, control by REST, audio by Media Streams."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from channels.voice.carriers.call_control import (
    LineControlFailed,
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
from channels.voice.carriers.twilio import twiml
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.carriers.twilio.signature import TwilioRequestValidator
from channels.voice.server.public_address import PublicAddress, RequestInfo
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.outbound import OutboundSender

DEFAULT_API_URL = "https://api.twilio.com"
MOST_FIELDS = 500

_PARAMETERS = {"callerPhone": "From", "calledPhone": "To", "callSid": "CallSid"}


@dataclass(frozen=True, slots=True)
class TwilioAccount:
    """Without `auth_token` calls are taken from this machine only, without either value none is transferred.
    `api_url` is that of the REST interface."""

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
                text = twiml.connect(url, parameters, ended_url)
            case RejectBusy():
                text = twiml.busy()
            case SpeakAndDial(words, language, target):
                text = twiml.say(words, language, None if target is None else parse_target(target))
            case HangUp():
                text = twiml.hang_up()
        return Document(twiml.MEDIA_TYPE, text)

    async def transfer(self, call_id: str | None, target: str) -> None:
        """Twilio ends the stream when the call is redirected."""
        account = self._account
        document = twiml.dial(parse_target(target))
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
