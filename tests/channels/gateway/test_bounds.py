"""What is bounded and kept apart: budgets, weights, bodies, silence, shared calls, logs and labels."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from prometheus_client import CollectorRegistry

from adapters.models.fake_http import Received
from api.auth import Keyring
from channels.gateway.accounts import Books, Metrics
from channels.gateway.config import Backend, Budget, GatewaySettings
from channels.gateway.database import GatewayDatabase
from channels.gateway.routing import Breaker, Routing, Server
from channels.gateway.upstreams import OpenAiUpstream, Wire
from channels.gateway.usage import UsageRecord, UsageRecords
from channels.gateway.wire import ApiError, read_request
from flow_engine.ports.telemetry import Untraced
from tests.adapters.models.exact_server import ExactServer, Reply
from tests.channels.gateway.fake_ollama import FakeOllama, OllamaAnswer
from tests.channels.gateway.gateway_world import (
    CHUNKS,
    completion,
    either,
    events_of,
    gateway,
    plain,
    stream,
)

pytestmark = pytest.mark.anyio

COLD: dict[str, Any] = {"temperature": 0}


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:  # W7
    assert (GatewaySettings().gateway_cache, GatewaySettings().gateway_cache_ttl_s) == ("strict", 3600)
    for name, value in (("CACHE", "final"), ("CACHE_TTL_S", "5"), ("HEARTBEAT_S", "2"), ("USAGE_DAYS", "7")):
        monkeypatch.setenv(f"FLOW_ENGINE_GATEWAY_{name}", value)
    read = GatewaySettings()
    assert (read.gateway_cache, read.gateway_cache_ttl_s) == ("final", 5)
    assert (read.gateway_heartbeat_s, read.gateway_usage_days) == (2, 7)
    monkeypatch.setenv("FLOW_ENGINE_GATEWAY_CACHE", "loose")
    with pytest.raises(ValueError, match="'off', 'strict' or 'final'"):
        GatewaySettings()


# Budgets -----------------------------------------------------------------------------------------------


def books(tmp_path: Path, clock: Any, *budgets: dict[str, Any]) -> tuple[Books, UsageRecords]:
    usage = UsageRecords(GatewayDatabase(tmp_path / "g.db"), 10, clock)
    parsed = [Budget.model_validate(budget) for budget in budgets]
    return Books(parsed, usage, Metrics(CollectorRegistry()), Untraced(), clock), usage


def refused(books: Books, tenant: str, key: str) -> int:
    """The seconds of `Retry-After`; 0 where the request is admitted."""
    try:
        books.admit(tenant, key)
    except ApiError as error:
        return int(error.headers["Retry-After"]) if error.status == 429 else -1
    return 0


def test_a_minute_s_requests_begin_anew_with_the_minute(tmp_path: Path) -> None:
    now = 600.0
    kept, _ = books(tmp_path, lambda: now, {"key": "k", "requests_per_minute": 2})
    assert [refused(kept, "t", "k") for _ in range(4)] == [0, 0, 61, 61]
    assert refused(kept, "t", "another") == 0
    now = 659.5
    assert refused(kept, "t", "k") == 1
    now = 660.0
    assert [refused(kept, "t", "k") for _ in range(3)] == [0, 0, 61]


def test_a_clock_that_is_put_back_refuses_nobody_until_it_has_caught_up(tmp_path: Path) -> None:
    now = 7200.0
    kept, _ = books(tmp_path, lambda: now, {"key": "k", "requests_per_minute": 1})
    assert [refused(kept, "t", "k") for _ in range(2)] == [0, 61]
    now = 3630.0
    assert [refused(kept, "t", "k") for _ in range(2)] == [0, 31]


def test_a_budget_of_a_tenant_is_not_that_of_its_neighbour(tmp_path: Path) -> None:  # F43
    kept, _ = books(
        tmp_path,
        lambda: 0.0,
        {"key": "k", "tenant": "a", "requests_per_minute": 1},
        {"key": "k", "tenant": "b", "requests_per_minute": 2},
    )
    assert [refused(kept, "a", "k") > 0 for _ in range(2)] == [False, True]
    assert [refused(kept, "b", "k") > 0 for _ in range(3)] == [False, False, True]
    assert [refused(kept, "c", "k") for _ in range(3)] == [0, 0, 0]


def test_a_day_s_money_begins_anew_at_midnight(tmp_path: Path) -> None:
    now = 86_400.0 * 2 - 10
    kept, usage = books(tmp_path, lambda: now, {"key": "k", "usd_per_day": 1.5})
    for _ in range(2):
        assert refused(kept, "t", "k") == 0
        usage.add(UsageRecord(now, "t", "k", "chat", "b", "m", "ok", None, 1, 1, 0.75, 1, 1))
    assert refused(kept, "t", "k") == 11
    now += 10
    assert refused(kept, "t", "k") == 0


# Routes ------------------------------------------------------------------------------------------------


def table(draws: list[float], **weights: float) -> Routing:
    servers: list[Server] = []
    for name, weight in weights.items():
        backend = Backend(name=name, kind="openai", url="http://h/v1", models=("m",), weight=weight)
        servers.append(Server(backend, OpenAiUpstream(Wire(backend, None)), Breaker(20)))
    return Routing(servers, lambda: draws.pop(0))


def test_a_backend_is_drawn_by_its_weight() -> None:
    draws = [step / 100 for step in range(100)]
    routing = table(draws, one=1, spare=0, three=3)
    request = read_request(b'{"model": "m", "messages": [{}]}', needs="messages")
    drawn = Counter(routing.route(request, "chat").servers[0].backend.name for _ in range(100))
    assert drawn == {"one": 25, "three": 75}


async def test_a_fallback_that_cannot_do_it_is_passed_over(tmp_path: Path) -> None:  # W6, W9
    async with (
        ExactServer(lambda _: plain({}, status=500)).running() as one,
        FakeOllama([OllamaAnswer("Hi")]).running() as ollama,
        ExactServer(either()).running() as three,
        gateway(
            tmp_path,
            {"url": f"{one.origin}/v1", "fallbacks": ["b1", "b2"]},
            {"url": ollama.origin, "kind": "ollama", "weight": 0},
            {"url": f"{three.origin}/v1", "weight": 0},
        ) as world,
    ):
        assert (await world.chat(n=2)).status_code == 200
        assert (len(one.requests), len(ollama.requests), len(three.requests)) == (1, 0, 1)
        assert (await world.chat()).json()["choices"][0]["message"]["content"] == "Hi"


async def test_the_last_failure_is_the_one_that_is_answered(tmp_path: Path) -> None:  # W9
    busy = plain({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "9"})
    async with (
        ExactServer(lambda _: plain({}, status=500)).running() as one,
        ExactServer(lambda _: busy).running() as two,
        gateway(
            tmp_path,
            {"url": f"{one.origin}/v1", "fallbacks": ["b1"]},
            {"url": f"{two.origin}/v1", "weight": 0},
        ) as world,
    ):
        reply = await world.chat()
        assert (reply.status_code, reply.json()["error"]["message"]) == (429, "slow down")
        assert reply.headers["retry-after"] == "9"


async def test_a_stream_that_falls_silent_ends_in_an_error(tmp_path: Path) -> None:  # W9
    stalls = Reply([*stream(CHUNKS[1]).pieces[:1], b""], content_type="text/event-stream", pause_s=0.1)
    async with (
        ExactServer(lambda _: Reply([*stalls.pieces, b"", b"", b""], pause_s=0.12)).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1", "timeout_s": 0.2}) as world,
    ):
        first, last = events_of((await world.quick(stream=True))[1])
        assert orjson.loads(first) == CHUNKS[1]
        assert "silent for 0.2 s" in orjson.loads(last)["error"]["message"]


@pytest.mark.parametrize("streams", [False, True])
async def test_an_error_that_trickles_in_is_late(streams: bool, tmp_path: Path) -> None:  # W9
    trickling = Reply([b"", *[b"x"] * 40], status=500, pause_s=0.05)
    async with (
        ExactServer(lambda _: trickling).running() as one,
        ExactServer(either()).running() as two,
        gateway(
            tmp_path,
            {"url": f"{one.origin}/v1", "timeout_s": 0.3, "fallbacks": ["b1"]},
            {"url": f"{two.origin}/v1", "weight": 0},
        ) as world,
    ):
        began = time.monotonic()
        assert (await world.quick(stream=streams))[0] == 200
        assert time.monotonic() - began < 1.5


async def test_embeddings_go_through_as_they_came(tmp_path: Path) -> None:  # W6
    answer = b'{"object":"list", "data":[{"embedding":[1e-9, 0.10],"index":0}],"x":12345678901234567890}'
    async with (
        ExactServer(lambda _: Reply([answer])).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1", "kind": "gemini", "key_env": "SECRET"}) as world,
    ):
        raw = b'{"model":"m", "input":[[1,2],[3]], "dimensions":2,"extra":{"a":null}}'
        reply = await world.http.post("/v1/embeddings", content=raw)
        assert (reply.content, reply.headers["x-cache"]) == (answer, "bypass")
        assert (server.requests[0].path, server.requests[0].raw) == ("/v1/embeddings", raw)
        assert server.requests[0].headers["authorization"] == "Bearer sk-upstream"


async def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, {"url": "http://127.0.0.1:9/v1"}) as world:
        reply = await world.http.post("/v1/chat/completions", content=b" " * (33 * 1024 * 1024))
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize("item", [b"1", b"[[[]]]", b'{"a":{}}'])
async def test_a_body_of_too_many_values_is_refused_before_it_is_read(tmp_path: Path, item: bytes) -> None:
    values = b",".join([item] * 400_000)
    async with gateway(tmp_path, {"url": "http://127.0.0.1:9/v1"}) as world:
        few = await world.http.post("/v1/embeddings", content=b'{"input":[1,2]}')
        many = await world.http.post("/v1/embeddings", content=b'{"input":[%s,%s]}' % (values, values))
    assert (few.status_code, few.json()["error"]["code"]) == (400, "model_missing")
    assert (many.status_code, many.json()["error"]["code"]) == (413, "too_many_values")


# The cache ---------------------------------------------------------------------------------------------


async def test_an_entry_has_its_age_and_another_process_finds_it(tmp_path: Path) -> None:  # W7
    async with ExactServer(either()).running() as server:
        backend = {"url": f"{server.origin}/v1"}
        async with gateway(tmp_path, backend) as one, gateway(tmp_path, backend) as two:
            await one.chat(**COLD)
            async with asyncio.timeout(30):
                while not sqlite_rows(tmp_path, "SELECT 1 FROM response_cache"):
                    await asyncio.sleep(0.02)
            sqlite_rows(tmp_path, "UPDATE response_cache SET created_at = created_at - 90")
            far = await two.chat(**COLD)
            assert far.headers["x-cache"] == "hit-l2"
            assert 90 <= int(far.headers["age"]) <= 95
            near = await two.chat(**COLD)
            assert (near.headers["x-cache"], near.headers["age"]) == ("hit-l1", far.headers["age"])
            only = await two.chat({"Cache-Control": "only-if-cached"}, **COLD)
            assert (only.status_code, only.headers["x-cache"]) == (200, "hit-l1")
    assert len(server.requests) == 1


def sqlite_rows(folder: Path, statement: str) -> list[Any]:
    database = sqlite3.connect(folder / "gateway.db")
    try:
        with database:
            return database.execute(statement).fetchall()
    finally:
        database.close()


@pytest.mark.parametrize("streams", [False, True])
async def test_a_shared_call_that_fails_fails_for_all_and_is_not_kept(streams: bool, tmp_path: Path) -> None:
    # W7
    failing = Reply([b"", b"{}"], status=500, pause_s=0.1)
    async with (
        ExactServer(lambda _: failing).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        replies = await asyncio.gather(*(world.quick(stream=streams, **COLD) for _ in range(20)))
        assert [status for status, _ in replies] == [502] * 20
        assert len({content for _, content in replies}) == 1
        assert len(server.requests) == 1
        await world.quick(stream=streams, **COLD)
        assert len(server.requests) == 2


async def test_those_who_do_not_share_are_not_kept_waiting(tmp_path: Path) -> None:  # W7
    slow = Reply([b"", *plain(completion()).pieces], pause_s=0.1)
    async with (
        ExactServer(lambda _: slow).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        replies = await asyncio.gather(
            world.chat(**COLD),
            world.chat({"Cache-Control": "no-store"}, **COLD),
            world.chat({"Cache-Control": "no-cache"}, **COLD),
            world.chat(temperature=0, seed=1),
            world.chat(temperature=0.5),
            world.chat(temperature=0.5),
        )
        assert [reply.headers["x-cache"] for reply in replies] == [
            *("miss", "bypass", "miss", "miss", "bypass", "bypass")
        ]
        assert len(server.requests) == 6


async def test_a_shared_stream_gets_comments_too(tmp_path: Path) -> None:  # W9
    slow = Reply(stream(*CHUNKS[:2]).pieces, content_type="text/event-stream", pause_s=0.18)
    async with (
        ExactServer(lambda _: slow).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}, gateway_heartbeat_s=0.05) as world,
    ):
        began = time.monotonic()
        (_, one), (_, two) = await asyncio.gather(*(world.quick(stream=True, **COLD) for _ in range(2)))
        most = (time.monotonic() - began) / 0.05
        for content in (one, two):
            assert 2 <= content.count(b": waiting\n\n") <= most
            assert events_of(content)[-1] == b"[DONE]"
        assert len(server.requests) == 1


# What is told ------------------------------------------------------------------------------------------


async def test_neither_logs_nor_labels_hold_what_a_client_wrote(tmp_path: Path) -> None:  # F43
    key = {"key": "a-key-that-nobody-may-read", "name": "bridge", "tenant": "t", "scopes": ["gateway"]}
    ring = Keyring.parse(orjson.dumps({"keys": [key]}))
    headers = {"Authorization": f"Bearer {key['key']}"}

    def script(got: Received) -> Reply:
        status = 500 if got.body.get("user") else 200
        return plain(completion("answer-of-the-model"), status=status)

    with structlog.testing.capture_logs() as logs:
        async with (
            ExactServer(script).running() as server,
            gateway(
                tmp_path, {"url": f"{server.origin}/v1", "key_env": "SECRET"}, authenticator=ring
            ) as world,
        ):
            secret = [{"role": "user", "content": "words-of-the-client"}]
            await world.chat(headers, messages=secret)
            await world.chat(headers, messages=secret, user="somebody")
            await world.chat(headers, model="model-of-the-client")
            await world.chat({"Authorization": "Bearer wrong-key-of-a-stranger"})
            metrics = (await world.http.get("/metrics")).text
    assert [(each["event"], each["key"], each["outcome"]) for each in logs if "key" in each] == [
        ("gateway_call", "bridge", "ok"),
        ("gateway_call", "bridge", "failed"),
    ]
    for shown in (str(logs), metrics):
        for text in ("words-of", "answer-of", "model-of", "somebody", "nobody-may-read", "stranger", "sk-up"):
            assert text not in shown


@pytest.mark.parametrize(
    ("code", "told"),
    [
        *(("context_length_exceeded", "context_length_exceeded"), (400, "400"), (None, "400"), ({}, "400")),
        *(("words of somebody", "400"), ("x" * 65, "400"), ("a\ud800", "400")),
    ],
)
async def test_a_backend_s_code_is_told_where_it_is_one(code: Any, told: str, tmp_path: Path) -> None:
    """F46: what a backend writes there is a label of metrics, a log line and a row."""
    refusal = Reply([json.dumps({"error": {"message": "no", "code": code}}).encode()], status=400)
    async with (
        ExactServer(lambda _: refusal).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        reply = await world.http.post("/v1/chat/completions", json={"model": "m", "messages": [{}]})
        assert json.loads(reply.content)["error"]["code"] == code
        metrics = (await world.http.get("/metrics")).text
    labels = re.findall(r'operation_duration_seconds_count\{error_type="([^"]*)"', metrics)
    assert labels == [told]
    assert sqlite_rows(tmp_path, "SELECT error FROM usage_records") == [(told,)]


async def test_several_answers_and_tool_calls_decide_together_what_is_kept(tmp_path: Path) -> None:  # W7
    async def kept(*choices: dict[str, Any]) -> bool:
        answer = {**completion(), "choices": list(choices)}
        async with (
            ExactServer(lambda _: plain(answer)).running() as server,
            gateway(tmp_path / str(len(choices)), {"url": f"{server.origin}/v1"}) as world,
        ):
            outcomes = [
                (await world.chat(temperature=0, n=len(choices), x=str(choices))).headers["x-cache"]
                for _ in range(2)
            ]
            return outcomes == ["miss", "hit-l1"]

    whole = completion()["choices"][0]
    assert await kept(whole, {**whole, "index": 1})
    assert not await kept(whole, {**whole, "index": 1, "finish_reason": "length"})
    assert not await kept(whole, {**whole, "index": 1, "finish_reason": None})
