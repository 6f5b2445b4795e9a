"""Turns of a dialogue in the forms of pydantic-ai, both ways."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from adapters.models.answers import tool_arguments
from adapters.models.chat import Message, ToolCall


def model_messages(messages: Sequence[Message]) -> list[ModelMessage]:
    """A tool's message gets the tool's name from the call that it answers."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_turn(message, names) for message in messages]


def _turn(message: Message, tool_names: dict[str, str]) -> ModelMessage:
    match message.role:
        case "system":
            return ModelRequest(parts=[SystemPromptPart(message.content)])
        case "user":
            return ModelRequest(parts=[UserPromptPart(message.content)])
        case "tool":
            call_id = message.tool_call_id or ""
            name = tool_names.get(call_id, "")
            return ModelRequest(
                parts=[ToolReturnPart(tool_name=name, content=message.content, tool_call_id=call_id)]
            )
        case "assistant":
            calls = [ToolCallPart(call.name, dict(call.arguments), call.id) for call in message.tool_calls]
            said = [TextPart(message.content)] if message.content else []
            return ModelResponse(parts=[*said, *calls])


def assistant_message(response: ModelResponse) -> Message:
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart)).strip()
    calls = tuple(
        ToolCall(part.tool_call_id, part.tool_name, tool_arguments(part.args))
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )
    return Message("assistant", text, tool_calls=calls)
