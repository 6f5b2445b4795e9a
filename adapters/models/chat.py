"""The port for models that talk in turns and call tools, beside the core's `Model` for single questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from flow_engine.ports.models import Model, ModelFailed, NoModel
from flow_engine.values import JsonValue

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the model asks a tool for. Arguments that did not parse as an object are `{}` (M9)."""

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
    """The dialogue so far, oldest first. `model` names another model than the installation's."""

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    model: str | None = None
    max_tokens: int = 4096
    temperature: float = 0.3
    purpose: str = "agent"


@dataclass(frozen=True, slots=True)
class LLMAnswer:
    """The assistant's turn, and what it cost."""

    message: Message
    model: str
    input_tokens: int
    output_tokens: int


class ChatModel(Protocol):
    """Raises ModelFailed, never a vendor's error. Bounded in time and length, as `Model` is."""

    async def chat(self, request: LLMRequest) -> LLMAnswer: ...


class LanguageModel(Model, ChatModel, Protocol):
    """Both ports in one object: what the wrappers take and are."""


class NoLanguageModel(NoModel):
    """Implements `LanguageModel` where none is configured."""

    async def chat(self, request: LLMRequest) -> LLMAnswer:
        raise ModelFailed("not_configured", "set FLOW_ENGINE_LLM_MODEL")

    async def aclose(self) -> None:
        return
