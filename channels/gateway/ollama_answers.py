"""Ollama's answers as OpenAI's: whole ones, the lines of a stream, and embeddings.

An answer is to be asked `is_answer`, embeddings `are_vectors`, before it is translated.
"""

import base64
import struct
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from channels.gateway.wire import ApiRequest, JsonObject, Part, object_of, objects_of, whole_number, written

_MOST: Final = 3.4e38
"""Of a number in base64, which has 32 bits."""


def is_answer(reply: JsonObject) -> bool:
    """Whether what is translated of it has the types that Ollama gives it."""
    given: Any = reply.get("message")
    message = object_of(given)
    calls: Any = message.get("tool_calls") or []
    return (
        isinstance(given, dict | None)
        and all(isinstance(message.get(name), str | None) for name in ("content", "thinking"))
        and isinstance(calls, list)
        and all(_is_call(call) for call in cast("list[Any]", calls))
    )


def _is_call(given: Any) -> bool:
    return isinstance(object_of(object_of(given).get("function")).get("name"), str)


def are_vectors(given: Any) -> bool:
    """Of numbers that have 32 bits in base64."""
    return isinstance(given, list) and all(map(_is_vector, cast("list[Any]", given)))


def _is_vector(given: Any) -> bool:
    if not isinstance(given, list) or not set(map(type, cast("list[Any]", given))) <= {int, float}:
        return False
    numbers = cast("list[float]", given)
    return min(numbers, default=0) > -_MOST and max(numbers, default=0) < _MOST


@dataclass(slots=True)
class Answer:
    """One answer on its way. `ids` are those of the calls before it in the conversation."""

    model: str
    ids: set[str]
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    begun: bool = False
    calls: int = 0

    def whole(self, reply: JsonObject) -> JsonObject:
        message = object_of(reply.get("message"))
        calls = [self._call(call) for call in objects_of(message.get("tool_calls"))]
        made: JsonObject = {"role": "assistant", "content": message.get("content") or None}
        if not calls and made["content"] is None:
            made["content"] = ""
        if message.get("thinking"):
            made["reasoning_content"] = message["thinking"]
        if calls:
            made["tool_calls"] = calls
        choice = {
            "index": 0,
            "message": made,
            "logprobs": _logprobs(reply),
            "finish_reason": self._end(reply),
        }
        return {**self._head("chat.completion"), "choices": [choice], "usage": _usage(reply)}

    def chunks(self, line: JsonObject, *, with_usage: bool) -> Iterable[Part]:
        message = object_of(line.get("message"))
        delta: JsonObject = {} if self.begun else {"role": "assistant", "content": ""}
        if message.get("thinking"):
            delta["reasoning_content"] = message["thinking"]
        if message.get("content"):
            delta["content"] = message["content"]
        first = self.calls
        if calls := [self._call(call) for call in objects_of(message.get("tool_calls"))]:
            delta["tool_calls"] = [{"index": first + at, **call} for at, call in enumerate(calls)]
        self.begun = True
        done = line.get("done") is True
        if delta or not done:
            yield self._chunk(delta, line, None)
        if done:
            yield self._chunk({}, {}, self._end(line))
            usage: JsonObject = {**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(line)}
            yield made_part(usage, shown=with_usage)

    def _chunk(self, delta: JsonObject, line: JsonObject, finish: str | None) -> Part:
        choice = {"index": 0, "delta": delta, "logprobs": _logprobs(line), "finish_reason": finish}
        return made_part({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _call(self, call: JsonObject) -> JsonObject:
        """With the id that Ollama sent, else with the first one that is free in the conversation."""
        function = object_of(call.get("function"))
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            number = len(self.ids)
            while (call_id := f"call_{number}") in self.ids:
                number += 1
        self.ids.add(call_id)
        self.calls += 1
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else written(arguments or {}).decode()
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": function.get("name"), "arguments": text},
        }

    def _end(self, reply: JsonObject) -> str:
        return "tool_calls" if self.calls else "length" if reply.get("done_reason") == "length" else "stop"


def _logprobs(reply: JsonObject) -> JsonObject | None:
    found = reply.get("logprobs")
    return None if not found else {"content": found, "refusal": None}


def _usage(reply: JsonObject) -> JsonObject:
    read, wrote = (whole_number(reply.get(name)) for name in ("prompt_eval_count", "eval_count"))
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def made_part(body: JsonObject, *, shown: bool = True) -> Part:
    return Part(written(body), body, shown)


def embeddings_of(request: ApiRequest, reply: JsonObject) -> Part:
    vectors = cast("list[list[float]]", reply.get("embeddings") or [])
    as_text = request.body.get("encoding_format") == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            if as_text
            else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    read = whole_number(reply.get("prompt_eval_count"))
    usage = {"prompt_tokens": read, "total_tokens": read}
    return made_part(
        {"object": "list", "data": data, "model": reply.get("model", request.model), "usage": usage}
    )
