"""SIP messages, digests and descriptions of audio, as the standards print them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.voice.sip_bridge.descriptions import AudioOffer, read_offer, write_answer, write_offer
from channels.voice.sip_bridge.messages import (
    NotSip,
    credentials,
    read_message,
    write_message,
    write_response,
)
from channels.voice.sip_bridge.phone import EXPIRES_S, granted_s
from tests.timing import takes_less_than

INVITE = (
    b"INVITE sip:desk@192.0.2.4 SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=1\r\nv: SIP/2.0/UDP b;branch=2\r\n"
    b"Record-Route: <sip:p1;lr>\r\nf: Ada <sip:+33612345678@sip.example>;tag=x\r\n"
    b"t: <sip:desk@sip.example>\r\n"
    b"i: 77@a\r\nCSeq: 3 INVITE\r\nSubject: folded\r\n value\r\nl: 3\r\n\r\nabcdef"
)


def test_a_request_is_read_with_its_short_names_and_folded_lines() -> None:  # V13
    message = read_message(INVITE)
    assert (message.method, message.uri, message.status) == ("INVITE", "sip:desk@192.0.2.4", 0)
    assert message.first("from") == "Ada <sip:+33612345678@sip.example>;tag=x"
    assert [value for _, value in message.all("via")] == ["SIP/2.0/UDP a;branch=1", "SIP/2.0/UDP b;branch=2"]
    assert (message.first("subject"), message.first("call-id"), message.body) == (
        "folded value",
        "77@a",
        b"abc",
    )


def test_a_response_has_what_the_request_had_and_the_tag_of_this_side() -> None:  # V13
    answer = read_message(write_response(read_message(INVITE), "200 OK", tag="t1", body=b"sdp"))
    assert (answer.status, answer.first("to"), answer.body) == (200, "<sip:desk@sip.example>;tag=t1", b"sdp")
    assert [value for _, value in answer.all("via")] == ["SIP/2.0/UDP a;branch=1", "SIP/2.0/UDP b;branch=2"]
    assert answer.first("record-route") == "<sip:p1;lr>"
    again = write_response(answer, "200 OK", tag="t2")
    assert read_message(again).first("to").endswith(";tag=t1")


@pytest.mark.parametrize(
    "datagram", [b"", b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"INVITE sip:a SIP/2.0\r\nno colon\r\n\r\n",
                 b"SIP/2.0 999 X\r\n\r\n", b"BYE sip:a SIP/2.0\r\n" + b"a: b\r\n" * 300 + b"\r\n"]
)  # fmt: skip
def test_what_is_no_message_is_said_to_be_none(datagram: bytes) -> None:  # V13
    with pytest.raises(NotSip):
        read_message(datagram)


@pytest.mark.parametrize("length", ["", "x", "9" * 5000, "4"])
def test_a_length_that_is_no_number_of_the_body_cuts_nothing_off(length: str) -> None:  # V13
    message = read_message(f"INVITE sip:a SIP/2.0\r\ncontent-length: {length}\r\n\r\nbody".encode())
    assert message.body == b"body"


@given(st.binary(max_size=300), st.sampled_from([b"", b"INVITE sip:a SIP/2.0\r\n", b"SIP/2.0 200 OK\r\n"]))
def test_no_datagram_breaks_the_reader(rest: bytes, start: bytes) -> None:  # V13
    try:
        message = read_message(start + rest)
    except NotSip:
        return
    read_offer(message.body)
    read_offer(b"m=audio 1 RTP/AVP 0\r\nc=IN IP4 a\r\n" + rest)


def test_digests_are_those_of_the_standard() -> None:  # V13
    """The example of RFC 2617, 3.5, and that of RFC 7616, 3.9.1 for SHA-256."""
    nonce = 'nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093", opaque="5ccc069c403ebaf9f0171e9517f40e41"'
    answer = credentials(
        f'Digest realm="testrealm@host.com", qop="auth,auth-int", {nonce}',
        *("Mufasa", "Circle Of Life", "GET", "/dir/index.html", "0a4f113b"),
    )
    assert 'response="6629fae49393a05397450978507c4ef1"' in answer
    assert "qop=auth, nc=00000001" in answer
    answer = credentials(
        'Digest realm="http-auth@example.org", qop="auth", algorithm=SHA-256, '
        'nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v"',
        *(
            "Mufasa",
            "Circle of Life",
            "GET",
            "/dir/index.html",
            "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
        ),
    )
    assert "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1" in answer


@pytest.mark.parametrize(
    "challenge", ["Basic realm=x", 'Digest realm="x"', 'Digest nonce="n", algorithm=MD4']
)
def test_a_challenge_that_cannot_be_answered_is_refused(challenge: str) -> None:  # V13
    with pytest.raises(NotSip):
        credentials(challenge, "a", "b", "REGISTER", "sip:c", "d")


OWN = "<sip:desk@192.0.2.7:5060>"


@pytest.mark.parametrize(
    ("headers", "granted"),
    [
        ([("contact", f"{OWN};expires=60")], 60),
        ([("contact", "<sip:desk@192.0.2.9>;expires=3000"), ("contact", f"{OWN};q=1;Expires=60")], 60),
        ([("m", f'"Ada, at home" <sip:desk@192.0.2.9>;expires=3000, {OWN.upper()} ; EXPIRES = 60')], 60),
        ([("contact", "<sip:desk@192.0.2.7:50601>;expires=3000"), ("contact", f"{OWN};expires=60")], 60),
        ([("contact", "<sip:desk@10.0.0.7:5060>;expires=60")], 60),
        ([("contact", "<sip:a@b>;expires=3000, <sip:c@d>;expires=2000"), ("expires", "60")], 60),
        ([("contact", OWN), ("expires", "60")], 60),
        ([("contact", OWN)], 300),
        ([("contact", f"{OWN};expires=" + "9" * 5000)], 300),
        ([("contact", f"{OWN};expires=7200")], 3600),
        ([], 300),
    ],
)
def test_a_registration_holds_as_long_as_the_server_says_of_this_phone(
    headers: list[tuple[str, str]], granted: float
) -> None:  # V13
    reply = read_message(write_message("SIP/2.0 200 OK", headers))
    assert granted_s(reply, OWN) == granted


SDP = "v=0\r\nc=IN IP4 192.0.2.1\r\nm=audio {port} RTP/AVP {types}\r\na=rtpmap:96 telephone-event/8000\r\n"


@pytest.mark.parametrize(
    ("body", "offer"),
    [
        (SDP.format(port=4000, types="0 8 96"), AudioOffer("192.0.2.1", 4000, 0, 96)),
        (SDP.format(port=4000, types="18 8"), AudioOffer("192.0.2.1", 4000, 8, 96)),
        (SDP.format(port=4000, types="0") + "c=IN IP4 192.0.2.9\r\n", AudioOffer("192.0.2.9", 4000, 0, 96)),
        (SDP.format(port=4000, types="18 111"), None),
        (SDP.format(port=0, types="0"), None),
        (SDP.format(port=99999, types="0"), None),
        (SDP.format(port=4000, types="0 " + "9" * 5000), AudioOffer("192.0.2.1", 4000, 0, 96)),
        (SDP.format(port="9" * 5000, types="0"), None),
        (
            SDP.format(port=4000, types="0").replace(":96", ":" + "9" * 5000),
            AudioOffer("192.0.2.1", 4000, 0, None),
        ),
        (SDP.format(port=4000, types="0").replace("AVP", "SAVP"), None),
        (SDP.format(port=4000, types="0").replace("IP4", "IP6"), None),
        (SDP.format(port=4000, types="0").replace("192.0.2.1", "host.example"), None),
        (SDP.format(port=4000, types="0") + "c=IN IP6 ::1\r\n", None),
        (SDP.format(port=4000, types="0") + "m=\r\n", None),
        ("m=video 4000 RTP/AVP 0", None),
        ("m=audio 4000 RTP/AVP 0", None),
        ("", None),
    ],
)
def test_of_an_offer_the_first_format_counts_that_this_side_speaks(
    body: str, offer: AudioOffer | None
) -> None:  # V13, 24
    assert read_offer(body.encode()) == offer


@pytest.mark.parametrize(
    "offer", [AudioOffer("192.0.2.1", 4000, 0, 96), AudioOffer("192.0.2.1", 4000, 8, None)]
)
def test_the_answer_takes_what_was_offered(offer: AudioOffer) -> None:  # V13
    answer = read_offer(write_answer(offer, "192.0.2.7", 5000))
    assert answer == AudioOffer("192.0.2.7", 5000, offer.payload_type, offer.events_type)


def test_what_is_offered_is_all_that_is_spoken() -> None:  # V13, 24
    offer = write_offer("192.0.2.7", 5000)
    assert read_offer(offer) == AudioOffer("192.0.2.7", 5000, 0, 101)
    assert b"a=rtpmap:0 PCMU/8000\r\na=rtpmap:8 PCMA/8000\r\n" in offer


def test_other_media_than_the_audio_are_refused_where_they_stand() -> None:  # V13
    body = (
        "c=IN IP4 192.0.2.1\r\nm=audio 6 RTP/SAVP 0\r\nm=audio 4000 RTP/AVP 8\r\nm=video 9 RTP/AVP 31 34\r\n"
    )
    offer = read_offer(body.encode())
    assert offer is not None
    media = [
        line for line in write_answer(offer, "192.0.2.7", 5000).decode().split("\r\n") if line[:2] == "m="
    ]
    assert media == ["m=audio 0 RTP/SAVP 0", "m=audio 5000 RTP/AVP 8", "m=video 0 RTP/AVP 31 34"]


def test_a_message_is_read_as_it_was_written() -> None:  # V13
    message = read_message(write_message("OPTIONS sip:a SIP/2.0", [("call-id", "1")], b"body"))
    assert (message.method, message.first("call-id"), message.body) == ("OPTIONS", "1", b"body")


def test_no_answer_of_a_server_takes_quadratic_time() -> None:  # V13
    """Its calls would be silent for half a minute."""

    def answered() -> None:
        with pytest.raises(NotSip):
            credentials(f"Digest {'a' * 60_000}", "a", "b", "REGISTER", "sip:c", "d")
        contacts = f"SIP/2.0 200 OK\r\ncontact: {'<' * 60_000}\r\n\r\n"
        assert granted_s(read_message(contacts.encode()), OWN) == EXPIRES_S

    assert takes_less_than(1, answered)
