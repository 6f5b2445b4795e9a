"""The chat on a server that speaks OpenAI's protocol, with everything that such servers do wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from adapters.models.fake_openai import FakeOpenAI, Malformed, Received, Status, WireStep
from adapters.models.scripted import CallsTools, DropsStream, Says, Stalls
from flow_engine.ports.models import ToolCall
from tests.channels.chat.harness import ORDERS, WEATHER, running_chat

pytestmark = pytest.mark.anyio

QUESTION = "What is the weather in Rome?"
SUNNY = Says("It is sunny in Rome, and warm.")


def chosen(agent: str, confidence: float = 0.9) -> Says:
    return Says(orjson.dumps({"agent": agent, "confidence": confidence}).decode())


async def talked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[WireStep], *messages: str
) -> tuple[Any, list[Received]]:
    """The client after these messages, and what the model's server was sent."""
    async with FakeOpenAI(steps).running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        settings = {"llm_timeout_s": 1.0}
        async with running_chat(tmp_path, routing=True, on_wire=True, settings=settings) as chat:
            await chat.add({**WEATHER, "temperature": 0.4, "top_p": 0.8}, ORDERS)
            await chat.http.patch("/v1/ai-agents/orchestrator", json={"temperature": None})
            async with chat.client() as client:
                for number, message in enumerate(messages, start=1):
                    await client.say(f"m-{number}", message)
                return client, list(server.requests)


def final(client: Any, message_id: str = "m-1") -> str:
    return next(f["state"] for f in client.frames if f["id"] == message_id and f["final"])


async def test_a_message_is_routed_and_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C6, C13
    client, sent = await talked(tmp_path, monkeypatch, [chosen("weather_agent"), SUNNY], QUESTION)
    assert (final(client), client.text("m-1")) == ("done", SUNNY.text)
    assert len(client.of("m-1", "dialogue")) > 1
    assert {f["confidence"] for f in client.of("m-1", "dialogue")} == {0.9}
    body = sent[1].body
    assert (body["temperature"], body["top_p"], body["stream"]) == (0.4, 0.8, True)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert {tool["function"]["name"] for tool in body["tools"]} == {"ask_user", "refuse"}


async def test_a_question_and_a_refusal_are_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C3, C9, C10
    steps: list[WireStep] = [
        chosen("weather_agent"),
        CallsTools([ToolCall("c1", "ask_user", {"question": "Which Rome?"})]),
        CallsTools([ToolCall("c2", "refuse", {"reason": "I know no such town."})], "Well."),
    ]
    client, sent = await talked(tmp_path, monkeypatch, steps, QUESTION, "the one in Ohio")
    assert (final(client), client.text("m-1")) == ("clarifying", "Which Rome?")
    assert (final(client, "m-2"), client.text("m-2")) == ("refused", "Well.\n\nI know no such town.")
    assert len(sent) == 3


@pytest.mark.parametrize("trouble", [Status(503), Stalls(30), Malformed()])
async def test_one_retry_mends_what_fails_before_the_first_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: WireStep
) -> None:  # C13
    steps: list[WireStep] = [chosen("weather_agent"), trouble, SUNNY]
    client, sent = await talked(tmp_path, monkeypatch, steps, QUESTION)
    assert (final(client), client.text("m-1"), len(sent)) == ("done", SUNNY.text, 3)


@pytest.mark.parametrize(
    ("trouble", "reason"), [(Status(503), "unreachable"), (Malformed(), "unusable_answer")]
)
async def test_a_model_that_fails_twice_is_told_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: WireStep, reason: str
) -> None:  # C13
    steps: list[WireStep] = [chosen("weather_agent"), trouble, trouble, chosen("weather_agent"), SUNNY]
    with capture_logs(processors=[merge_contextvars]) as logged:
        client, sent = await talked(tmp_path, monkeypatch, steps, QUESTION, QUESTION)
    (told,) = (each for each in logged if each["event"] == "model_failed")
    assert told["reason"] == reason
    assert (told["tenant_id"], told["session_id"]) == ("default", client.session)  # F46
    assert (final(client), client.text("m-1")) == ("refused", "")
    assert client.of("m-1", "error")[0]["content"]["code"] == "model_failed"
    assert (final(client, "m-2"), len(sent)) == ("done", 5)


async def test_a_stream_that_breaks_after_the_first_word_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C13
    steps: list[WireStep] = [chosen("weather_agent"), DropsStream("It is "), SUNNY]
    async with asyncio.timeout(20):
        client, sent = await talked(tmp_path, monkeypatch, steps, QUESTION)
    assert (final(client), client.text("m-1"), len(sent)) == ("refused", "It is ", 2)
    assert client.of("m-1", "error")[0]["content"]["code"] == "model_failed"


async def test_an_agent_that_says_nothing_of_its_model_is_asked_by_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C1, C5
    steps: list[WireStep] = [chosen("order_agent"), Says("Which pizza?")]
    client, sent = await talked(tmp_path, monkeypatch, steps, "I would like to order a pizza")
    assert (final(client), client.text("m-1")) == ("done", "Which pizza?")
    assert sent[1].body["temperature"] == 0.3
    assert "top_p" not in sent[1].body
