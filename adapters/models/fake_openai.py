"""A small server of OpenAI's chat completions on loopback, driven by a script: end to end without a network.

It answers streaming and plain requests, structured output by `response_format` or by a forced tool, and
goes wrong on the wire in the ways that servers do.
"""

from __future__ import annotations

import asyncio
import base64
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import orjson

from adapters.models import scripted
from adapters.models.answers import estimated_tokens
from adapters.models.fake_http import Body, FakeServer, Received


@dataclass(frozen=True, slots=True)
class Status:
    """An error reply, with OpenAI's error object."""

    code: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """Status 200 and a body that is not the JSON of the protocol, so invalid for any client."""

    body: bytes = b"data: {not json\n\n"


WireStep: TypeAlias = scripted.Step | Status | Malformed


_STATUS_OF = {"too_many_calls": 429, "unreachable": 503, "refused": 401, "not_configured": 404}


class FakeOpenAI(FakeServer):
    """Serves on a free port while `running`. `requests` holds what it was sent, oldest first."""

    def __init__(self, steps: Sequence[WireStep] | Callable[[Received], WireStep]) -> None:
        super().__init__()
        self._script: scripted.Script[Received, WireStep] = scripted.Script(steps)

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    @property
    def requests(self) -> Sequence[Received]:
        return self._script.requests

    async def answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
        if received.path.endswith("/embeddings"):
            await _Reply(received, writer).raw(embeddings_reply(received.body))
        else:
            await self._answer(_Reply(received, writer))

    async def _answer(self, reply: _Reply) -> None:
        step = self._script.next(reply.received)
        if isinstance(step, scripted.Fails) and step.reason == "timeout":
            step = scripted.Stalls(30)
        if isinstance(step, scripted.Stalls):
            await asyncio.sleep(step.seconds)
            step = step.then
        match step:
            case Status(code):
                await reply.error(code)
            case scripted.Fails(reason) if reason in _STATUS_OF:
                await reply.error(_STATUS_OF[reason])
            case scripted.Fails():
                await reply.raw(Malformed().body)
            case Malformed(body):
                await reply.raw(body)
            case scripted.DropsStream(text):
                await reply.dropped(text)
            case scripted.Endless(text):
                await reply.endless(text)
            case scripted.Says(text):
                await reply.complete({"content": text})
            case scripted.Answers(data):
                await reply.complete(_structured(reply.received.body, orjson.dumps(data).decode()))
            case scripted.Truncated(data):
                text = orjson.dumps(data).decode()
                await reply.complete(
                    _structured(reply.received.body, text[: len(text) // 2]), finish="length"
                )
            case scripted.CallsTools(calls, text):
                said = [(call.id, call.name, orjson.dumps(dict(call.arguments)).decode()) for call in calls]
                await reply.complete(_calling(said, text))
            case scripted.CallsToolBadly(name, arguments):
                await reply.complete(_calling([("call-1", name, arguments)], ""))


def _structured(body: Body, text: str) -> dict[str, Any]:
    """The answer in the form that the request asked for."""
    choice = body.get("tool_choice")
    if "response_format" in body or not body.get("tools") or choice in (None, "auto", "none"):
        return {"content": text}
    forced = body["tools"][0] if choice == "required" else choice
    return _calling([("call-1", forced["function"]["name"], text)], "")


def _calling(calls: Sequence[tuple[str, str, str]], text: str) -> dict[str, Any]:
    return {
        "content": text or None,
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ],
    }


class _Reply:
    """Writes one reply. The end of the connection ends the body."""

    def __init__(self, received: Received, writer: asyncio.StreamWriter) -> None:
        self.received = received
        self._writer = writer
        self._streams = bool(received.body.get("stream"))

    async def error(self, code: int) -> None:
        error = {"message": f"scripted status {code}", "type": "scripted", "param": None, "code": None}
        await self._head(code, "application/json")
        await self._write(orjson.dumps({"error": error}))

    async def raw(self, body: bytes) -> None:
        await self._head(200, "text/event-stream" if self._streams else "application/json")
        await self._write(body)

    async def complete(self, message: Mapping[str, Any], finish: str | None = None) -> None:
        finish = finish or ("tool_calls" if message.get("tool_calls") else "stop")
        text = cast("str", message.get("content") or "")
        calls = cast("list[dict[str, Any]]", message.get("tool_calls") or [])
        written = len(text) + sum(len(call["function"]["arguments"]) for call in calls)
        read = sum(len(str(message.get("content"))) for message in self.received.body.get("messages", []))
        tokens = [estimated_tokens(length) for length in (read, written)]
        usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
        if not self._streams:
            choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
            await self.raw(orjson.dumps(self._object("chat.completion", [choice], usage)))
            return
        await self._head(200, "text/event-stream")
        await self._delta({"role": "assistant", "content": ""})
        for piece in scripted.pieces(text):
            await self._delta({"content": piece})
        for index, call in enumerate(calls):
            function = call["function"]
            named = {"name": function["name"], "arguments": ""}
            await self._delta(
                {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": named}]}
            )
            for piece in scripted.pieces(function["arguments"]):
                more = {"index": index, "function": {"arguments": piece}}
                await self._delta({"tool_calls": [more]})
        await self._delta({}, finish)
        await self._event(self._object("chat.completion.chunk", [], usage))
        await self._write(b"data: [DONE]\n\n")

    async def dropped(self, text: str) -> None:
        await self._head(200, "text/event-stream", chunked=True)
        body = b"data: " + orjson.dumps(self._chunk({"content": text}, None)) + b"\n\n"
        await self._write(b"%x\r\n" % len(body) + body + b"\r\n")

    async def endless(self, text: str) -> None:
        await self._head(200, "text/event-stream")
        while True:
            await self._delta({"content": text})

    async def _delta(self, delta: Mapping[str, Any], finish: str | None = None) -> None:
        await self._event(self._chunk(delta, finish))

    def _chunk(self, delta: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return self._object("chat.completion.chunk", [choice], None)

    def _object(self, kind: str, choices: list[Any], usage: object) -> dict[str, Any]:
        return {
            "id": "chatcmpl-scripted",
            "object": kind,
            "created": 1_700_000_000,
            "model": self.received.body.get("model", ""),
            "choices": choices,
            "usage": usage,
        }

    async def _event(self, payload: object) -> None:
        await self._write(b"data: " + orjson.dumps(payload) + b"\n\n")

    async def _head(self, code: int, content_type: str, *, chunked: bool = False) -> None:
        lines = [f"HTTP/1.1 {code} Scripted", f"Content-Type: {content_type}", "Connection: close"]
        lines += ["Transfer-Encoding: chunked"] if chunked else []
        await self._write("\r\n".join([*lines, "", ""]).encode())

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


def embeddings_reply(body: Body) -> bytes:
    """OpenAI's reply to an embeddings request, as JSON: the vector of a text counts its words."""
    given = body["input"]
    texts = cast("list[str]", [given] if isinstance(given, str) else given)
    vectors = [word_vector(text) for text in texts]
    as_text = body.get("encoding_format") == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode() if as_text else v,
        }
        for index, v in enumerate(vectors)
    ]
    read = sum(estimated_tokens(len(text)) for text in texts)
    usage = {"prompt_tokens": read, "total_tokens": read}
    return orjson.dumps({"object": "list", "data": data, "model": body.get("model"), "usage": usage})


def word_vector(text: str, size: int = 64) -> list[float]:
    """`size` numbers, each the count of words with that CRC-32: texts with words in common are near to each
    other."""
    vector = [0.0] * size
    for word in re.findall(r"\w+", text.lower()):
        vector[zlib.crc32(word.encode()) % size] += 1.0
    return vector
