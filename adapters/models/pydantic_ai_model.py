"""The models themselves, through pydantic-ai. Slow to import: only `factory` does it.

Every answer is streamed, even where nobody watches it grow: so it can be cut at a length, and a server
that never ends is left after the time that a request may take.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, field

import httpx2
from cachetools import LRUCache
from pydantic_ai import exceptions, messages
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model as VendorModel
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.profiles import ModelProfile, merge_profile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.azure import AzureProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.providers.vllm import VLLMProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from adapters.models import answers, bounded_http, ollama, openai_stream, providers
from flow_engine.ports import models

MOST_MODELS = 32
"""Models connected at once: flows may name others than the installation's."""

STREAMED_DIRECTLY = frozenset({"openai", "local", "vllm", "groq", "ollama"})
"""Providers whose text deltas are read without pydantic-ai; those with ways of their own are not."""

ANSWER_TOOL = "answer"
_NO_KEY = "none"
"""The client library insists on a key; servers of one's own ignore it."""

_OLDER_LIMIT = OpenAIModelProfile(openai_chat_supports_max_completion_tokens=False)
"""Ollama and other servers of one's own pass over `max_completion_tokens` without a word, and then write
until the context is full. All take `max_tokens`."""


class _Ollama(OllamaProvider):
    """Not a profile of the model: that would hide which models cannot keep to a schema."""

    @staticmethod
    def model_profile(model_name: str) -> ModelProfile:
        return merge_profile(OllamaProvider.model_profile(model_name), _OLDER_LIMIT)


class PydanticAiModel:
    """Implements `LanguageModel`. `timeout_s` seconds bound the whole answer, or with `LLMRequest.deltas`
    each silence within it. Raises ModelFailed `not_configured` when `name` cannot be asked here."""

    def __init__(self, name: providers.ModelName, environ: Mapping[str, str], timeout_s: float) -> None:
        self._name = name
        self._environ = environ
        self._timeout_s = timeout_s
        self._http = bounded_http.model_http_client(timeout_s)
        self._connected: LRUCache[providers.ModelName, VendorModel] = LRUCache(MOST_MODELS)
        self._connect(name)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def stream(self, request: models.LLMRequest) -> AsyncGenerator[models.ModelEvent]:
        with _failures_translated():
            name = self._name if request.model is None else providers.parse_model_name(request.model)
            model = self._connected.get(name) or self._connect(name)
            direct = self._direct(name, model, request)
            if direct is not None:
                async with aclosing(direct) as direct_events:
                    async for direct_event in direct_events:
                        yield direct_event
                return
            received = _Received(answers.longest_answer(request.max_tokens))
            async with AsyncExitStack() as stack:
                deadline = self._deadline()
                async with asyncio.timeout_at(deadline):
                    turns = [_model_message(*named) for named in answers.with_tool_names(request.messages)]
                    settings, parameters = self._settings(request, model), _parameters(request, model)
                    asking = model_request_stream(
                        model, turns, model_settings=settings, model_request_parameters=parameters
                    )
                    stream = await stack.enter_async_context(asking)
                    events = aiter(stream)
                while not received.cut:
                    # A timeout of its own for each event: none may be open while the reader has the turn.
                    async with asyncio.timeout_at(self._deadline() if request.deltas else deadline):
                        event = await anext(events, None)
                    if event is None:
                        break
                    delta = received.take(event)
                    if delta is not None and request.deltas and request.output_schema is None:
                        yield delta
                if received.cut:
                    await stream.cancel()
                response = stream.get()
            answer = received.answer(request, response, str(name))
        yield answer

    def _direct(
        self, name: providers.ModelName, model: VendorModel, request: models.LLMRequest
    ) -> AsyncGenerator[models.ModelEvent] | None:
        """The answer where it is read without pydantic-ai."""
        endpoint = providers.endpoint_of(name.provider, self._environ)
        if name.provider == "ollama" and request.num_ctx is not None:
            return ollama.stream_native(self._http, endpoint, name.model, request, self._timeout_s)
        if not request.deltas or request.output_schema is not None or name.provider not in STREAMED_DIRECTLY:
            return None
        samples = not model.profile.get("openai_supports_reasoning", False)
        is_newer = model.profile.get("openai_chat_supports_max_completion_tokens", True)
        return openai_stream.stream_chat(
            self._http,
            endpoint,
            name,
            request,
            self._timeout_s,
            samples=samples,
            limit="max_completion_tokens" if is_newer else "max_tokens",
        )

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s

    def _settings(self, request: models.LLMRequest, model: VendorModel) -> ModelSettings:
        """The client library's own retries are off: trying again is RetryingModel's, with its budget."""
        settings = ModelSettings(max_tokens=request.max_tokens, timeout=self._timeout_s, max_retries=0)
        if not model.profile.get("openai_supports_reasoning", False):  # those take no temperature
            settings["temperature"] = request.temperature
            if request.top_p is not None:
                settings["top_p"] = request.top_p
        return settings

    def _connect(self, name: providers.ModelName) -> VendorModel:
        endpoint = providers.endpoint_of(name.provider, self._environ)
        try:
            model = _vendor_model(name, endpoint, self._environ, self._http)
        except exceptions.UserError as error:
            raise models.ModelFailed("not_configured", error.message) from error
        self._connected[name] = model
        return model


