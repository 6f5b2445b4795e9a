"""Ollama's own API, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from adapters.models.providers import ModelName
from adapters.models.pydantic_ai_model import PydanticAiModel
from flow_engine.ports.models import (
    LLMAnswer,
    LLMRequest,
    Message,
    ModelFailed,
    TextDelta,
    ToolCall,
    ToolSpec,
)

pytestmark = pytest.mark.anyio

REQUEST = LLMRequest(
    [
        Message("system", "Be kind."),
        Message("user", "Rain?"),
        Message("assistant", "", tool_calls=(ToolCall("c", "look", {"city": "Rome"}),)),
        Message("tool", "{}", tool_call_id="c"),
    ],
    tools=[ToolSpec("look", "Looks.", {"type": "object"})],
    temperature=0.7,
    top_p=0.5,
    num_ctx=8192,
    deltas=True,
)


class Server:
    """Answers every request with these lines."""

    def __init__(self, lines: list[Any], status: int = 200) -> None:
        self.paths: list[str] = []
        self.bodies: list[Any] = []
        self._lines = lines
        self._status = status

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(int(line[15:]) for line in head if line.lower().startswith("content-length:"))
        self.paths.append(head[0])
        self.bodies.append(orjson.loads(await reader.readexactly(length)))
        lines = b"".join(orjson.dumps(line) + b"\n" for line in self._lines)
        writer.write(f"HTTP/1.1 {self._status} x\r\nConnection: close\r\n\r\n".encode() + lines)
        await writer.drain()
        writer.close()


async def events_of(server: Server, request: LLMRequest = REQUEST) -> list[Any]:
    async with server.running() as url:
        model = PydanticAiModel(ModelName("ollama", "qwen3:8b"), {"OLLAMA_BASE_URL": url}, 2.0)
        try:
            return [event async for event in model.stream(request)]
        finally:
            await model.aclose()


async def test_the_length_of_the_context_reaches_ollama() -> None:  # C1, C5, W6
    server = Server(
        [
            {"message": {"role": "assistant", "content": "It ", "thinking": "hm"}, "done": False},
            {"message": {"role": "assistant", "content": "rains."}, "done": False},
            {"message": {"content": ""}, "done": True, "prompt_eval_count": 9, "eval_count": 3},
        ]
    )
    *deltas, answer = await events_of(server)
    assert deltas == [TextDelta("It "), TextDelta("rains.")]
    assert isinstance(answer, LLMAnswer)
    assert (answer.text, answer.input_tokens, answer.output_tokens) == ("It rains.", 9, 3)
    assert server.paths == ["POST /api/chat HTTP/1.1"]
    body = server.bodies[0]
    assert body["options"] == {"num_ctx": 8192, "temperature": 0.7, "top_p": 0.5, "num_predict": 4096}
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][3]["tool_name"] == "look"


async def test_calls_of_tools_come_with_ids() -> None:  # W6
    call = {"function": {"name": "look", "arguments": {"city": "Rome"}}}
    server = Server([{"message": {"content": "", "tool_calls": [call]}, "done": True}])
    answer = (await events_of(server))[-1]
    assert answer.message.tool_calls == (ToolCall("call-1", "look", {"city": "Rome"}),)


async def test_an_answer_is_as_long_as_its_tokens_whatever_stands_around_them_on_the_wire() -> None:  # C1, W6
    def line(message: dict[str, str], **last: object) -> dict[str, object]:
        around = {"model": "qwen3:8b", "created_at": "2026-05-04T09:30:00.123456789Z", "done": False}
        return {**around, "message": {"role": "assistant", **message}, **last}

    words = [line({"content": f" w{number:03}"}) for number in range(400)]
    server = Server([*words, line({"content": ""}, done=True, done_reason="stop", eval_count=400)])
    answer = (await events_of(server, replace(REQUEST, max_tokens=500)))[-1]
    assert answer.text.endswith("w399")
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("endless", [{"content": "and so on"}, {"thinking": "and so on"}])
async def test_what_does_not_end_by_itself_is_cut(endless: dict[str, Any]) -> None:  # W6
    server = Server([{"message": endless, "done": False}] * 30)  # which breaks off without its last line
    answer = (await events_of(server, replace(REQUEST, max_tokens=10)))[-1]
    assert answer.finish_reason == "length"


async def test_calls_that_do_not_end_are_cut() -> None:  # W6
    call = {"function": {"name": "look", "arguments": {"city": "and so on"}}}
    server = Server([{"message": {"tool_calls": [call]}, "done": False}] * 30)
    with pytest.raises(ModelFailed, match="the answer was cut within a tool call"):
        await events_of(server, replace(REQUEST, max_tokens=10))


async def test_a_result_has_the_name_of_its_own_tool_where_ids_come_again() -> None:  # C1, W6
    turns = [
        Message("assistant", "", tool_calls=(ToolCall("call-1", "look", {"city": "Rome"}),)),
        Message("tool", "{}", tool_call_id="call-1"),
        Message("assistant", "", tool_calls=(ToolCall("call-1", "book", {"city": "Rome"}),)),
        Message("tool", "{}", tool_call_id="call-1"),
    ]
    server = Server([{"message": {"content": "Booked."}, "done": True}])
    await events_of(server, replace(REQUEST, messages=turns))
    names = [message.get("tool_name") for message in server.bodies[0]["messages"]]
    assert names == [None, "look", None, "book"]


@pytest.mark.parametrize(
    ("lines", "status", "reason"),
    [
        ([{"message": {"content": "cut"}, "done": False}], 200, "unreachable"),
        ([{"message": 7}], 200, "unusable_answer"),
        ([{"error": "no such model"}], 200, "refused"),
        ([], 404, "refused"),
        ([{"message": {"content": "moved"}, "done": True}], 307, "refused"),
        ([], 503, "unreachable"),
        ([], 429, "too_many_calls"),
    ],
)
async def test_what_goes_wrong_is_named(lines: list[Any], status: int, reason: str) -> None:  # W6
    with pytest.raises(ModelFailed) as failed:
        await events_of(Server(lines, status))
    assert failed.value.reason == reason
