"""What every OutboundSender keeps to, the shipped double included."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator

import pytest

from adapters.outbound.client import GuardedClient
from adapters.outbound.fake import RecordedCall, ScriptedOutbound
from adapters.outbound.policy import AllowList
from flow_engine.ports.outbound import (
    OutboundFailed,
    OutboundRefused,
    OutboundReply,
    OutboundSender,
    post_json,
)
from tests.adapters.outbound.local_server import PUBLIC, RecordingDialler, ScriptedResolver, ok, serving

pytestmark = pytest.mark.anyio

ANSWERS = "http://answers.example/"
FORBIDDEN = "http://127.0.0.1/"
UNREACHABLE = "http://93.184.216.35/"


@pytest.fixture(params=["guarded", "scripted"])
async def caller(request: pytest.FixtureRequest) -> AsyncGenerator[OutboundSender, None]:
    if request.param == "scripted":
        yield ScriptedOutbound(
            {
                ANSWERS: [OutboundReply(202, b"true")],
                FORBIDDEN: [OutboundRefused("loopback")],
                UNREACHABLE: [OutboundFailed("nobody there")],
            }
        )
        return
    async with serving(ok(b"true", status=b"202 Accepted")) as server:
        dialler = RecordingDialler({PUBLIC: server.port})
        client = GuardedClient(AllowList(), resolver=ScriptedResolver([PUBLIC]), dialler=dialler)
        yield client
        await client.aclose()


async def test_a_reply_is_status_and_body(caller: OutboundSender) -> None:  # F45
    for _ in range(2):
        assert await post_json(caller, ANSWERS, {"a": [1]}, timeout_s=5) == OutboundReply(202, b"true")


async def test_a_forbidden_address_is_refused(caller: OutboundSender) -> None:  # F45
    with pytest.raises(OutboundRefused):
        await post_json(caller, FORBIDDEN, None, timeout_s=5)


async def test_an_unreachable_address_fails(caller: OutboundSender) -> None:  # F45
    with pytest.raises(OutboundFailed):
        await post_json(caller, UNREACHABLE, None, timeout_s=5)


async def test_a_payload_that_is_no_json_fails(caller: OutboundSender) -> None:  # F45
    with pytest.raises(OutboundFailed):
        await post_json(caller, ANSWERS, {"a": object()}, timeout_s=5)


class TestScriptedOutbound:
    async def test_answers_in_order_and_repeats_the_last(self) -> None:  # F45
        outbound = ScriptedOutbound({ANSWERS: [OutboundFailed("first"), OutboundReply(200, b"")]})
        with pytest.raises(OutboundFailed, match="first"):
            await post_json(outbound, ANSWERS, 1, timeout_s=5)
        for _ in range(2):
            assert (await post_json(outbound, ANSWERS, 1, timeout_s=5)).status == 200

    async def test_records_every_call_as_it_was_made(self) -> None:  # F45
        outbound = ScriptedOutbound({ANSWERS: [OutboundFailed("down")]})
        with pytest.raises(OutboundFailed):
            await post_json(outbound, ANSWERS, {"id": "c1"}, timeout_s=5)
        with pytest.raises(OutboundFailed):
            await outbound.request("PUT", ANSWERS, headers={"X-A": "b"}, content=b"raw", timeout_s=2)
        posted, put = outbound.calls
        assert (posted.method, posted.url, posted.timeout_s, posted.json()) == (
            "POST",
            ANSWERS,
            5,
            {"id": "c1"},
        )
        assert put == RecordedCall("PUT", ANSWERS, 2, {"X-A": "b"}, b"raw")

    async def test_a_url_outside_of_the_table_is_the_tests_mistake_and_no_outage(self) -> None:  # F45
        with pytest.raises(LookupError, match=r"scripted are \['http://answers"):
            await post_json(ScriptedOutbound({ANSWERS: [OutboundReply(200, b"")]}), FORBIDDEN, 1, timeout_s=5)

    def test_a_url_without_answers_is_refused_at_once(self) -> None:  # F45
        with pytest.raises(ValueError, match="without an answer"):
            ScriptedOutbound({ANSWERS: []})

    def test_has_the_signature_of_the_real_client(self) -> None:  # F45
        assert inspect.signature(ScriptedOutbound.request) == inspect.signature(GuardedClient.request)
