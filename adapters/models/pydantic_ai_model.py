"""The models themselves, through pydantic-ai. Slow to import: only `loading` does it.

Every answer is streamed, even where nobody watches it grow: so it can be cut at a length, and a server
that never ends is left after the time that a call may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import (
    AgentRunError,
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UserError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    UserPromptPart,
)
from pydantic_ai.models import Model as Connected
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from adapters.models import openai_backend
from adapters.models.answers import CHARACTERS_PER_TOKEN, decoded_object, longest_answer
from adapters.models.bounded_http import model_http_client
from adapters.models.chat import LLMAnswer, LLMRequest
from adapters.models.endpoints import endpoint_of
from adapters.models.loading import google_backend
from adapters.models.names import ModelName, UnknownModelName, parse_model_name
from adapters.models.turns import assistant_message, model_messages
from flow_engine.ports.models import FailureReason, ModelAnswer, ModelCall, ModelFailed

MOST_MODELS = 32
"""Models connected at once: flows may name others than the installation's."""

ANSWER_TOOL = "answer"


@dataclass(frozen=True, slots=True)
class _Received:
    response: ModelResponse
    cut: bool
    output_tokens: int


class PydanticAiModel:
    """Implements `LanguageModel`. Raises ModelFailed `not_configured` when `name` cannot be asked here."""

    def __init__(self, name: ModelName, environ: Mapping[str, str], *, timeout_s: float) -> None:
        self._name = name
        self._environ = environ
        self._timeout_s = timeout_s
        self._http = model_http_client(timeout_s)
        self._connected: dict[ModelName, Connected] = {}
        self._connect(name)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(self, call: ModelCall) -> ModelAnswer:
        with _failures_translated():
            name, model = self._model(call.model)
            turns: list[ModelMessage] = [
                ModelRequest(parts=[SystemPromptPart(call.system), UserPromptPart(call.user)])
            ]
            asked_for = _output(call.output_schema, model)
            received = await self._receive(model, turns, asked_for, call.max_output_tokens, call.temperature)
        text = _answer_text(received.response)[: longest_answer(call.max_output_tokens)]
        if call.output_schema is None and not text:
            raise ModelFailed("unusable_answer", "the answer is empty")
        return ModelAnswer(
            text=text,
            data=None if call.output_schema is None else decoded_object(text),
            model=str(name),
            input_tokens=received.response.usage.input_tokens,
            output_tokens=received.output_tokens,
        )

    async def chat(self, request: LLMRequest) -> LLMAnswer:
        with _failures_translated():
            name, model = self._model(request.model)
            tools = [
                ToolDefinition(
                    name=t.name, description=t.description, parameters_json_schema=dict(t.parameters)
                )
                for t in request.tools
            ]
            received = await self._receive(
                model,
                model_messages(request.messages),
                ModelRequestParameters(function_tools=tools),
                request.max_tokens,
                request.temperature,
            )
        message = assistant_message(received.response)
        if received.cut and message.tool_calls:
            raise ModelFailed("unusable_answer", "the answer was cut within a tool call")
        return LLMAnswer(message, str(name), received.response.usage.input_tokens, received.output_tokens)

    def _model(self, named: str | None) -> tuple[ModelName, Connected]:
        name = self._name if named is None else parse_model_name(named)
        return name, self._connected.get(name) or self._connect(name)

    def _connect(self, name: ModelName) -> Connected:
        endpoint = endpoint_of(name.provider, self._environ)
        try:
            if name.provider == "google":
                model: Connected = google_backend().connected_model(name, endpoint, self._http)
            else:
                model = openai_backend.connected_model(name, endpoint, self._environ, self._http)
        except UserError as error:
            raise ModelFailed("not_configured", error.message) from error
        while len(self._connected) >= MOST_MODELS:
            del self._connected[next(iter(self._connected))]
        self._connected[name] = model
        return model

    async def _receive(
        self,
        model: Connected,
        messages: list[ModelMessage],
        parameters: ModelRequestParameters,
        max_tokens: int,
        temperature: float,
    ) -> _Received:
        # The client library's own retries are off: trying again is RetryingModel's, with its budget.
        settings = ModelSettings(max_tokens=max_tokens, timeout=self._timeout_s, max_retries=0)
        if not model.profile.get("openai_supports_reasoning", False):  # those take no temperature
            settings["temperature"] = temperature
        longest, length, cut = longest_answer(max_tokens), 0, False
        async with (
            asyncio.timeout(self._timeout_s),
            model_request_stream(
                model, messages, model_settings=settings, model_request_parameters=parameters
            ) as stream,
        ):
            async for event in stream:
                length += _length(event)
                if length > longest:
                    cut = True
                    await stream.cancel()
                    break
            response = stream.get()
        if response.finish_reason == "content_filter":
            raise ModelFailed("refused", "the provider's content filter withheld the answer")
        # A stream that was cut tells no usage: it comes with the last chunk.
        estimated = -(-length // CHARACTERS_PER_TOKEN) if cut else 0
        return _Received(response, cut, max(response.usage.output_tokens, estimated))


def _output(schema: Mapping[str, object] | None, model: Connected) -> ModelRequestParameters:
    """Structured output as the model knows it: natively, else as the arguments of one forced tool."""
    if schema is None:
        return ModelRequestParameters()
    if model.profile.get("supports_json_schema_output", False):
        output = OutputObjectDefinition(json_schema=dict(schema), name=ANSWER_TOOL)
        return ModelRequestParameters(output_mode="native", output_object=output)
    tool = ToolDefinition(name=ANSWER_TOOL, parameters_json_schema=dict(schema), kind="output")
    return ModelRequestParameters(output_mode="tool", output_tools=[tool], allow_text_output=False)


def _answer_text(response: ModelResponse) -> str:
    """The arguments of the answer tool where it was called, else the text."""
    for part in response.parts:
        if isinstance(part, ToolCallPart) and part.tool_name == ANSWER_TOOL:
            return part.args_as_json_str()
    return "".join(part.content for part in response.parts if isinstance(part, TextPart)).strip()


def _length(event: object) -> int:
    """In characters, of what one event adds to the answer."""
    match event:
        case PartStartEvent(part=TextPart(content=text) | ThinkingPart(content=text)):
            return len(text)
        case PartStartEvent(part=ToolCallPart(args=str(text))):
            return len(text)
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return len(text)
        case PartDeltaEvent(
            delta=ThinkingPartDelta(content_delta=str(text)) | ToolCallPartDelta(args_delta=str(text))
        ):
            return len(text)
        case _:
            return 0


@contextmanager
def _failures_translated() -> Generator[None]:
    """No vendor's error leaves this module, nor its text: providers quote prompts in their messages."""
    try:
        yield
    except UnknownModelName as error:
        raise ModelFailed("not_configured", str(error)) from None
    except TimeoutError:
        raise ModelFailed("timeout", "no complete answer in time") from None
    except (AgentRunError, UserError) as error:
        raise ModelFailed(_reason(error), _detail(error)) from None
    except httpx2.HTTPError as error:
        raise ModelFailed("unreachable", type(error).__name__) from None


def _reason(error: AgentRunError | UserError) -> FailureReason:
    match error:
        case ModelTimeoutError() | ModelRequestTimeout() | ModelHTTPError(status_code=408 | 504):
            return "timeout"
        case ModelRateLimitError():
            return "too_many_calls"
        case ModelConnectionError() | ModelServerError() | ModelUnavailableError():
            return "unreachable"
        case ModelAPIError() if not isinstance(error.__cause__, ValueError):
            return "refused"
        case UserError() | ContentFilterError():
            return "refused"
        case _:
            return "unusable_answer"


def _detail(error: AgentRunError | UserError) -> str:
    if isinstance(error, ModelHTTPError):
        code = error.provider_error_code or error.provider_error_type
        return f"status {error.status_code}" + (f", {code}" if code else "")
    return type(error).__name__
