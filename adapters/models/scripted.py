"""A model without a model, for tests and demonstrations: it does what a script says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import orjson

from adapters.models.answers import CHARACTERS_PER_TOKEN, decoded_object, longest_answer, tool_arguments
from adapters.models.chat import LLMAnswer, LLMRequest, Message, ToolCall
from adapters.models.script import (
    Answers,
    CallsToolBadly,
    CallsTools,
    Endless,
    Fails,
    Says,
    Script,
    Stalls,
    Step,
    Truncated,
)
from flow_engine.ports.models import ModelAnswer, ModelCall, ModelFailed

Asked: TypeAlias = ModelCall | LLMRequest
Sleep: TypeAlias = Callable[[float], Awaitable[None]]

NAME = "scripted:model"


class ScriptedModel:
    """Implements `LanguageModel`. A stall longer than `timeout_s` fails as a timeout, as it would outside.

    Usage is counted at four characters a token. `asked` holds every call and request, oldest first.
    """

    def __init__(
        self,
        steps: Sequence[Step] | Callable[[Asked], Step],
        *,
        timeout_s: float = 10.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._script: Script[Asked, Step] = Script(steps)
        self._timeout_s = timeout_s
        self._sleep = sleep

    @property
    def asked(self) -> Sequence[Asked]:
        return self._script.asked

    async def aclose(self) -> None:
        return

    async def ask(self, call: ModelCall) -> ModelAnswer:
        step = await self._step(call)
        text = _written(step, call.max_output_tokens)
        data = None if call.output_schema is None else decoded_object(text)
        return ModelAnswer(text, data, call.model or NAME, _tokens(call.system + call.user), _tokens(text))

    async def chat(self, request: LLMRequest) -> LLMAnswer:
        step = await self._step(request)
        text, calls = _written(step, request.max_tokens), ()
        if isinstance(step, CallsTools):
            text, calls = step.text, tuple(step.calls)
        elif isinstance(step, CallsToolBadly):
            text = ""
            calls = (ToolCall(f"call-{len(self.asked)}", step.name, tool_arguments(step.arguments)),)
        said = "".join(message.content for message in request.messages)
        message = Message("assistant", text, tool_calls=calls)
        return LLMAnswer(message, request.model or NAME, _tokens(said), _tokens(text))

    async def _step(self, asked: Asked) -> Step:
        step = self._script.next(asked)
        if isinstance(step, Fails):
            raise ModelFailed(step.reason, "as the script says")
        if isinstance(step, Stalls):
            await self._sleep(min(step.seconds, self._timeout_s))
            if step.seconds >= self._timeout_s:
                raise ModelFailed("timeout", f"no answer within {self._timeout_s} s")
            return step.then
        return step


def _written(step: Step, max_tokens: int) -> str:
    """The text that a step leaves, within the bound of any answer."""
    longest = longest_answer(max_tokens)
    match step:
        case Says(text):
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


def _tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