@dataclass(slots=True)
class _Received:
    """What has come of an answer, cut at `longest` characters, reasoning included."""

    longest: int
    length: int = 0
    cut: bool = False
    texts: list[str] = field(default_factory=list[str])
    calls: dict[int, int] = field(default_factory=dict[int, int])

    def take(self, event: object) -> models.TextDelta | models.ToolCallDelta | None:
        delta, length = self._read(event)
        self.length += length
        over = self.length - self.longest
        if over > 0:
            self.cut = True
            delta = models.TextDelta(delta.text[:-over]) if isinstance(delta, models.TextDelta) else None
        if isinstance(delta, models.TextDelta):
            self.texts.append(delta.text)
        return None if delta == models.TextDelta("") else delta

    def _read(self, event: object) -> tuple[models.TextDelta | models.ToolCallDelta | None, int]:
        """The event as a piece, and its length in characters."""
        match event:
            case messages.PartStartEvent(part=messages.TextPart(content=text)):
                return models.TextDelta(text), len(text)
            case messages.PartDeltaEvent(delta=messages.TextPartDelta(content_delta=text)):
                return models.TextDelta(text), len(text)
            case messages.PartStartEvent(index=part, part=messages.ToolCallPart() as call):
                index = self.calls.setdefault(part, len(self.calls))
                text = call.args_as_json_str() if call.args else ""
                return models.ToolCallDelta(index, call.tool_call_id, call.tool_name, text), len(text)
            case messages.PartDeltaEvent(index=part, delta=messages.ToolCallPartDelta(args_delta=str(text))):
                return models.ToolCallDelta(self.calls[part], arguments=text), len(text)
            case messages.PartStartEvent(part=messages.ThinkingPart(content=text)):
                return None, len(text)
            case messages.PartDeltaEvent(delta=messages.ThinkingPartDelta(content_delta=str(text))):
                return None, len(text)
            case _:
                return None, 0

    def answer(
        self, request: models.LLMRequest, response: messages.ModelResponse, name: str
    ) -> models.LLMAnswer:
        written = (response.provider_details or {}).get("finish_reason")  # as the server has it
        answers.check_end(response.finish_reason)
        answers.check_end(written)
        # Where none was written pydantic-ai makes one up: some servers of one's own never write it.
        if written is None and not self.cut and not name.startswith("local:"):
            raise models.ModelFailed("unreachable", "the stream ended too early")
        called = [part for part in response.parts if isinstance(part, messages.ToolCallPart)]
        text, structured = "".join(self.texts), request.output_schema is not None
        if structured and called:
            text = called[0].args_as_json_str()
        calls = [
            models.ToolCall(part.tool_call_id, part.tool_name, answers.tool_arguments(part.args))
            for part in called
        ]
        # A stream that was cut tells no usage: it comes with the last chunk.
        estimated = answers.estimated_tokens(self.length) if self.cut else 0
        return answers.finished_answer(
            request,
            text,
            [] if structured else calls,
            model=name,
            input_tokens=response.usage.input_tokens,
            output_tokens=max(response.usage.output_tokens, estimated),
            cut=self.cut or response.finish_reason == "length",
        )


