"""All of the chat on one server: routed, clarified, refused, broken out of, confirmed, denied, a flow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.models.fake_openai import FakeOpenAI
from tests.channels.chat import toolbelt
from tests.channels.chat.desk import ACCIDENT, BELT, PERSON, SUNNY, desk_model, rows
from tests.channels.chat.harness import Chat, Client, running_chat
from tests.service_process import running_service

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_service(tmp_path_factory.mktemp("engine")) as url:
        yield url


async def confirmed(client: Client, message_id: str, content: str, decision: str) -> dict[str, Any]:
    """The final frame of an answer in which one tool asks."""
    await client.send(type="message", id=message_id, content=content)
    waiting = await client.until(lambda f: f["type"] == "action" and f["content"]["status"] == "waiting")
    await client.send(type="confirm", call=waiting["content"]["call"], decision=decision)
    return await client.final(message_id)


def acted(client: Client, message_id: str) -> list[tuple[str, str]]:
    return [(f["content"]["tool"], f["content"]["status"]) for f in client.of(message_id, "action")]


async def test_a_desk_of_agents_answers_everything_that_is_asked_of_it(
    tmp_path: Path, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # C1, C2, C6, C8, C9, C10, C11, C13, C15
    prompts: list[str] = []
    toolbelt.CALLS.clear()
    async with FakeOpenAI(desk_model(prompts.append)).running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        settings = {"outbound_allow": "127.0.0.1"}
        async with running_chat(
            tmp_path,
            routing=True,
            on_wire=True,
            settings=settings,
            engine_url=engine_url,
            tool_modules=BELT,
        ) as chat:
            await chat.add(*rows(engine_url))
            async with chat.client() as client:
                await _talk(chat, client)
                finals = [f for f in client.frames if f["final"]]
                assert client.numbers == list(range(1, len(client.numbers) + 1))
                assert len(finals) == len({f["id"] for f in finals})
                assert "thinking" not in {f.get("state") for f in client.frames}
    shop = next(prompt for prompt in prompts if "Take an order." in prompt)
    assert shop.index("Never promise a discount.") < shop.index("Take an order.")


async def _talk(chat: Chat, client: Client) -> None:
    final = await client.say("routed", "What is the weather in Rome?")
    assert (final["agent"], final["state"], client.text("routed")) == ("weather_agent", "done", SUNNY)
    assert len(client.of("routed", "dialogue")) > 1

    final = await client.say("asks", "I would like to order a pizza")
    assert (final["agent"], final["state"], client.text("asks")) == (
        "order_agent",
        "clarifying",
        "Which size?",
    )
    final = await confirmed(client, "answers", "a large one", "yes")
    assert (final["agent"], final["state"]) == ("order_agent", "done")
    assert acted(client, "answers") == [
        ("kitchen", "started"),
        ("kitchen", "finished"),
        ("pay", "waiting"),
        ("pay", "started"),
        ("pay", "finished"),
    ]
    assert client.text("answers") == "Paid: your pizza is on its way."

    final = await confirmed(client, "denies", "the same pizza again", "no")
    assert (final["state"], client.text("denies")) == ("done", "Then it stays unpaid.")
    assert acted(client, "denies") == [("pay", "waiting"), ("pay", "rejected")]
    assert toolbelt.CALLS == [("pay", (9.5, "EUR"))]

    assert (await client.say("asks-again", "I would like to order a pizza"))["state"] == "clarifying"
    final = await client.say("leaves", "never mind, what is the weather in Milan?")
    assert (final["agent"], final["state"]) == ("weather_agent", "done")

    final = await client.say("refused", "Explain quantum chromodynamics")
    assert (final["state"], "Tells the weather" in client.text("refused")) == ("refused", True)

    final = await client.say("small", "hello there")
    assert (final["agent"], final["state"]) == ("smalltalk_agent", "done")

    final = await client.say("flow", ACCIDENT)
    assert (final["agent"], client.text("flow")) == ("claims_agent", "¿Cuál es su póliza?")
    await client.say("person", PERSON)
    task = client.of("person", "state")[0]["content"]
    assert (task["event"], task["task"], task["task_type"]) == ("task", "perito", "HUM")
    path = f"/v1/chat/sessions/{client.session}/human"
    joined = await chat.http.post(path, json={"outcome": "connected", "text": "Hola.", "name": "Pilar"})
    assert joined.status_code == 200, joined.text
    words = await client.until(lambda f: f["type"] == "dialogue" and f.get("agent") == "Pilar")
    assert (words["content"], words["final"]) == ("Hola.", True)
    assert ((await client.say("to-her", "Gracias"))["state"], client.text("to-her")) == ("done", "")

    decisions = await chat.decisions(client.session)
    assert [d["action"] for d in decisions] == [
        *("accept", "accept", "continue", "accept", "accept", "accept"),
        *("refuse", "accept", "accept", "continue", "continue"),
    ]
    assert "break-out" in decisions[5]["reason"]
    assert (await chat.http.post(f"/v1/chat/sessions/{client.session}/end")).status_code == 200
