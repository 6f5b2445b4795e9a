"""What goes through to OpenAI's own kind of server, and comes back: all of it."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import orjson
import pytest

from adapters.models.fake_http import Received
from tests.adapters.models.exact_server import ExactServer, Reply
from tests.channels.gateway.corpus import pairs
from tests.channels.gateway.gateway_world import (
    CHUNKS,
    HELLO,
    chunk,
    completion,
    either,
    events_of,
    gateway,
    plain,
    stream,
)

pytestmark = pytest.mark.anyio


def test_the_corpus_is_large_enough() -> None:
    assert len(list(pairs())) >= 120


@pytest.mark.parametrize("kind", ["openai", "vllm", "gemini"])
async def test_every_field_goes_through_in_both_directions(kind: str, tmp_path: Path) -> None:  # W6
    waiting: deque[Reply] = deque()
    async with (
        ExactServer(lambda _: waiting.popleft()).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1", "kind": kind, "aliases": {"alias": "m"}}) as world,
    ):
        for number, (fields, answer) in enumerate(list(pairs())[:: 1 if kind == "openai" else 5]):
            waiting.append(stream(*answer) if isinstance(answer, tuple) else plain(answer))
            body: dict[str, Any] = {"model": "m" if number % 2 else "alias", "messages": HELLO, **fields}
            status, content = await world.quick(**body)
            assert status == 200, content
            sent = dict(server.requests[-1].body)
            if fields.get("stream"):
                assert sent.pop("stream_options") == {"include_usage": True}
                *datas, done = events_of(content)
                assert done == b"[DONE]"
                assert [orjson.loads(data) for data in datas] == list(answer)
            else:
                assert json.loads(content) == answer
            assert orjson.loads(orjson.dumps(sent)) == orjson.loads(orjson.dumps({**body, "model": "m"}))


async def test_bytes_that_nothing_is_changed_in_are_the_same_bytes(tmp_path: Path) -> None:  # W6
    raw = (
        b'{ "messages":[{"role":"user","content":"\\ud83d lone"}], "model":"m","seed":123456789012345678901 }'
    )
    answer = b'{"choices": [{"index":0,"message":{"content":"\\udc00"},"finish_reason":"stop"}],  "n": 1.50}'
    async with (
        ExactServer(lambda _: Reply([answer[:20], answer[20:]])).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1", "key_env": "SECRET"}) as world,
    ):
        reply = await world.http.post(
            "/v1/chat/completions", content=raw, headers={"Authorization": "Bearer client"}
        )
        assert reply.content == answer
        assert server.requests[0].raw == raw
        assert server.requests[0].headers["authorization"] == "Bearer sk-upstream"


USAGE = {**chunk({}), "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}


@pytest.mark.parametrize(
    ("options", "shown"),
    [(None, False), ({"include_usage": False}, False), ({"include_usage": True}, True), ({}, False)],
)
async def test_the_usage_chunk_is_for_those_who_asked(
    options: Any, shown: bool, tmp_path: Path
) -> None:  # W9
    async with (
        ExactServer(either(chunks=(*CHUNKS, USAGE))).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        more = {} if options is None else {"stream_options": options}
        got = await world.streamed(**more)
        assert [orjson.loads(data) for data in got[:-1]] == [*CHUNKS, *([USAGE] if shown else [])]
        assert server.requests[0].body["stream_options"]["include_usage"] is True


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b"", 400, None),
        (b'{"model": "m"}', 400, "messages"),
        (b'{"model": "m", "messages": []}', 400, "messages"),
        (b'{"model": "m", "messages": "hi"}', 400, "messages"),
        (b'{"model": "m", "messages": [1]}', 400, "messages"),
        (b'{"messages": [{"role": "user", "content": "x"}]}', 400, "model"),
        (b'{"model": 3, "messages": [{"role": "user", "content": "x"}]}', 400, "model"),
        (b'{"model": "m", "temperature": NaN, "messages": [{}]}', 400, None),
        (b'{"model": "m", "messages": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", 400, None),
        (b'{"model": "none", "messages": [{"role": "user", "content": "x"}]}', 404, "model"),
        (b"\xff\xfe\x00", 400, None),
    ],
)
async def test_a_body_that_cannot_be_meant_is_refused_before_anybody_is_asked(
    body: bytes, status: int, param: str | None, tmp_path: Path
) -> None:
    async with (
        ExactServer(either()).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        reply = await world.http.post("/v1/chat/completions", content=body)
        assert reply.status_code == status
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert reply.json()["error"]["param"] == param
        assert (reply.json()["error"]["code"] == "model_not_found") == (status == 404)
        assert server.requests == []


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("status", "body", "shown", "message"),
    [
        (400, {"error": {"message": "bad", "type": "t", "param": "p", "code": "c", "extra": 1}}, 400, "bad"),
        (404, {"error": {"message": "gone", "code": 404}}, 404, "gone"),
        (422, {"detail": "what"}, 422, None),
        (422, [{"error": {"message": "a list", "status": "X"}}], 422, "a list"),
        (429, {"error": {"message": "slow", "type": "tokens"}}, 429, "slow"),
        (400, {"object": "error", "message": "older", "code": 40001}, 400, "older"),
        (400, {"error": "only text"}, 400, "only text"),
        (401, {"error": {"message": "the operator's key"}}, 502, None),
        (403, {}, 502, None),
        (413, {}, 502, None),
        (302, {}, 502, None),
        (500, {"error": {"message": "boom"}}, 502, None),
        (503, {}, 503, None),
        (504, {}, 504, None),
    ],
)
async def test_errors_of_a_backend_keep_what_concerns_the_client(
    status: int, body: Any, shown: int, message: str | None, streams: bool, tmp_path: Path
) -> None:
    def script(_: Received) -> Reply:
        return plain(body, status=status, headers={"Retry-After": "7"})

    async with (
        ExactServer(script).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        reply = await world.chat(stream=streams)
        assert reply.status_code == shown
        error = reply.json()["error"]
        assert message in (None, error["message"])
        if isinstance(body, dict) and shown == status and isinstance(body.get("error"), dict):
            assert error == body["error"]
        if status in (429, 503):
            assert reply.headers["retry-after"] == "7"
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply([b'{"choices": [{"mess']),
        Reply([orjson.dumps(completion())], cut=True),
        Reply([b"[]"]),
        Reply([b"<html>"]),
        Reply([]),
        Reply([b"\x1f\x8b"], headers={"Content-Encoding": "gzip"}),
        None,
    ],
)
async def test_a_plain_answer_that_is_cut_is_an_error(reply: Reply | None, tmp_path: Path) -> None:  # W9
    async with (
        ExactServer(lambda _: reply).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        answer = await world.chat(temperature=0)
        assert answer.status_code == 502
        assert answer.json()["error"]["type"] == "upstream_error"
        assert (await world.chat(temperature=0)).status_code == 502  # W7: an error is not kept
        assert len(server.requests) == 2


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    "odd",
    [
        {"usage": "lots"},
        {"usage": [1]},
        {"choices": [None]},
        {"choices": ["a"]},
        {"choices": "a"},
        {"choices": [{"index": 0, "message": "hello", "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "delta": "hello", "finish_reason": "stop"}]},
        {"choices": [{"index": [0], "message": {}, "finish_reason": {}}]},
    ],
)
async def test_an_answer_of_an_odd_shape_goes_through_as_it_came(
    odd: dict[str, Any], temperature: int, tmp_path: Path
) -> None:  # W6, W9
    answer = {**completion(), **odd}
    async with (
        ExactServer(either(answer, (answer,))).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        reply = await world.chat(temperature=temperature)
        assert (reply.status_code, reply.json()) == (200, answer)
        assert await world.streamed(temperature=temperature) == [orjson.dumps(answer), b"[DONE]"]


async def test_models_are_those_of_the_table(tmp_path: Path) -> None:  # W9
    spare = {"url": "http://127.0.0.1:9/v1", "models": ["spare/x"], "weight": 0}
    first = {"url": "http://127.0.0.1:9/v1", "models": ["org/m", "m"], "aliases": {"small": "m"}}
    async with gateway(tmp_path, first, spare) as world:
        listed = (await world.http.get("/v1/models")).json()
        assert {each["id"] for each in listed["data"]} == {"org/m", "m", "small"}
        assert (await world.http.get("/v1/models/org/m")).json()["owned_by"] == "b0"
        assert (await world.http.get("/v1/models/spare/x")).status_code == 404
        error = (await world.http.get("/v1/nothing")).json()["error"]
        assert error["code"] == "path_unknown"
        assert error["message"].startswith(
            "there is nothing at /v1/nothing; there are: /v1/chat/completions,"
        )
        assert (await world.http.get("/health/ready")).status_code == 200
