"""A model without a model, for tests and demonstrations: it does what a script says, one step a request.

Every way in which models go wrong is a step, so that whoever calls models can rehearse it. `FakeOpenAI`
follows the same steps over the wire.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import orjson

from adapters.models.answers import estimated_tokens, finished_answer, longest_answer, tool_arguments
from flow_engine.ports import models


@dataclass(frozen=True, slots=True)
class Says:
    """Plain text, whatever was asked for."""

    text: str


@dataclass(frozen=True, slots=True)
class Answers:
    """An object, as JSON text, where one was asked for."""

    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CallsTools:
    """Calls of tools, with or without words before them."""

    calls: Sequence[models.ToolCall]
    text: str = ""


@dataclass(frozen=True, slots=True)
class CallsToolBadly:
    """A tool call whose arguments are invalid JSON."""

    name: str
    arguments: str = '{"cut'


@dataclass(frozen=True, slots=True)
class Truncated:
    """The first half of the object's JSON, as a model leaves it that ran out of tokens."""

    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Endless:
    """Text that does not end by itself: it is cut at 16 characters for each of `max_tokens`."""

    text: str = "and so on "


@dataclass(frozen=True, slots=True)
class DropsStream:
    """The connection breaks after this much of the answer: ModelFailed `unreachable`."""

    text: str = "It was a "


@dataclass(frozen=True, slots=True)
class Fails:
    """No answer: ModelFailed for this reason."""

    reason: models.FailureReason


@dataclass(frozen=True, slots=True)
class Stalls:
    """Nothing for `seconds`, then what `then` says."""

    seconds: float
    then: Says | Answers = Says("")


Step: TypeAlias = (
    Says | Answers | CallsTools | CallsToolBadly | Truncated | Endless | DropsStream | Fails | Stalls
)

RequestT = TypeVar("RequestT")
StepT = TypeVar("StepT")


class Script(Generic[RequestT, StepT]):
    """Steps in order, the last one repeating; or a function from the request to a step.

    `requests` are all that came, oldest first.
    """

    def __init__(self, steps: Sequence[StepT] | Callable[[RequestT], StepT]) -> None:
        self._steps = steps
        self.requests: list[RequestT] = []

    def next(self, request: RequestT) -> StepT:
        self.requests.append(request)
        if callable(self._steps):
            return self._steps(request)
        return self._steps[min(len(self.requests), len(self._steps)) - 1]


NAME = "scripted:model"
PIECE = 16
"""Characters of one delta."""


class ScriptedModel:
    """Implements `LanguageModel`. A stall of `timeout_s` seconds or more fails as a timeout.

    Usage is counted at four characters a token. `requests` are all that came, oldest first.
    """

    def __init__(
        self,
        steps: Sequence[Step] | Callable[[models.LLMRequest], Step],
        *,
        timeout_s: float = 10.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._script: Script[models.LLMRequest, Step] = Script(steps)
        self._timeout_s = timeout_s
        self._sleep = sleep

    @property
    def requests(self) -> Sequence[models.LLMRequest]:
        return self._script.requests

    async def aclose(self) -> None:
        return

    async def stream(self, request: models.LLMRequest) -> AsyncGenerator[models.ModelEvent]:
        step = self._script.next(request)
        if isinstance(step, Stalls):
            await self._sleep(min(step.seconds, self._timeout_s))
            if step.seconds >= self._timeout_s:
                raise models.ModelFailed("timeout", f"no answer within {self._timeout_s} s")
            step = step.then
        if isinstance(step, Fails):
            raise models.ModelFailed(step.reason, "as the script says")
        text, calls = _written(step, request.max_tokens), list[models.ToolCall]()
        if isinstance(step, CallsTools):
            calls = list(step.calls)
        elif isinstance(step, CallsToolBadly):
            calls = [models.ToolCall(f"call-{len(self.requests)}", step.name, tool_arguments(step.arguments))]
        if request.deltas and request.output_schema is None:
            for piece in pieces(text):
                yield models.TextDelta(piece)
            for index, call in enumerate(calls):
                yield models.ToolCallDelta(index, call.id, call.name)
                for piece in pieces(orjson.dumps(dict(call.arguments)).decode()):
                    yield models.ToolCallDelta(index, arguments=piece)
        if isinstance(step, DropsStream):
            raise models.ModelFailed("unreachable", "the stream broke, as the script says")
        read = sum(len(message.content) for message in request.messages)
        yield finished_answer(
            request,
            text,
            calls,
            model=request.model or NAME,
            input_tokens=estimated_tokens(read),
            output_tokens=estimated_tokens(len(text)),
            cut=isinstance(step, Truncated | Endless),
        )


def _written(step: Step, max_tokens: int) -> str:
    """The text that a step leaves, within the bound of any answer."""
    longest = longest_answer(max_tokens)
    match step:
        case Says(text) | CallsTools(text=text) | DropsStream(text):
            return text[:longest]
        case Answers(data):
            return orjson.dumps(data).decode()[:longest]
        case Truncated(data):
            text = orjson.dumps(data).decode()
            return text[: len(text) // 2]
        case Endless(text):
            return (text * (longest // len(text) + 1))[:longest]
        case _:
            return ""


def pieces(text: str) -> Iterator[str]:
    """The text as it is streamed, 16 characters at a time."""
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))
