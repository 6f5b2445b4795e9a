"""What holds for every implementation of `LanguageModel`."""

from __future__ import annotations

import time
from dataclasses import replace

import orjson
import pytest

from adapters.models.answers import longest_answer
from adapters.models.scripted import (
    Answers,
    CallsToolBadly,
    CallsTools,
    DropsStream,
    Endless,
    Fails,
    Says,
    Stalls,
    Step,
    Truncated,
)
from flow_engine.ports.models import (
    FailureReason,
    LLMAnswer,
    LLMRequest,
    Message,
    ModelFailed,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolSpec,
    ask,
)
from tests.adapters.models.model_worlds import SCHEMA, SHORT_S, TIMEOUT_S, WORLDS, World, call, streamed

pytestmark = pytest.mark.anyio

TOOL = ToolSpec("find", "Finds", {"type": "object", "properties": {"query": {"type": "string"}}})


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]


async def failure(world: World, step: Step) -> ModelFailed:
    waits = isinstance(step, Stalls) or step == Fails("timeout")
    async with world([step], SHORT_S if waits else TIMEOUT_S) as model:
        with pytest.raises(ModelFailed) as failed:
            await ask(model, call(SCHEMA))
    return failed.value


async def test_an_object_is_answered_where_a_schema_asks_for_one(world: World) -> None:
    async with world([Answers({"values": {"date": "2026-05-04"}})], TIMEOUT_S) as model:
        answer = await ask(model, call(SCHEMA))
    assert answer.data == {"values": {"date": "2026-05-04"}}  # F37


async def test_text_is_answered_where_no_schema_asks(world: World) -> None:
    async with world([Says("On Monday.")], TIMEOUT_S) as model:
        answer = await ask(model, call())
    assert (answer.text, answer.data, answer.finish_reason) == ("On Monday.", None, "stop")


async def test_what_a_call_took_is_counted(world: World) -> None:
    async with world([Says("On Monday, as the user says.")], TIMEOUT_S) as model:
        answer = await ask(model, call())
    assert answer.input_tokens >= 6
    assert answer.output_tokens == 7
    assert ":" in answer.model


async def test_data_is_handed_over_unchecked_so_that_each_value_can_be_judged(world: World) -> None:
    async with world([Answers({"values": {"date": 5, "unknown": []}})], TIMEOUT_S) as model:
        answer = await ask(model, call(SCHEMA))
    assert answer.data == {"values": {"date": 5, "unknown": []}}  # F37


async def test_an_object_in_a_code_fence_is_read(world: World) -> None:
    async with world([Says('Here it is:\n```json\n{"values": {}}\n```')], TIMEOUT_S) as model:
        assert (await ask(model, call(SCHEMA))).data == {"values": {}}


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
    assert time.monotonic() - began < 25


async def test_endless_text_is_cut(world: World) -> None:
    async with world([Endless()], TIMEOUT_S) as model:
        answer = await ask(model, call(max_tokens=20))
    assert 0 < len(answer.text) <= longest_answer(20)
    assert answer.output_tokens > 0
    assert answer.finish_reason == "length"


async def test_tools_that_the_model_calls_come_with_ids_and_arguments(world: World) -> None:
    calls = [ToolCall("a", "find", {"query": "x"}), ToolCall("b", "find", {"query": "y"})]
    async with world([CallsTools(calls, "Let me look.")], TIMEOUT_S) as model:
        answer = await ask(model, LLMRequest([Message("user", "Look.")], [TOOL]))
    assert answer.message == Message("assistant", "Let me look.", tool_calls=tuple(calls))  # M8


async def test_arguments_that_do_not_parse_are_an_empty_object(world: World) -> None:
    async with world([CallsToolBadly("find")], TIMEOUT_S) as model:
        answer = await ask(model, LLMRequest([Message("user", "Look.")], [TOOL]))
    assert [(c.name, c.arguments) for c in answer.message.tool_calls] == [("find", {})]  # M9


