"""The stream of OpenAI's chat completions, read for dialogues that are shown while they come.

    POST {base_url}/chat/completions  {model, messages, tools, stream, temperature, …}
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
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

import httpx2
import orjson

from adapters.models.answers import (
    check_end,
    estimated_tokens,
    finished_answer,
    longest_answer,
    tool_arguments,
)
from adapters.models.providers import Endpoint, ModelName
from flow_engine.json_values import as_object
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
    limit: str,
) -> AsyncGenerator[models.ModelEvent]:
    """As `LanguageModel.stream` with deltas. `timeout_s` bounds each silence in seconds; `samples` says that
    the model takes a temperature; `limit` is the server's name for the most tokens of an answer.

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
        content=orjson.dumps(_body(name.model, request, limit, samples=samples)),
        headers=headers,
    )
    async with opened as response:
        if response.status_code >= 300:
            async with asyncio.timeout_at(deadline):
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
                for delta in received.take(data):
                    yield delta
                deadline = loop.time() + timeout_s  # the reader's time is no silence of the server's
    yield received.answer(request, str(name))


@dataclass(slots=True)
class _Received:
    """What has come of an answer, cut at `longest` characters, reasoning included."""

    longest: int
    length: int = 0
    texts: list[str] = field(default_factory=list[str])
    calls: list[_Call] = field(default_factory=list["_Call"])
    finish: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
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
        """What an event adds. Raises ModelFailed `unusable_answer`, or as an error of the server tells."""
        if self.is_over or not data:
            return
        if data == _DONE:
            self.is_done = True
            return
        try:
            chunk = cast("Mapping[str, Any]", orjson.loads(data))
            # An older vLLM has the error in the event itself.
            if error := chunk.get("error") or (chunk.get("object") == "error" and chunk):
                raise _told_error(error)
            if usage := chunk.get("usage"):
                self.input_tokens = int(usage.get("prompt_tokens") or 0)
                self.output_tokens = int(usage.get("completion_tokens") or 0)
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
        check_end(self.finish)
        cut = self.length > self.longest
        return finished_answer(
            request,
            "".join(self.texts),
            [models.ToolCall(call.id, call.name, tool_arguments(call.arguments)) for call in self.calls],
            model=model,
            input_tokens=self.input_tokens,
            # A stream that was cut tells no usage: it comes with the last chunk.
            output_tokens=max(self.output_tokens, estimated_tokens(self.length) if cut else 0),
            cut=cut or self.finish == "length",
        )

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[models.TextDelta | models.ToolCallDelta]:
        self.length += len(delta.get("reasoning_content") or delta.get("reasoning") or "")
        # A model that refuses says so in a field of its own, in words for the user.
        if text := delta.get("content") or delta.get("refusal"):
            if not isinstance(text, str):
                raise TypeError("text is expected")
            self.length += len(text)
            if (over := self.length - self.longest) > 0:
                text = text[:-over]
            if text:
                self.texts.append(text)
                yield models.TextDelta(text)
        for part in delta.get("tool_calls") or ():
            function = cast("Mapping[str, Any]", part.get("function") or {})
            index, call_id = cast("int | None", part.get("index")), cast("str | None", part.get("id"))
            name, arguments = function.get("name"), _as_text(function.get("arguments"))
            self.length += len(arguments)
            known = self._continued(index, call_id, name)
            if known is None:
                place = len(self.calls)
                known = _Call(index, call_id or f"call-{place + 1}", str(name))
                self.calls.append(known)
                yield models.ToolCallDelta(place, known.id, known.name, arguments)
            elif arguments:
                yield models.ToolCallDelta(self.calls.index(known), arguments=arguments)
            known.arguments += arguments

    def _continued(self, index: int | None, call_id: str | None, name: str | None) -> _Call | None:
        """The call that a piece goes on with; None for the first piece of one. Servers differ in what they
        say of later pieces: an index, the id again or another one, the name again, or nothing. Raises
        ValueError for a first piece that names no function."""
        for call in self.calls:
            if call_id and call.id == call_id:
                return call
        last = next((call for call in reversed(self.calls) if index is None or call.index == index), None)
        if name and (call_id or index is None or last is None or last.name != name):
            return None
        if last is None:
            raise ValueError("a call of no function")
        return last


@dataclass(slots=True, eq=False)
class _Call:
    index: int | None
    id: str
    name: str
    arguments: str = ""


def _as_text(arguments: object) -> str:
    """Some servers write them as the object itself."""
    return orjson.dumps(arguments).decode() if isinstance(arguments, dict) else str(arguments or "")


async def _refusal(response: httpx2.Response) -> models.ModelFailed:
    """By the status and the code of the error; its message may quote the prompt."""
    status = response.status_code
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MOST_ERROR_BYTES:
            break
    try:
        error = as_object(as_object(orjson.loads(body)).get("error"))
        code = error.get("code") or error.get("type")
    except orjson.JSONDecodeError:
        code = None
    return models.ModelFailed(
        reason_of(status),
        f"status {status}" + (f", {code}" if code else ""),
        retry_after_s=retry_after_s(response.headers, datetime.now(UTC)),
    )


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """In how many seconds to ask again, by either form of Retry-After (RFC 9110) or by OpenAI's finer header;
    None where nothing readable says so. Names of headers are in lower case."""
    told = headers.get("retry-after", "")
    try:
        if finer := headers.get("retry-after-ms"):
            return float(finer) / 1000
        return float(told) if told[:1].isdigit() else (parsedate_to_datetime(told) - now).total_seconds()
    except (ValueError, TypeError):
        return None


def _told_error(told: object) -> models.ModelFailed:
    """An error within the stream, named as it would have been before it; servers tell a status or a word."""
    error = as_object(told)
    codes = [str(code) for name in ("status_code", "code", "type") if (code := error.get(name))]
    words = " ".join(codes).lower()
    status = next((int(code) for code in codes if code.isdecimal()), 400)
    if "rate_limit" in words:
        status = 429
    elif status < 500 and any(word in words for word in ("server", "overloaded", "upstream")):
        status = 500
    detail = "the server tells an error" + "".join(f", {code}" for code in codes[:1])
    return models.ModelFailed(reason_of(status), detail)


def reason_of(status: int) -> models.FailureReason:
    """Of an error status."""
    return _REASON_OF_STATUS.get(status, "unreachable" if status >= 500 else "refused")


def _body(model: str, request: models.LLMRequest, limit: str, *, samples: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        limit: request.max_tokens,
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
