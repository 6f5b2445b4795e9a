"""The stream of OpenAI's chat completions, read for dialogues that are shown while they come.

    POST {base_url}/chat/completions  {model, messages, tools, stream, max_completion_tokens, temperature, …}
    reply                             server-sent events, `data: {choices: [{delta, finish_reason}], usage}`,
                                      the last one `data: [DONE]`

A vendor's client builds several objects for each piece of text, and a chat with a hundred answers at once
spends most of its time on them. What is read here is the text, the tool calls and the usage.

https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import httpx2
import orjson

from adapters.models.answers import estimated_tokens, finished_answer, longest_answer, tool_arguments
from adapters.models.providers import Endpoint, ModelName
from flow_engine.ports import models

MOST_ERROR_BYTES: Final = 64 * 1024

_REASON_OF_STATUS: Final[Mapping[int, models.FailureReason]] = {
    408: "timeout",
    429: "too_many_calls",
    504: "timeout",
}
_DONE: Final = b"[DONE]"


async def stream_chat(
    http: httpx2.AsyncClient,
    endpoint: Endpoint,
    name: ModelName,
    request: models.LLMRequest,
    timeout_s: float,
    *,
    samples: bool,
) -> AsyncGenerator[models.ModelEvent]:
    """As `LanguageModel.stream` with deltas. `timeout_s` bounds each silence in seconds; `samples` says that
    the model takes a temperature.

    Raises ModelFailed, TimeoutError, httpx2.HTTPError.
    """
    received = _Received(longest_answer(request.max_tokens))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if endpoint.api_key is not None:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    opened = http.stream(
        "POST",
        f"{(endpoint.base_url or '').rstrip('/')}/chat/completions",
        content=orjson.dumps(_body(name.model, request, samples=samples)),
        headers=headers,
    )
    async with opened as response:
        if response.status_code >= 400:
            raise await _refusal(response)
        pieces = response.aiter_bytes()
        while not received.is_over:
            # A timeout of its own for each read: none may be open while the reader has the turn.
            async with asyncio.timeout_at(deadline):
                piece = await anext(pieces, None)
            if piece is None:
                received.end()
                break
            for data in received.lines(piece):
                deadline = loop.time() + timeout_s
                for delta in received.take(data):
                    yield delta
    yield received.answer(request, str(name))


@dataclass(slots=True)
class _Received:
    """What has come of an answer, cut at `longest` characters, reasoning included."""

    longest: int
    length: int = 0
    texts: list[str] = field(default_factory=list[str])
    calls: list[_Call] = field(default_factory=list["_Call"])
    finish: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_done: bool = False
    rest: bytes = b""

    @property
    def is_over(self) -> bool:
        return self.is_done or self.length > self.longest

    def lines(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that are whole; comments and other fields are none."""
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()

    def take(self, data: bytes) -> Iterator[models.TextDelta | models.ToolCallDelta]:
        """What an event adds. Raises ModelFailed `unusable_answer`, `refused` for an error of the server."""
        if self.is_over or not data:
            return
        if data == _DONE:
            self.is_done = True
            return
        try:
            chunk = cast("Mapping[str, Any]", orjson.loads(data))
            if chunk.get("error"):
                raise models.ModelFailed("refused", "the server tells an error")
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk.get("choices") or ():
                self.finish = choice.get("finish_reason") or self.finish
                yield from self._delta(choice.get("delta") or {})
        except (AttributeError, KeyError, TypeError, ValueError):
            raise models.ModelFailed(
                "unusable_answer", "an event of the stream is none of the protocol"
            ) from None

    def end(self) -> None:
        """The stream is over. Raises ModelFailed where the answer is not."""
        if self.finish is None:
            begun = self.length or self.calls
            raise models.ModelFailed(
                "unreachable" if begun else "unusable_answer", "the stream ended too early"
            )

    def answer(self, request: models.LLMRequest, model: str) -> models.LLMAnswer:
        if self.finish == "content_filter":
            raise models.ModelFailed("refused", "the provider's content filter withheld the answer")
        cut = self.length > self.longest
        return finished_answer(
            request,
            "".join(self.texts),
            [models.ToolCall(call.id, call.name, tool_arguments(call.arguments)) for call in self.calls],
            model=model,
            input_tokens=int(self.usage.get("prompt_tokens") or 0),
            # A stream that was cut tells no usage: it comes with the last chunk.
            output_tokens=max(
                int(self.usage.get("completion_tokens") or 0), estimated_tokens(self.length) if cut else 0
            ),
            cut=cut or self.finish == "length",
        )

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[models.TextDelta | models.ToolCallDelta]:
        self.length += len(delta.get("reasoning_content") or delta.get("reasoning") or "")
        if text := delta.get("content"):
            self.length += len(text)
            if (over := self.length - self.longest) > 0:
                text = text[:-over]
            if text:
                self.texts.append(text)
                yield models.TextDelta(text)
        for part in delta.get("tool_calls") or ():
            # Servers differ in what names a call's later pieces: an index, its id again, or nothing.
            function = cast("Mapping[str, Any]", part.get("function") or {})
            index, call_id = cast("int | None", part.get("index")), cast("str | None", part.get("id"))
            arguments = str(function.get("arguments") or "")
            self.length += len(arguments)
            known = next(
                (call for call in reversed(self.calls) if index is None or call.index == index), None
            )
            if known is None or (call_id and call_id != known.id):
                place = len(self.calls)
                known = _Call(index, call_id or f"call-{place + 1}", str(function["name"]))
                self.calls.append(known)
                yield models.ToolCallDelta(place, known.id, known.name, arguments)
            elif arguments:
                yield models.ToolCallDelta(self.calls.index(known), arguments=arguments)
            known.arguments += arguments


@dataclass(slots=True, eq=False)
class _Call:
    index: int | None
    id: str
    name: str
    arguments: str = ""


async def _refusal(response: httpx2.Response) -> models.ModelFailed:
    """By the status and the code of the error; its message may quote the prompt."""
    status = response.status_code
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MOST_ERROR_BYTES:
            break
    try:
        error = orjson.loads(body)["error"]
        code = error.get("code") or error.get("type")
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        code = None
    return models.ModelFailed(reason_of(status), f"status {status}" + (f", {code}" if code else ""))


def reason_of(status: int) -> models.FailureReason:
    """Of an error status."""
    return _REASON_OF_STATUS.get(status, "unreachable" if status >= 500 else "refused")


def _body(model: str, request: models.LLMRequest, *, samples: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": request.max_tokens,
    }
    if samples:
        body["temperature"] = request.temperature
        if request.top_p is not None:
            body["top_p"] = request.top_p
    if request.tools:
        body["tool_choice"] = "auto"
        body["tools"] = function_tools(request)
    return body


def function_tools(request: models.LLMRequest) -> list[dict[str, Any]]:
    """The tools of a request as `/chat/completions` takes them, and Ollama after it. As JSON."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in request.tools
    ]


def _message(message: models.Message) -> Mapping[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        written["content"] = message.content or None
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": orjson.dumps(dict(call.arguments)).decode()},
            }
            for call in message.tool_calls
        ]
    return written
