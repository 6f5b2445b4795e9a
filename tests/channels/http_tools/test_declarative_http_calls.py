"""Requests on the wire, what their failures say, and what the log may know."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from structlog.testing import capture_logs

from adapters.outbound.client import GuardedClient
from adapters.outbound.fake import Answer, RecordedCall, ScriptedOutbound
from adapters.outbound.policy import AllowList
from channels.http_tools.documents import HttpRequest
from channels.http_tools.http_calls import CallFailed, HttpCaller, masked_url
from channels.http_tools.scope import Scope
from flow_engine.json_values import deeper_than
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply
from flow_engine.values import JsonValue
from tests.adapters.outbound.local_server import ok, redirect, serving

pytestmark = pytest.mark.anyio

FIELDS = {"agent_id": "a-1", "call_id": "c-1"}
SCOPE = Scope(
    specials={"caller_phone": "+33612345678"},
    args={"id": "r-7", "flag": True, "list": [1, 2], "gone": None, "n": 4},
    root={"base_url": "https://api.example"},
)


def request(**fields: object) -> HttpRequest:
    return HttpRequest.model_validate({"url": "{{base_url}}/a"} | fields)


async def sent(
    made: HttpRequest,
    url: str = "https://api.example/a",
    body: JsonValue = None,
) -> RecordedCall:
    outbound = ScriptedOutbound({url: [OutboundReply(200, b"{}")]})
    await HttpCaller(outbound, FIELDS).send(made, SCOPE, body=body)
    return outbound.calls[0]


async def reply_to(answer: Answer, **fields: object) -> JsonValue:
    outbound = ScriptedOutbound({"https://api.example/a": [answer]})
    return await HttpCaller(outbound, FIELDS).send(request(**fields), SCOPE)


async def failure_of(answer: Answer, **fields: object) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await reply_to(answer, **fields)
    return caught.value


class TestARequest:
    async def test_writes_its_parameters_each_in_its_way(self) -> None:  # V8
        made = request(
            params={
                "flag": "{{args.flag}}",
                "ids": "{{args.list}}",
                "gone": "{{args.gone}}",
                "no": None,
                "n": "{{args.n}}",
            }
        )
        await sent(made, "https://api.example/a?flag=true&ids=1&ids=2&n=4")

    async def test_has_its_body_without_what_is_not_there(self) -> None:  # V8
        call = await sent(
            request(method="POST", body={"id": "{{args.id}}", "x": "{{args.gone}}", "n": "{{args.n}}"})
        )
        assert call.json() == {"id": "r-7", "n": 4}
        assert call.headers == {"Accept": "application/json", "Content-Type": "application/json"}
        assert (call.method, call.timeout_s) == ("POST", 10.0)

    async def test_takes_another_body_in_its_place(self) -> None:  # V10
        assert (await sent(request(method="POST"), body={"total": 3})).json() == {"total": 3}

    async def test_without_a_body_sends_none(self) -> None:  # V6
        call = await sent(request(method="DELETE", timeout_s=3))
        assert (call.content, call.headers, call.timeout_s) == (b"", {"Accept": "application/json"}, 3.0)

    async def test_has_headers_of_its_own(self) -> None:  # V6
        call = await sent(
            request(headers={"X-Key": "k-{{args.n}}", "X-Gone": "{{args.gone}}", "X-N": "{{args.n}}"})
        )
        assert call.headers == {"Accept": "application/json", "X-Key": "k-4", "X-N": "4"}

    async def test_that_lacks_a_value_is_not_sent(self) -> None:  # V8
        outbound = ScriptedOutbound({})
        with pytest.raises(CallFailed, match=r"a value for \{\{args\.gone\}\}"):
            await HttpCaller(outbound, FIELDS).send(request(url="{{base_url}}/a/{{args.gone}}"), SCOPE)
        assert outbound.calls == []

    @pytest.mark.parametrize("value", ["Zo\u00eb", "a\nb", "a\x00"])
    async def test_whose_header_cannot_be_written_is_not_sent_and_tells_which(  # V8
        self, value: str
    ) -> None:
        outbound = ScriptedOutbound({})
        scope = Scope(args={"name": value}, root=SCOPE.root)
        with pytest.raises(CallFailed) as failed:
            await HttpCaller(outbound, FIELDS).send(request(headers={"X-Name": "{{args.name}}"}), scope)
        told = "the request cannot be written: header 'X-Name' takes one line of ASCII"
        assert (failed.value.reason, outbound.calls) == (told, [])

    async def test_has_headers_without_the_spaces_at_their_ends(self) -> None:  # V8
        outbound = ScriptedOutbound({"https://api.example/a": [OutboundReply(200, b"{}")]})
        scope = Scope(args={"name": " Zoe\n"}, root=SCOPE.root)
        await HttpCaller(outbound, FIELDS).send(request(headers={"X-Name": "{{args.name}}"}), scope)
        assert outbound.calls[0].headers["X-Name"] == "Zoe"

    async def test_that_must_arrive_goes_without_a_header_that_cannot_be_written(self) -> None:  # V5
        outbound = ScriptedOutbound({"https://api.example/a": [OutboundReply(200, b"{}")]})
        scope = Scope(args={"name": "Zo\u00eb", "n": 1}, root=SCOPE.root)
        made = request(headers={"X-Name": "{{args.name}}", "X-N": "{{args.n}}"})
        with capture_logs() as logged:
            await HttpCaller(outbound, FIELDS, must_arrive=True).send(made, scope)
        assert outbound.calls[0].headers == {"Accept": "application/json", "X-N": "1"}
        left_out = [line for line in logged if line["event"] == "header_left_out"]
        assert [(line["log_level"], "'X-Name'" in line["reason"]) for line in left_out] == [("warning", True)]
        assert "Zo" not in str([line for line in logged if line["log_level"] != "debug"])

    async def test_that_json_cannot_hold_is_not_sent(self) -> None:  # V8
        scope = Scope(args={"n": 10**30}, root={"base_url": "https://api.example"})
        with pytest.raises(CallFailed, match="written as JSON"):
            await HttpCaller(ScriptedOutbound({}), FIELDS).send(
                request(method="POST", body={"n": "{{args.n}}"}), scope
            )


class TestAReply:
    @pytest.mark.parametrize(
        ("status", "body", "value"),
        [
            (200, b'{"a": [1]}', {"a": [1]}),
            (201, b'"text"', "text"),
            (200, b"null", None),
            (204, b"", None),
            (200, b" \r\n", None),
            (200, b"OK", "OK"),
            (200, b'\xef\xbb\xbf{"a": [1]}', {"a": [1]}),
            (200, b"\xef\xbb\xbfOK", "OK"),
            (200, b"\xef\xbb\xbf", None),
            (200, "déjà vu".encode(), "déjà vu"),
        ],
    )
    async def test_is_read_as_json_else_as_text(
        self, status: int, body: bytes, value: JsonValue
    ) -> None:  # V6
        assert await reply_to(OutboundReply(status, body)) == value

    @pytest.mark.parametrize("status", [302, 304, 400, 404, 422, 500, 503])
    async def test_of_another_status_is_a_failure(self, status: int) -> None:  # V6
        failure = await failure_of(OutboundReply(status, b'{"secret": "+33612345678"}'))
        assert failure.status == status
        assert failure.reason == f"the service answered with status {status}"

    @pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 200 + b"]" * 200])
    async def test_that_cannot_be_used_is_a_failure(self, body: bytes) -> None:  # V6
        assert (await failure_of(OutboundReply(200, body))).reason == "the reply cannot be read"

    async def test_of_very_many_values_is_a_failure_that_the_log_explains(self) -> None:  # V6
        assert await reply_to(OutboundReply(200, f"[1{',1' * 99_999}]".encode())) == [1] * 100_000
        with capture_logs() as logged:
            failure = await failure_of(OutboundReply(200, f"[1{',1' * 100_000}]".encode()))
        assert failure.reason == "the reply cannot be read"
        assert logged[-1]["reason"] == "the reply has more than 100000 values"

    async def test_keeps_the_digits_of_an_integer_beyond_64_bits_as_text(self) -> None:  # V6
        body = b'{"order": 12345678901234567890123, "is": [18446744073709551615, -9223372036854775809, 1.5]}'
        kept = {"order": "12345678901234567890123", "is": [2**64 - 1, "-9223372036854775809", 1.5]}
        assert await reply_to(OutboundReply(200, body)) == kept

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (OutboundRefused("'10.0.0.1' port 80 leads to a private address"), "the address is not allowed"),
            (OutboundFailed("the exchange with 'api.example' broke off"), "the service gave no usable reply"),
        ],
    )
    async def test_that_does_not_come_is_a_failure_without_addresses(
        self, error: Answer, reason: str
    ) -> None:  # V14
        failure = await failure_of(error)
        assert (failure.reason, failure.status) == (reason, None)

    async def test_that_the_policy_forbids_is_explained_in_the_log(self) -> None:  # V14
        told = "'10.0.0.1' port 80 leads to a private address"
        with capture_logs() as logged:
            await failure_of(OutboundRefused(told))
        assert [line["reason"] for line in logged if line["event"] == "http_call"] == [told]

    @given(st.integers(0, 6), st.integers(0, 6))
    def test_depth_is_counted_in_lists_and_objects(self, depth: int, levels: int) -> None:
        value: JsonValue = 1
        for level in range(depth):
            value = [value] if level % 2 else {"a": value}
        assert deeper_than(value, levels) == (depth > levels)  # V8


class TestTheLog:
    async def test_tells_method_masked_address_status_and_time(self) -> None:  # V14
        seconds = iter([10.0, 10.25])
        outbound = ScriptedOutbound(
            {"https://api.example/+33%20612345678?phone=%2B33612345678": [OutboundReply(200, b"1")]}
        )
        caller = HttpCaller(outbound, FIELDS, monotonic=lambda: next(seconds))
        with capture_logs() as logs:
            await caller.send(
                request(url="{{base_url}}/+33%20612345678", params={"phone": "{{caller_phone}}"}), SCOPE
            )
        assert [entry for entry in logs if entry["log_level"] != "debug"] == [
            {
                "event": "http_call",
                "log_level": "info",
                "method": "GET",
                "url": "https://api.example/***?phone=***",
                "status": 200,
                "duration_ms": 250,
                "agent_id": "a-1",
                "call_id": "c-1",
            }
        ]

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (OutboundReply(500, b"+33612345678"), "the service answered with status 500"),
            (OutboundFailed("'api.example' did not answer"), "'api.example' did not answer"),
        ],
    )
    async def test_of_a_failure_tells_the_reason(self, answer: Answer, reason: str) -> None:  # V14
        with capture_logs() as logs:
            failure = await failure_of(answer)
        (entry,) = [entry for entry in logs if entry["event"] == "http_call"]
        assert (entry["log_level"], entry["reason"]) == ("warning", reason)
        assert entry["status"] == failure.status

    async def test_tells_what_was_sent_at_debug_only(self) -> None:  # V14
        outbound = ScriptedOutbound({"https://api.example/a?q=%2B33612345678": [OutboundReply(200, b"1")]})
        made = request(
            method="POST",
            params={"q": "{{caller_phone}}"},
            headers={"Authorization": "Bearer s3cret"},
            body={"phone": "{{caller_phone}}"},
        )
        with capture_logs() as logs:
            await HttpCaller(outbound, FIELDS).send(made, SCOPE)
        assert "33612345678" not in json.dumps([entry for entry in logs if entry["log_level"] != "debug"])
        assert "33612345678" in json.dumps([entry for entry in logs if entry["log_level"] == "debug"])
        assert "s3cret" not in json.dumps(logs)

    @pytest.mark.parametrize(
        ("url", "masked"),
        [
            ("https://h/api/orders", "https://h/api/orders"),
            ("http://localhost:3000/api/orders/42?a=1&b", "http://localhost:3000/api/orders/42?a=***&b=***"),
            ("https://user:pw@h/a", "https://h/a"),
            ("https://h/c/+33612345678/x", "https://h/c/***/x"),
            ("https://h/c/%2B33%206%2012.34-56(78)", "https://h/c/***)"),
            ("https://h/c/tel:0612345678.json", "https://h/c/tel:***.json"),
            (
                "https://h/c/a1b2c3d4-e5f6-7890-abcd-ef1234567890",
                "https://h/c/a1b2c3d4-e5f6-7890-abcd-ef1234567890",
            ),
            ("https://h/c/r%2F7", "https://h/c/r%2F7"),
            ("https://h/a?0612345678=x", "https://h/a?***=***"),
            ("https://h/c/0612345678%0Ax", "https://h/c/***%0Ax"),
            ("https://h", "https://h"),
            ("https://[h/0612345678", "***"),
        ],
    )
    def test_masks_addresses(self, url: str, masked: str) -> None:  # V14
        assert masked_url(url) == masked

    async def test_has_nothing_that_a_call_puts_into_an_address(self) -> None:  # V14
        scope = Scope(
            args={"mail": "ada@example.com", "n": "Love lace"},
            ctx={"id": "r-7"},
            agent={"id": "desk"},
            root={"base_url": "https://api.example"},
        )
        url = "{{base_url}}/of/{{agent.id}}/{{args.mail}}/x-{{ctx.id}}.json?{{args.n}}=1&b={{args.n}}"
        sent_to = "https://api.example/of/desk/ada%40example.com/x-r-7.json?Love%20lace=1&b=Love%20lace"
        outbound = ScriptedOutbound({sent_to: [OutboundReply(200, b"{}")]})
        with capture_logs() as logs:
            await HttpCaller(outbound, FIELDS).send(request(url=url), scope)
        (entry,) = [entry for entry in logs if entry["event"] == "http_call"]
        assert entry["url"] == "https://api.example/of/desk/***/x-***.json?***=***&b=***"

    def test_masks_the_callers_number_however_short(self) -> None:  # V14
        assert masked_url("https://h/ext/204/x", "204") == "https://h/ext/***/x"
        assert masked_url("https://h/ext/204/x", "205") == "https://h/ext/204/x"

    @given(st.from_regex(r"\+?[0-9]{7,15}", fullmatch=True), st.text(alphabet="abc-/", max_size=4))
    def test_never_holds_a_number_of_a_path(self, number: str, beside: str) -> None:  # V14
        assert number not in masked_url(f"https://h/{beside}{number}{beside}/x")


@pytest.mark.parametrize("base", ["https://[h", "https://h:x", "https://h@h"])
async def test_a_base_with_a_strange_host_is_refused(base: str) -> None:  # V6
    client = GuardedClient(AllowList.parse(""))
    with pytest.raises(CallFailed, match="not allowed"):
        await HttpCaller(client, FIELDS).send(request(), Scope(root={"base_url": base}))
    await client.aclose()


class TestOverTheGuardedClient:
    """The same against a server on this machine."""

    @staticmethod
    async def outcome(*answers: bytes, timeout_s: float = 10.0) -> JsonValue | CallFailed:
        async def slow(_: bytes, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.5)
            writer.write(ok())

        async with serving(*(answers or [slow])) as server:
            client = GuardedClient(AllowList.parse("127.0.0.1"))
            scope = Scope(root={"base_url": f"http://127.0.0.1:{server.port}"})
            try:
                return await HttpCaller(client, FIELDS).send(request(timeout_s=timeout_s), scope)
            except CallFailed as failure:
                return failure
            finally:
                await client.aclose()

    async def test_a_reply_arrives(self) -> None:  # V6
        assert await self.outcome(ok(b'{"id": 7}')) == {"id": 7}

    async def test_a_late_reply_is_told_as_late(self) -> None:  # V6
        failure = await self.outcome(timeout_s=0.05)
        assert isinstance(failure, CallFailed)
        assert failure.reason == "no reply within 0.05 s"

    @pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\n\nGET /b", "\x00", "é"])
    async def test_an_argument_adds_no_header(self, value: str) -> None:  # V8
        async with serving(ok()) as server:
            client = GuardedClient(AllowList.parse("127.0.0.1"))
            scope = Scope(args={"v": value}, root={"base_url": f"http://127.0.0.1:{server.port}"})
            with pytest.raises(CallFailed):
                await HttpCaller(client, FIELDS).send(request(headers={"X-A": "{{args.v}}"}), scope)
            await client.aclose()
        assert server.requests == []

    async def test_a_redirect_to_the_inside_is_refused(self) -> None:  # V6
        failure = await self.outcome(redirect("http://169.254.169.254/latest"))
        assert isinstance(failure, CallFailed)
        assert failure.reason == "the address is not allowed"


class TestASecretOfAHeader:
    async def test_comes_from_the_environment_and_is_in_no_log(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # V14
        monkeypatch.setenv("CRM_TOKEN", "s3cret{{args.id}}")
        with capture_logs() as logged:
            call = await sent(
                request(headers={"Authorization": "Bearer ${env:CRM_TOKEN}", "X": "{{args.id}}"})
            )
        assert call.headers["Authorization"] == "Bearer s3cret{{args.id}}"
        assert call.headers["X"] == "r-7"
        assert "s3cret" not in str(logged)

    async def test_is_no_word_of_a_caller(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V8, V14
        monkeypatch.setenv("CRM_TOKEN", "s3cret")
        made = request(headers={"X": "{{args.said}}!"})
        outbound = ScriptedOutbound({"https://api.example/a": [OutboundReply(200, b"{}")]})
        scope = Scope(args={"said": "${env:CRM_TOKEN}"}, root=SCOPE.root)
        await HttpCaller(outbound, FIELDS).send(made, scope)
        assert outbound.calls[0].headers["X"] == "${env:CRM_TOKEN}!"

    async def test_that_no_header_can_hold_is_told_at_the_load(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # V14
        monkeypatch.setenv("CRM_TOKEN", "s3cr\u00e9t")
        with pytest.raises(ValidationError) as caught:
            request(headers={"Authorization": "Bearer ${env:CRM_TOKEN}"})
        (error,) = caught.value.errors()
        assert (error["loc"], "one line of ASCII" in error["msg"]) == (("headers", "Authorization"), True)
        assert "s3cr" not in str(caught.value)

    @pytest.mark.parametrize("value", [None, "", " ", "two\nlines"])
    async def test_that_is_not_there_is_told_at_the_load(
        self, value: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # V14
        monkeypatch.delenv("CRM_TOKEN", raising=False)
        if value is not None:
            monkeypatch.setenv("CRM_TOKEN", value)
        with pytest.raises(ValidationError) as caught:
            request(headers={"Authorization": "Bearer ${env:CRM_TOKEN}", "X": "${env:}"})
        found = {error["loc"]: error["msg"] for error in caught.value.errors()}
        assert found.keys() == {("headers", "Authorization"), ("headers", "X")}
        assert "CRM_TOKEN" in found["headers", "Authorization"]
        assert "two" not in str(caught.value)