def _vendor_model(
    name: providers.ModelName,
    endpoint: providers.Endpoint,
    environ: Mapping[str, str],
    http: httpx2.AsyncClient,
) -> VendorModel:
    key, url = endpoint.api_key or _NO_KEY, endpoint.base_url or ""
    if name.provider == "google":
        # The one place that imports the extra `google`. Raises ModelFailed where it is not installed.
        try:
            from pydantic_ai.models.google import GoogleModel  # noqa: PLC0415
            from pydantic_ai.providers.google import GoogleProvider  # noqa: PLC0415
        except ImportError as error:
            raise models.ModelFailed(
                "not_configured", "models of Google need the extra: pip install 'flow-engine[google]'"
            ) from error
        provider = GoogleProvider(
            api_key=endpoint.api_key or "", base_url=endpoint.base_url, http_client=http
        )
        return GoogleModel(name.model, provider=provider)
    if name.provider == "openai":
        return OpenAIChatModel(name.model, provider=OpenAIProvider(url, key, http_client=http))
    if name.provider == "azure":
        versioned = not url.rstrip("/").endswith("/v1")  # the v1 API refuses the parameter
        version = (environ.get("OPENAI_API_VERSION") or None) if versioned else None
        azure = AzureProvider(azure_endpoint=url, api_version=version, api_key=key, http_client=http)
        return OpenAIChatModel(name.model, provider=azure)
    if name.provider == "ollama":
        return OllamaModel(name.model, provider=_Ollama(url, key, http_client=http))
    if name.provider == "vllm":
        vllm = VLLMProvider(base_url=url, api_key=key, http_client=http)
        return OpenAIChatModel(name.model, provider=vllm)
    compatible = OpenAICompatibleProvider(name.provider, base_url=url, api_key=key, http_client=http)
    return OpenAIChatModel(name.model, provider=compatible, profile=_OLDER_LIMIT)


def _parameters(request: models.LLMRequest, model: VendorModel) -> ModelRequestParameters:
    """Structured output as the model knows it: natively, else as the arguments of one forced tool."""
    schema = request.output_schema
    if schema is None:
        tools = [
            ToolDefinition(name=t.name, description=t.description, parameters_json_schema=dict(t.parameters))
            for t in request.tools
        ]
        return ModelRequestParameters(function_tools=tools)
    if model.profile.get("supports_json_schema_output", False):
        output = OutputObjectDefinition(json_schema=dict(schema), name=ANSWER_TOOL)
        return ModelRequestParameters(output_mode="native", output_object=output)
    tool = ToolDefinition(name=ANSWER_TOOL, parameters_json_schema=dict(schema), kind="output")
    return ModelRequestParameters(output_mode="tool", output_tools=[tool], allow_text_output=False)


def _model_message(message: models.Message, tool_name: str) -> messages.ModelMessage:
    match message.role:
        case "system":
            return messages.ModelRequest(parts=[messages.SystemPromptPart(message.content)])
        case "user":
            return messages.ModelRequest(parts=[messages.UserPromptPart(message.content)])
        case "tool":
            part = messages.ToolReturnPart(tool_name, message.content, message.tool_call_id or "")
            return messages.ModelRequest(parts=[part])
        case "assistant":
            calls = [
                messages.ToolCallPart(call.name, dict(call.arguments), call.id) for call in message.tool_calls
            ]
            text = [messages.TextPart(message.content)] if message.content else []
            return messages.ModelResponse(parts=[*text, *calls])


@contextmanager
def _failures_translated() -> Generator[None]:
    """No vendor's error leaves this module, nor its text: providers quote prompts in their messages."""
    try:
        yield
    except providers.UnknownModelName as error:
        raise models.ModelFailed("not_configured", str(error)) from None
    except (TimeoutError, httpx2.ReadTimeout):  # either may be first where nothing comes
        raise models.ModelFailed("timeout", "no complete answer in time") from None
    except (AttributeError, TypeError) as error:  # pydantic-ai's, of an event that is none of the protocol
        raise models.ModelFailed("unusable_answer", type(error).__name__) from error
    except (exceptions.AgentRunError, exceptions.UserError) as error:
        detail, wait = type(error).__name__, None
        if isinstance(error, exceptions.ModelHTTPError):
            code = error.provider_error_code or error.provider_error_type
            detail = f"status {error.status_code}" + (f", {code}" if code else "")
            wait = error.retry_after
        raise models.ModelFailed(_reason(error), detail, retry_after_s=wait) from None
    except httpx2.HTTPError as error:
        raise models.ModelFailed("unreachable", type(error).__name__) from None


def _reason(error: exceptions.AgentRunError | exceptions.UserError) -> models.FailureReason:
    match error:
        case (
            exceptions.ModelTimeoutError()
            | exceptions.ModelRequestTimeout()
            | exceptions.ModelHTTPError(status_code=408 | 504)
        ):
            return "timeout"
        case exceptions.ModelRateLimitError():
            return "too_many_calls"
        case (
            exceptions.ModelConnectionError()
            | exceptions.ModelServerError()
            | exceptions.ModelUnavailableError()
        ):
            return "unreachable"
        case exceptions.ModelAPIError() if not isinstance(error.__cause__, ValueError):
            return "refused"
        case exceptions.UserError() | exceptions.ContentFilterError():
            return "refused"
        case _:
            return "unusable_answer"
