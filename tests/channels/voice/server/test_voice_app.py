"""Offers of calls, health, metrics and draining over HTTP."""

from __future__ import annotations

import asyncio
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from adapters.http_door import Door, DoorLimits
from adapters.outbound.fake import ScriptedOutbound
from channels.voice.call.state import Counts
from channels.voice.carriers.twilio.carrier import HEADER, signature
from channels.voice.metrics import CountedCall, Counting
from channels.voice.server import http as http_module
from channels.voice.server.app import voice_app
from tests.channels.voice.server.front_desk import (
    TOKEN,
    EchoCallServer,
    exchange,
    open_desk,
    secret,
    voice_settings,
)

pytestmark = pytest.mark.anyio


async def test_what_comes_too_slowly_or_is_too_long_is_refused_at_the_door(  # 12
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Door, "limits", DoorLimits(head_s=0.2, body_s=0.2, linger_s=0.2))
    post = b"POST /incoming-call HTTP/1.1\r\nHost: localhost\r\n"
    async with open_desk() as desk:
        for sent, status in (
            (post + b"X: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
            (post, b"408"),
            (post + b"Content-Length: 9\r\n\r\nFrom=", b"408"),
        ):
            assert (await exchange(desk.port, sent)).startswith(b"HTTP/1.1 " + status)


async def test_a_stream_is_bound_to_no_time_of_the_door(monkeypatch: pytest.MonkeyPatch) -> None:  # 12, V12
    monkeypatch.setattr(Door, "limits", DoorLimits(head_s=0.1, body_s=0.1, linger_s=0.1))
    async with open_desk() as desk:
        caller = await desk.dial()
        await asyncio.sleep(0.4)
        assert await caller.say("still there") == "still there"


CALL = {"CallSid": "CA1", "From": "+33612345678", "To": "+33123456789", "CallStatus": "ringing"}
FORM_HEADERS = {"content-type": "application/x-www-form-urlencoded"}


def parameters(reply: httpx.Response) -> dict[str | None, str | None]:
    return {p.get("name"): p.get("value") for p in ET.fromstring(reply.text).iter("Parameter")}


def stream_url(reply: httpx.Response) -> str | None:
    stream = ET.fromstring(reply.text).find("Connect/Stream")
    assert stream is not None, reply.text
    return stream.get("url")


def is_busy(reply: httpx.Response) -> bool:
    reject = ET.fromstring(reply.text).find("Reject")
    return reject is not None and reject.get("reason") == "busy"


def check_problem(reply: httpx.Response, status: int, code: str) -> None:
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert reply.headers["content-type"] == "application/problem+json"
    assert set(reply.json()) == {"type", "title", "status", "code", "detail", "errors"}


def test_a_refusal_that_has_no_status_of_its_own_is_an_error_of_ours_with_its_words() -> None:  # V14
    status, body = http_module.problem_document("unheard_of", "the words")
    assert (status, b'"unheard_of"' in body, b'"the words"' in body) == (500, True, True)


class TestAnOfferedCall:
    async def test_is_connected_to_the_line_with_who_calls(self) -> None:  # V12
        async with open_desk() as desk:
            reply = await desk.http.post("/incoming-call", data=CALL)
            assert reply.status_code == 200
            assert reply.headers["content-type"].startswith("text/xml")
            assert stream_url(reply) == desk.line_url
            assert parameters(reply) == {
                "callerPhone": "+33612345678",
                "calledPhone": "+33123456789",
                "callSid": "CA1",
                "callId": parameters(reply)["callId"],
            }

    async def test_may_come_by_get(self) -> None:  # V12
        async with open_desk() as desk:
            reply = await desk.http.get("/incoming-call/", params=CALL)
            assert parameters(reply)["callerPhone"] == "+33612345678"

    async def test_without_a_number_is_connected_all_the_same(self) -> None:  # V12
        async with open_desk() as desk:
            for data in ({}, {"From": ""}):
                assert list(parameters(await desk.http.post("/incoming-call", data=data))) == ["callId"]

    async def test_is_taken_with_twilios_signature_only(self) -> None:  # V12
        async with open_desk(twilio_auth_token=secret(TOKEN), public_url="https://voice.example/a") as desk:
            check_problem(await desk.http.post("/incoming-call", data=CALL), 403, "signature_missing")
            wrong = await desk.http.post("/incoming-call", data=CALL, headers={HEADER: "wrong"})
            check_problem(wrong, 403, "signature_wrong")
            form = {name: [value] for name, value in CALL.items()}
            right = signature(TOKEN, "https://voice.example/a/incoming-call", form)
            reply = await desk.http.post("/incoming-call", data=CALL, headers={HEADER: right})
            assert stream_url(reply) == "wss://voice.example/a/media-stream"
            signed = signature(TOKEN, f"https://voice.example/a/incoming-call?{urlencode(CALL)}", {})
            reply = await desk.http.get("/incoming-call", params=CALL, headers={HEADER: signed})
            assert parameters(reply)["callSid"] == "CA1"
            assert desk.count("calls_refused_total", reason="not_allowed") == 2

    async def test_a_wrong_signature_is_logged_with_the_url_that_it_was_checked_for(self) -> None:  # V12, V14
        async with open_desk(twilio_auth_token=secret(TOKEN), public_url="https://voice.example/a") as desk:
            with capture_logs() as logged:
                await desk.http.get("/incoming-call", params=CALL, headers={HEADER: "wrong"})
                assert await (await desk.dial({HEADER: "wrong"})).next() is None
            refused = [line for line in logged if line["event"] in ("request_refused", "line_refused")]
            urls = ("https://voice.example/a/incoming-call", "https://voice.example/a/media-stream")
            for line, url in zip(refused, urls, strict=True):
                assert (line["code"], repr(url) in line["reason"]) == ("signature_wrong", True)
                assert "33612345678" not in str(line)

    async def test_leads_to_the_host_that_a_trusted_proxy_was_asked_for(self) -> None:  # V12
        async with open_desk(twilio_auth_token=secret(TOKEN), trusted_proxies="127.0.0.1") as desk:
            headers = {
                "x-forwarded-proto": "https",
                "x-forwarded-host": "voice.example",
                HEADER: signature(TOKEN, "https://voice.example/incoming-call", {"From": ["+331"]}),
            }
            reply = await desk.http.post("/incoming-call", data={"From": "+331"}, headers=headers)
            assert stream_url(reply) == "wss://voice.example/media-stream"

    async def test_without_a_token_comes_from_this_machine_only(self) -> None:  # V12
        async with open_desk() as desk:
            for headers in ({"x-forwarded-for": "1.2.3.4"}, {"host": "voice.example"}):
                reply = await desk.http.post("/incoming-call", data=CALL, headers=headers)
                check_problem(reply, 403, "not_local")

    async def test_beyond_the_limit_hears_the_busy_tone(self) -> None:  # V12
        async with open_desk(voice_max_calls=1) as desk:
            assert not is_busy(await desk.http.post("/incoming-call", data=CALL))
            assert is_busy(await desk.http.post("/incoming-call", data=CALL))
            assert desk.count("calls_refused_total", reason="busy") == 1
            caller = await desk.dial()  # the place that was kept for the first one
            assert await caller.say("hello") == "hello"
            assert is_busy(await desk.http.post("/incoming-call", data=CALL))

    async def test_whose_line_never_comes_gives_its_place_back(self) -> None:  # V12
        times = [0.0]
        async with open_desk(voice_max_calls=1, clock=lambda: times[0]) as desk:
            assert not is_busy(await desk.http.post("/incoming-call", data=CALL))
            times[0] = 14.9
            assert is_busy(await desk.http.post("/incoming-call", data=CALL))
            times[0] = 15.0
            assert not is_busy(await desk.http.post("/incoming-call", data=CALL))

    async def test_leaves_no_number_in_the_log(self) -> None:  # V14
        with capture_logs() as logged:
            async with open_desk() as desk:
                await desk.http.post("/incoming-call", data=CALL)
                await desk.http.post("/incoming-call?From=%2B33612345678", content=b"x")
        assert "call_offered" in [entry["event"] for entry in logged]
        assert "612345678" not in str(logged)


class TestDraining:
    async def test_refuses_new_calls_and_keeps_those_that_were_let_in(self) -> None:  # V12 V13
        async with open_desk() as desk:
            caller = await desk.dial()
            await desk.http.post("/incoming-call", data=CALL)
            reply = await desk.http.post("/drain")
            assert (reply.status_code, reply.json()) == (202, {"liveCalls": 2, "draining": True})
            assert is_busy(await desk.http.post("/incoming-call", data=CALL))
            assert await caller.say("still here") == "still here"
            promised = await desk.dial()
            assert await promised.say("let in") == "let in"
            stranger = await desk.dial()
            assert await stranger.next() is None
            assert stranger.close_code == 1012
            assert (await desk.http.get("/healthz")).json() == {
                "status": "draining",
                "liveCalls": 2,
                "draining": True,
            }

    async def test_is_for_this_machine(self) -> None:  # V13
        async with open_desk(trusted_proxies="127.0.0.1") as desk:
            for headers in ({"x-forwarded-for": "127.0.0.1"}, {"host": "voice.example"}, {"origin": "null"}):
                check_problem(await desk.http.post("/drain", headers=headers), 403, "not_local")
            assert (await desk.http.get("/healthz")).json()["draining"] is False


async def test_single_calls_are_told_to_this_machine_alone() -> None:  # V14, console: operations
    async with open_desk(trusted_proxies="127.0.0.1") as desk:
        began = datetime(2026, 1, 15, 9, 31, tzinfo=UTC)
        counts = [Counts(interruptions=n, response_seconds=[0.5] * 150 + [n / 10]) for n in range(60)]
        calls = [CountedCall(f"call-{n}", began, each) for n, each in enumerate(counts)]
        for call in calls:
            desk.counting.call_began(call)
        for number, call in enumerate(calls[:55]):
            desk.counting.call_ended(call, "caller_hung_up", float(number))
        counts[59].response_seconds.append(1.25)  # it goes on
        told = (await desk.http.get("/calls")).json()["calls"]
        assert [each["callId"] for each in told] == [
            f"call-{n}" for n in (*range(59, 54, -1), *range(54, 4, -1))
        ], "those that go on, and the last 50 that have ended"
        assert (told[0]["seconds"], told[0]["reason"], told[0]["turns"]) == (None, None, 152)
        assert (told[0]["turnsMs"][-2:], len(told[0]["turnsMs"])) == ([5900, 1250], 100)
        assert (told[5]["seconds"], told[5]["reason"], told[5]["bargeIns"]) == (54.0, "caller_hung_up", 54)
        assert told[5]["startedAt"] == "2026-01-15T09:31:00+00:00"
        for headers in ({"x-forwarded-for": "127.0.0.1"}, {"host": "voice.example"}, {"origin": "null"}):
            check_problem(await desk.http.get("/calls", headers=headers), 403, "not_local")


async def test_metrics_can_be_read_and_carry_help_texts() -> None:  # V14
    async with open_desk() as desk:
        counts = Counts(interruptions=2, unheard=3, tools_answered=1, tool_seconds=[0.3], tokens_out=50)
        began = datetime(2026, 1, 15, 9, 31, tzinfo=UTC)
        calls = CountedCall("call-1", began, counts), CountedCall("call-2", began, Counts())
        for call in calls:
            desk.counting.call_began(call)
        desk.counting.call_ended(calls[0], "caller_hung_up", 65.0)
        desk.counting.model_renewed()
        reply = await desk.http.get("/metrics")
        families = {family.name: family for family in text_string_to_metric_families(reply.text)}
        assert all(family.documentation for family in families.values())
        assert desk.count("calls_active") == 1
        assert desk.count("calls_total", reason="caller_hung_up") == 1
        assert desk.count("tool_calls_total", outcome="answered") == 1
        assert desk.count("barge_ins_total") == 2
        assert desk.count("dropped_frames_total", side="model") == 3
        assert desk.count("model_reconnects_total") == 1
        assert desk.count("model_tokens_total", kind="output") == 50
        assert desk.count("call_seconds_sum") == 65
        assert desk.count("tool_seconds_bucket", le="0.5") == 1
        assert desk.count("response_seconds_count") == 0
        assert "flow_engine_voice_calls" in families
        check_problem(
            await desk.http.get("/metrics", headers={"x-forwarded-for": "1.2.3.4"}), 403, "not_local"
        )


class TestWhatIsNoCall:
    async def test_is_told_what_is_wrong(self) -> None:  # V12
        async with open_desk() as desk:
            http = desk.http
            check_problem(await http.get("/"), 404, "path_unknown")
            check_problem(await http.put("/incoming-call"), 405, "method_not_allowed")
            check_problem(await http.get("/drain"), 405, "method_not_allowed")
            check_problem(await http.get("/media-stream"), 426, "upgrade_needed")
            check_problem(await http.post("/sip"), 501, "sip_not_configured")
            assert "OPENAI_WEBHOOK_SECRET" in (await http.post("/sip")).json()["detail"]
            for content in (b"x" * 65_537, b"From=" + b"%41" * 30_000):
                reply = await http.post("/incoming-call", content=content, headers=FORM_HEADERS)
                check_problem(reply, 413, "too_large")
            reply = await http.post("/incoming-call", content=b"a&" * 501, headers=FORM_HEADERS)
            check_problem(reply, 400, "form_invalid")
            reply = await http.post("/incoming-call", json={"From": "+331"})
            check_problem(reply, 415, "media_type_unsupported")

    async def test_may_end_in_the_middle_of_its_body(self) -> None:  # V12
        async with open_desk() as desk:
            head = b"POST /incoming-call HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nFrom="
            _, writer = await asyncio.open_connection("127.0.0.1", desk.port)
            writer.write(head)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            assert (await desk.http.get("/healthz")).status_code in (200, 503)

    async def test_may_send_its_body_too_slowly(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V12
        monkeypatch.setattr(http_module, "BODY_WITHIN_S", 0.1)
        async with open_desk() as desk:
            head = b"POST /incoming-call HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nFrom="
            assert (await exchange(desk.port, head)).startswith(b"HTTP/1.1 408 ")

    @pytest.mark.parametrize(
        "host", [b"[", b"[::1", b"a b", b"\xff", b"localhost:99999999", b"", b"a/../b", b"@", b"x" * 5000]
    )
    async def test_may_name_a_strange_host(self, host: bytes) -> None:  # V12
        async with open_desk() as desk:
            head = b"POST /incoming-call HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 0\r\n\r\n"
            assert (await exchange(desk.port, head)).split(b" ")[1] in (b"400", b"403")


@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from(["/incoming-call", "/sip", "/drain", "/healthz", "/metrics", "/media-stream", "/?"]),
    method=st.sampled_from(["GET", "POST", "HEAD", "DELETE"]),
    query=st.binary(max_size=30),
    body=st.binary(max_size=200),
    headers=st.dictionaries(
        st.sampled_from(
            ["host", "origin", "content-type", HEADER, "webhook-id", "webhook-timestamp", "webhook-signature"]
        ),
        st.one_of(
            st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b"")),
            st.sampled_from([b"localhost", b"application/x-www-form-urlencoded", b"v1,x", b"1"]),
        ),
    ),
)
def test_nothing_that_a_caller_sends_is_an_error_of_ours(
    path: str, method: str, query: bytes, body: bytes, headers: dict[str, bytes]
) -> None:  # V12
    given_settings = voice_settings(openai_webhook_secret=secret("whsec_c2VjcmV0"))
    carrier = given_settings.open_carrier(ScriptedOutbound({}))
    app = voice_app(given_settings, carrier, EchoCallServer(), Counting(), None)
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": [(name.encode(), value) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    asyncio.run(app.asgi(scope, receive, send))
    assert len(statuses) == 1
    assert statuses[0] < 500 or statuses[0] in (501, 503)
