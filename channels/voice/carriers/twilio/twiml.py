"""What Twilio is told to do with a call: documents in TwiML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.sax.saxutils import escape, quoteattr

from channels.voice.carriers.call_control import Target

MEDIA_TYPE = "text/xml"
LONGEST_PARAMETER = 400
"""Twilio refuses a parameter whose name and value have more than 500 characters together."""

_NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def connect(stream_url: str, parameters: Mapping[str, str], action_url: str) -> str:
    """Give the call's audio to a WebSocket, both ways; the parameters come with its start event. When the
    stream has ended, `action_url` is posted to for the next document."""
    inner = "".join(
        f"<Parameter name={_attribute(name)} value={_attribute(value[:LONGEST_PARAMETER])}/>"
        for name, value in parameters.items()
    )
    return _response(
        f"<Connect action={_attribute(action_url)}>"
        f"<Stream url={_attribute(stream_url)}>{inner}</Stream></Connect>"
    )


def busy() -> str:
    """The caller hears the busy tone, and nobody pays."""
    return _response('<Reject reason="busy"/>')


def hang_up() -> str:
    return _response("<Hangup/>")


def say(words: str, language: str, target: Target | None) -> str:
    """Words in a language of BCP 47, and after them the call for somebody else, or its end."""
    spoken = f"<Say language={_attribute(language)}>{escape(_readable(words))}</Say>"
    return _response(spoken + ("" if target is None else _dial(target)))


def dial(target: Target) -> str:
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
