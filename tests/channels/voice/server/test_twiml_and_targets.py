"""What Twilio is told, and whom calls may go to."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.voice.carriers.call_control import address_in, number_in, parse_target
from channels.voice.carriers.twilio.twiml import connect_twiml, dial_twiml
from flow_engine.errors import CorrectTheInput

ENDED = "https://a.example/stream-ended"


def test_a_call_is_connected_with_its_parameters() -> None:  # V12
    document = ET.fromstring(connect_twiml("wss://a.example/media-stream", {"callerPhone": "+331"}, ENDED))
    stream = document.find("Connect/Stream")
    assert stream is not None
    assert stream.get("url") == "wss://a.example/media-stream"
    assert [(p.get("name"), p.get("value")) for p in stream] == [("callerPhone", "+331")]


@given(st.text(max_size=300))
def test_no_value_of_a_caller_gets_out_of_its_attribute(value: str) -> None:  # V12
    document = ET.fromstring(
        connect_twiml("wss://a.example", {"callerPhone": value, "callSid": "CA1"}, ENDED)
    )
    stream = document.find("Connect/Stream")
    assert stream is not None
    first, second = list(stream)
    readable = "".join(c for c in value if c in "\t\n\r" or (ord(c) >= 32 and ord(c) not in (0xFFFE, 0xFFFF)))
    assert first.get("value") == readable
    assert second.get("value") == "CA1"


def test_a_long_value_is_cut_as_twilio_refuses_it() -> None:  # V12
    assert "x" * 400 + "&" not in connect_twiml("wss://a", {"callerPhone": "x" * 10_000}, ENDED)
    assert len(connect_twiml("wss://a", {"callerPhone": "x" * 10_000}, ENDED)) < 700


@pytest.mark.parametrize(
    ("target", "inner"),
    [
        ("+33 1 23-45.67 (89)", "<Dial>+33123456789</Dial>"),
        ("tel:+33123456789", "<Dial>+33123456789</Dial>"),
        ("112", "<Dial>112</Dial>"),
        ("sip:desk@pbx.example", "<Dial><Sip>sip:desk@pbx.example</Sip></Dial>"),
        (" SIPS:pbx.example:5061;a=1&b=2 ", "<Dial><Sip>SIPS:pbx.example:5061;a=1&amp;b=2</Sip></Dial>"),
    ],
)
def test_a_call_is_given_to_a_number_or_a_sip_address(target: str, inner: str) -> None:  # V12
    assert f"<Response>{inner}</Response>" in dial_twiml(parse_target(target))


@pytest.mark.parametrize(
    "target",
    [
        "",
        "sales",
        "+",
        "12",
        "+123456789012345678",
        "+33123456789;ext=1",
        "sip:",
        "sip:a@b@c",
        "sip:a@b.example?Replaces=x",
        "sip:a b@c",
        "sip:a@b</Sip><Number>1</Number>",
        "http://a.example",
        "tel:sip:a@b",
        "١٢٣٤",
    ],
)
def test_anything_else_is_no_target_and_is_not_repeated(target: str) -> None:  # V12
    with pytest.raises(CorrectTheInput) as caught:
        parse_target(target)
    assert caught.value.code == "transfer_target_invalid"
    assert len(target) < 5 or target not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "address", "number"),
    [
        ('"Ada \\"L\\", Dr" <sip:+14155550123@pstn.example;user=phone>;tag=1', None, "+14155550123"),
        ('"Ada <sales>" <sip:+14155550123@pstn.example>', "sip:+14155550123@pstn.example", "+14155550123"),
        ('"\\"<sip:+1999@x>" <sip:+14155550123@h>', "sip:+14155550123@h", "+14155550123"),
        ("sip:+14155550123@pstn.example;tag=1", "sip:+14155550123@pstn.example", "+14155550123"),
        ("<tel:+1-415-555-0123;phone-context=x>", "tel:+1-415-555-0123;phone-context=x", "+14155550123"),
        ("<sip:%2B14155550123@h>", "sip:%2B14155550123@h", "+14155550123"),
        ("<sip:14155550123:secret@h>", None, "14155550123"),
        ("<sip:1001@pbx>", None, "1001"),
        ("<sip:alice@pbx>", None, None),
        ("<sip:anonymous@anonymous.invalid>", None, None),
        ("<sip:pbx.example>", "sip:pbx.example", None),
        ("", "", None),
        ("<", "<", None),
        ("mailto:+14155550123@h", None, None),
    ],
)
def test_the_callers_number_is_read_from_sip_headers(
    header: str, address: str | None, number: str | None
) -> None:  # V12
    assert number_in(address_in(header)) == number
    if address is not None:
        assert address_in(header) == address


@given(st.text())
def test_no_header_breaks_the_reading(text: str) -> None:  # V12
    assert (number_in(address_in(text)) or "000").removeprefix("+").isdigit()
