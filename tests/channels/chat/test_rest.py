"""What the routes under `/v1/chat` refuse, and what their dry run leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.models.scripted import CallsTools, Fails, Says
from flow_engine.errors import CallTheOperator
from flow_engine.ports.models import ToolCall
from tests.channels.chat.harness import ORDERS, WEATHER, Chat, running_chat

pytestmark = pytest.mark.anyio

ORDER = "I would like to order a pizza"


async def pointers(chat: Chat, path: str, body: object) -> list[str]:
    answer = await chat.http.post(f"/v1/chat{path}", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), (
        answer.text
    )
    assert answer.json()["code"] == "body_invalid"
    return sorted(error["pointer"] for error in answer.json()["errors"])


async def test_a_body_that_breaks_rules_is_told_every_one(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path) as chat:
        assert await pointers(chat, "/tokens", {"ttl_s": 0, "admin": True}) == ["/admin", "/ttl_s", "/user"]
        assert await pointers(chat, "/tokens", {"user": "u", "ttl_s": 86_401}) == ["/ttl_s"]
        assert await pointers(chat, "/tokens", {"user": 7}) == ["/user"]
        assert await pointers(chat, "/route", {"text": ""}) == ["/text"]
        assert await pointers(chat, "/route", {"text": "x" * 8_001, "agent": "a"}) == ["/agent", "/text"]
        ref = await chat.sessions.create("default", "u1", None)
        session = f"/sessions/{ref.session_id}"
        assert await pointers(chat, f"{session}/end", {"reason": 7}) == ["/reason"]
        assert await pointers(chat, f"{session}/human", {}) == [""]
        assert await pointers(chat, f"{session}/human", {"outcome": "left", "text": ""}) == [
            "/outcome",
            "/text",
        ]
        refused = await chat.http.post(f"/v1/chat{session}/human", json={"outcome": "left"})
        message = refused.json()["errors"][0]["message"]
        assert all(word in message for word in ("connected", "completed", "failed", "taken_over", "released"))
        for path in ("/tokens", "/route", f"{session}/human"):
            for body in (b"{", b"[]", b""):
                assert (await chat.http.post(f"/v1/chat{path}", content=body)).status_code in (400, 422)


async def test_a_session_without_a_flow_has_no_place_for_a_person(tmp_path: Path) -> None:  # C15
    async with running_chat(tmp_path) as chat:
        ref = await chat.sessions.create("default", "u1", None)
        answer = await chat.http.post(f"/v1/chat/sessions/{ref.session_id}/human", json={"text": "Hello"})
        assert (answer.status_code, answer.json()["code"]) == (409, "no_flow")
        unknown = await chat.http.post("/v1/chat/sessions/s-none/human", json={"text": "Hello"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "session_unknown")
        assert await chat.sessions.store.last(ref) == 0


async def test_a_dry_run_in_a_session_is_that_sessions_and_changes_nothing(tmp_path: Path) -> None:  # C8, C9
    asks = CallsTools([ToolCall("c", "ask_user", {"question": "Which size?"})])
    async with running_chat(tmp_path, [asks, Says("Ordered.")]) as chat:
        await chat.add(WEATHER, ORDERS)
        async with chat.client() as client:
            await client.say("m-1", ORDER)
            for text, action, agent in (
                ("large", "continue", "order_agent"),
                ("something else: the weather in Rome", "accept", "weather_agent"),
                ("Xylophon", "continue", "order_agent"),
            ):
                body = {"text": text, "session": client.session}
                decision = (await chat.http.post("/v1/chat/route", json=body)).json()
                assert (decision["action"], decision["agent"]) == (action, agent)
                assert set(decision) == {
                    *("candidates", "agent", "confidence", "action", "reason", "decided_by"),
                }
            alone = (await chat.http.post("/v1/chat/route", json={"text": "large"})).json()
            assert alone["action"] == "refuse"
            assert len(await chat.decisions(client.session)) == 1
            assert (await client.say("m-2", "large"))["agent"] == "order_agent"
        unknown = await chat.http.post("/v1/chat/route", json={"text": "x", "session": "s-none"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "session_unknown")


async def test_a_dry_run_whose_model_fails_is_to_be_tried_again(tmp_path: Path) -> None:  # C6
    async with running_chat(tmp_path, [Fails("timeout")], routing=True) as chat:
        await chat.add(WEATHER)
        answer = await chat.http.post("/v1/chat/route", json={"text": ORDER})
        assert (answer.status_code, answer.json()["code"]) == (503, "model_failed")
        assert "retry-after" in answer.headers


async def test_rules_of_tools_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:  # C11
    for rules in ("perhaps:pay", "forbid"):
        with pytest.raises(CallTheOperator, match="FLOW_ENGINE_CHAT_TOOL_RULES"):
            async with running_chat(tmp_path, chat_tool_rules=rules):
                pass
