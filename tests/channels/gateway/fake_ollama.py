"""A small Ollama on loopback, driven by a script: its own API, streamed and plain, embeddings and errors.

    POST /api/chat   streamed as one JSON object a line, or whole with `stream: false`
    POST /api/embed  vectors that count words

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapters.models import answers, fake_http, fake_openai, scripted


@dataclass(frozen=True, slots=True)
class OllamaAnswer:
    """What the model does. `calls` are Ollama's tool calls, `{"function": {"name", "arguments": {...}}}`,
    with an `id` or without."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[Mapping[str, Any]] = ()
    done_reason: str = "stop"
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class OllamaError:
    """An error reply, `{"error": message}`; with status 200 it comes in the stream, after `text`."""

    message: str
    status: int = 404
    text: str = ""


@dataclass(frozen=True, slots=True)
class OllamaCut:
    """The stream ends after this much of the answer, without `done`."""

    text: str


OllamaStep = OllamaAnswer | OllamaError | OllamaCut


class FakeOllama(fake_http.FakeServer):
    """Serves on a free port while `running`. `requests` holds what it was sent, oldest first."""

    def __init__(self, steps: Sequence[OllamaStep] | Callable[[fake_http.Received], OllamaStep]) -> None:
        super().__init__()
        self._script: scripted.Script[fake_http.Received, OllamaStep] = scripted.Script(steps)

    @property
    def requests(self) -> Sequence[fake_http.Received]:
        return self._script.requests

    async def answer(self, received: fake_http.Received, writer: asyncio.StreamWriter) -> None:
        step = self._script.next(received)
        if isinstance(step, OllamaError) and step.status != 200:
            await _write(writer, step.status, [orjson.dumps({"error": step.message})])
        elif received.path == "/api/embed":
            body = received.body
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            read = sum(answers.estimated_tokens(len(text)) for text in texts)
            vectors = [fake_openai.word_vector(text, body.get("dimensions", 64)) for text in texts]
            reply = {"model": body["model"], "embeddings": vectors, "prompt_eval_count": read}
            await _write(writer, 200, [orjson.dumps(reply)])
        elif received.path != "/api/chat":
            await _write(writer, 404, [b"404 page not found"])
        elif received.body.get("stream", True):
            await _write(writer, 200, [orjson.dumps(line) + b"\n" for line in _lines(received.body, step)])
        else:
            assert isinstance(step, OllamaAnswer)
            whole = _line(received.body, step.text, step.thinking, step.calls) | _end(received.body, step)
            await _write(writer, 200, [orjson.dumps(whole)])


def _lines(body: fake_http.Body, step: OllamaStep) -> Iterator[Mapping[str, Any]]:
    if isinstance(step, OllamaAnswer):
        for piece in scripted.pieces(step.thinking):
            yield _line(body, "", piece)
    for piece in scripted.pieces(step.text):
        yield _line(body, piece)
    if isinstance(step, OllamaAnswer):
        for call in step.calls:
            yield _line(body, "", calls=[call])
        yield _line(body, "") | _end(body, step)
    elif isinstance(step, OllamaError):
        yield {"error": step.message}


def _line(
    body: fake_http.Body, text: str, thinking: str = "", calls: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    message |= {"thinking": thinking} if thinking else {}
    message |= {"tool_calls": list(calls)} if calls else {}
    return {"model": body["model"], "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False}


def _end(body: fake_http.Body, step: OllamaAnswer) -> dict[str, Any]:
    read = sum(len(str(message.get("content"))) for message in body.get("messages", []))
    counted = {
        "prompt_eval_count": answers.estimated_tokens(read),
        "eval_count": answers.estimated_tokens(len(step.text)),
    }
    return {
        "done": True,
        "done_reason": step.done_reason,
        "total_duration": 1_000_000,
        **counted,
        **step.more,
    }


async def _write(writer: asyncio.StreamWriter, status: int, parts: Sequence[bytes]) -> None:
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    for part in parts:
        writer.write(part)
        await writer.drain()
