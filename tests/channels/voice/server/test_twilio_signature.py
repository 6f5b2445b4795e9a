"""Whose requests are Twilio's, and by which URL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from channels.voice.carriers.twilio.carrier import HEADER, TwilioRequestValidator, signature
from channels.voice.server.public_address import (
    PublicAddress,
    RequestInfo,
    is_forwarded,
    is_local,
    parse_proxies,
)
from flow_engine.errors import CorrectTheInput

TOKEN = "12345"
FORM = {"CallSid": ["CA1"], "From": ["+14158675309"], "To": ["+18005551212"]}
PUBLIC = PublicAddress("https://voice.example")


def info(target: str = "/incoming-call", peer: str | None = "127.0.0.1", **headers: str) -> RequestInfo:
    told = {"host": "localhost:5050", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return RequestInfo("http", peer, target, Headers(told))


def signed(url: str, form: dict[str, list[str]] | None = None) -> str:
    return signature(TOKEN, url, form or {})


def is_admitted(check: TwilioRequestValidator, request: RequestInfo, form: dict[str, list[str]]) -> bool:
    try:
        check.admit_request(request, form)
    except CorrectTheInput:
        return False
    return True


def is_line_admitted(check: TwilioRequestValidator, request: RequestInfo) -> bool:
    try:
        check.admit_upgrade(request)
    except CorrectTheInput:
        return False
    return True


class TestTheSignature:
    def test_is_that_of_twilios_own_example(self) -> None:  # V12
        form = {
            "Digits": ["1234"],
            "To": ["+18005551212"],
            "From": ["+14158675309"],
            "Caller": ["+14158675309"],
            "CallSid": ["CA1234567890ABCDE"],
        }
        url = "https://mycompany.com/myapp.php?foo=1&bar=2"
        assert signature("12345", url, form) == "RSOYDt4T1cUTdK1PDd93/VVr8B8="

    def test_counts_a_value_that_comes_twice_once(self) -> None:  # V12
        assert signed("u", {"a": ["2", "1", "2"]}) == signed("u", {"a": ["1", "2"]})

    @given(st.dictionaries(st.text(min_size=1), st.lists(st.text(), min_size=1, max_size=3), min_size=1))
    def test_does_not_depend_on_the_order_of_fields(self, form: dict[str, list[str]]) -> None:  # V12
        assert signed("u", form) == signed("u", dict(reversed(form.items())))


class TestARequest:
    def test_is_admitted_with_the_signature_of_its_public_url_and_form(self) -> None:  # V12
        check = TwilioRequestValidator(TOKEN, PUBLIC)
        right = signed("https://voice.example/incoming-call", FORM)
        assert is_admitted(check, info(**{HEADER: right}), FORM)
        assert is_admitted(check, info(peer="203.0.113.9", **{HEADER: right}), FORM)
        assert not is_admitted(check, info(**{HEADER: right}), {**FORM, "From": ["+15550000000"]})
        assert not is_admitted(check, info("/incoming-call/", **{HEADER: right}), FORM)
        assert not is_admitted(check, info("/incoming-call?x=1", **{HEADER: right}), FORM)
        assert not is_admitted(check, info(), FORM)

    @pytest.mark.parametrize("url", ["https://voice.example", "https://voice.example:443"])
    @pytest.mark.parametrize("configured", ["https://voice.example", "https://voice.example:443"])
    def test_may_be_signed_with_the_port_or_without(self, url: str, configured: str) -> None:  # V12
        check = TwilioRequestValidator(TOKEN, PublicAddress(configured))
        assert is_admitted(check, info(**{HEADER: signed(url + "/incoming-call")}), {})

    def test_may_be_signed_without_an_unusual_port_but_not_with_another(self) -> None:  # V12
        check = TwilioRequestValidator(TOKEN, PublicAddress("https://voice.example:8443"))
        for port, admitted in ((":8443", True), ("", True), (":443", False), (":8444", False)):
            request = info(**{HEADER: signed(f"https://voice.example{port}/incoming-call")})
            assert is_admitted(check, request, {}) is admitted

    def test_is_signed_with_its_query_as_it_was_sent(self) -> None:  # V12
        check = TwilioRequestValidator(TOKEN, PUBLIC)
        url = "https://voice.example/incoming-call?b=%20&a=é/"
        assert is_admitted(check, info("/incoming-call?b=%20&a=é/", **{HEADER: signed(url)}), {})

    def test_is_signed_with_the_prefix_of_the_public_url(self) -> None:  # V12
        check = TwilioRequestValidator(TOKEN, PublicAddress("https://voice.example/agents/7/"))
        url = "https://voice.example/agents/7/incoming-call"
        assert is_admitted(check, info(**{HEADER: signed(url)}), {})

    @given(st.binary(max_size=40))
    def test_with_anything_else_in_the_header_is_refused(self, header: bytes) -> None:  # V12
        assert not is_admitted(
            TwilioRequestValidator(TOKEN, PUBLIC), info(**{HEADER: header.decode("latin-1")}), FORM
        )


class TestALine:
    @pytest.mark.parametrize("path", ["/media-stream", "/media-stream/"])
    @pytest.mark.parametrize("told", ["/media-stream", "/media-stream/"])
    def test_is_signed_with_and_without_the_last_slash(self, path: str, told: str) -> None:  # V12
        check = TwilioRequestValidator(TOKEN, PUBLIC)
        assert is_line_admitted(check, info(path, **{HEADER: signed("wss://voice.example" + told)}))

    def test_is_signed_over_the_websocket_url(self) -> None:  # V12
        check = TwilioRequestValidator(TOKEN, PUBLIC)
        for url, admitted in (
            ("wss://voice.example/media-stream", True),
            ("wss://voice.example:443/media-stream", True),
            ("https://voice.example/media-stream", False),
            ("ws://voice.example/media-stream", False),
            ("wss://evil.example/media-stream", False),
        ):
            assert is_line_admitted(check, info("/media-stream", **{HEADER: signed(url)})) is admitted


class TestTheUrlBehindProxies:
    FORWARDED = {"x_forwarded_proto": "https", "x_forwarded_host": "voice.example"}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("trusted", "peer", "url"),
        [
            ("10.0.0.0/8", "10.1.2.3", "https://voice.example/incoming-call"),
            ("fd00::/8, 10.1.2.3", "::ffff:10.1.2.3", "https://voice.example/incoming-call"),
            ("10.0.0.0/8", "11.1.2.3", "http://localhost:5050/incoming-call"),
            ("", "10.1.2.3", "http://localhost:5050/incoming-call"),
            ("", None, "http://localhost:5050/incoming-call"),
        ],
    )
    def test_is_believed_from_trusted_ones_only(self, trusted: str, peer: str | None, url: str) -> None:
        # V12
        address = PublicAddress(None, parse_proxies(trusted))
        assert address.url(info(peer=peer, **self.FORWARDED)) == url

    def test_from_an_untrusted_one_is_no_way_in(self) -> None:  # V12
        check = TwilioRequestValidator(TOKEN, PublicAddress(None, parse_proxies("10.0.0.0/8")))
        right = signed("https://voice.example/incoming-call")
        assert is_admitted(check, info(peer="10.1.2.3", **self.FORWARDED, **{HEADER: right}), {})
        assert not is_admitted(check, info(peer="11.1.2.3", **self.FORWARDED, **{HEADER: right}), {})

    @pytest.mark.parametrize(
        ("headers", "origin"),
        [
            ({"x_forwarded_proto": "https"}, "https://localhost:5050"),
            ({"x_forwarded_host": "a.example:8443"}, "http://a.example:8443"),
            ({"x_forwarded_host": "a.example", "x_forwarded_port": "8443"}, "http://a.example:8443"),
            ({"x_forwarded_host": "a.example:1", "x_forwarded_port": "2"}, "http://a.example:1"),
            ({**FORWARDED, "x_forwarded_port": "443"}, "https://voice.example"),
            ({"x_forwarded_proto": "HTTPS, http", "x_forwarded_host": "a.example, b"}, "https://a.example"),
        ],
    )
    def test_is_put_together_from_what_they_tell(self, headers: dict[str, str], origin: str) -> None:  # V12
        assert PublicAddress(None, parse_proxies("127.0.0.1")).origin(info(**headers)) == origin

    def test_bad_proxies_are_all_named(self) -> None:  # V12
        with pytest.raises(CorrectTheInput) as caught:
            parse_proxies("10.0.0.0/8, 10.0.0.1/8, proxy")
        assert [finding.pointer for finding in caught.value.findings] == ["/1", "/2"]
        assert "'proxy'" in caught.value.detail


class TestWithoutAToken:
    @pytest.mark.parametrize(
        ("peer", "headers", "local"),
        [
            ("127.0.0.1", {}, True),
            ("127.8.9.1", {"host": "127.0.0.1:5050"}, True),
            ("::1", {"host": "[::1]:5050"}, True),
            ("::ffff:127.0.0.1", {"host": "LOCALHOST"}, True),
            ("127.0.0.1", {"origin": "http://localhost:3000"}, True),
            ("192.168.1.5", {}, False),
            (None, {}, False),
            ("testclient", {}, False),
            ("127.0.0.1", {"host": "voice.example"}, False),
            ("127.0.0.1", {"host": "localhost.evil.example"}, False),
            ("127.0.0.1", {"host": ""}, False),
            ("127.0.0.1", {"host": "["}, False),
            ("127.0.0.1", {"origin": "https://evil.example"}, False),
            ("127.0.0.1", {"origin": "null"}, False),
            ("127.0.0.1", {"x-forwarded-for": "127.0.0.1"}, False),
            ("127.0.0.1", {"forwarded": "for=127.0.0.1"}, False),
            ("127.0.0.1", {"cf-connecting-ip": "127.0.0.1"}, False),
        ],
    )
    def test_only_this_machine_calls(self, peer: str | None, headers: dict[str, str], local: bool) -> None:
        # V12
        request = info(peer=peer, **headers)
        assert is_local(request) is local
        check = TwilioRequestValidator(None, PublicAddress())
        assert is_admitted(check, request, FORM) is local
        assert is_line_admitted(check, request) is local

    def test_a_trusted_proxy_does_not_make_a_request_local(self) -> None:  # V12
        request = info(x_forwarded_proto="https")
        assert is_forwarded(request)
        assert not is_admitted(
            TwilioRequestValidator(None, PublicAddress(None, parse_proxies("127.0.0.1"))), request, {}
        )
