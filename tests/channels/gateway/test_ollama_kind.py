"""Ollama's own API behind OpenAI's: what is translated, and what is refused before it is asked."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from tests.adapters.models.exact_server import ExactServer
from tests.channels.gateway.fake_ollama import FakeOllama, OllamaAnswer, OllamaCut, OllamaError
from tests.channels.gateway.gateway_world import HELLO, gateway, plain

pytestmark = pytest.mark.anyio

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, {"options": {"num_ctx": 2048}, "keep_alive": "5m", "stream": False}),
        ({"max_tokens": 7}, {"options": {"num_ctx": 2048, "num_predict": 7}}),
        ({"max_tokens": 7, "max_completion_tokens": 9}, {"options": {"num_ctx": 2048, "num_predict": 9}}),
        (
            {"temperature": 0, "top_p": 0.5, "seed": 3, "stop": "x"},
            {"options": {"num_ctx": 2048, "temperature": 0, "top_p": 0.5, "seed": 3, "stop": ["x"]}},
        ),
        (
            {"stop": ["a", "b"], "frequency_penalty": 0.1, "presence_penalty": -1},
            {
                "options": {
                    "num_ctx": 2048,
                    "stop": ["a", "b"],
                    "frequency_penalty": 0.1,
                    "presence_penalty": -1,
                }
            },
        ),
        ({"num_ctx": 8192, "keep_alive": 0}, {"options": {"num_ctx": 8192}, "keep_alive": 0}),
        ({"response_format": {"type": "json_object"}}, {"format": "json"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}},
            {"format": {"type": "array"}},
        ),
        ({"tools": [WEATHER], "tool_choice": "auto"}, {"tools": [WEATHER]}),
        ({"tools": [WEATHER], "tool_choice": "none"}, {"tools": None}),
        ({"reasoning_effort": "low"}, {"think": "low"}),
        ({"reasoning_effort": "none"}, {"think": False}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"user": "u", "metadata": {"a": "b"}, "n": 1, "logit_bias": {}}, {"user": None, "n": None}),
        (
            {
                "messages": [
                    {"role": "developer", "content": "D"},
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "T"},
                            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                        ],
                    },
                ]
            },
            {
                "messages": [
                    {"role": "system", "content": "D"},
                    {"role": "user", "content": "T", "images": ["AAAA"]},
                ]
            },
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": None,
                        "reasoning_content": "Hm",
                        "tool_calls": [
                            {
                                "id": "c7",
                                "type": "function",
                                "function": {"name": "w", "arguments": '{"a":1}'},
                            }
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c7", "content": "20"},
                ]
            },
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": "",
                        "thinking": "Hm",
                        "tool_calls": [{"id": "c7", "function": {"name": "w", "arguments": {"a": 1}}}],
                    },
                    {"role": "tool", "content": "20", "tool_name": "w"},
                ]
            },
        ),
    ],
)
async def test_a_request_is_translated(
    fields: Mapping[str, Any], sent: Mapping[str, Any], tmp_path: Path
) -> None:  # W6
    async with (
        FakeOllama([OllamaAnswer("Hi")]).running() as server,
        gateway(
            tmp_path,
            {
                "url": server.origin,
                "kind": "ollama",
                "num_ctx": 2048,
                "keep_alive": "5m",
                "aliases": {"a": "m"},
            },
        ) as world,
    ):
        assert (await world.chat(**{"model": "a", **fields})).status_code == 200
        body = server.requests[0].body
        assert (server.requests[0].path, body["model"]) == ("/api/chat", "m")
        assert {name: body.get(name) for name in sent} == sent


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "w"}}}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}
                ]
            },
            "messages",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": ["one"]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, "two"]}]}, "messages"),
        ({"messages": [{"role": "user", "content": {"type": "text", "text": "one"}}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": False}]}, "messages"),
        ({"options": "num_ctx"}, "options"),
        ({"options": ["num_ctx"]}, "options"),
    ],
)
async def test_what_ollama_cannot_do_is_refused_before_it_is_asked(
    fields: Mapping[str, Any], param: str, streams: bool, tmp_path: Path
) -> None:  # W6
    async with (
        FakeOllama([OllamaAnswer("Hi")]).running() as server,
        gateway(tmp_path, {"url": server.origin, "kind": "ollama"}) as world,
    ):
        reply = await world.chat(stream=streams, **fields)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (400, "unsupported", param)
        assert server.requests == []


@pytest.mark.parametrize(
    ("messages"),
    [
        [{"role": "tool", "tool_call_id": "nobody", "content": "x"}],
        [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1]"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
    ],
)
async def test_messages_that_cannot_be_translated_are_refused(messages: Any, tmp_path: Path) -> None:  # W6
    async with gateway(tmp_path, {"url": "http://127.0.0.1:9", "kind": "ollama"}) as world:
        reply = await world.chat(messages=messages)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages")


CALL = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
BEFORE = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "w", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "x"},
]


async def test_an_answer_is_translated_whole_and_streamed(tmp_path: Path) -> None:  # W6
    step = OllamaAnswer("It rains", "Let me see", [CALL, {"id": "own", **CALL}, CALL])
    async with (
        FakeOllama([step]).running() as server,
        gateway(tmp_path, {"url": server.origin, "kind": "ollama"}) as world,
    ):
        client = world.openai()
        messages: Any = [*HELLO, *BEFORE]
        whole = await client.chat.completions.create(model="m", messages=messages)
        choice = whole.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "It rains")
        assert choice.message.model_extra == {"reasoning_content": "Let me see"}
        calls = choice.message.tool_calls or []
        assert [call.id for call in calls] == ["call_2", "own", "call_3"]
        assert orjson.loads(calls[0].function.arguments) == {"city": "Rome"}  # type: ignore[union-attr]
        assert whole.usage is not None
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0
        async with client.chat.completions.stream(
            model="m", messages=messages, stream_options={"include_usage": True}
        ) as streamed:
            final = await streamed.get_final_completion()
        assert final.choices[0].message.content == "It rains"
        assert [call.id for call in final.choices[0].message.tool_calls or []] == [call.id for call in calls]
        assert final.choices[0].finish_reason == "tool_calls"
        assert final.usage == whole.usage


@pytest.mark.parametrize(("reason", "finish"), [("stop", "stop"), ("length", "length"), ("load", "stop")])
async def test_why_an_answer_ended(reason: str, finish: str, tmp_path: Path) -> None:  # W6
    logprobs = {"logprobs": [{"token": "H", "logprob": -0.1, "top_logprobs": []}]}
    async with (
        FakeOllama([OllamaAnswer("Hi", done_reason=reason, more=logprobs)]).running() as server,
        gateway(tmp_path, {"url": server.origin, "kind": "ollama"}) as world,
    ):
        choice = (await world.chat()).json()["choices"][0]
        assert choice["finish_reason"] == finish
        assert choice["logprobs"]["content"] == logprobs["logprobs"]
        *chunks, done = await world.streamed()
        assert done == b"[DONE]"
        assert orjson.loads(chunks[-1])["choices"][0]["finish_reason"] == finish
        assert all(orjson.loads(each)["choices"] for each in chunks)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    "odd",
    [
        {"message": "str"},
        {"message": ["a"]},
        {"message": {"content": 5}},
        {"message": {"content": "x", "thinking": ["y"]}},
        {"message": {"tool_calls": [{"function": "f"}]}},
        {"message": {"tool_calls": ["f"]}},
        {"message": {"tool_calls": "f"}},
    ],
)
async def test_an_answer_that_cannot_be_translated_goes_on_to_the_fallback(
    odd: Mapping[str, Any], temperature: int, tmp_path: Path
) -> None:  # W6
    body = plain({"model": "m", "done": True, **odd})
    async with (
        ExactServer(lambda _: body).running() as server,
        FakeOllama(lambda _: OllamaAnswer("Hi")).running() as spare,
        gateway(
            tmp_path,
            {"url": server.origin, "kind": "ollama", "fallbacks": ["b1"]},
            {"url": spare.origin, "kind": "ollama", "weight": 0},
            {"url": server.origin, "kind": "ollama", "models": ["alone"]},
        ) as world,
    ):
        reply = await world.chat(temperature=temperature)
        assert reply.json()["choices"][0]["message"]["content"] == "Hi"
        assert (await world.streamed(temperature=temperature))[-1] == b"[DONE]"
        for streams in (False, True):
            alone = await world.chat(model="alone", stream=streams, temperature=temperature)
            assert (alone.status_code, alone.json()["error"]["code"]) == (502, "upstream_failed")


async def test_counts_that_are_none_are_no_tokens(tmp_path: Path) -> None:  # W6
    odd = {"prompt_eval_count": ["x"], "eval_count": "x"}
    async with (
        FakeOllama(lambda _: OllamaAnswer("Hi", more=odd)).running() as server,
        gateway(tmp_path, {"url": server.origin, "kind": "ollama"}) as world,
    ):
        assert (await world.chat()).json()["usage"]["total_tokens"] == 0
        assert (await world.streamed())[-1] == b"[DONE]"


@pytest.mark.parametrize("vectors", ["x", ["x"], [["x"]], [[None]], [[1e300]], None])
async def test_embeddings_that_are_none_are_a_failure_of_the_backend(
    vectors: Any, tmp_path: Path
) -> None:  # W6
    async with (
        ExactServer(lambda _: plain({"embeddings": vectors})).running() as server,
        gateway(tmp_path, {"url": server.origin, "kind": "ollama"}) as world,
    ):
        body = {"model": "m", "input": "a", "encoding_format": "base64"}
        reply = await world.http.post("/v1/embeddings", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_failed")


async def test_embeddings_as_numbers_and_as_base64(tmp_path: Path) -> None:  # W6
    async with (
        FakeOllama([OllamaAnswer()]).running() as server,
        gateway(tmp_path, {"url": server.origin, "kind": "ollama"}) as world,
    ):
        body = {"model": "m", "input": ["a b", "c"], "dimensions": 8}
        numbers = (await world.http.post("/v1/embeddings", json=body)).json()
        packed = (await world.http.post("/v1/embeddings", json={**body, "encoding_format": "base64"})).json()
        for one, other in zip(numbers["data"], packed["data"], strict=True):
            assert list(struct.unpack("<8f", base64.b64decode(other["embedding"]))) == one["embedding"]
        assert server.requests[0].path == "/api/embed"
        asked = await world.openai().embeddings.create(model="m", input="a b")
        assert (len(asked.data[0].embedding), sum(asked.data[0].embedding)) == (64, 2.0)
        refused = await world.http.post("/v1/embeddings", json={"model": "m", "input": [[1, 2]]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


async def test_ollama_s_errors_are_openai_s(tmp_path: Path) -> None:  # W6
    steps = [OllamaError("model 'm' not found"), OllamaError("broke", 200, "He"), OllamaCut("He")]
    async with (
        FakeOllama(steps).running() as server,
        gateway(tmp_path, {"url": server.origin, "kind": "ollama"}) as world,
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            await world.openai().chat.completions.create(model="m", messages=list(HELLO))  # type: ignore[arg-type]
        assert missing.value.code == "model_not_found"
        for _ in range(2):
            *_, last = await world.streamed()
            assert "message" in orjson.loads(last)["error"]
