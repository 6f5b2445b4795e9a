"""OpenAI's webhooks: whose they are, and what becomes of the calls they tell of."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from adapters.outbound.fake import ScriptedOutbound
from channels.voice.carriers.sip import webhook
from channels.voice.carriers.sip.webhook import WebhookVerifier, call_of
from flow_engine.errors import CallTheOperator, CorrectTheInput
from flow_engine.ports.outbound import OutboundReply
from tests.channels.voice.server.front_desk import EchoCallServer, open_desk, secret
from tests.channels.voice.server.test_voice_app import check_problem

pytestmark = pytest.mark.anyio

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
REJECT = "https://api.openai.com/v1/realtime/calls/{}/reject"


def event(call_id: str = "rtc_1", **changes: object) -> bytes:
    headers = [{"name": "From", "value": "<sip:+14155550123@pstn.example>"}]
    told = {"id": "evt_1", "object": "event", "type": "realtime.call.incoming", "created_at": 1}
    return orjson.dumps({**told, "data": {"call_id": call_id, "sip_headers": headers}, **changes})


def signed(
    body: bytes, webhook_id: str = "wh_1", at: datetime = NOW, by: str = SECRET, version: str = "v1"
) -> dict[str, str]:
    key = base64.b64decode(by.removeprefix("whsec_")) if by.startswith("whsec_") else by.encode()
    timestamp = str(int(at.timestamp()))
    digest = hmac.new(key, f"{webhook_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"{version},{base64.b64encode(digest).decode()}",
    }


def verifier(now: datetime = NOW, by: str = SECRET) -> WebhookVerifier:
    return WebhookVerifier(by, lambda: now)


def refusal(headers: dict[str, str], body: bytes, now: datetime = NOW) -> str:
    with pytest.raises(CorrectTheInput) as caught:
        verifier(now).verify(headers, body)
    return caught.value.code


class TestTheSeal:
    def test_is_that_of_the_standards_own_example(self) -> None:  # V12
        headers = {
            "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "webhook-timestamp": "1614265330",
            "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        }
        at = datetime.fromtimestamp(1614265330, UTC)
        assert verifier(at).verify(headers, b'{"test": 2432232314}')

    def test_may_stand_among_others(self) -> None:  # V12
        headers = signed(event())
        headers["webhook-signature"] = "v1a,x v1,AAAA " + headers["webhook-signature"]
        assert verifier().verify(headers, event())

    def test_may_be_made_with_a_plain_secret(self) -> None:  # V12
        assert verifier(by="plain secret").verify(signed(event(), by="plain secret"), event())

    def test_is_taken_once(self) -> None:  # V12
        one = verifier()
        assert one.verify(signed(event()), event())
        assert not one.verify(signed(event()), event())
        assert not one.verify(signed(event(), at=NOW + timedelta(seconds=60)), event())
        assert one.verify(signed(event(), "wh_2"), event())

    def test_that_is_wrong_does_not_use_up_its_id(self) -> None:  # V12
        one = verifier()
        with pytest.raises(CorrectTheInput):
            one.verify(signed(event(), by="whsec_AAAA"), event())
        assert one.verify(signed(event()), event())

    @pytest.mark.parametrize("minutes", [-5, 0, 5])
    def test_may_be_five_minutes_away(self, minutes: int) -> None:  # V12
        assert verifier().verify(signed(event(), at=NOW + timedelta(minutes=minutes)), event())

    @pytest.mark.parametrize("seconds", [-301, 301, -(10**9)])
    def test_from_further_away_is_refused(self, seconds: int) -> None:  # V12
        assert refusal(signed(event(), at=NOW + timedelta(seconds=seconds)), event()) == "signature_old"

    def test_covers_id_time_and_body(self) -> None:  # V12
        for changed in ({"webhook-id": "wh_2"}, {"webhook-timestamp": str(int(NOW.timestamp()) + 1)}):
            assert refusal({**signed(event()), **changed}, event()) == "signature_wrong"
        assert refusal(signed(event()), event("rtc_2")) == "signature_wrong"
        assert refusal(signed(event(), version="v2"), event()) == "signature_wrong"
        assert refusal(signed(event(), by="whsec_" + base64.b64encode(b"x").decode()), event()) == (
            "signature_wrong"
        )

    @pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
    def test_needs_all_its_headers(self, missing: str) -> None:  # V12
        headers = {name: value for name, value in signed(event()).items() if name != missing}
        assert refusal(headers, event()) == "signature_missing"

    @given(st.text(), st.text(), st.text())
    def test_is_not_upset_by_anything(self, webhook_id: str, timestamp: str, signature: str) -> None:  # V12
        told = {
            "webhook-id": webhook_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": "v1," + signature,
        }
        assert refusal(told, b"{}") in ("signature_missing", "signature_wrong")

    @pytest.mark.parametrize("timestamp", ["1e9", "-1", "nan", "99999999999", "١"])
    def test_with_a_strange_time_is_old(self, timestamp: str) -> None:  # V12
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        digest = hmac.new(key, f"wh_1.{timestamp}.x".encode(), hashlib.sha256).digest()
        told = f"v1,{base64.b64encode(digest).decode()}"
        headers = {"webhook-id": "wh_1", "webhook-timestamp": timestamp, "webhook-signature": told}
        assert refusal(headers, b"x") == "signature_old"

    def test_remembers_a_bounded_number_of_ids(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V12
        monkeypatch.setattr(webhook, "MOST_REMEMBERED", 2)
        one = verifier()
        for number in (1, 2, 3):
            assert one.verify(signed(event(), f"wh_{number}"), event())
        assert one.verify(signed(event(), "wh_1"), event())
        assert not one.verify(signed(event(), "wh_3"), event())

    def test_needs_a_secret_that_can_be_read(self) -> None:  # V12
        for text in ("no base64", "b\u00e9se64=="):
            with pytest.raises(CallTheOperator) as caught:
                WebhookVerifier(f"whsec_{text}", lambda: NOW)
            assert text not in str(caught.value)

    @pytest.mark.parametrize("empty", ["", "whsec_"])
    def test_cannot_be_made_with_an_empty_secret(self, empty: str) -> None:  # V12
        with pytest.raises(CallTheOperator) as caught:
            WebhookVerifier(empty, lambda: NOW)
        assert caught.value.code == "webhook_secret_invalid"


class TestTheEvent:
    def test_tells_of_a_call(self) -> None:  # V12
        call = call_of(event())
        assert call is not None
        assert (call.call_id, call.phone) == ("rtc_1", "+14155550123")

    def test_of_another_kind_is_nothing_to_do(self) -> None:  # V12
        assert call_of(event(type="response.completed", data={"id": "x"})) is None

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"type": 1}',
            b'{"type": "realtime.call.incoming"}',
            event(data={"call_id": "", "sip_headers": []}),
            event(data={"call_id": "x" * 257, "sip_headers": []}),
            event(data={"call_id": "x", "sip_headers": [{"name": "From"}]}),
            event(data={"call_id": "x", "sip_headers": [{"name": "a", "value": "b"}] * 257}),
        ],
    )
    def test_that_cannot_be_read_is_refused_without_repeating_it(self, body: bytes) -> None:  # V12
        with pytest.raises(CorrectTheInput) as caught:
            call_of(body)
        assert caught.value.code == "event_invalid"
        assert "xxx" not in str(caught.value)


def desk_options(**more: object) -> dict[str, Any]:
    return {
        "openai_webhook_secret": secret(SECRET),
        "openai_api_key": secret("sk-1"),
        "now": lambda: NOW,
        **more,
    }


class TestACallBySip:
    async def test_is_answered_once_and_counts_while_it_lasts(self) -> None:  # V12
        async with open_desk(**desk_options()) as desk:
            for webhook_id, outcome in (("wh_1", "taken"), ("wh_1", "seen"), ("wh_2", "seen")):
                reply = await desk.http.post("/sip", content=event(), headers=signed(event(), webhook_id))
                assert (reply.status_code, reply.json()) == (200, {"outcome": outcome})
            await asyncio.sleep(0)
            assert [call.phone for call in desk.answering.sip] == ["+14155550123"]
            assert desk.app.admission.live == 1
            desk.answering.sip_over.set()
            await desk.app.admission.idle()

    async def test_beyond_the_limit_is_rejected_as_busy(self) -> None:  # V12
        outbound = ScriptedOutbound({REJECT.format("rtc_2"): [OutboundReply(200, b"")]})
        async with open_desk(outbound, **desk_options(voice_max_calls=1)) as desk:
            for call_id, outcome in (("rtc_1", "taken"), ("rtc_2", "refused")):
                body = event(call_id)
                reply = await desk.http.post("/sip", content=body, headers=signed(body, call_id))
                assert reply.json() == {"outcome": outcome}
            while not outbound.calls:
                await asyncio.sleep(0.01)
            assert outbound.calls[0].json() == {"status_code": 486}
            assert len(desk.answering.sip) == 1
            assert desk.count("calls_refused_total", reason="busy") == 1

    async def test_that_is_not_openais_is_refused(self) -> None:  # V12
        async with open_desk(**desk_options()) as desk:
            check_problem(await desk.http.post("/sip", content=event()), 403, "signature_missing")
            headers = signed(event(), by="other secret")
            check_problem(
                await desk.http.post("/sip", content=event(), headers=headers), 403, "signature_wrong"
            )
            old = signed(event(), at=NOW - timedelta(hours=1))
            check_problem(await desk.http.post("/sip", content=event(), headers=old), 403, "signature_old")
            bad = await desk.http.post("/sip", content=b"{}", headers=signed(b"{}"))
            check_problem(bad, 422, "event_invalid")
            assert not desk.answering.sip

    async def test_whose_answering_breaks_is_over_and_reported(self) -> None:  # V12 V14
        class Breaking(EchoCallServer):
            async def answer_sip(self, call: object) -> None:
                raise RuntimeError("a bug")

        async with open_desk(answering=Breaking(), **desk_options()) as desk:
            with capture_logs() as logged:
                await desk.http.post("/sip", content=event(), headers=signed(event()))
                await desk.app.admission.idle()
                await asyncio.sleep(0)
            assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == [
                "sip_call_failed"
            ]

    async def test_needs_the_secret_and_the_key(self) -> None:  # V12
        for missing in ("openai_webhook_secret", "openai_api_key"):
            async with open_desk(**desk_options(**{missing: None})) as desk:
                reply = await desk.http.post("/sip", content=event(), headers=signed(event()))
                check_problem(reply, 501, "sip_not_configured")
