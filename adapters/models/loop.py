"""The one tool loop: a model calls tools until it has nothing more to call (M6–M9)."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeAlias

import orjson

from adapters.models.tools import Arguments, ToolRegistry, Undecided
from flow_engine.ports import models
from flow_engine.values import JsonValue

MAX_ITERATIONS = 10

LoopStatus = Literal["completed", "max_iterations", "error", "waiting"]


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A call that is known, fits its schema and may run: it runs now."""

    call: models.ToolCall
    iteration: int


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """One answered call, executed or refused. Iterations count from 1."""

    tool_name: str
    arguments: Arguments
    result: JsonValue
    iteration: int


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """`message` is the result as the model gets it, in JSON. `executed` is False for a refused call."""

    call: models.ToolCall
    record: ToolCallRecord
    message: models.Message
    executed: bool


@dataclass(frozen=True, slots=True)
class LoopResult:
    """`messages` are all turns, the request's included: a later run may go on from them.

    `error` is the failure of the model that ended the loop. Tokens are those of all answers. A loop that is
    `waiting` has calls that nobody has decided on yet: `unanswered(messages)`.
    """

    status: LoopStatus
    final_message: str | None
    tool_calls: tuple[ToolCallRecord, ...]
    iterations: int
    error: str | None
    messages: tuple[models.Message, ...]
    input_tokens: int
    output_tokens: int


LoopEvent: TypeAlias = models.ModelEvent | ToolStarted | ToolFinished | LoopResult


def unanswered(messages: Sequence[models.Message]) -> tuple[models.ToolCall, ...]:
    """The calls of the last assistant's turn that no tool has answered yet, in the model's order; empty where
    none is left."""
    last = next((at for at in reversed(range(len(messages))) if messages[at].role == "assistant"), None)
    if last is None:
        return ()
    return messages[last].tool_calls[len(messages) - last - 1 :]


@dataclass(slots=True)
class _Run:
    messages: list[models.Message]
    records: list[ToolCallRecord] = field(default_factory=list[ToolCallRecord])
    iterations: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def after(cls, earlier: LoopResult) -> Self:
        records = list(earlier.tool_calls)
        return cls(
            list(earlier.messages), records, earlier.iterations, earlier.input_tokens, earlier.output_tokens
        )

    @property
    def has_ended(self) -> bool:
        """The model had nothing more to call."""
        last = self.messages[-1]
        return last.role == "assistant" and not last.tool_calls

    def result(self, status: LoopStatus, *, final: str | None = None, error: str | None = None) -> LoopResult:
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


async def tool_loop(
    model: models.LanguageModel,
    request: models.LLMRequest,
    tools: ToolRegistry,
    max_iterations: int = MAX_ITERATIONS,
    *,
    earlier: LoopResult | None = None,
) -> AsyncGenerator[LoopEvent]:
    """Ask, run what is called for, append, ask again; the model is asked `max_iterations` times at most.

    Yields the events of each answer, `ToolStarted` and `ToolFinished` of each call in the model's order,
    one after the other (a later one may count on an earlier), and at last the `LoopResult`. A failing model
    ends it with status `error`; a failing tool does not. `request.messages` are the dialogue so far with the
    system message; its `tools` are those of the registry.

    `earlier` goes on with a loop that had to stop, open calls first; its messages stand for the request's.
    """
    run = _Run(list(request.messages)) if earlier is None else _Run.after(earlier)
    if earlier is not None and run.has_ended:
        yield run.result("completed", final=run.messages[-1].content)
        return
    pending = unanswered(run.messages)
    while pending or run.iterations < max_iterations:
        if pending:
            async with aclosing(_answered(pending, tools, run)) as answered:
                async for event in answered:
                    yield event
            if unanswered(run.messages):
                yield run.result("waiting")
                return
            pending = ()
            continue
        run.iterations += 1
        asked = replace(request, messages=tuple(run.messages), tools=tools.specs())
        try:
            async with aclosing(model.stream(asked)) as events:
                async for event in events:
                    if isinstance(event, models.LLMAnswer):
                        run.messages.append(event.message)
                        run.input_tokens += event.input_tokens
                        run.output_tokens += event.output_tokens
                        pending = event.message.tool_calls
                    yield event
        except models.ModelFailed as failure:
            yield run.result("error", error=str(failure))
            return
        if run.has_ended:
            yield run.result("completed", final=run.messages[-1].content)
            return
    yield run.result("max_iterations")


async def _answered(
    calls: Sequence[models.ToolCall], tools: ToolRegistry, run: _Run
) -> AsyncGenerator[ToolStarted | ToolFinished]:
    """Each call in its turn, up to one that is undecided."""
    for call in calls:
        try:
            result = refusal = await tools.refusal(call)
        except Undecided:
            return
        if refusal is None:
            yield ToolStarted(call, run.iterations)
            result = await tools.run(call)
        record = ToolCallRecord(call.name, call.arguments, result, run.iterations)
        message = models.Message("tool", orjson.dumps(result).decode(), tool_call_id=call.id)
        run.records.append(record)
        run.messages.append(message)
        yield ToolFinished(call, record, message, executed=refusal is None)
