"""Ollama's own API behind OpenAI's: what it can do is translated, what it cannot is refused.

    POST /api/chat   {model, messages, tools, format, think, stream, keep_alive, options}
    reply            one JSON object a line: {message {content, thinking, tool_calls}, done}, the last one
                     with {done_reason, prompt_eval_count, eval_count}
    POST /api/embed  {model, input, dimensions, keep_alive, options} -> {embeddings, prompt_eval_count}

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, cast

from channels.gateway import config, connection, ollama_answers, upstreams
from channels.gateway.wire import (
    FINISHED,
    ApiError,
    ApiRequest,
    JsonObject,
    Part,
    Stretches,
    UpstreamFailed,
    object_of,
    objects_of,
    parsed_part,
    read_json,
    written,
)

OPTIONS: Final = frozenset(
    (
        *(
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "frequency_penalty",
            "presence_penalty",
            "num_ctx",
        ),
        *("typical_p", "repeat_penalty", "repeat_last_n", "num_batch", "num_gpu", "num_thread", "num_keep"),
    )
)
"""Fields of a request that are Ollama's `options` under the same name."""

_TRANSLATED: Final = frozenset(
    (
        *("model", "messages", "tools", "tool_choice", "stream", "stream_options", "response_format", "stop"),
        *("max_tokens", "max_completion_tokens", "keep_alive", "think", "reasoning_effort", "options", "n"),
        *("logit_bias", "logprobs", "top_logprobs", "parallel_tool_calls", "modalities"),
    )
)
_WITHOUT_EFFECT: Final = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention"),
    )
)
"""What concerns a vendor's books or its cache, and no answer: it may be sent, and does nothing."""

_NO_VALUE: Final[tuple[Any, ...]] = (None, {}, [])


class OllamaUpstream:
    """Implements `Upstream`."""

    def __init__(self, wire: upstreams.Wire) -> None:
        self._wire = wire

    def check(self, request: ApiRequest, operation: upstreams.Operation) -> None:
        if operation == "chat":
            _chat_body(request, request.model, self._wire.backend)
        else:
            _embed_body(request, request.model, self._wire.backend)

    async def ask(
        self, request: ApiRequest, model: str, operation: upstreams.Operation
    ) -> AsyncGenerator[Part]:
        if operation == "embeddings":
            body = _embed_body(request, model, self._wire.backend)
            reply = (await self._wire.whole("/api/embed", written(body))).parsed
            if not ollama_answers.are_vectors(reply.get("embeddings")):
                raise self._untranslatable()
            yield ollama_answers.embeddings_of(request, reply)
            return
        body = _chat_body(request, model, self._wire.backend)
        calls = (call for each in request.body["messages"] for call in objects_of(each.get("tool_calls")))
        answer = ollama_answers.Answer(model, {str(call.get("id")) for call in calls})
        if not request.streams:
            part = await self._wire.whole("/api/chat", written(body))
            if part.parsed.get("done") is not True:
                raise self._wire.failed(502, "ended its answer before it was finished", broken=False)
            if not ollama_answers.is_answer(part.parsed):
                raise self._untranslatable()
            yield ollama_answers.made_part(answer.whole(part.parsed))
            return
        async with self._wire.post("/api/chat", written(body)) as reply:
            async for line in self._lines(reply):
                for made in answer.chunks(line, with_usage=request.wants_usage):
                    yield made
                if line.get("done") is True:
                    yield FINISHED
                    await upstreams.drained(reply)
                    return
        raise self._wire.failed(502, "ended its answer before it was finished", broken=False)

    async def _lines(self, reply: connection.Connection) -> AsyncGenerator[JsonObject]:
        deadline = asyncio.get_running_loop().time() + self._wire.backend.timeout_s
        lines, any_yet = Stretches(b"\n"), False
        while piece := await reply.piece():
            try:
                found = lines.feed(piece)
            except ValueError:
                raise self._wire.failed(502, "sent a line that is too long", broken=False) from None
            for line in found:
                if line.strip():
                    any_yet = True
                    yield self._object(line)
            if not any_yet and asyncio.get_running_loop().time() > deadline:
                raise self._wire.failed(504, "sent nothing in time", broken=True)
        if rest := bytes(lines.rest).strip():
            yield self._object(rest)

    def _object(self, line: bytes) -> JsonObject:
        try:
            parsed = parsed_part(line)
        except ValueError:
            raise self._wire.failed(502, "sent a line that is cut or no JSON", broken=False) from None
        if "error" in parsed:
            raise upstreams.broken_off(parsed)
        if not ollama_answers.is_answer(parsed):
            raise self._untranslatable()
        return parsed

    def _untranslatable(self) -> UpstreamFailed:
        return self._wire.failed(502, "gave an answer that is none of Ollama's", broken=False)


def _unsupported(param: str, what: str) -> ApiError:
    return ApiError(400, f"Ollama cannot do this: {what}", param=param, code="unsupported")


def _invalid(message: str) -> ApiError:
    return ApiError(400, message, param="messages", code="invalid_messages")


# The request --------------------------------------------------------------------------------------------


