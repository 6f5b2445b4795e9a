"""The API of Ollama itself, for requests that set the length of the context.

Ollama does not read it on its OpenAI route.

    POST /api/chat  {model, messages, tools, format, stream, options}
    options         {num_ctx, temperature, top_p, num_predict}
    reply           one JSON object a line: {message {content, tool_calls, thinking}, done}, with the last one
                    {done_reason, prompt_eval_count, eval_count}

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import httpx2
import orjson

from adapters.models.answers import finished_answer, longest_answer, tool_arguments, with_tool_names
from adapters.models.openai_stream import function_tools, reason_of, retry_after_s
from adapters.models.providers import Endpoint
from flow_engine.ports import models


@dataclass(slots=True)
class _Received:
    """`length` is in characters, reasoning and arguments included."""

    texts: list[str] = field(default_factory=list[str])
    calls: list[models.ToolCall] = field(default_factory=list[models.ToolCall])
    length: int = 0
    last: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def stream_native(
    http: httpx2.AsyncClient, endpoint: Endpoint, model: str, request: models.LLMRequest, timeout_s: float
) -> AsyncGenerator[models.ModelEvent]:
    """As `LanguageModel.stream`. `timeout_s` seconds bound each silence, without deltas the whole answer too.

    Raises ModelFailed, TimeoutError, httpx2.HTTPError.
    """
    url = (endpoint.base_url or "").rstrip("/").removesuffix("/v1") + "/api/chat"
    headers = {} if endpoint.api_key is None else {"Authorization": f"Bearer {endpoint.api_key}"}
    received = _Received()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    async with http.stream("POST", url, json=_body(model, request), headers=headers) as response:
        if (status := response.status_code) >= 300:
            wait = retry_after_s(response.headers, datetime.now(UTC))
            raise models.ModelFailed(reason_of(status), f"status {status}", retry_after_s=wait)
        lines = aiter(response.aiter_lines())
        while not received.last and received.length <= longest_answer(request.max_tokens):
            async with asyncio.timeout_at(loop.time() + timeout_s if request.deltas else deadline):
                line = await anext(lines, None)
            if line is None:
                raise models.ModelFailed("unreachable", "the stream broke")
            for delta in _take(received, line):
                if request.deltas and request.output_schema is None:
                    yield delta
    yield finished_answer(
        request,
        "".join(received.texts),
        received.calls,
        model=f"ollama:{model}",
        input_tokens=int(received.last.get("prompt_eval_count", 0)),
        output_tokens=int(received.last.get("eval_count", 0)),
        cut=not received.last or received.last.get("done_reason") == "length",
    )


def _take(received: _Received, line: str) -> Sequence[models.TextDelta | models.ToolCallDelta]:
    """What a line adds. Raises ModelFailed `unusable_answer`, `refused` for an error that Ollama tells."""
    if not line.strip():
        return ()
    try:
        chunk = cast("Mapping[str, Any]", orjson.loads(line))
        message = cast("Mapping[str, Any]", chunk.get("message") or {})
        text, calls = str(message.get("content") or ""), list(message.get("tool_calls") or ())
        read = [(str(call["function"]["name"]), call["function"].get("arguments")) for call in calls]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise models.ModelFailed("unusable_answer", "a line of the stream is none of the protocol") from error
    if "error" in chunk:
        raise models.ModelFailed("refused", "the server tells an error")
    received.length += len(text) + len(str(message.get("thinking") or ""))
    deltas: list[models.TextDelta | models.ToolCallDelta] = []
    if text:
        received.texts.append(text)
        deltas.append(models.TextDelta(text))
    for name, arguments in read:
        call = models.ToolCall(f"call-{len(received.calls) + 1}", name, tool_arguments(arguments))
        written = orjson.dumps(dict(call.arguments)).decode()
        received.length += len(written)
        deltas.append(models.ToolCallDelta(len(received.calls), call.id, call.name, written))
        received.calls.append(call)
    if chunk.get("done"):
        received.last = chunk
    return deltas


def _body(model: str, request: models.LLMRequest) -> dict[str, Any]:
    options = {
        "num_ctx": request.num_ctx,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "num_predict": request.max_tokens,
    }
    body: dict[str, Any] = {
        "model": model,
        "messages": list(_messages(request.messages)),
        "stream": True,
        "options": {name: value for name, value in options.items() if value is not None},
    }
    if request.tools:
        body["tools"] = function_tools(request)
    if request.output_schema is not None:
        body["format"] = dict(request.output_schema)
    return body


def _messages(messages: Sequence[models.Message]) -> Iterator[dict[str, Any]]:
    for message, tool_name in with_tool_names(messages):
        written: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            written["tool_calls"] = [
                {"function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            written["tool_name"] = tool_name
        yield written
