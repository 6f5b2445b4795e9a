"""The port to language models: one request, one answer, one method that streams.

Who wants the whole answer calls `ask`; who shows it while it grows sets `LLMRequest.deltas` and reads
`LanguageModel.stream`.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.values import JsonValue

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls"]
FailureReason = Literal[
    "not_configured", "too_many_calls", "timeout", "unreachable", "refused", "unusable_answer"
]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model calls. Arguments that did not parse as an object are `{}` (M9). The arguments
    are JSON values."""

    id: str
    name: str
    arguments: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. An assistant's may call tools; a tool's answers the call `tool_call_id` with JSON (M8)."""

    role: Role
    content: str
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LLMRequest:
    """The dialogue so far, oldest message first.

    `output_schema` is the JSON Schema of the object to answer with; None asks for text and tool calls.
    `model` names another model than the installation's. `max_tokens` bounds the answer. `num_ctx` is the
    length of the context in tokens, for servers that take it per request (Ollama). With `deltas` the
    pieces of the answer come too, and nothing is tried again once one is out. `purpose` and `conversation`
    are for accounting, and the conversation's tenant for fair shares.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    output_schema: Mapping[str, object] | None = None
    model: str | None = None
    max_tokens: int = 4096
    temperature: float = 0.3
    top_p: float | None = None
    num_ctx: int | None = None
    deltas: bool = False
    purpose: str = "agent"
    conversation: ConversationRef | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text, never empty; reasoning is none of it."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call: `index` counts the answer's calls from 0. The first piece of a call has its
    `id` and `name`, later ones have more of the arguments' JSON text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class LLMAnswer:
    """The assistant's whole turn and its usage in tokens.

    `data` is the decoded object where a schema was set: not checked against it yet. `model` is
    `provider:name`. `finish_reason` is `length` where the answer was cut at `max_tokens`.
    """

    message: Message
    model: str
    input_tokens: int
    output_tokens: int
    data: JsonValue = None
    finish_reason: FinishReason = "stop"

    @property
    def text(self) -> str:
        return self.message.content


ModelEvent: TypeAlias = TextDelta | ToolCallDelta | LLMAnswer


class ModelFailed(Exception):
    """No usable answer. The reason is for counting and for deciding whether to try again; `retry_after_s` is
    in how many seconds the provider wants to be asked again, None where it does not say."""

    def __init__(self, reason: FailureReason, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: FailureReason = reason
        self.detail = detail
        self.retry_after_s = retry_after_s


class LanguageModel(Protocol):
    """Raises ModelFailed, never a vendor's error. Bounded in time and length by its configuration.

    The stream ends with exactly one `LLMAnswer`; without `LLMRequest.deltas` that is its only event.
    Closing the generator cancels the request.
    """

    def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]: ...


async def ask(model: LanguageModel, request: LLMRequest) -> LLMAnswer:
    """The whole answer. Raises ModelFailed. One answer, bounded by `max_tokens` tokens."""
    async with aclosing(model.stream(request)) as events:
        async for event in events:
            if isinstance(event, LLMAnswer):
                return event
    raise ModelFailed("unusable_answer", "the stream ended without an answer")


def instruction(system: str, user: str) -> tuple[Message, ...]:
    """The messages of a single question: instructions, and the material that they are about."""
    return Message("system", system), Message("user", user)


class NoModel:
    """Implements `LanguageModel` where none is configured: fails with `not_configured`."""

    def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
        raise ModelFailed("not_configured", "set FLOW_ENGINE_LLM_MODEL")

    async def aclose(self) -> None:
        return