def _chat_body(request: ApiRequest, model: str, backend: config.Backend) -> JsonObject:
    """Raises ApiError 400 for what cannot be translated."""
    body = request.body
    if body.get("n") not in (None, 1):
        raise _unsupported("n", "more than one answer")
    if body.get("logit_bias") not in _NO_VALUE:
        raise _unsupported("logit_bias", "logit_bias")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise _unsupported("tool_choice", "a tool_choice other than 'auto' and 'none'")
    if body.get("parallel_tool_calls") is False:
        raise _unsupported("parallel_tool_calls", "to call one tool at a time")
    if body.get("modalities") not in (*_NO_VALUE, ["text"]):
        raise _unsupported("modalities", "modalities other than text")
    for name, value in body.items():
        if value not in _NO_VALUE and name not in _TRANSLATED | OPTIONS | _WITHOUT_EFFECT:
            raise _unsupported(name, name)
    sent: JsonObject = {
        "model": model,
        "messages": _messages(cast("Sequence[JsonObject]", body["messages"])),
        "stream": request.streams,
        "options": _options(body, backend),
    }
    if body.get("tools") and body.get("tool_choice") != "none":
        sent["tools"] = body["tools"]
    if (shape := _format(body.get("response_format"))) is not None:
        sent["format"] = shape
    if (keep := body.get("keep_alive", backend.keep_alive)) is not None:
        sent["keep_alive"] = keep
    effort = body.get("reasoning_effort")
    think = body.get("think", None if effort is None else False if effort == "none" else effort)
    if think is not None:
        sent["think"] = think
    for name in ("logprobs", "top_logprobs"):
        if body.get(name) is not None:
            sent[name] = body[name]
    return sent


def _options(body: JsonObject, backend: config.Backend) -> JsonObject:
    options: JsonObject = {} if backend.num_ctx is None else {"num_ctx": backend.num_ctx}
    options |= {name: value for name, value in body.items() if name in OPTIONS and value is not None}
    longest = body.get("max_completion_tokens")
    longest = body.get("max_tokens") if longest is None else longest
    if longest is not None:
        options["num_predict"] = longest
    if body.get("stop") is not None:
        options["stop"] = [body["stop"]] if isinstance(body["stop"], str) else body["stop"]
    more: Any = body.get("options")
    if more not in _NO_VALUE and not isinstance(more, dict):
        raise _unsupported("options", "options that are no object")
    return options | (cast("JsonObject", more) if isinstance(more, dict) else {})


def _format(asked: Any) -> Any:
    match asked:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return "json"
        case {"type": "json_schema", "json_schema": {"schema": schema}} if isinstance(schema, dict):
            return cast("JsonObject", schema)
        case _:
            raise _unsupported("response_format", "this response_format")


def _messages(messages: Sequence[JsonObject]) -> list[JsonObject]:
    names: dict[str, str] = {}
    sent: list[JsonObject] = []
    for message in messages:
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise _unsupported("messages", f"messages of role {role!r}")
        text, images = _content(message.get("content"))
        made: JsonObject = {"role": "system" if role == "developer" else role, "content": text}
        if images:
            made["images"] = images
        if isinstance(message.get("reasoning_content"), str):
            made["thinking"] = message["reasoning_content"]
        if calls := [_sent_call(call, names) for call in objects_of(message.get("tool_calls"))]:
            made["tool_calls"] = calls
        if role == "tool":
            made["tool_name"] = names.get(str(message.get("tool_call_id")))
            if made["tool_name"] is None:
                raise _invalid("a tool message's tool_call_id is that of no call before it")
        sent.append(made)
    return sent


def _sent_call(call: JsonObject, names: dict[str, str]) -> JsonObject:
    match call:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(text)}}:
            names[call_id] = name
        case _:
            raise _invalid("a tool call has an id, and a function with a name and its arguments as text")
    try:
        arguments: Any = read_json(text or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise _invalid(f"the arguments of call {call_id!r} are no JSON object")
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def _content(content: Any) -> tuple[str, list[str]]:
    """Text, and images as base64."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise _unsupported("messages", "content that is neither a text nor a list of parts")
    texts, images = list[str](), list[str]()
    for part in cast("list[Any]", content):
        match part:
            case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                head, comma, data = url.partition(",")
                if not (head.startswith("data:") and head.endswith(";base64") and comma):
                    message = "an image by its address; accepted is data:image/...;base64,..."
                    raise _unsupported("messages", message)
                images.append(data)
            case _:
                raise _unsupported("messages", f"content of type {object_of(part).get('type')!r}")
    return "\n".join(texts), images


def _embed_body(request: ApiRequest, model: str, backend: config.Backend) -> JsonObject:
    body = request.body
    given: Any = body["input"]
    texts: Any = [given] if isinstance(given, str) else given
    if (
        not isinstance(texts, list)
        or not texts
        or not all(isinstance(t, str) for t in cast("list[Any]", texts))
    ):
        raise _unsupported("input", "input other than a text or a list of texts")
    if body.get("encoding_format") not in (None, "float", "base64"):
        raise ApiError(400, "accepted are 'float' and 'base64'", param="encoding_format")
    known = {"model", "input", "encoding_format", "dimensions", "user", "keep_alive", "options", "truncate"}
    for name, value in body.items():
        if value is not None and name not in known | OPTIONS:
            raise _unsupported(name, name)
    sent: JsonObject = {"model": model, "input": texts}
    if options := _options(body, backend):
        sent["options"] = options
    if (keep := body.get("keep_alive", backend.keep_alive)) is not None:
        sent["keep_alive"] = keep
    return sent | {name: body[name] for name in ("dimensions", "truncate") if body.get(name) is not None}