async def test_a_dialogue_with_tool_results_goes_on(world: World) -> None:
    turns = [
        Message("system", "Be brief."),
        Message("user", "Look."),
        Message("assistant", "", tool_calls=(ToolCall("a", "find", {"query": "x"}),)),
        Message("tool", '{"found": 1}', tool_call_id="a"),
    ]
    async with world([Says("One.")], TIMEOUT_S) as model:
        answer = await ask(model, LLMRequest(turns, [TOOL]))
    assert answer.message == Message("assistant", "One.")


async def test_a_failing_chat_has_its_reason_too(world: World) -> None:
    async with world([Fails("refused")], TIMEOUT_S) as model:
        with pytest.raises(ModelFailed) as failed:
            await ask(model, LLMRequest([Message("user", "Look.")]))
    assert failed.value.reason == "refused"  # M9


STORY = "It was a dark and stormy night; the rain fell in torrents."
LOOK = LLMRequest([Message("user", "Look.")], [TOOL], deltas=True)


async def test_a_streamed_answer_comes_in_pieces_and_ends_with_the_whole(world: World) -> None:
    async with world([Says(STORY)], TIMEOUT_S) as model:
        events, failure = await streamed(model, replace(LOOK, tools=()))
    *pieces, answer = events
    assert failure is None
    assert len(pieces) > 1
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextDelta)) == STORY  # C6
    assert isinstance(answer, LLMAnswer)
    assert answer.message == Message("assistant", STORY)
    assert answer.output_tokens > 0


async def test_without_deltas_the_answer_is_the_only_event(world: World) -> None:
    async with world([Says(STORY)], TIMEOUT_S) as model:
        [answer], _ = await streamed(model, replace(LOOK, deltas=False))
    assert isinstance(answer, LLMAnswer)


async def test_streamed_tool_calls_come_in_pieces_that_join_to_their_json(world: World) -> None:
    calls = [ToolCall("a", "find", {"query": "x" * 40}), ToolCall("b", "find", {"query": "y"})]
    async with world([CallsTools(calls, "Let me look.")], TIMEOUT_S) as model:
        events, _ = await streamed(model, LOOK)
    pieces = [event for event in events if isinstance(event, ToolCallDelta)]
    assert [(p.index, p.id, p.name) for p in pieces if p.id] == [(0, "a", "find"), (1, "b", "find")]
    joined = ["".join(p.arguments for p in pieces if p.index == index) for index in (0, 1)]
    assert [orjson.loads(text) for text in joined] == [call.arguments for call in calls]
    answer = events[-1]
    assert isinstance(answer, LLMAnswer)
    assert (answer.message.tool_calls, answer.finish_reason) == (tuple(calls), "tool_calls")


async def test_a_stream_that_stalls_has_its_reason_too(world: World) -> None:  # F37
    async with world([Stalls(30)], SHORT_S) as model:
        assert (await streamed(model, LOOK))[1] == "timeout"


async def test_a_stream_that_breaks_keeps_what_came_and_fails(world: World) -> None:
    async with world([DropsStream("It was a dark")], TIMEOUT_S) as model:
        events, failure = await streamed(model, replace(LOOK, tools=()))
    assert failure == "unreachable"
    assert not any(isinstance(event, LLMAnswer) for event in events)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "It was a dark"


async def test_streamed_pieces_are_cut_where_the_answer_is(world: World) -> None:
    async with world([Endless()], TIMEOUT_S) as model:
        events, _ = await streamed(model, replace(LOOK, tools=(), max_tokens=20))
    answer = events[-1]
    assert isinstance(answer, LLMAnswer)
    assert answer.text == "".join(e.text for e in events if isinstance(e, TextDelta)).strip()
    assert len(answer.text) <= longest_answer(20)


async def test_an_answer_of_nothing_is_unusable_where_no_tool_is_offered(world: World) -> None:
    assert (await failure(world, Says(""))).reason == "unusable_answer"
