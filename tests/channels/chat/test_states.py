"""States of answers: asked, refused, broken out of, continued; and the decisions that are kept of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from adapters.models.scripted import CallsTools, Endless, Fails, Says, Step
from flow_engine.ports.models import LLMRequest, ToolCall
from tests.channels.chat.harness import ORDERS, WEATHER, running_chat

pytestmark = pytest.mark.anyio


def asks(question: str, text: str = "") -> CallsTools:
    return CallsTools([ToolCall("c1", "ask_user", {"question": question})], text)


def named(agent: str, confidence: float) -> str:
    return orjson.dumps({"agent": agent, "confidence": confidence}).decode()


async def test_the_answer_to_a_question_goes_to_the_agent_that_asked(tmp_path: Path) -> None:  # C9
    async with running_chat(tmp_path, [asks("Which size?"), Says("Ordered.")]) as chat:
        await chat.add(WEATHER, ORDERS)
        async with chat.client() as client:
            final = await client.say("m-1", "I would like to order a pizza")
            assert (final["state"], client.text("m-1")) == ("clarifying", "Which size?")
            final = await client.say("m-2", "rain")
            assert (final["state"], final["agent"], client.text("m-2")) == ("done", "order_agent", "Ordered.")
            last = chat.model.requests[-1]
            assert [(m.role, m.content) for m in last.messages[1:]] == [
                ("user", "I would like to order a pizza"),
                ("assistant", "Which size?"),
                ("user", "rain"),
            ]
            decisions = await chat.decisions(client.session)
            assert [d["action"] for d in decisions] == ["accept", "continue"]
            assert {d["agent"] for d in decisions} == {"order_agent"}
            assert len(chat.model.requests) == 2


async def test_a_turn_that_goes_on_lists_as_many_candidates_as_are_set(tmp_path: Path) -> None:  # C7, C9
    script = [asks("Which size?"), Says("Ordered.")]
    async with running_chat(tmp_path, script, chat_candidates=2) as chat:
        await chat.add(WEATHER, ORDERS)
        async with chat.client() as client:
            await client.say("m-1", "I would like to order a pizza")
            await client.say("m-2", "rain")
            decisions = await chat.decisions(client.session)
            assert [(d["action"], len(d["candidates"])) for d in decisions] == [
                ("accept", 2),
                ("continue", 2),
            ]


@pytest.mark.parametrize("words", [{}, {"reason": ""}, {"reason": " \n"}, {"reason": None}])
async def test_a_refusal_without_a_reason_is_tried_again(
    tmp_path: Path, words: dict[str, Any]
) -> None:  # C9, C10
    script = [CallsTools([ToolCall("c1", "refuse", each)]) for each in (words, {"reason": " No oranges. "})]
    async with running_chat(tmp_path, script) as chat:
        await chat.add(ORDERS)
        async with chat.client() as client:
            final = await client.say("m-1", "I would like to order a pizza")
            assert (final["state"], client.text("m-1")) == ("refused", "No oranges.")
            told = chat.model.requests[1].messages[-1]
            assert (told.role, told.tool_call_id) == ("tool", "c1")
            assert "reason" in told.content


@pytest.mark.parametrize(
    "message", ["What is the weather in Rome tomorrow?", "something else: the weather in Rome"]
)
async def test_a_user_may_break_out_of_a_question(tmp_path: Path, message: str) -> None:  # C9
    async with running_chat(tmp_path, [asks("Which size?"), Says("Sunny.")]) as chat:
        await chat.add(WEATHER, ORDERS)
        async with chat.client() as client:
            await client.say("m-1", "I would like to order a pizza")
            final = await client.say("m-2", message)
            assert (final["state"], final["agent"]) == ("done", "weather_agent")
            decisions = await chat.decisions(client.session)
            assert decisions[-1]["action"] == "accept"
            assert "break-out from 'order_agent'" in decisions[-1]["reason"]


async def test_what_nobody_fits_is_refused_with_what_can_be_done(tmp_path: Path) -> None:  # C10
    async with running_chat(tmp_path) as chat:
        await chat.add(WEATHER, ORDERS)
        async with chat.client(language="it-IT") as client:
            final = await client.say("m-1", "Xylophon Quantenfeld")
            assert final["state"] == "refused"
            assert "Takes orders of pizza and drinks." in client.text("m-1")
            assert "non c'è nessuno" in client.text("m-1")
            decision = (await chat.decisions(client.session))[0]
            assert (decision["action"], decision["agent"], decision["message"]) == ("refuse", None, "m-1")
            assert not chat.model.requests


async def test_smalltalk_wins_on_its_own_score_only(tmp_path: Path) -> None:  # C10
    async with running_chat(tmp_path) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            assert (await client.say("m-1", "Hello, how are you?"))["agent"] == "smalltalk_agent"
            assert (await client.say("m-2", "Xylophon"))["state"] == "refused"


async def test_two_candidates_within_the_margin_are_a_question(tmp_path: Path) -> None:  # C8, C9
    twins = [{"name": f"{n}_agent", "description": f"Sells {n} tickets."} for n in ("train", "plane")]
    async with running_chat(tmp_path, [Says("Here is your ticket.")]) as chat:
        await chat.add(*twins)
        async with chat.client() as client:
            final = await client.say("m-1", "tickets please")
            assert final["state"] == "clarifying"
            assert "Sells train tickets." in client.text("m-1")
            final = await client.say("m-2", "train")
            assert (final["state"], final["agent"]) == ("done", "train_agent")
            final = await client.say("m-3", "tickets")
            assert (await client.say("m-4", "2"))["agent"] == "train_agent"
            assert len(chat.model.requests) == 2


@pytest.mark.parametrize(
    ("answer", "action", "agent"),
    [
        (named("weather_agent", 0.9), "accept", "weather_agent"),
        ("<think>{hm}</think>```json\n" + named("weather_agent", 0.9) + "\n```", "accept", "weather_agent"),
        (named("weather_agent", 0.4), "clarify", "weather_agent"),
        (named("order_agent", 0.9), "clarify", "order_agent"),
        (named("weather_agent", 0.1), "refuse", None),
        (named("nobody", 0.9), "refuse", None),
        (named("orchestrator", 0.9), "refuse", None),
        (named("disabled_agent", 0.9), "refuse", None),
        ("weather_agent, I think", "refuse", None),
        ('{"agent": 7}', "refuse", None),
    ],
)
async def test_accept_takes_confidence_and_score(
    tmp_path: Path, answer: str, action: str, agent: str | None
) -> None:  # C6, C8
    async with running_chat(tmp_path, [Says(answer)], routing=True) as chat:
        await chat.add(WEATHER, ORDERS, {"name": "disabled_agent", "enabled": False, "task": "weather"})
        reply = await chat.http.post("/v1/chat/route", json={"text": "What is the weather in Rome?"})
        decision = reply.json()
        assert (decision["action"], decision["agent"], decision["decided_by"]) == (action, agent, "model")
        assert "disabled_agent" not in [each["agent"] for each in decision["candidates"]]
        assert "orchestrator" not in [each["agent"] for each in decision["candidates"]]
        system, user = chat.model.requests[0].messages
        effective = (await chat.http.get("/v1/ai-agents/orchestrator/effective")).json()
        assert system.content == effective["system_prompt"]
        assert "What is the weather in Rome?" in user.content


async def test_without_a_model_the_scores_decide_and_say_so(tmp_path: Path) -> None:  # C7, C8
    async with running_chat(tmp_path) as chat:
        await chat.add(WEATHER, ORDERS)
        replies = [
            (await chat.http.post("/v1/chat/route", json={"text": "the weather in Rome"})).content
            for _ in range(3)
        ]
        assert len(set(replies)) == 1
        decision = orjson.loads(replies[0])
        assert (decision["decided_by"], decision["confidence"]) == ("scores", None)
        assert (decision["action"], decision["agent"]) == ("accept", "weather_agent")
        assert all(0 <= each["score"] <= 1 for each in decision["candidates"])


@pytest.mark.parametrize("change", ["disabled", "deleted"])
async def test_an_agent_that_has_asked_and_is_gone_gets_no_further_message(
    tmp_path: Path, change: str
) -> None:  # C9
    async with running_chat(tmp_path, [asks("Which size?"), Says("fine")]) as chat:
        await chat.add(WEATHER, ORDERS)
        async with chat.client() as client:
            await client.say("m-1", "I would like to order a pizza")
            path = "/v1/ai-agents/order_agent"
            if change == "disabled":
                await chat.http.patch(path, json={"enabled": False})
            else:
                await chat.http.delete(path)
            final = await client.say("m-2", "a large pizza margherita")
            assert final["state"] == "refused"
            assert [d["action"] for d in await chat.decisions(client.session)] == ["accept", "refuse"]


@pytest.mark.parametrize(
    ("answer", "agent"),
    [
        ("2.", 1),
        ("PLANE_AGENT", "plane_agent"),
        ("train_agent", "train_agent"),
        ("yes", None),
        ("0010", None),
    ],
)
async def test_the_orchestrators_question_is_answered_by_number_or_name(
    tmp_path: Path, answer: str, agent: str | int | None
) -> None:  # C9
    twins = [{"name": f"{n}_agent", "description": f"Sells {n} tickets."} for n in ("train", "plane")]
    async with running_chat(tmp_path, [Says("Here you are.")]) as chat:
        await chat.add(*twins)
        async with chat.client() as client:
            await client.say("m-1", "tickets please")
            offered = [line[3:] for line in client.text("m-1").splitlines()[1:]]
            final = await client.say("m-2", answer)
            if agent is None:  # a yes to two is no answer, nor is a number that was not offered
                assert final["state"] == "clarifying"
            else:
                chosen = agent if isinstance(agent, str) else f"{offered[agent].split()[1]}_agent"
                assert (final["state"], final["agent"]) == ("done", chosen)
                last = (await chat.decisions(client.session))[-1]
                assert (last["action"], last["reason"]) == ("accept", "the user chose from the question")


async def test_a_model_that_fails_is_told_to_the_user_and_the_session_goes_on(tmp_path: Path) -> None:  # C13
    script: list[Step] = [Fails("refused"), Says("Sunny.")]
    async with running_chat(tmp_path, script) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            final = await client.say("m-1", "What is the weather in Rome?")
            assert final["state"] == "refused"
            assert [f["content"]["code"] for f in client.of("m-1", "error")] == ["model_failed"]
            assert (await client.say("m-2", "What is the weather in Rome?"))["state"] == "done"
            runs = await chat.runs(client.session)
            assert [run["status"] for run in runs] == ["error", "completed"]


async def test_thoughts_never_leave_the_server(tmp_path: Path) -> None:  # C3
    async with running_chat(tmp_path, [Says("<think>They want <b>rain</b>.</think>\n\nSunny <3.")]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", "What is the weather in Rome?")
            assert client.text("m-1") == "Sunny <3."
            assert "rain" not in orjson.dumps(client.frames).decode()
            assert "thinking" not in {frame.get("state") for frame in client.frames}


async def test_a_thought_that_nothing_opens_is_held_once_the_model_is_known_to_have_such(
    tmp_path: Path,
) -> None:  # C3
    unopened, cut = "They want <b>rain</b>.\n</think>\n\nSunny <3.", Endless("They want rain. ")
    script = [Says(unopened), Says(unopened), cut, Says("It is sunny."), Says("It is sunny.")]
    async with running_chat(tmp_path, script) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", "What is the weather in Rome?")
            await client.say("m-2", "What is the weather in Rome?")
            assert (client.text("m-2"), len(client.of("m-2", "dialogue"))) == ("Sunny <3.", 1)
            await client.say("m-3", "What is the weather in Rome?")
            assert client.text("m-3") == "It is sunny."  # asked again, since it never came to its answer
            assert "</think>" not in orjson.dumps(client.frames).decode()


async def test_an_answer_that_stops_at_the_token_limit_says_so(tmp_path: Path) -> None:  # C13
    async with running_chat(tmp_path, [Endless(), Says("Sunny.")]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            cut = await client.say("m-1", "What is the weather in Rome?")
            assert (cut["state"], cut["content"]) == ("done", {"event": "answered", "cut": True})
            whole = await client.say("m-2", "What is the weather in Rome?")
            assert (whole["state"], whole["content"]) == ("done", {"event": "answered"})


async def test_parameters_of_the_row_reach_the_model(tmp_path: Path) -> None:  # C1, C5
    row: dict[str, Any] = {**WEATHER, "temperature": 0.9, "top_p": 0.5, "num_ctx": 8192, "model": "ollama:q"}
    async with running_chat(tmp_path) as chat:
        await chat.add(row)
        async with chat.client() as client:
            await client.say("m-1", "What is the weather in Rome?")
        asked: LLMRequest = chat.model.requests[0]
        assert (asked.temperature, asked.top_p, asked.num_ctx, asked.model) == (0.9, 0.5, 8192, "ollama:q")
        effective = (await chat.http.get("/v1/ai-agents/weather_agent/effective")).json()
        assert asked.messages[0].content == effective["system_prompt"]
        assert {spec.name for spec in asked.tools} == {"ask_user", "refuse"}


async def test_a_run_and_its_calls_are_kept_with_what_they_cost(tmp_path: Path) -> None:  # M14
    async with running_chat(tmp_path, [Says("Sunny.")]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", "What is the weather in Rome?")
            run = (await chat.runs(client.session))[0]
            assert (run["profile"], run["status"], run["iterations"]) == ("weather_agent", "completed", 1)
            assert (run["final_message"], run["error"], run["tool_calls_log"]) == ("Sunny.", None, [])
            assert run["usage"]["output_tokens"] > 0
            assert [call["call_type"] for call in run["llm_calls"]] == ["agent"]
            unknown = await chat.http.get("/v1/chat/sessions/nothing/runs")
            assert (unknown.status_code, unknown.json()["code"]) == (404, "session_unknown")
