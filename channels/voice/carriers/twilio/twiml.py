"""TwiML: what Twilio is answered, and the form that it asks with."""

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape, quoteattr

from channels.voice.carriers import carrier
from channels.voice.carriers.call_control import Target, caller_number, parse_target
from flow_engine.errors import CorrectTheInput

MEDIA_TYPE = "text/xml"
MOST_FIELDS = 500
LONGEST_PARAMETER = 400
"""Twilio refuses a parameter whose name and value have more than 500 characters together."""

_NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REJECTIONS = {"busy": "busy", "unknown_number": "rejected"}


class TwiMl:
    """Implements `CallDocuments`."""

    def called_number(self, form: bytes) -> str | None:
        """Twilio's `To`. Raises CorrectTheInput `form_invalid` for more than 500 fields."""
        return caller_number(form_fields(form).get("To", [""])[0])

    def answer(self, instruction: carrier.Instruction) -> carrier.Document:
        match instruction:
            case carrier.ConnectStream(url, parameters, ended_url):
                text = connect_twiml(url, parameters, ended_url)
            case carrier.Reject(reason):
                # Who hears either pays nothing.
                text = _response(f'<Reject reason="{_REJECTIONS[reason]}"/>')
            case carrier.AskElsewhere(url):
                text = _response(f'<Redirect method="POST">{escape(_readable(url))}</Redirect>')
            case carrier.SpeakAndDial(words, language, target):
                spoken = f"<Say language={_attribute(language)}>{escape(_readable(words))}</Say>"
                text = _response(spoken + ("" if target is None else _dial(parse_target(target))))
            case carrier.HangUp():
                text = _response("<Hangup/>")
        return carrier.Document(MEDIA_TYPE, text)


def form_fields(text: bytes) -> Mapping[str, list[str]]:
    """Every field of a form or of the query of a URL, with all its values. Raises CorrectTheInput
    `form_invalid` for more than 500."""
    fields: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(text.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise CorrectTheInput("form_invalid", f"a form has at most {MOST_FIELDS} fields") from None
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


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
