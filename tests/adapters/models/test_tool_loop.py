"""The tool loop that every agent runs."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import orjson
import pytest

from adapters.models.fake_openai import FakeOpenAI
from adapters.models.loop import (
    MAX_ITERATIONS,
    LoopResult,
    ToolFinished,
    ToolStarted,
    tool_loop,
    unanswered,
)
from adapters.models.scripted import CallsToolBadly, CallsTools, Fails, Says, ScriptedModel
from adapters.models.tools import Approval, ToolRegistry, ToolRule, ToolRules, Undecided
from flow_engine.ports.models import (
    LanguageModel,
    LLMAnswer,
    LLMRequest,
    Message,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)
from tests.adapters.models.model_worlds import vendor
from tests.adapters.models.test_tool_registry import Recorder, registry

pytestmark = pytest.mark.anyio

MAIL = LLMRequest([Message("system", "You are a pharmacist."), Message("user", "Is ibuprofen there?")])
SEARCH = CallsTools([ToolCall("c1", "search", {"query": "ibuprofen"})])


async def run_tool_loop(
    model: LanguageModel, request: LLMRequest, tools: ToolRegistry, max_iterations: int = MAX_ITERATIONS
) -> LoopResult:
    async with aclosing(tool_loop(model, request, tools, max_iterations)) as events:
        *_, result = [event async for event in events]
    assert isinstance(result, LoopResult)
    return result


async def test_no_tool_call_completes_at_once() -> None:
    model = ScriptedModel([Says("Yes.")])
    result = await run_tool_loop(model, MAIL, registry(Recorder().tool()))
    assert (result.status, result.final_message, result.iterations) == ("completed", "Yes.", 1)  # M6
    assert result.tool_calls == ()
    [request] = model.requests
    assert [m.role for m in request.messages] == ["system", "user"]
    assert [t.name for t in request.tools] == ["search"]


async def test_every_tool_call_is_run_recorded_and_told_to_the_model() -> None:
    both = CallsTools([ToolCall("a", "search", {"query": "x"}), ToolCall("b", "search", {"query": "y"})])
    model = ScriptedModel([both, SEARCH, Says("Done.")])
    result = await run_tool_loop(model, MAIL, registry(Recorder({"hits": 2}).tool()))
    assert [(r.tool_name, r.arguments, r.result, r.iteration) for r in result.tool_calls] == [
        ("search", {"query": "x"}, {"hits": 2}, 1),
        ("search", {"query": "y"}, {"hits": 2}, 1),
        ("search", {"query": "ibuprofen"}, {"hits": 2}, 2),
    ]  # M7
    assert result.iterations == 3
    told = [m for m in result.messages if m.role == "tool"]
    assert [(m.tool_call_id, orjson.loads(m.content)) for m in told] == [
        ("a", {"hits": 2}),
        ("b", {"hits": 2}),
        ("c1", {"hits": 2}),
    ]  # M8


async def test_a_loop_that_never_ends_is_ended() -> None:
    model = ScriptedModel([SEARCH])
    result = await run_tool_loop(model, MAIL, registry(Recorder().tool()), 4)
    assert (result.status, result.iterations, len(result.tool_calls)) == ("max_iterations", 4, 4)  # M6
    assert (result.final_message, result.error) == (None, None)


async def test_a_failing_model_ends_the_loop_with_its_text() -> None:
    model = ScriptedModel([SEARCH, Fails("refused")])
    result = await run_tool_loop(model, MAIL, registry(Recorder().tool()))
    assert result.status == "error"
    assert result.error is not None
    assert "refused" in result.error  # M9
    assert len(result.tool_calls) == 1


async def test_a_failing_tool_does_not_end_the_loop() -> None:
    model = ScriptedModel([SEARCH, Says("Sorry.")])
    result = await run_tool_loop(model, MAIL, registry(Recorder(RuntimeError("no stock list")).tool()))
    assert result.status == "completed"
    assert result.tool_calls[0].result == {"error": "no stock list"}  # M9


async def test_arguments_that_do_not_parse_do_not_run_the_tool_blind() -> None:
    recorder = Recorder()
    result = await run_tool_loop(
        ScriptedModel([CallsToolBadly("search"), Says("Sorry.")]), MAIL, registry(recorder.tool())
    )
    assert not recorder.calls
    assert result.tool_calls[0].arguments == {}
    assert "query" in str(result.tool_calls[0].result)  # M9


async def test_the_usage_of_all_turns_is_added_up() -> None:
    result = await run_tool_loop(
        ScriptedModel([CallsTools(SEARCH.calls, "abcd"), Says("abcdefgh")]),
        MAIL,
        registry(Recorder().tool()),
    )
    assert result.output_tokens == 3
    assert result.input_tokens > 0


async def test_over_the_wire_the_loop_speaks_openais_function_format() -> None:
    async with (
        FakeOpenAI([SEARCH, Says("Yes.")]).running() as server,
        vendor(server, "openai:gpt-4.1") as model,
    ):
        result = await run_tool_loop(model, MAIL, registry(Recorder({"hits": 2}).tool()))
    assert (result.status, result.final_message) == ("completed", "Yes.")
    first, second = (request.body for request in server.requests)
    assert first["tools"][0]["type"] == "function"
    assert first["tools"][0]["function"]["parameters"]["required"] == ["query"]
    called, told = second["messages"][-2:]
    assert called["tool_calls"][0]["function"]["name"] == "search"
    assert told["role"] == "tool"
    assert told["tool_call_id"] == called["tool_calls"][0]["id"] == "c1"
    assert orjson.loads(told["content"]) == {"hits": 2}  # M8


async def test_the_loop_tells_each_step_as_it_happens() -> None:
    """D5: whoever streams an answer shows its tools too, and what the policy refuses is not started."""
    recorder = Recorder({"hits": 2})
    tools = registry(recorder.tool(), approval=Approval(ToolRules((ToolRule("forbid", "order"),))))
    tools.register(recorder.tool("order"))
    model = ScriptedModel(
        [CallsTools([*SEARCH.calls, ToolCall("c2", "order", {"query": "x"})]), Says("Two.")]
    )
    async with aclosing(tool_loop(model, replace(MAIL, deltas=True), tools)) as events:
        steps = [event async for event in events]
    assert [type(step) for step in steps] == [
        *[ToolCallDelta] * 5,
        LLMAnswer,
        ToolStarted,
        ToolFinished,
        ToolFinished,
        TextDelta,
        LLMAnswer,
        LoopResult,
    ]
    finished = [step for step in steps if isinstance(step, ToolFinished)]
    assert [(f.call.id, f.executed) for f in finished] == [("c1", True), ("c2", False)]
    assert "forbids" in str(finished[1].record.result)
    assert len(recorder.calls) == 1


class Later:
    """A person who answers when there is an answer."""

    def __init__(self, answer: bool | None = None) -> None:
        self.answer = answer

    async def confirms(self, call: ToolCall) -> bool:
        if self.answer is None:
            raise Undecided
        return self.answer


async def _result(model: ScriptedModel, tools: ToolRegistry, earlier: LoopResult | None = None) -> LoopResult:
    async with aclosing(tool_loop(model, MAIL, tools, earlier=earlier)) as events:
        return [event async for event in events if isinstance(event, LoopResult)][-1]


@pytest.mark.parametrize("answer", [True, False])
async def test_a_loop_whose_call_waits_goes_on_from_it_when_there_is_a_decision(answer: bool) -> None:
    """M11: what came before is not done again, what comes after is done then."""
    recorder, person = Recorder({"hits": 2}), Later()
    tools = registry(recorder.tool(), approval=Approval(ToolRules((ToolRule("prompt", "order"),)), person))
    tools.register(recorder.tool("order"))
    order = ToolCall("c2", "order", {"query": "x"})
    model = ScriptedModel([CallsTools([*SEARCH.calls, order, ToolCall("c3", *_search("y"))]), Says("Done.")])
    stopped = await _result(model, tools)
    assert (stopped.status, stopped.iterations) == ("waiting", 1)
    assert [call.id for call in unanswered(stopped.messages)] == ["c2", "c3"]
    assert len(recorder.calls) == 1

    person.answer = answer
    result = await _result(model, tools, stopped)
    assert (result.status, result.final_message, result.iterations) == ("completed", "Done.", 2)
    assert [line.tool_name for line in result.tool_calls] == ["search", "order", "search"]
    assert len(recorder.calls) == (3 if answer else 2)
    assert ("error" in orjson.dumps(result.tool_calls[1].result).decode()) is not answer


async def test_a_loop_that_had_ended_is_not_begun_again() -> None:
    model = ScriptedModel([Says("Yes.")])
    tools = registry(Recorder().tool())
    ended = await _result(model, tools)
    assert await _result(model, tools, ended) == ended
    assert len(model.requests) == 1


def _search(query: str) -> tuple[str, dict[str, str]]:
    return "search", {"query": query}
