"""Calls by SIP: who calls, and what the model's server is told to do with the call."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pytest
from structlog.testing import capture_logs

from adapters.outbound.fake import Answer, ScriptedOutbound
from channels.voice.carriers.call_control import LineControlFailed
from channels.voice.carriers.sip.calls import SipCalls, SipLine, sip_call
from channels.voice.carriers.twilio.carrier import TwilioCarrier, TwilioSettings
from channels.voice.server.public_address import PublicAddress
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply

pytestmark = pytest.mark.anyio

CALLS = "https://api.openai.com/v1/realtime/calls"
OK = OutboundReply(200, b"")


def sip_calls(*answers: tuple[str, Answer]) -> tuple[SipCalls, ScriptedOutbound]:
    outbound = ScriptedOutbound({f"{CALLS}/rtc_1/{action}": [answer] for action, answer in answers})
    return SipCalls(outbound, "wss://api.openai.com/v1/realtime?region=eu", "sk-1"), outbound


class TestWhoCalls:
    def test_is_read_from_the_headers(self) -> None:  # V12
        call = sip_call(
            "rtc_1",
            [
                ("From", '"Ada" <sip:+14155550123@pstn.example>;tag=1'),
                ("To", "<sip:+18005550100@sip.api.openai.com>"),
                ("Call-ID", "x"),
                ("X-Restaurant", "r7"),
            ],
        )
        assert call.phone == "+14155550123"
        assert call.parameters == {
            "from": "sip:+14155550123@pstn.example",
            "to": "sip:+18005550100@sip.api.openai.com",
            "callerPhone": "+14155550123",
            "calledPhone": "+18005550100",
            "x-restaurant": "r7",
        }

    @pytest.mark.parametrize(
        ("headers", "phone"),
        [
            ([("P-Asserted-Identity", "<sip:+2@net>"), ("From", "<sip:+19@x>")], None),
            ([("P-Asserted-Identity", "<sip:+222@net>"), ("From", "<sip:+199@x>")], "+222"),
            ([("p-asserted-identity", '"A, B" <sip:a@n>, <tel:+222>'), ("from", "<sip:+199@x>")], "+222"),
            ([("P-Asserted-Identity", "<sip:a@n>"), ("P-Asserted-Identity", "<tel:+222>")], "+222"),
            ([("From", "<sip:+199@x>"), ("From", "<sip:+299@x>")], "+199"),
            ([("From", "<sip:+199@x>"), ("Privacy", "none")], "+199"),
            ([("From", "<sip:+199@x>"), ("P-Asserted-Identity", "<tel:+222>"), ("Privacy", "id")], None),
            ([("P-Asserted-Identity", '"Ada, <tel:+1999>" <sip:+14155550123@h>')], "+14155550123"),
            ([("From", "<sip:anonymous@anonymous.invalid>")], None),
            ([], None),
        ],
    )
    def test_is_whom_the_network_names_unless_it_is_private(
        self, headers: list[tuple[str, str]], phone: str | None
    ) -> None:  # V12
        call = sip_call("rtc_1", headers)
        assert call.phone == phone
        assert call.parameters.get("callerPhone") == phone
        assert not any(name == "Privacy" for name, _ in headers) or phone or "from" not in call.parameters

    def test_cannot_fill_the_memory(self) -> None:  # V12
        headers = [(f"X-{number}", "x" * 10_000) for number in range(250)]
        call = sip_call("rtc_1", headers)
        assert len(call.parameters) <= 40
        assert max(map(len, call.parameters.values())) <= 400

    def test_own_headers_do_not_replace_what_is_known(self) -> None:  # V12
        call = sip_call("rtc_1", [("X-A", "1"), ("callerPhone", "+666"), ("From", "<sip:+199@x>")])
        assert call.parameters["callerPhone"] == "+199"


class TestSteering:
    async def test_accepts_with_the_session(self) -> None:  # V12
        calls, outbound = sip_calls(("accept", OK))
        await calls.accept("rtc_1", {"type": "realtime", "model": "gpt-realtime"})
        (made,) = outbound.calls
        assert (made.method, made.json()) == ("POST", {"type": "realtime", "model": "gpt-realtime"})
        assert made.headers["Authorization"] == "Bearer sk-1"

    async def test_rejects_refers_and_hangs_up(self) -> None:  # V12
        calls, outbound = sip_calls(("reject", OK), ("refer", OK), ("hangup", OK))
        await calls.reject("rtc_1")
        await calls.refer("rtc_1", "+33 1 23 45 67 89")
        await calls.refer("rtc_1", "sip:desk@pbx.example")
        await calls.hang_up("rtc_1")
        assert [made.json() for made in outbound.calls[:3]] == [
            {"status_code": 486},
            {"target_uri": "tel:+33123456789"},
            {"target_uri": "sip:desk@pbx.example"},
        ]
        assert outbound.calls[3].content == b""

    async def test_does_not_mind_hanging_up_what_has_ended(self) -> None:  # V12
        calls, _ = sip_calls(("hangup", OutboundReply(404, b"")))
        await calls.hang_up("rtc_1")

    @pytest.mark.parametrize(
        "answer",
        [
            OutboundReply(500, b"+33123456789"),
            OutboundReply(404, b""),
            OutboundFailed("away"),
            OutboundRefused("no"),
        ],
    )
    async def test_fails_in_one_way(self, answer: Answer) -> None:  # V12
        calls, _ = sip_calls(("refer", answer))
        with pytest.raises(LineControlFailed) as caught:
            await calls.refer("rtc_1", "+33123456789")
        assert "33123456789" not in str(caught.value)
        with pytest.raises(CorrectTheInput):
            await calls.refer("rtc_1", "the moon")

    async def test_keeps_a_strange_id_in_its_place_of_the_path(self) -> None:  # V12
        outbound = ScriptedOutbound({"http://127.0.0.1:9/v1/calls/..%2F%3Fx%23/hangup": [OK]})
        await SipCalls(outbound, "ws://127.0.0.1:9/v1/", "k").hang_up("../?x#")
        assert len(outbound.calls) == 1


class TestTheLine:
    async def test_plays_nothing_and_hangs_up_once(self) -> None:  # V12
        calls, outbound = sip_calls(("hangup", OK))
        line = SipLine("rtc_1", calls)
        line.play(b"AAAA")
        line.mark("m")
        line.clear()
        line.close()
        line.close()
        await line.left()
        assert len(outbound.calls) == 1

    async def test_is_not_hung_up_after_a_transfer(self) -> None:  # V12
        calls, outbound = sip_calls(("refer", OK))
        line = SipLine("rtc_1", calls)
        await line.transfer("+33123456789")
        line.close()
        await line.left()
        assert [made.url for made in outbound.calls] == [f"{CALLS}/rtc_1/refer"]

    async def test_is_hung_up_when_the_transfer_failed(self) -> None:  # V12
        calls, outbound = sip_calls(("refer", OutboundReply(400, b"")), ("hangup", OutboundFailed("away")))
        line = SipLine("rtc_1", calls)
        with pytest.raises(LineControlFailed):
            await line.transfer("+33123456789")
        with capture_logs() as logged:
            line.close()
            await line.left()
        assert [made.url.rpartition("/")[2] for made in outbound.calls] == ["refer", "hangup"]
        assert [entry["event"] for entry in logged] == ["hang_up_failed"]


def twilio(outbound: ScriptedOutbound, **account: Any) -> TwilioCarrier:
    credentials: dict[str, Any] = {"account_sid": "AC1", "auth_token": "token", **account}
    settings = TwilioSettings(**{f"twilio_{name}": value for name, value in credentials.items()})
    return TwilioCarrier(settings, PublicAddress(), outbound)


class TestTransferOnTwilio:
    URL = "https://api.twilio.com/2010-04-01/Accounts/AC1/Calls/CA1.json"

    async def test_redirects_the_call_with_credentials(self) -> None:  # V12
        outbound = ScriptedOutbound({self.URL: [OutboundReply(200, b"{}")]})
        await twilio(outbound).transfer("CA1", "sip:desk@pbx.example;a=1&b=2")
        (made,) = outbound.calls
        assert made.headers["Authorization"] == "Basic QUMxOnRva2Vu"
        assert parse_qs(made.content.decode())["Twiml"][0].endswith(
            "<Response><Dial><Sip>sip:desk@pbx.example;a=1&amp;b=2</Sip></Dial></Response>"
        )

    async def test_goes_where_the_operator_says(self) -> None:  # V12
        url = "http://127.0.0.1:9/2010-04-01/Accounts/AC1/Calls/..%2FCA1.json"
        outbound = ScriptedOutbound({url: [OutboundReply(200, b"{}")]})
        carrier = twilio(outbound, api_url="http://127.0.0.1:9/")
        await carrier.transfer("../CA1", "+33123456789")
        assert len(outbound.calls) == 1

    async def test_fails_in_one_way(self) -> None:  # V12
        outbound = ScriptedOutbound({self.URL: [OutboundReply(404, b""), OutboundFailed("away")]})
        carrier = twilio(outbound)
        for _ in range(2):
            with pytest.raises(LineControlFailed):
                await carrier.transfer("CA1", "+33123456789")
        with pytest.raises(CorrectTheInput):
            await carrier.transfer("CA1", "sales")
        assert len(outbound.calls) == 2

    @pytest.mark.parametrize("lacks", [{"account_sid": None}, {"auth_token": None}])
    async def test_needs_an_account_and_a_call(self, lacks: dict[str, None]) -> None:  # V12
        outbound = ScriptedOutbound({})
        with pytest.raises(LineControlFailed, match="FLOW_ENGINE_TWILIO_ACCOUNT_SID"):
            await twilio(outbound, **lacks).transfer("CA1", "+33123456789")
        with pytest.raises(LineControlFailed):
            await twilio(outbound).transfer(None, "+33123456789")
        assert not outbound.calls
