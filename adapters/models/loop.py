"""The one tool loop: a model calls tools until it has nothing more to call (M6–M9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from adapters.models.chat import ChatModel, LLMRequest, Message, ToolCall
from adapters.models.tools import Arguments, ToolRegistry
from flow_engine.ports.models import ModelFailed
from flow_engine.values import JsonValue

MAX_ITERATIONS = 10


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How the model is asked; `max_iterations` is how many times at most."""

    model: str | None = None
    max_tokens: int = 4096
    temperature: float = 0.3
    max_iterations: int = MAX_ITERATIONS
    purpose: str = "agent"


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """One executed call. Iterations count from 1."""

    tool_name: str
    arguments: Arguments
    result: JsonValue
    iteration: int


@dataclass(frozen=True, slots=True)
class LoopResult:
    """`messages` are all turns, those given included: a later run may go on from them."""

    status: Literal["completed", "max_iterations", "error"]
    final_message: str | None
    tool_calls: tuple[ToolCallRecord, ...]
    iterations: int
    error: str | None
    messages: tuple[Message, ...]
    input_tokens: int
    output_tokens: int


class _Run:
    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.records: list[ToolCallRecord] = []
        self.iterations = self.input_tokens = self.output_tokens = 0

    def result(
        self, status: Literal["completed", "max_iterations", "error"], final: str | None, error: str | None
    ) -> LoopResult:
        return LoopResult(
            status=status,
            final_message=final,
            tool_calls=tuple(self.records),
            iterations=self.iterations,
            error=error,
            messages=tuple(self.messages),
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
        )


async def run_tool_loop(
    model: ChatModel,
    system: str,
    messages: Sequence[Message],
    tools: ToolRegistry,
    settings: LoopSettings | None = None,
) -> LoopResult:
    """Ask, run what is called for, append, ask again. A failing model ends it; a failing tool does not."""
    settings = settings or LoopSettings()
    run = _Run([Message("system", system), *messages])
    while run.iterations < settings.max_iterations:
        run.iterations += 1
        request = LLMRequest(
            messages=tuple(run.messages),
            tools=tools.specs(),
            model=settings.model,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            purpose=settings.purpose,
        )
        try:
            answer = await model.chat(request)
        except ModelFailed as failure:
            return run.result("error", None, str(failure))
        run.messages.append(answer.message)
        run.input_tokens += answer.input_tokens
        run.output_tokens += answer.output_tokens
        if not answer.message.tool_calls:
            return run.result("completed", answer.message.content, None)
        await _run_tools(run, tools, answer.message.tool_calls)
    return run.result("max_iterations", None, None)


async def _run_tools(run: _Run, tools: ToolRegistry, calls: Sequence[ToolCall]) -> None:
    """In the model's order, one after the other: a later call may count on what an earlier one did."""
    for call in calls:
        result = await tools.execute(call)
        run.records.append(ToolCallRecord(call.name, call.arguments, result, run.iterations))
        run.messages.append(Message("tool", orjson.dumps(result).decode(), tool_call_id=call.id))
