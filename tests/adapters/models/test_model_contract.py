"""What holds for every implementation of `Model` and `ChatModel`."""

from __future__ import annotations

import time

import pytest

from adapters.models.answers import longest_answer
from adapters.models.chat import LLMRequest, Message, ToolCall, ToolSpec
from adapters.models.script import (
    Answers,
    CallsToolBadly,
    CallsTools,
    Endless,
    Fails,
    Says,
    Stalls,
    Step,
    Truncated,
)
from flow_engine.ports.models import FailureReason, ModelFailed
from tests.adapters.models.model_worlds import SCHEMA, SHORT_S, TIMEOUT_S, WORLDS, World, call

pytestmark = pytest.mark.anyio

TOOL = ToolSpec("find", "Finds", {"type": "object", "properties": {"query": {"type": "string"}}})


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]


async def failure(world: World, step: Step) -> ModelFailed:
    waits = isinstance(step, Stalls) or step == Fails("timeout")
    async with world([step], SHORT_S if waits else TIMEOUT_S) as model:
        with pytest.raises(ModelFailed) as failed:
            await model.ask(call(SCHEMA))
    return failed.value


async def test_an_object_is_answered_where_a_schema_asks_for_one(world: World) -> None:
    async with world([Answers({"values": {"date": "2026-05-04"}})], TIMEOUT_S) as model:
        answer = await model.ask(call(SCHEMA))
    assert answer.data == {"values": {"date": "2026-05-04"}}  # F37


async def test_text_is_answered_where_no_schema_asks(world: World) -> None:
    async with world([Says("On Monday.")], TIMEOUT_S) as model:
        answer = await model.ask(call())
    assert (answer.text, answer.data) == ("On Monday.", None)


async def test_what_a_call_took_is_counted(world: World) -> None:
    async with world([Says("On Monday, as the user says.")], TIMEOUT_S) as model:
        answer = await model.ask(call())
    assert answer.input_tokens >= 6
    assert answer.output_tokens == 7
    assert ":" in answer.model


async def test_data_is_handed_over_unchecked_so_that_each_value_can_be_judged(world: World) -> None:
    async with world([Answers({"values": {"date": 5, "unknown": []}})], TIMEOUT_S) as model:
        answer = await model.ask(call(SCHEMA))
    assert answer.data == {"values": {"date": 5, "unknown": []}}  # F37


async def test_an_object_in_a_code_fence_is_read(world: World) -> None:
    async with world([Says('Here it is:\n```json\n{"values": {}}\n```')], TIMEOUT_S) as model:
        assert (await model.ask(call(SCHEMA))).data == {"values": {}}


@pytest.mark.parametrize(
    "step",
    [Truncated({"values": {"date": "2026-05-04"}}), Says("I cannot tell."), Says("[1, 2]"), Endless()],
    ids=["truncated", "prose", "no object", "endless"],
)
async def test_an_answer_without_an_object_is_unusable(world: World, step: Step) -> None:
    assert (await failure(world, step)).reason == "unusable_answer"


@pytest.mark.parametrize("reason", ["too_many_calls", "unreachable", "refused", "unusable_answer", "timeout"])
async def test_every_failure_has_its_reason(world: World, reason: FailureReason) -> None:
    assert (await failure(world, Fails(reason))).reason == reason


async def test_a_model_that_stalls_is_left_in_time(world: World) -> None:
    began = time.monotonic()
    assert (await failure(world, Stalls(30))).reason == "timeout"
    assert time.monotonic() - began < 5


async def test_endless_text_is_cut(world: World) -> None:
    async with world([Endless()], TIMEOUT_S) as model:
        answer = await model.ask(call(max_tokens=20))
    assert 0 < len(answer.text) <= longest_answer(20)
    assert answer.output_tokens > 0


async def test_tools_that_the_model_calls_come_with_ids_and_arguments(world: World) -> None:
    calls = [ToolCall("a", "find", {"query": "x"}), ToolCall("b", "find", {"query": "y"})]
    async with world([CallsTools(calls, "Let me look.")], TIMEOUT_S) as model:
        answer = await model.chat(LLMRequest([Message("user", "Look.")], [TOOL]))
    assert answer.message == Message("assistant", "Let me look.", tool_calls=tuple(calls))  # M8


async def test_arguments_that_do_not_parse_are_an_empty_object(world: World) -> None:
    async with world([CallsToolBadly("find")], TIMEOUT_S) as model:
        answer = await model.chat(LLMRequest([Message("user", "Look.")], [TOOL]))
    assert [(c.name, c.arguments) for c in answer.message.tool_calls] == [("find", {})]  # M9


async def test_a_dialogue_with_tool_results_goes_on(world: World) -> None:
    turns = [
        Message("system", "Be brief."),
        Message("user", "Look."),
        Message("assistant", "", tool_calls=(ToolCall("a", "find", {"query": "x"}),)),
        Message("tool", '{"found": 1}', tool_call_id="a"),
    ]
    async with world([Says("One.")], TIMEOUT_S) as model:
        answer = await model.chat(LLMRequest(turns, [TOOL]))
    assert answer.message == Message("assistant", "One.")


async def test_a_failing_chat_has_its_reason_too(world: World) -> None:
    async with world([Fails("refused")], TIMEOUT_S) as model:
        with pytest.raises(ModelFailed) as failed:
            await model.chat(LLMRequest([Message("user", "Look.")]))
    assert failed.value.reason == "refused"  # M9
